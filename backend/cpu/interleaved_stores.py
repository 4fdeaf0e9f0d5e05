"""Vectors of narrow elements stored with a stride, which fill memory together: two of 16 bits, four of 8 bits."""

from __future__ import annotations

from taskmap.ir import nodes as ir
from taskmap.ir.analysis import polynomial as poly
from taskmap.ir.construct import constant_value
from taskmap.ir.visit import walk_exprs


def interleaved(body: ir.Body) -> dict[int, tuple[int, ...]]:
    """The number of each store in ``body`` that completes 32 bits per lane, with the numbers of the stores before it of
    the lower elements; only names are defined between them, without reading what they write."""
    found: dict[int, tuple[int, ...]] = {}
    run: list[int] = []
    for number, s in enumerate(body):
        first = body[run[0]] if run else None
        if isinstance(s, ir.Let):
            if isinstance(first, ir.Store) and _reads(s.value, first.buffer):
                run = []
        elif isinstance(s, ir.Store) and _leaves_gaps(s):
            run = [*run, number] if isinstance(first, ir.Store) and _follows(s, first, len(run)) else [number]
            if len(run) == _in_lane(s):
                found[number], run = tuple(run[:-1]), []
        else:
            run = []
    return found


def _in_lane(s: ir.Store) -> int:
    """Elements that fill a lane of 32 bits."""
    return 32 // s.buffer.dtype.bits


def _reads(value: ir.Expr, buffer: ir.Buffer) -> bool:
    return any(isinstance(e, ir.Load) and e.buffer is buffer for e in walk_exprs(value))


def _leaves_gaps(s: ir.Store) -> bool:
    (where,) = s.indices
    return (
        isinstance(where, ir.Ramp)
        and s.buffer.dtype.bits in (8, 16)
        and not s.buffer.dtype.is_bool
        and constant_value(where.stride) == _in_lane(s)
        and 1 < where.lanes <= 16
        and s.buffer.scope is not ir.Scope.REGISTER
    )


def _follows(later: ir.Store, first: ir.Store, distance: int) -> bool:
    if later.buffer is not first.buffer or _reads(later.value, later.buffer):
        return False
    (a,), (b,) = first.indices, later.indices
    assert isinstance(a, ir.Ramp)
    assert isinstance(b, ir.Ramp)
    return a.lanes == b.lanes and poly.add(poly.to_poly(b.base), poly.to_poly(a.base), -1) == {(): distance}
