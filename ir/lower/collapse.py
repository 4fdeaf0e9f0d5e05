"""Nests of unrolled loops over all slots of a register tile become one loop.

for i in unroll(2):                          for i in unroll(8):
    for j in unroll(4):                ->        acc[i] = 0.0
        acc[i * 4 + j] = 0.0
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from taskmap.ir.analysis import polynomial as poly
from taskmap.ir.construct import constant_value, index
from taskmap.ir.lower.conditions import FLAT, KernelPass
from taskmap.ir.nodes import Body, Expr, For, Kernel, Let, LoopKind, Stmt, Store, Var
from taskmap.ir.visit import map_body, walk_exprs


@dataclass(frozen=True, slots=True)
class CollapseLoops(KernelPass):
    """A nest with a body that depends on the variables only through the iteration number becomes one loop."""

    name = "collapse-loops"
    before = "indices are polynomials"
    after = "a fill of a register tile is one loop"
    why_here = "after tidy, which shows that a slot is the iteration number"
    requires = (FLAT,)

    def run(self, kernel: Kernel) -> Kernel:
        """The same kernel with fewer loops."""

        def one(s: Stmt) -> Body | None:
            return _joined(s) if isinstance(s, For) else None

        body = map_body(kernel.body, one)
        return kernel if body is kernel.body else replace(kernel, body=body)


def _joined(outer: For) -> Body | None:
    """Two loops as one; innermost pairs come first because bodies are rewritten from the inside out."""
    body = [s for s in outer.body if not isinstance(s, Let)]
    (inner,) = body if len(body) == 1 else (None,)
    if not isinstance(inner, For) or outer.kind is not LoopKind.UNROLLED or inner.kind is not LoopKind.UNROLLED:
        return None
    count, rows = constant_value(inner.extent), constant_value(outer.extent)
    stores = [s for s in inner.body if not isinstance(s, Let)]
    if count is None or rows is None or len(stores) != 1 or not isinstance(stores[0], Store):
        return None
    store = stores[0]
    if any(e is v for v in (outer.var, inner.var) for e in walk_exprs(store.value)):
        return None
    both = Var(inner.var.name)
    number = _as_number(store.indices[0], outer.var, inner.var, int(count), both)
    if number is None:
        return None
    new = replace(store, indices=(number,))
    return (For(both, index(int(rows) * int(count)), LoopKind.UNROLLED, (new,), source=outer.source),)


def _as_number(where: Expr, outer: Var, inner: Var, count: int, both: Var) -> Expr | None:
    """``where`` in terms of the iteration number outer * count + inner; None if it has no such form."""
    if where.lanes != 1:
        return None
    p = poly.to_poly(where)
    step = p.get((inner,), 0)
    if not step or p.get((outer,), 0) != step * count:
        return None
    rest = {m: c for m, c in p.items() if m not in ((inner,), (outer,))}
    if any(v in (outer, inner) for m in rest for a in m for v in walk_exprs(a)):
        return None
    return poly.to_expr(poly.add(rest, {(both,): step}))
