"""Tiles of factors in shared memory, laid out so that neither writing nor reading them meets bank conflicts."""

from __future__ import annotations

from dataclasses import dataclass

from taskmap.ir.builder import Builder
from taskmap.ir.nodes import Buffer, Expr, Scope
from taskmap.ir.types import DType
from taskmap.schedules.values import Values

_PAD_BYTES = 16


@dataclass(frozen=True, slots=True)
class SharedTile:
    """``stages`` tiles, each of mn × k elements of a left factor or k × mn of a right one, contiguous along either."""

    buffer: Buffer
    along_k: bool
    is_left: bool

    def at(self, stage: Expr, mn: Expr, k: Expr, values: Values) -> tuple[Expr, ...]:
        """The indices of an element."""
        row, column = (mn, k) if self.is_left else (k, mn)
        return stage, values.simplifier(row), values.simplifier(column)

    def shape(self, mn: int, k: int) -> tuple[int, int, int]:
        """The extents of a part of a stage."""
        return (1, mn, k) if self.is_left else (1, k, mn)


def padded_tile(
    b: Builder, name: str, dtype: DType, stages: int, extent: int, depth: int, *, along_k: bool, is_left: bool
) -> SharedTile:
    """A tile of ``extent`` × ``depth`` for each stage. Lines of memory are padded by 16 bytes: eight lines, read
    at the same column, then use all banks."""
    lines, length = (extent, depth) if along_k else (depth, extent)
    pitch = length + _PAD_BYTES // dtype.bytes
    shape = (stages, extent, depth) if is_left else (stages, depth, extent)
    inner = (pitch, 1) if along_k == is_left else (1, pitch)
    buffer = b.allocate(name, dtype, shape, Scope.SHARED, strides=(lines * pitch, *inner))
    return SharedTile(buffer, along_k, is_left)


def padded_bytes(dtype: DType, stages: int, extent: int, depth: int, *, along_k: bool) -> int:
    """Shared memory that ``padded_tile`` takes."""
    lines, length = (extent, depth) if along_k else (depth, extent)
    return stages * lines * (length * dtype.bytes + _PAD_BYTES)
