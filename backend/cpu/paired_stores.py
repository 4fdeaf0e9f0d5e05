"""Vectors of 16-bit elements stored with a stride of 2, in pairs that fill memory together."""

from __future__ import annotations

from taskmap.ir import nodes as ir
from taskmap.ir.analysis import polynomial as poly
from taskmap.ir.construct import constant_value
from taskmap.ir.visit import walk_exprs


def pairs_of(body: ir.Body) -> dict[int, int]:
    """The number of each store in ``body`` of the odd elements that a store of the even elements precedes, with the
    number of that one; only names are defined between the two, without reading what they write."""
    found: dict[int, int] = {}
    first: int | None = None
    for number, s in enumerate(body):
        if isinstance(s, ir.Let):
            even = None if first is None else body[first]
            if isinstance(even, ir.Store) and _reads(s.value, even.buffer):
                first = None
        elif isinstance(s, ir.Store) and _is_every_second(s):
            if first is not None and _follows(s, body[first]):
                found[number], first = first, None
            else:
                first = number
        else:
            first = None
    return found


def _reads(value: ir.Expr, buffer: ir.Buffer) -> bool:
    return any(isinstance(e, ir.Load) and e.buffer is buffer for e in walk_exprs(value))


def _is_every_second(s: ir.Store) -> bool:
    (where,) = s.indices
    return (
        isinstance(where, ir.Ramp)
        and constant_value(where.stride) == 2
        and 1 < where.lanes <= 16
        and s.buffer.dtype.bits == 16
        and s.buffer.scope is not ir.Scope.REGISTER
    )


def _follows(odd: ir.Store, even: ir.Stmt) -> bool:
    if not isinstance(even, ir.Store) or odd.buffer is not even.buffer or _reads(odd.value, odd.buffer):
        return False
    (a,), (b,) = even.indices, odd.indices
    assert isinstance(a, ir.Ramp)
    assert isinstance(b, ir.Ramp)
    return a.lanes == b.lanes and poly.add(poly.to_poly(b.base), poly.to_poly(a.base), -1) == {(): 1}
