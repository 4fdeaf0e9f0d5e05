"""Tidy: simplify every expression under the ranges of its loops' variables.

Index arithmetic named by a Let is substituted into its uses, where it can cancel; values stay named. Loops that run
once and decided branches disappear. The last run also marks quotients of non-negative operands, which C divides
directly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from taskmap.ir.analysis.simplify import Simplifier
from taskmap.ir.construct import const, constant_value, index
from taskmap.ir.lower.common_indices import is_index
from taskmap.ir.lower.conditions import NO_UNROLLED_LOOPS, NO_VECTOR_LOOPS, NOTHING_DECIDED, KernelPass
from taskmap.ir.nodes import Binary, Body, Expr, For, If, Kernel, Let, LoopKind, Stmt, Var
from taskmap.ir.types import i64
from taskmap.ir.visit import expr_map, fresh, map_body, map_stmt_exprs
from taskmap.ir.workers import worker_extents


@dataclass(frozen=True, slots=True)
class Tidy(KernelPass):
    """Simplification of all expressions; ``divisions`` turns floordiv and mod of non-negative operands into C's own.

    names: keep the Lets of index arithmetic, though nothing uses them any more, for NameIndices.
    """

    divisions: bool = False
    names: bool = False
    name = "tidy"
    before = "indices are addresses"
    after = "expressions are in normal form, with constants folded"
    why_here = "after flatten, so that addresses cancel, and after unrolling, which introduces constants"
    ensures = (NOTHING_DECIDED,)

    def run(self, kernel: Kernel) -> Kernel:
        """The same kernel with simpler expressions."""
        simplifier = Simplifier()
        for dim in kernel.dims:
            simplifier.bind_range(dim, (1, math.inf))
        for worker, extent in worker_extents(kernel).items():
            simplifier.bind(worker, extent)
        body = _body(kernel.body, simplifier, self.names)
        return replace(kernel, body=_plain_divisions(body, simplifier) if self.divisions else body)


def _body(body: Body, simplifier: Simplifier, names: bool) -> Body:
    out: list[Stmt] = []
    for s in body:
        out.extend(_stmt(s, simplifier, names))
    return tuple(out)


def _stmt(s: Stmt, simplifier: Simplifier, names: bool) -> Body:
    if isinstance(s, For):
        extent = simplifier(s.extent)
        known = constant_value(extent)
        if known == 0:
            return ()
        if known == 1:
            simplifier.replace(s.var, const(0, i64))
            return _body(s.body, simplifier, names)
        simplifier.bind(s.var, extent)
        shared = None if s.shared is None else simplifier(s.shared)
        if shared is not None and constant_value(shared):
            shared = None
        return (replace(s, extent=extent, shared=shared, body=_body(s.body, simplifier, names)),)
    if isinstance(s, If):
        cond = simplifier(s.cond)
        known = constant_value(cond)
        if known is not None:
            return _body(s.then if known else s.orelse, simplifier, names)
        then, orelse = _body(s.then, simplifier, names), _body(s.orelse, simplifier, names)
        return (replace(s, cond=cond, then=then, orelse=orelse),)
    if isinstance(s, Let):
        value = simplifier(s.value)
        if isinstance(value, Var) or constant_value(value) is not None or is_index(value):
            simplifier.replace(s.var, value)
            return (Let(s.var, value, s.source),) if names and is_index(value) else ()
        if value.dtype == i64 and value.lanes == 1:
            simplifier.bind_range(s.var, simplifier.range(value))
        return (s if value is s.value else Let(s.var, value, s.source),)
    return (map_stmt_exprs(s, simplifier),)


def _plain_divisions(body: Body, simplifier: Simplifier) -> Body:
    plain = {"floordiv": "tdiv", "mod": "tmod"}

    def one(e: Expr) -> Expr | None:
        if not isinstance(e, Binary) or e.op not in plain or e.dtype != i64 or e.lanes != 1:
            return None
        if simplifier.range(e.a)[0] >= 0 and simplifier.range(e.b)[0] >= 1:
            return Binary(plain[e.op], e.a, e.b, e.dtype, e.lanes)
        return None

    return map_body(body, expr=expr_map(one))


@dataclass(frozen=True, slots=True)
class Unroll(KernelPass):
    """Unrolled loops are written out: for i in unroll(2): S(i)  ->  S(0); S(1)."""

    name = "unroll"
    before = "vector loops are gone"
    after = "no unrolled loop is left; one of unknown extent becomes serial"
    why_here = "after vectorise, which works on one copy; before the last tidy, which folds the results"
    requires = (NO_VECTOR_LOOPS,)
    ensures = (NO_UNROLLED_LOOPS,)

    def run(self, kernel: Kernel) -> Kernel:
        """The same kernel without unrolled loops."""

        def one(s: Stmt) -> Body | None:
            if not isinstance(s, For) or s.kind is not LoopKind.UNROLLED:
                return None
            extent = constant_value(s.extent)
            if extent is None:
                return (replace(s, kind=LoopKind.SERIAL),)
            copies: list[Stmt] = []
            for k in range(int(extent)):
                copies.extend(fresh(s.body, {s.var: index(k)}))
            return tuple(copies)

        return replace(kernel, body=map_body(kernel.body, one))
