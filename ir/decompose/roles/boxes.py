"""Parts of a tensor that TMA copies: boxes of lines of 128 bytes, whose 16-byte chunks it swizzles in shared memory.

f16[4096, 4096]      box [64, 64]: 64 lines of 64 elements
f16[8, 512, 64]      box [1, 128, 64]; a batch whose matrices are the same one, or that has one, is no dimension
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from taskmap.ir import nodes as ir
from taskmap.ir.algebra.layout import Layout, row_major
from taskmap.ir.analysis import polynomial as poly
from taskmap.ir.analysis.polynomial import Poly
from taskmap.ir.analysis.simplify import Simplifier
from taskmap.ir.builder import Builder
from taskmap.ir.construct import as_expr, cast, index, static_size
from taskmap.ir.isa.table import instruction_named
from taskmap.ir.lower.flatten import strides_of
from taskmap.ir.types import DType, i32

LINE, ATOM, CHUNK = 128, 1024, 16
"""Bytes of a line, of the eight lines over which a swizzle repeats, and of what it permutes."""
_MOST_LINES, _MOST_DIMENSIONS = 256, 5


@dataclass(frozen=True, slots=True)
class Boxes:
    """A tensor map, and the dimension of the buffer that each of the map's is, the outermost first."""

    map: ir.TensorMap
    dims: tuple[int, ...]

    @property
    def by_columns(self) -> bool:
        """True if lines run along the dimension before the last."""
        return self.dims[-1] < max(self.dims)

    def coordinates(self, at: Sequence[ir.Expr]) -> list[ir.Expr]:
        """The start of a box at these indices of the buffer, as TMA takes it: the innermost dimension first."""
        return [cast(as_expr(at[d]), i32) for d in reversed(self.dims)]

    def load(
        self, b: Builder, to: ir.Region, full: ir.Region, at: Sequence[ir.Expr], blocks: ir.Expr | None = None
    ) -> None:
        """Copies the box at ``at`` to shared memory, if given that of several ``blocks`` of the cluster."""
        where = self.coordinates(at)
        name = f"tma_load{'' if blocks is None else '_multicast'}_{len(where)}d"
        b.invoke(instruction_named(name), to, self.map, full, *([] if blocks is None else [blocks]), *where)

    def store(self, b: Builder, source: ir.Region, at: Sequence[ir.Expr]) -> None:
        """Copies shared memory to the box at ``at``; nothing beyond the end of the tensor is written."""
        where = self.coordinates(at)
        b.invoke(instruction_named(f"tma_store_{len(where)}d"), self.map, source, *where)


def boxes_of(name: str, buffer: ir.Buffer, lines: int, *, by_columns: bool = False) -> Boxes | None:
    """Boxes of ``lines`` lines of a matrix, or of a batch of them; None if TMA cannot copy them. by_columns: lines run
    along the last dimension but one."""
    rank, strides = buffer.rank, strides_of(buffer)
    across, along = (rank - 1, rank - 2) if by_columns else (rank - 2, rank - 1)
    outer = [d for d in range(rank - 2) if static_size(buffer.shape[d]) != 1 and static_size(strides[d]) != 0]
    steps = {d: Simplifier().poly(index(strides[d])) for d in (*outer, across)}
    offset = static_size(buffer.offset)
    fits = static_size(strides[along]) == 1 and all(is_aligned(s, buffer.dtype) for s in steps.values())
    fits = fits and offset is not None and offset * buffer.dtype.bytes % CHUNK == 0
    if not fits or lines > _MOST_LINES or len(steps) >= _MOST_DIMENSIONS:
        return None
    outer = sorted(steps, key=lambda d: -(poly.constant_value(steps[d]) or float("inf")))
    dims = (*outer, along)
    box = tuple(LINE // buffer.dtype.bytes if d == along else lines if d == across else 1 for d in dims)
    if dims == tuple(range(rank)):
        return Boxes(ir.TensorMap(name, buffer, box, LINE), dims)
    shape, kept = tuple(buffer.shape[d] for d in dims), tuple(strides[d] for d in dims)
    tensor = ir.Buffer(buffer.name, buffer.dtype, shape, buffer.scope, kept, buffer.offset)
    return Boxes(ir.TensorMap(name, buffer, box, LINE, tensor), dims)


def is_aligned(step: Poly, dtype: DType) -> bool:
    """True if a stride is a positive multiple of 16 bytes. A sum of products of sizes is, if all its coefficients
    are."""
    return all(c > 0 and c * dtype.bytes % CHUNK == 0 for c in step.values() or (0,))


def swizzled_lines(dtype: DType, rows: int, columns: int, stages: int = 0, *, by_columns: bool = False) -> Layout:
    """The layout of a matrix, or of ``stages`` of them, as boxes in shared memory: side by side, each line by line."""
    lead, ones = ((stages,), (1,)) if stages else ((), ())
    lines, length = (columns, rows) if by_columns else (rows, columns)
    line = LINE // dtype.bytes
    found = row_major(*lead, 1, length // line) * row_major(*ones, lines, line)
    found = found.swizzled(3, (CHUNK // dtype.bytes).bit_length() - 1, 3)
    rank = len(lead) + 2
    return found.permute(*range(rank - 2), rank - 1, rank - 2) if by_columns else found
