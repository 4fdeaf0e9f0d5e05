"""The register tile of every contraction on a CPU, as the strategy of a core: an outer product for each term of a sum.

    MatMul(6, 64, k)(GL,GL,LM)(Core)  .accumulate_in(REGISTER)          or continued from c, part by part
        .split(1)                                                       for each axis of the sum
        .move("b", REGISTER, vectors)  .move("a", REGISTER, one by one)
        .done()                                                         the target's multiply-add

The operands are in no memory: each element is what a template gives for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from taskmap.ir.builder import Builder
from taskmap.ir.construct import index, static_size
from taskmap.ir.decompose.levels import Level
from taskmap.ir.decompose.lowering import emit_part
from taskmap.ir.decompose.specs import MatMul
from taskmap.ir.decompose.strategy import Strategy
from taskmap.ir.decompose.views import OperandView
from taskmap.ir.nodes import Buffer, Dim, Expr, Region, Scope, Var
from taskmap.ir.types import DType
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.cpu.matmul.ahead import Ahead
from taskmap.schedules.cpu.matmul.summed_loops import Element, unrolled


@dataclass(frozen=True, slots=True)
class TileReduction:
    """The axes of a sum, outermost first, as a strategy needs them. loops: those that are longer than 1. unrolled:
    those whose loops the C compiler unrolls. parts: the axis that is cut into parts, and their size, if any."""

    loops: tuple[bool, ...]
    unrolled: tuple[bool, ...]
    parts: tuple[int, int] | None

    @staticmethod
    def of(k: Sequence[Dim], chain: int) -> TileReduction:
        """For summed axes of these extents; chain: the most terms of a part, about (0: the sum is not cut)."""
        cut, inside = len(k) - 1, 1
        while chain and cut and (size := static_size(k[cut])) is not None and size * inside <= chain:
            cut, inside = cut - 1, size * inside
        parts = (cut, chain // inside) if chain and static_size(k[cut]) != 1 else None
        return TileReduction(tuple(static_size(n) != 1 for n in k), tuple(h > 0 for h in unrolled(k)), parts)


@lru_cache(maxsize=1024)
def register_tile(rows: int, columns: int, width: int, sums: TileReduction, dtype: DType, how: str) -> Strategy:
    """The strategy of a core for a product of rows × columns in registers, in vectors of ``width``.

    how: the sums are the result ("set"), begin as it ("resume"), or are added to it ("add"), part by part.
    """
    k = [Var(f"k{d}") if loop else 1 for d, loop in enumerate(sums.loops)]
    spec = MatMul(rows, columns, k, a=dtype, b=dtype, c=dtype).with_operand("c", Scope.LOCAL)
    tree = Strategy(spec.derived(level=Level.CORE))
    cut, size = sums.parts or (0, 0)
    for loop in sums.loops[:cut]:
        tree = tree.split(1) if loop else tree
    tree = tree.split(size) if size else tree
    lanes = width if how == "add" else 0
    tree = tree.accumulate_in(
        Scope.REGISTER, store=lambda copy: copy.done().vectorize(lanes) if lanes else copy.done(), how=how
    )
    for loop, hint in list(zip(sums.loops, sums.unrolled, strict=True))[cut:]:
        if loop:
            tree = tree.split(1).unroll() if hint else tree.split(1)
    tree = tree.move("b", Scope.REGISTER, lambda copy: copy.done().vectorize(width))
    return tree.move("a", Scope.REGISTER, lambda copy: copy.done().vectorize(1)).done()


def emit_tile(
    b: Builder,
    values: Inliner,
    rows: int,
    groups: Sequence[tuple[int, int]],
    k: Sequence[Dim],
    a: Element,
    element_b: Element,
    out: Buffer,
    accumulate: DType,
    *,
    row: Expr | None = None,
    resume: bool = False,
    chain: int = 0,
    add: bool = False,
    ahead: Ahead | None = None,
) -> None:
    """Multiply a tile into the local buffer ``out``, of equally many columns, from ``row`` on (default 0).

    groups: the columns as groups of vectors; k: extents of the summed axes, outermost first; resume: add to the
    contents of ``out``; chain: split the sum into parts of about this many terms, each of which is added to ``out`` (0:
    do not split); add: add the whole sum to ``out``; ahead: lines that each step prefetches.
    """
    column, how = 0, "resume" if resume else "add" if chain or add else "set"
    axes, sums = [f"k{d}" for d in range(len(k))], TileReduction.of(k, chain)
    ends = dict(zip(axes, map(index, k), strict=True))
    begin = [None] * len(k)
    for vectors, width in groups:
        columns = vectors * width
        left, right = Buffer("a", accumulate, (rows, *k)), Buffer("b", accumulate, (*k, columns))
        at = index(column) if column else None
        views = {
            "a": OperandView.part(left, ("m", *axes), (None, *begin), ends, _rows(a, values)),
            "b": OperandView.part(right, (*axes, "n"), (*begin, at), ends, _columns(element_b, values), _steps(ahead)),
            "c": OperandView.part(out, ("m", "n"), (row, at), {}),
        }
        tree = register_tile(rows, columns, width, sums, accumulate, how)
        emit_part(b, tree, views, values.simplifier)
        column, ahead = column + columns, None


def _rows(a: Element, values: Inliner) -> Callable[[Sequence[Expr]], Expr]:
    """The elements of a column of A, whose names those of all rows share."""
    last: list[tuple[tuple[Expr, ...], Inliner]] = []

    def element(where: Sequence[Expr]) -> Expr:
        row, *at = where
        if not last or last[0][0] != tuple(at):
            last[:] = [(tuple(at), values.nested())]
        return a(at, row, last[0][1])

    return element


def _columns(b: Element, values: Inliner) -> Callable[[Sequence[Expr]], Expr]:
    """The elements of a row of B, of which each vector has names of its own."""
    return lambda where: b(where[:-1], where[-1], values.nested())


def _steps(ahead: Ahead | None) -> Callable[[Sequence[Expr]], list[Region]] | None:
    """The lines that the move of a row of B prefetches."""
    return None if ahead is None else lambda where: ahead(where[:-1])
