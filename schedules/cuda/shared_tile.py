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
    """``stages`` tiles of (rows or columns) × k, contiguous along k or along the other; rows are padded by 16 bytes."""

    buffer: Buffer
    along_k: bool

    def at(self, stage: Expr, mn: Expr, k: Expr, values: Values) -> tuple[Expr, ...]:
        """The indices of an element."""
        outer, inner = (mn, k) if self.along_k else (k, mn)
        return (stage, values.simplifier(outer), values.simplifier(inner))


def padded_tile(
    b: Builder, name: str, dtype: DType, stages: int, extent: int, depth: int, *, along_k: bool
) -> SharedTile:
    """A tile of ``extent`` × ``depth`` for each stage."""
    rows, columns = (extent, depth) if along_k else (depth, extent)
    pitch = columns + _PAD_BYTES // dtype.bytes
    buffer = b.allocate(name, dtype, (stages, rows, columns), Scope.SHARED, strides=(rows * pitch, pitch, 1))
    return SharedTile(buffer, along_k)


def padded_bytes(dtype: DType, stages: int, extent: int, depth: int, *, along_k: bool) -> int:
    """Shared memory that ``padded_tile`` takes."""
    rows, columns = (extent, depth) if along_k else (depth, extent)
    return stages * rows * (columns * dtype.bytes + _PAD_BYTES)
