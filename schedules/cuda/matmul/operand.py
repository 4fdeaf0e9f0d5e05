"""The operands of a contraction as a GPU template sees them: element types and memory layouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from taskmap.ir.analysis.simplify import Simplifier
from taskmap.ir.construct import const, constant_value, product, select
from taskmap.ir.nodes import Cast, Dim, Expr, Select, Var
from taskmap.ir.task import Task
from taskmap.ir.visit import walk_exprs
from taskmap.schedules.common.access import MemoryStep, accesses
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.common.source import source_of
from taskmap.schedules.cuda.support.tile_partition import TilePartition, partition_tile
from taskmap.schedules.cuda.support.vectors import VECTOR_BYTES, fills, vector_lanes

Axes = tuple[tuple[Var, Dim], ...]


@dataclass(frozen=True, slots=True)
class Operand:
    """One operand of a product: its element as an expression of the axes ``mn``, of its rows (or columns), and ``k``.

    along_k: its elements are contiguous along k, else along mn. lanes: the number of neighbours read at once. direct:
    each element lies in memory, or is 0 if a condition fails, uniformly for all elements that are read at once, so they
    may be copied asynchronously. guarded: there is such a condition.
    """

    expr: Expr
    mn: Axes
    k: Axes
    along_k: bool
    lanes: int
    direct: bool
    guarded: bool = False

    @property
    def size(self) -> Dim:
        """The number of its rows (or columns)."""
        return product([d for _, d in self.mn])

    @property
    def bytes(self) -> int:
        """Bytes of the elements read at once."""
        return self.lanes * self.expr.dtype.bytes

    def tile_along_k(self, multiplier: str) -> bool:
        """True if its tiles are contiguous along k. CUDA cores ("simt") read neighbouring rows and columns. Fragments
        of 2-byte elements are read along either axis, others along k."""
        return multiplier != "simt" and (self.along_k or self.expr.dtype.bytes != 2)

    def shared_out(self, extent: int, depth: int, threads: int) -> TilePartition | str:
        """The chunks of ``extent`` rows (or columns), ``depth`` of k, shared out among threads; or the reason why they
        cannot be."""
        rows, columns = (extent, depth) if self.along_k else (depth, extent)
        if columns % self.lanes:
            return f"chunks of {self.lanes} do not divide {columns} elements"
        return partition_tile(rows, columns // self.lanes, threads)


def bare(expr: Expr) -> Expr:
    """``expr`` without conversions to a wider type of the same kind: they are exact, so they run after loading.

    If a condition chooses between an element and 0, the element is stripped.
    """
    while isinstance(expr, Cast) and _widens(expr):
        expr = expr.a
    if isinstance(expr, Select) and constant_value(expr.b) == 0:
        inner = bare(expr.a)
        return expr if inner is expr.a else select(expr.cond, inner, const(0, inner.dtype))
    return expr


def _widens(e: Cast) -> bool:
    a, b = e.a.dtype, e.dtype
    return (a.is_float and b.is_float and b.bits > a.bits) or (a.is_int and b.is_int and b.bits > a.bits)


def analyse(task: Task, expr: Expr, batch: Axes, mn: Axes, k: Axes) -> Operand:
    """Determines how the elements of ``expr`` are best read."""
    expr = bare(expr)
    pairs = (*batch, *mn, *k)
    axes = tuple(v for v, _ in pairs)
    extents = [d for _, d in pairs]

    def read(values: Inliner) -> None:
        values.expand(expr, {})

    walks = accesses(task, axes, extents, (), read)
    inner_mn, inner_k = len(batch) + len(mn) - 1, len(pairs) - 1
    by_k = _direction(walks, axes, extents, inner_k, expr.dtype.bytes)
    by_mn = _direction(walks, axes, extents, inner_mn, expr.dtype.bytes)
    along_k = by_k >= by_mn
    lanes = max(1, (by_k if along_k else by_mn)[0])
    simplifier = Simplifier()
    for v, d in pairs:
        simplifier.bind(v, d)
    found = source_of(task, simplifier, lambda values: values.expand(expr, {}))
    found = found if found is not None and found[1].buffer in task.inputs else None
    inner = (k if along_k else mn)[-1][0] if lanes > 1 else None
    if found is not None and inner is not None and found[0] is not None and inner in set(walk_exprs(found[0])):
        found = None  # the condition may differ among the elements that are copied at once
    return Operand(expr, mn, k, along_k, lanes, found is not None, found is not None and found[0] is not None)


def _direction(
    walks: Sequence[MemoryStep], axes: Sequence[Var], extents: Sequence[Dim], inner: int, size: int
) -> tuple[int, int]:
    """(lanes, accesses with step one) along one axis; no lanes if nothing is contiguous."""
    contiguous = sum(w.step(inner) == 1 for w in walks)
    if not contiguous:
        return 0, 0
    lanes = min(vector_lanes(walks, axes, [inner], extents), VECTOR_BYTES // size)
    while lanes > 1 and not fills(extents[inner], lanes):
        lanes //= 2
    return lanes, contiguous
