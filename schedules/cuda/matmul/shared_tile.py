"""Operand tiles in shared memory, laid out so that neither writes nor reads cause bank conflicts.

swizzled    chunks of 16 bytes permuted within their line, by the line's number: eight lines read at one column,
            as ldmatrix does, use all banks, and so do eight chunks that are written side by side
padded      lines 16 bytes apart. For tiles read at constant steps from one address, as CUDA cores do: with a
            swizzle every read would compute its own address. Also for lines whose length is not a power of two.
"""

from __future__ import annotations

from dataclasses import dataclass

from taskmap.ir.builder import Builder
from taskmap.ir.nodes import Buffer, Expr, Scope
from taskmap.ir.types import DType
from taskmap.schedules.common.inline import Inliner

PAD_BYTES = 16
"""Between lines: eight lines, read at the same column, then use all banks."""
_CHUNK_BYTES = 16
_CHUNKS_OF_BANKS = 8
"""Chunks across all banks: 128 bytes."""


@dataclass(frozen=True, slots=True)
class SharedTile:
    """``stages`` tiles, each of mn × k elements of a left operand or k × mn of a right one, contiguous along either."""

    buffer: Buffer
    along_k: bool
    is_left: bool

    def at(self, stage: Expr, mn: Expr, k: Expr, values: Inliner) -> tuple[Expr, ...]:
        """The indices of an element."""
        row, column = (mn, k) if self.is_left else (k, mn)
        return stage, values.simplifier(row), values.simplifier(column)

    def shape(self, mn: int, k: int) -> tuple[int, int, int]:
        """The extents of a part of a stage."""
        return (1, mn, k) if self.is_left else (1, k, mn)


def swizzle_of(dtype: DType, length: int) -> tuple[int, int, int] | None:
    """The swizzle (``Layout.swizzled``) of lines of ``length`` elements; None if they are not a power of two of chunks.

    If all banks together hold several short lines, these lines already differ in their banks, so the number of such a
    group of lines permutes the chunks.
    """
    chunk = _CHUNK_BYTES // dtype.bytes
    chunks = length // chunk
    if length % chunk or chunks & (chunks - 1):
        return None
    places = chunks.bit_length() - 1
    bits = min(_CHUNKS_OF_BANKS.bit_length() - 1, places)
    return bits, chunk.bit_length() - 1, max(3, places)


def swizzled_bytes(dtype: DType, stages: int, extent: int, depth: int, *, along_k: bool) -> int:
    """Shared memory of tiles with swizzled lines if possible, else padded lines."""
    if swizzle_of(dtype, depth if along_k else extent) is None:
        return padded_bytes(dtype, stages, extent, depth, along_k=along_k)
    return stages * extent * depth * dtype.bytes


def padded_tile(
    b: Builder, name: str, dtype: DType, stages: int, extent: int, depth: int, *, along_k: bool, is_left: bool
) -> SharedTile:
    """A tile of ``extent`` × ``depth`` for each stage, with padded lines."""
    lines, length = (extent, depth) if along_k else (depth, extent)
    pitch = length + PAD_BYTES // dtype.bytes
    shape = (stages, extent, depth) if is_left else (stages, depth, extent)
    inner = (pitch, 1) if along_k == is_left else (1, pitch)
    buffer = b.allocate(name, dtype, shape, Scope.SHARED, strides=(lines * pitch, *inner))
    return SharedTile(buffer, along_k, is_left)


def padded_bytes(dtype: DType, stages: int, extent: int, depth: int, *, along_k: bool) -> int:
    """Shared memory of a ``padded_tile``."""
    lines, length = (extent, depth) if along_k else (depth, extent)
    return stages * lines * (length * dtype.bytes + PAD_BYTES)
