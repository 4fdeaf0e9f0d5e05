"""The loops over a sum in which the addresses of A grow by the same steps.

    a[m, k] = image[y + k // (3 · c), x + k // c % 3, k % c]      for tap in 3:  for t in 3 · c:   image + tap · row + t

The terms of a row of taps are neighbours in an image with its channels innermost. One loop over all terms would divide
in each step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from taskmap.ir.analysis import polynomial as poly
from taskmap.ir.analysis.contraction import Contraction
from taskmap.ir.analysis.simplify import Simplifier
from taskmap.ir.analysis.windows import loads_along
from taskmap.ir.construct import constant_value, index
from taskmap.ir.lower.flatten import address
from taskmap.ir.nodes import Binary, Expr, Var
from taskmap.ir.visit import substitute, walk_exprs


def term_loops(c: Contraction, depth: int, group: int) -> tuple[int, ...]:
    """The extents, outermost first, of loops over the whole groups of the one summed axis, of ``depth`` terms: in each
    of them the addresses of A grow by the same step. One loop over all groups if A has no such loops."""
    ((k, _),) = c.k
    whole = (depth // group,)
    bound = Simplifier()
    for v, extent in (*c.batch, *c.m, *c.n, (k, depth)):
        bound.bind(v, extent)
    places = [bound(address(load.buffer, load.indices)) for load in loads_along(c.a, k)]
    periods = [p for place in places for e in walk_exprs(place) if isinstance(e, Binary) for p in _periods(e, k)]
    steps = [group, *sorted({p for p in periods if group < p < depth}), depth]
    if len(steps) == 2 or any(above % below for below, above in pairwise(steps)):
        return whole
    extents = [above // below for below, above in pairwise(steps)]
    loops = [Var(f"k{d}") for d in range(len(extents))]
    lane = Var("lane")
    term: Expr = lane
    bound.bind(lane, group)
    for v, extent, step in zip(loops, extents, steps, strict=False):
        bound.bind(v, extent)
        term = term + v * index(step)
    found = [bound.poly(substitute(place, {k: term})) for place in places]
    if not all(_is_linear(p, {*loops, lane}) for p in found):
        return whole
    moves = [[poly.linear_coefficient(p, v) or 0 for p in found] for v in loops]
    return tuple(_joined(extents, moves)[::-1])


def _joined(extents: Sequence[int], moves: Sequence[Sequence[int]]) -> list[int]:
    """The extents of loops, innermost first, where one loop takes the place of two whose steps continue each other."""
    joined, steps = [extents[0]], moves[0]
    for extent, move in zip(extents[1:], moves[1:], strict=True):
        if all(outer == joined[-1] * inner for outer, inner in zip(move, steps, strict=True)):
            joined[-1] *= extent
        else:
            joined.append(extent)
            steps = move
    return joined


def _periods(e: Binary, k: Var) -> Iterator[int]:
    """The distances of terms at which a quotient or a remainder of ``k`` jumps."""
    divisor, scale, dividend = constant_value(e.b), 1, e.a
    if e.op not in ("floordiv", "mod") or divisor is None:
        return
    if isinstance(dividend, Binary) and dividend.op == "floordiv" and (inner := constant_value(dividend.b)):
        scale, dividend = int(inner), dividend.a
    if dividend is k:
        yield from (scale, scale * int(divisor))


def _is_linear(p: poly.Poly, loops: set[Var]) -> bool:
    """True if no quotient or remainder contains one of ``loops``, nor a product of two of them."""
    inside = [x for m in p for e in m if not isinstance(e, Var) for x in walk_exprs(e)]
    return not loops.intersection(inside) and all(poly.linear_coefficient(p, v) is not None for v in loops)
