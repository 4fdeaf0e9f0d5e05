"""Offsets of asynchronous copies: in a loop over k-tiles, each row's part of an address does not depend on the k-tile.

for part in range(18):                             for part in range(18):
    for i in unroll(16):                               ky, step = part // 6, part // 6 * 3584 + part % 2 * 64
        y = min(max(part // 6 + i // 28, 0), 27)       for i in unroll(16):
        copy(in[y * 3584 + part % 2 * 64],      ->         y = i // 28
            0 <= part // 6 + i // 28 < 28)                 row = y * 3584
                                                           copy(in[row + step], 0 <= ky + y < 28)

The rows of a convolution's windows are quotients and remainders of their number. Written apart from what the k-tile
adds, they are invariant in the loop, and the device compiler keeps them in registers; the rest of an address is an
addition. An address is only used where the copy's condition holds, and so needs no clamping.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

from taskmap.ir.analysis import polynomial as poly
from taskmap.ir.analysis.bounds import Facts
from taskmap.ir.analysis.polynomial import Poly
from taskmap.ir.construct import constant_value, select
from taskmap.ir.isa.specs import AsyncCopySpec
from taskmap.ir.lower.conditions import FLAT, NO_VECTOR_LOOPS, KernelPass
from taskmap.ir.nodes import (
    Binary,
    Body,
    Buffer,
    Call,
    Compare,
    Expr,
    For,
    Intrinsic,
    Invoke,
    Kernel,
    Let,
    Load,
    LoopKind,
    Region,
    Scope,
    Select,
    Stmt,
    Store,
    Var,
)
from taskmap.ir.types import i64
from taskmap.ir.visit import loads_in, map_body, map_expr, stmt_bodies, walk_exprs, walk_stmts, with_bodies

_QUOTIENTS = ("floordiv", "mod", "tdiv", "tmod")
_HELD = (Scope.REGISTER, Scope.FRAGMENT)


@dataclass(frozen=True, slots=True)
class NameCopyOffsets(KernelPass):
    """Lets for the two parts of the addresses and conditions of asynchronous copies: a row's, and a loop iteration's.

    Only in loops that touch no registers, such as those of a producer: elsewhere registers are scarce.
    """

    name = "name-copy-offsets"
    before = "addresses and conditions are in normal form, without Lets"
    after = "each row's part of them is named in front of its copy, an iteration's at the head of the loop"
    why_here = "after the last simplification, which would substitute the names; before they are put into the addresses"
    requires = (FLAT, NO_VECTOR_LOOPS)

    def run(self, kernel: Kernel) -> Kernel:
        """The same kernel with more names."""

        def one(s: Stmt) -> Body | None:
            if not isinstance(s, For) or s.kind is not LoopKind.SERIAL or any(b.scope in _HELD for b in _buffers(s)):
                return None
            return _Loop(s).named()

        body = map_body(kernel.body, one)
        return kernel if body is kernel.body else replace(kernel, body=body)


def _buffers(s: For) -> Iterator[Buffer]:
    """The buffers that a loop reads or writes."""
    yield from (e.buffer for e in loads_in(s))
    for inner in walk_stmts(s):
        if isinstance(inner, Store):
            yield inner.buffer
        elif isinstance(inner, Invoke):
            yield from (r.buffer for r in inner.regions)


@dataclass(slots=True)
class _Loop:
    """A loop over k-tiles. varying: what changes from iteration to iteration. steps: the names at its head."""

    loop: For
    varying: frozenset[Var] = frozenset()
    steps: list[tuple[Poly, Let]] = field(default_factory=list)

    def named(self) -> Body | None:
        """The loop with names; None if no copy in it needs them."""
        lets = (s.var for s in walk_stmts(self.loop.body) if isinstance(s, Let))
        loops = (s.var for s in walk_stmts(self.loop.body) if isinstance(s, For) and not _is_unrolled(s))
        self.varying = frozenset((self.loop.var, *lets, *loops))
        body = self.body(self.loop.body, frozenset())
        if body is self.loop.body:
            return None
        return (replace(self.loop, body=(*(let for _, let in self.steps), *body)),)

    def body(self, body: Body, unrolled: frozenset[Expr]) -> Body:
        out: list[Stmt] = []
        for s in body:
            if isinstance(s, Invoke):
                out.extend(self.copy(s, unrolled) if unrolled else (s,))
                continue
            inner = stmt_bodies(s)
            if not inner or (isinstance(s, For) and not _is_unrolled(s)):
                out.append(s)
                continue
            within = unrolled | {s.var} if isinstance(s, For) else unrolled
            out.append(with_bodies(s, [self.body(b, within) for b in inner]))
        same = len(out) == len(body) and all(a is b for a, b in zip(out, body, strict=True))
        return body if same else tuple(out)

    def copy(self, s: Invoke, unrolled: Collection[Expr]) -> Sequence[Stmt]:
        """A copy, behind the names of its row's parts."""
        found = _Copy.of(s)
        if found is None:
            return (s,)
        found = found.unclamped()
        rows: list[tuple[Poly, Let]] = []
        for value in (*found.compared, found.at):
            p = poly.to_poly(value)
            step = {m: c for m, c in p.items() if any(v in self.varying for a in m for v in walk_exprs(a))}
            row = {m: c for m, c in p.items() if m not in step}
            if not step or not _has_quotient(row, unrolled):
                continue
            _name(rows, row, "row")
            if self.is_shared(step, unrolled):
                _name(self.steps, step, "step")
        if not rows:
            return (s,)
        place = poly.to_poly(found.to)
        shared = {m: c for m, c in place.items() if not any(v in unrolled for a in m for v in walk_exprs(a))}
        if self.is_shared(shared, unrolled):
            _name(self.steps, shared, "to")
        return *(row for _, row in rows), found.written()

    def is_shared(self, step: Poly, unrolled: Collection[Expr]) -> bool:
        """True if a part of an address is known at the head of an iteration, and worth a name."""
        if len(step) == 1 and all(isinstance(a, Var) for m in step for a in m):
            return False
        inside = self.varying - {self.loop.var}
        return not any(v in unrolled or v in inside for m in step for a in m for v in walk_exprs(a))


@dataclass(frozen=True, slots=True)
class _Copy:
    """An asynchronous copy from the address ``at``, or zeros if one of its tests fails, to the address ``to``."""

    invoke: Invoke
    tests: tuple[Expr, ...]
    at: Expr
    to: Expr

    @staticmethod
    def of(s: Invoke) -> _Copy | None:
        """The copy that an instruction is, if its address and its tests are arithmetic."""
        if not isinstance(s.instruction.spec, AsyncCopySpec):
            return None
        target, source, *limit = s.operands
        assert isinstance(target, Region)
        assert isinstance(source, Region)
        copied = limit[0] if limit else None
        tests: tuple[Expr, ...] = ()
        if isinstance(copied, Select) and constant_value(copied.b) == 0:
            tests = tuple(_parts(copied.cond))
        elif copied is not None:
            return None
        (to,), (at,) = target.start, source.start
        if any(isinstance(e, (Load, Call, Intrinsic)) for root in (at, *tests) for e in walk_exprs(root)):
            return None
        return _Copy(s, tests, at, to)

    @property
    def compared(self) -> Iterator[Expr]:
        """The sides of its comparisons."""
        yield from (
            side
            for t in self.tests
            if isinstance(t, Compare) and t.a.dtype == i64 and t.lanes == 1
            for side in (t.a, t.b)
        )

    def unclamped(self) -> _Copy:
        """The same copy: a minimum or a maximum that the tests decide is its operand.

        A test may rely on all others, since the conjunction is false if one of them is."""
        tests = list(self.tests)
        for n, test in enumerate(tests):
            tests[n] = _decided(test, tests[:n] + tests[n + 1 :])
        return replace(self, tests=tuple(tests), at=_decided(self.at, tests))

    def written(self) -> Invoke:
        """The instruction."""
        target, source, *limit = self.invoke.operands
        assert isinstance(source, Region)
        for n, copied in enumerate(limit):
            assert isinstance(copied, Select)
            limit[n] = select(reduce(operator.and_, self.tests), copied.a, copied.b)
        return replace(self.invoke, operands=(target, replace(source, start=(self.at,)), *limit))


def _parts(cond: Expr) -> Iterator[Expr]:
    if isinstance(cond, Binary) and cond.op == "and" and cond.dtype.is_bool:
        yield from (*_parts(cond.a), *_parts(cond.b))
    else:
        yield cond


def _decided(e: Expr, tests: Sequence[Expr]) -> Expr:
    """``e`` where all of ``tests`` hold, without the minima and maxima that they decide."""
    facts = Facts()
    for test in tests:
        facts = facts.assume(test)

    def one(e: Expr) -> Expr | None:
        if not isinstance(e, Binary) or e.op not in ("min", "max") or e.dtype != i64 or e.lanes != 1:
            return None
        less, more = (e.a, e.b) if e.op == "min" else (e.b, e.a)
        return e.a if facts.at_most(less, more) else e.b if facts.at_most(more, less) else None

    return map_expr(e, one)


def _is_unrolled(s: For) -> bool:
    return s.kind is LoopKind.UNROLLED


def _has_quotient(p: Poly, variables: Collection[Expr]) -> bool:
    """True if a quotient or a remainder in ``p`` depends on one of ``variables``."""
    return any(
        isinstance(e, Binary) and e.op in _QUOTIENTS and any(v in variables for v in walk_exprs(e))
        for m in p
        for a in m
        for e in walk_exprs(a)
    )


def _name(names: list[tuple[Poly, Let]], value: Poly, name: str) -> None:
    """Names a value, once."""
    if all(known != value for known, _ in names):
        names.append((value, Let(Var(name), poly.to_expr(value), None)))
