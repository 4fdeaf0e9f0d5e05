"""The rule that accesses stay inside their buffers, and the list of accesses without a proof.

An access is refused if it is certainly wrong: every value of an index lies outside, or the index is linear in
unconditioned loop variables of known extents and takes a largest or smallest value that lies outside.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from taskmap.ir import nodes as ir
from taskmap.ir.analysis.bounds import LANES, Facts, Interval
from taskmap.ir.construct import constant_value, index, static_size
from taskmap.ir.isa.specs import AsyncCopySpec, PrefetchSpec
from taskmap.ir.printer import print_expr
from taskmap.ir.verify.violation import Violation
from taskmap.ir.visit import stmt_exprs, walk_exprs
from taskmap.ir.workers import worker_extents


@dataclass(frozen=True, slots=True)
class _Place:
    """The facts known at a statement, and the loop variables that take all their values there."""

    facts: Facts
    free: frozenset[ir.Var]
    certain: bool = True

    def loop(self, var: ir.Var, extent: ir.Dim) -> _Place:
        size = static_size(extent)
        known = size is not None and size > 0
        free = self.free | {var} if known else self.free
        return _Place(self.facts.below(var, extent), free, self.certain and known)

    def assume(self, cond: ir.Expr, holds: bool) -> _Place:
        return _Place(self.facts.assume(cond, holds), frozenset(), False)


@dataclass(frozen=True, slots=True)
class BufferAccess:
    """One dimension of an access, with its verdict: True proved inside, False certainly outside, None unknown."""

    buffer: ir.Buffer
    dimension: int
    index: ir.Expr
    inside: bool | None
    stmt: ir.Stmt
    interval: Interval

    def __str__(self) -> str:
        size = self.buffer.shape[self.dimension]
        extent = print_expr(size) if isinstance(size, ir.Expr) else str(size)
        return (
            f"index {print_expr(self.index)} of dimension {self.dimension} of {self.buffer.name} "
            f"lies in {_text(self.interval)}, and the extent is {extent}"
        )


def _text(i: Interval) -> str:
    lo = str(i.lo) if math.isfinite(i.lo) else "-∞"
    hi = str(i.hi) if math.isfinite(i.hi) else "∞"
    return f"[{lo}, {hi}]"


def accesses(kernel: ir.Kernel) -> Iterator[BufferAccess]:
    """Every dimension of every access of a kernel, in program order, with its verdict."""
    facts = Facts()
    for dim in kernel.dims:
        facts = facts.within(dim, Interval(0, math.inf))
    place = _Place(facts, frozenset())
    for var, extent in worker_extents(kernel).items():
        place = place.loop(var, extent)
    # With a symbolic size it is open whether anything runs at all, but an index may still be wrong whenever it does.
    yield from _body(kernel.body, place)


def _body(body: ir.Body, place: _Place) -> Iterator[BufferAccess]:
    for stmt in body:
        for root in stmt_exprs(stmt):
            yield from _loads(stmt, root, place)
        if isinstance(stmt, ir.Store):
            yield from _access(stmt, stmt.buffer, stmt.indices, place)
        elif isinstance(stmt, ir.Let):
            place = _Place(place.facts.define(stmt.var, stmt.value), place.free, place.certain)
        elif isinstance(stmt, ir.For):
            yield from _body(stmt.body, place.loop(stmt.var, stmt.extent))
        elif isinstance(stmt, ir.MappedFor):
            inner = place
            for var, extent in zip(stmt.vars, stmt.mapping.task_shape, strict=False):
                inner = inner.loop(var, extent)
            yield from _body(stmt.body, inner)
        elif isinstance(stmt, ir.If):
            yield from _body(stmt.then, place.assume(stmt.cond, True))
            yield from _body(stmt.orelse, place.assume(stmt.cond, False))
        elif isinstance(stmt, ir.Move):
            inside = (r for r in (stmt.dst, stmt.src) if not (stmt.clipped and r.buffer.scope is ir.Scope.GLOBAL))
            yield from _regions(stmt, tuple(inside), place)
        elif isinstance(stmt, ir.MatMul):
            yield from _regions(stmt, (stmt.c, stmt.a, stmt.b), place)
        elif isinstance(stmt, ir.Invoke) and not isinstance(stmt.instruction.spec, PrefetchSpec):  # it reads nothing
            for region in stmt.regions:
                yield from _regions(stmt, (region,), place if region in stmt.written else _reading(stmt, place))


def _reading(stmt: ir.Invoke, place: _Place) -> _Place:
    """The facts where an instruction reads memory: a copy with zero fill reads nothing if it is to copy 0 bytes."""
    spec, copied = stmt.instruction.spec, stmt.operands[-1] if stmt.operands else None
    if not isinstance(spec, AsyncCopySpec) or not spec.zero_fill or not isinstance(copied, ir.Select):
        return place
    return place.assume(copied.cond, True) if constant_value(copied.b) == 0 else place


def _loads(stmt: ir.Stmt, root: ir.Expr, place: _Place) -> Iterator[BufferAccess]:
    """The loads of an expression. Both sides of a select are evaluated, so its condition proves nothing."""
    for e in walk_exprs(root):
        if isinstance(e, ir.Load):
            yield from _access(stmt, e.buffer, e.indices, place)


def _regions(stmt: ir.Stmt, regions: Sequence[ir.Region], place: _Place) -> Iterator[BufferAccess]:
    for r in regions:
        yield from _access(stmt, r.buffer, r.start, place)
        last = [s + (n - 1) for s, n in zip(r.start, r.shape, strict=True)]
        yield from _access(stmt, r.buffer, [index(e) for e in last], place)


def _access(stmt: ir.Stmt, buffer: ir.Buffer, indices: Sequence[ir.Expr], place: _Place) -> Iterator[BufferAccess]:
    for d, (i, size) in enumerate(zip(indices, buffer.shape, strict=False)):
        interval = place.facts.poly_range(place.facts.poly(i))
        yield BufferAccess(buffer, d, i, _verdict(i, size, interval, place), stmt, interval)


def _verdict(i: ir.Expr, size: ir.Dim, interval: Interval, place: _Place) -> bool | None:
    facts = place.facts
    if facts.at_most(index(0), i) and facts.at_most(i + 1, index(size)):
        return True
    extent = static_size(size)
    if interval.hi < 0 or (extent is not None and interval.lo >= extent):
        return False
    outside = interval.lo < 0 or (extent is not None and interval.hi >= extent)
    return False if outside and _is_reached(i, place) else None


def _is_reached(i: ir.Expr, place: _Place) -> bool:
    """True if ``i`` takes the values at the ends of its interval."""
    p = place.facts.poly(i)
    linear = all(len(m) <= 1 for m in p)
    return place.certain and linear and all(v in place.free or v in LANES for m in p for v in m)


def bounds(kernel: ir.Kernel) -> Iterator[Violation]:
    """No access is certainly out of bounds."""
    for access in accesses(kernel):
        if access.inside is False:
            yield Violation(f"{access}.", access.stmt)
