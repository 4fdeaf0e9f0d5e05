"""The twin of a micro-kernel: the statements of a script function, with the regions of a call in place of its operands.

c[i, j] += a[i, k] * b[k, j]        ->      total[4 * m + i, j] += a_shared[4 * m + i, k] * b_shared[k, j]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from taskmap.ir.construct import load
from taskmap.ir.nodes import Body, Buffer, Expr, Invoke, Load, MatMul, Move, Region, Stmt, Store
from taskmap.ir.visit import expr_map, map_body


def element(r: Region, at: Sequence[Expr]) -> tuple[Expr, ...]:
    """The indices of an element of a region, whose leading dimensions are single if ``at`` lacks them."""
    lead = len(r.start) - len(at)
    return (*r.start[:lead], *(start + i for start, i in zip(r.start[lead:], at, strict=True)))


def placed(body: Body, operands: Sequence[Buffer], regions: Sequence[Region]) -> Body:
    """The statements on ``operands``, with a region in place of each."""
    of = dict(zip(operands, regions, strict=True))

    def in_expr(e: Expr) -> Expr | None:
        found = of.get(e.buffer) if isinstance(e, Load) else None
        return load(found.buffer, element(found, e.indices)) if isinstance(e, Load) and found is not None else None

    def region(r: Region) -> Region:
        found = of.get(r.buffer)
        if found is None:
            return r
        lead = len(found.start) - len(r.start)
        return Region(found.buffer, element(found, r.start), (*[1] * lead, *r.shape))

    def stmt(s: Stmt) -> Stmt | None:
        if isinstance(s, Store) and s.buffer in of:
            return Store(of[s.buffer].buffer, element(of[s.buffer], s.indices), s.value, s.source)
        if isinstance(s, Move):
            return replace(s, dst=region(s.dst), src=region(s.src))
        if isinstance(s, MatMul):
            return replace(s, c=region(s.c), a=region(s.a), b=region(s.b))
        if isinstance(s, Invoke):
            return replace(s, operands=tuple(region(o) if isinstance(o, Region) else o for o in s.operands))
        return None

    return map_body(body, stmt, expr_map(in_expr))
