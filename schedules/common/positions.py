"""Positions in tensors that have equally many elements: equal row-major numbers are the same position."""

from __future__ import annotations

from collections.abc import Sequence

from taskmap.ir.analysis.simplify import Simplifier
from taskmap.ir.builder import Builder
from taskmap.ir.construct import index, product, static_size
from taskmap.ir.nodes import Buffer, Dim, Expr
from taskmap.schedules.common.inline import Inliner


def positions_in(out: Buffer, domain: Buffer, axes: Sequence[Expr]) -> tuple[Expr, ...]:
    """The indices of ``out`` for position ``axes`` of the domain: the same, or those with the same row-major number."""
    if len(out.shape) == len(domain.shape) and all(_same(a, c) for a, c in zip(out.shape, domain.shape, strict=True)):
        return tuple(axes)
    return unravel(flatten(list(zip(axes, domain.shape, strict=True))), out.shape)


def flatten(position: Sequence[tuple[Expr, Dim]]) -> Expr:
    """The row-major number of a position, given as (index, extent) of each axis."""
    flat: Expr = index(0)
    for at, size in position:
        flat = flat * size + at
    return flat


def unravel(flat: Expr, shape: Sequence[Dim], inside: Simplifier | None = None) -> tuple[Expr, ...]:
    """The position in ``shape`` that has the row-major number ``flat``: the inverse of `flatten`.

    inside: knows that ``flat`` lies within the shape. Indices are simplified with it, and no modulo is taken that only
    a number beyond the shape would need.
    """
    where: list[Expr] = []
    outermost = True
    for d, size in enumerate(shape):
        at = flat // product(shape[d + 1 :])
        if inside is None:
            where.append(at % size if d else at)
        elif static_size(size) == 1:
            where.append(index(0))
        else:
            where.append(inside(at if outermost else at % size))
            outermost = False
    return tuple(where)


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
