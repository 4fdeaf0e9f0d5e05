"""Vectors of narrow elements stored with a stride, which fill memory together: two or four of 16 bits, four of 8."""

from __future__ import annotations

from taskmap.ir import nodes as ir
from taskmap.ir.analysis import polynomial as poly
from taskmap.ir.construct import constant_value
from taskmap.ir.visit import walk_exprs

_STRIDES = {16: (2, 4), 8: (4,)}
"""The strides that so many vectors fill, by the bits of an element."""


def interleaved(body: ir.Body) -> dict[int, tuple[int, ...]]:
    """The number of each store in ``body`` that completes the elements of a stride, with the numbers of the stores
    before it of the lower elements; only names are defined between them, without reading what they write."""
    found: dict[int, tuple[int, ...]] = {}
    run: list[int] = []
    for number, s in enumerate(body):
        first = body[run[0]] if run else None
        if isinstance(s, ir.Let):
            if isinstance(first, ir.Store) and _reads(s.value, first.buffer):
                run = []
        elif isinstance(s, ir.Store) and _leaves_gaps(s):
            run = [*run, number] if isinstance(first, ir.Store) and _follows(s, first, len(run)) else [number]
            if len(run) == _stride(s):
                found[number], run = tuple(run[:-1]), []
        else:
            run = []
    return found


def _stride(s: ir.Store) -> int:
    """The distance of neighbouring lanes in memory; 0 if it is not known."""
    (where,) = s.indices
    return int(constant_value(where.stride) or 0) if isinstance(where, ir.Ramp) else 0


def _reads(value: ir.Expr, buffer: ir.Buffer) -> bool:
    return any(isinstance(e, ir.Load) and e.buffer is buffer for e in walk_exprs(value))


def _leaves_gaps(s: ir.Store) -> bool:
    (where,) = s.indices
    return (
        isinstance(where, ir.Ramp)
        and _stride(s) in _STRIDES.get(s.buffer.dtype.bits, ())
        and not s.buffer.dtype.is_bool
        and 1 < where.lanes <= 16
        and s.buffer.scope is not ir.Scope.REGISTER
    )


def _follows(later: ir.Store, first: ir.Store, distance: int) -> bool:
    if later.buffer is not first.buffer or _reads(later.value, later.buffer) or _stride(later) != _stride(first):
        return False
    (a,), (b,) = first.indices, later.indices
    assert isinstance(a, ir.Ramp)
    assert isinstance(b, ir.Ramp)
    return a.lanes == b.lanes and poly.add(poly.to_poly(b.base), poly.to_poly(a.base), -1) == {(): distance}
