"""Positions in tensors that have equally many elements: equal row-major numbers are the same position."""

from __future__ import annotations

from collections.abc import Sequence

from taskmap.ir.analysis.positions import flatten, unravel
from taskmap.ir.analysis.simplify import Simplifier
from taskmap.ir.builder import Builder
from taskmap.ir.construct import index
from taskmap.ir.nodes import Buffer, Dim, Expr
from taskmap.schedules.common.inline import Inliner


def positions_in(out: Buffer, domain: Buffer, axes: Sequence[Expr]) -> tuple[Expr, ...]:
    """The indices of ``out`` for position ``axes`` of the domain: the same, or those with the same row-major number."""
    if len(out.shape) == len(domain.shape) and all(_same(a, c) for a, c in zip(out.shape, domain.shape, strict=True)):
        return tuple(axes)
    return unravel(flatten(list(zip(axes, domain.shape, strict=True))), out.shape)


def _same(a: Dim, b: Dim) -> bool:
    """True if two sizes are known to be equal, however they are written."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    return a is b or Simplifier().poly(index(a)) == Simplifier().poly(index(b))


def position_of(domain: Buffer, runs: Sequence[Sequence[int]], at: Sequence[Expr], values: Inliner) -> list[Expr]:
    """The position in ``domain`` of merged axes: ``at`` numbers the elements of each run of axes."""
    where = [index(0)] * domain.rank
    for run, number in zip(runs, at, strict=True):
        for axis, i in zip(run, unravel(number, [domain.shape[a] for a in run]), strict=True):
            where[axis] = values.simplifier(i)
    return where


def store_outputs(
    b: Builder, values: Inliner, domain: Buffer, position: Sequence[Expr], outputs: Sequence[Buffer]
) -> None:
    """Computes every output at a position of the domain, and stores it."""
    for out in outputs:
        place = tuple(values.simplifier(i) for i in positions_in(out, domain, position))
        b.store(out, place, values.element(out, place))
