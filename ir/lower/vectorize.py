"""Vectorise: a vector loop becomes straight-line code on vectors, one lane per iteration.

    for l in vector(16): y[i*16 + l] = x[i*16 + l] * s     ->     y[ramp(i*16, 1)] = x[ramp(i*16, 1)] * broadcast(s)

Inner loops remain loops and work on vectors. A load with an address that is linear in the lane becomes a contiguous or
strided vector load, any other a gather. Register buffers allocated inside get one copy per lane.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from taskmap.ir import nodes as ir
from taskmap.ir.analysis import polynomial as poly
from taskmap.ir.analysis.alignment import Multiples
from taskmap.ir.analysis.simplify import Simplifier
from taskmap.ir.construct import binary, compare, const, constant_value, load, select, widen
from taskmap.ir.errors import LoweringError
from taskmap.ir.lower.conditions import FLAT, NO_VECTOR_LOOPS, KernelPass
from taskmap.ir.types import i64
from taskmap.ir.visit import children, map_body, rebuild

_DIVISIONS = {op: pair for pair in (("floordiv", "mod"), ("tdiv", "tmod")) for op in pair}
"""Quotient and remainder of a kind, by the name of either."""


@dataclass(frozen=True, slots=True)
class Vectorize(KernelPass):
    """Vector loops become vector code."""

    name = "vectorize"
    before = "buffers are flat, addresses are in normal form"
    after = "no vector loop is left; its accesses are vectors, gathers or one per lane"
    why_here = "after tidy, which makes addresses linear in the lane; before unroll, to do it once"
    requires = (FLAT,)
    ensures = (NO_VECTOR_LOOPS,)

    def run(self, kernel: ir.Kernel) -> ir.Kernel:
        """The same kernel without vector loops. Raises LoweringError for a loop that cannot be vectorised."""

        def one(s: ir.Stmt) -> ir.Body | None:
            if not isinstance(s, ir.For) or s.kind is not ir.LoopKind.VECTOR:
                return None
            lanes = constant_value(s.extent)
            if lanes is None:
                raise LoweringError(
                    f"kernel {kernel.name!r}: the extent of vector loop {s.var.name!r} is not a constant",
                    where=s.source, hint="Split the loop into a serial one and a vector one of the hardware's width.",
                )  # fmt: skip
            return _Lanes(s.var, int(lanes)).body(s.body)

        return replace(kernel, body=map_body(kernel.body, one))


@dataclass(slots=True)
class _Lanes:
    """The vectorisation of one loop."""

    lane: ir.Var
    count: int
    vars: dict[ir.Var, ir.Var] = field(default_factory=dict)
    buffers: dict[ir.Buffer, ir.Buffer] = field(default_factory=dict)
    memo: dict[ir.Expr, ir.Expr] = field(default_factory=dict)
    privates: dict[ir.Expr, ir.Expr] = field(default_factory=dict)
    addresses: dict[ir.Expr, ir.Expr] = field(default_factory=dict)
    simplifier: Simplifier = field(default_factory=Simplifier)
    multiples: Multiples = field(default_factory=Multiples)

    def body(self, body: ir.Body) -> ir.Body:
        return tuple(self.stmt(s) for s in body)

    def stmt(self, s: ir.Stmt) -> ir.Stmt:
        if isinstance(s, ir.Store):
            return self.store(s)
        if isinstance(s, ir.Let):
            value = self.expr(s.value)
            if value.lanes == 1:
                return ir.Let(s.var, value, s.source)
            vector = self.vars[s.var] = ir.Var(s.var.name, s.var.dtype, self.count)
            return ir.Let(vector, value, s.source)
        if isinstance(s, ir.For):
            return replace(s, extent=self.uniform(s.extent, s), body=self.body(s.body))
        if isinstance(s, ir.If):
            return replace(s, cond=self.uniform(s.cond, s), then=self.body(s.then), orelse=self.body(s.orelse))
        if isinstance(s, ir.Allocate):
            (size,) = s.buffer.shape
            wide = self.buffers[s.buffer] = replace(s.buffer, shape=(size * self.count,))
            return replace(s, buffer=wide)
        raise LoweringError(f"{type(s).__name__} is not allowed inside vector loop {self.lane.name!r}", where=s.source)  # type: ignore[attr-defined]  # every statement that reaches here has one

    def uniform(self, e: ir.Expr, s: ir.For | ir.If) -> ir.Expr:
        value = self.expr(e)
        if value.lanes == 1:
            return value
        raise LoweringError(
            f"inside vector loop {self.lane.name!r}, a loop extent or condition differs from lane to lane",
            where=s.source, hint="Use select(), or move the statement out of the vector loop.",
        )  # fmt: skip

    def store(self, s: ir.Store) -> ir.Stmt:
        value = self.expr(s.value)
        (position,) = s.indices
        if s.buffer in self.buffers:
            where = self.private(position)
            return ir.Store(self.buffers[s.buffer], (where,), widen(value, self.count), s.source)
        where = self.address(position)
        if where.lanes > 1:
            return ir.Store(s.buffer, (where,), widen(value, self.count), s.source)
        if value.lanes == 1:
            return ir.Store(s.buffer, (where,), value, s.source)
        raise LoweringError(
            f"every lane of vector loop {self.lane.name!r} stores to the same element of {s.buffer.name!r}",
            where=s.source, hint="Give each lane its own element and reduce over the lanes after the loop.",
        )  # fmt: skip

    def private(self, position: ir.Expr) -> ir.Expr:
        known = self.privates.get(position)
        if known is not None:
            return known
        where = self.expr(position)
        if where.lanes > 1:
            raise LoweringError(f"a register buffer is indexed by the lane of vector loop {self.lane.name!r}")
        private = self.privates[position] = ir.Ramp(binary("mul", where, self.count), const(1, i64), self.count)
        return private

    def address(self, position: ir.Expr) -> ir.Expr:
        """The address for all lanes: a scalar, a ramp if it is linear in the lane, else a vector."""
        known = self.addresses.get(position)
        if known is None:
            known = self.addresses[position] = self._address(position)
        return known

    def _address(self, position: ir.Expr) -> ir.Expr:
        if position.lanes > 1:
            return self.expr(position)
        mixed = self._mixed(position)
        if mixed is not None:
            return mixed
        p = self.simplifier.poly(position)
        if all(self.scalar(a) or a is self.lane for m in p for a in m):
            stride: poly.Poly = {}
            base: poly.Poly = {}
            for monomial, coefficient in p.items():
                if self.lane not in monomial:
                    base[monomial] = coefficient
                    continue
                rest = list(monomial)
                rest.remove(self.lane)
                if self.lane in rest:
                    return self.expr(position)
                stride[tuple(rest)] = coefficient
            if not stride:
                return poly.to_expr(base)
            return ir.Ramp(poly.to_expr(base), poly.to_expr(stride), self.count)
        return self.expr(position)

    def _mixed(self, position: ir.Expr) -> ir.Expr | None:
        """A swizzled address: neighbours stay neighbours if only bits above them are mixed."""
        p = self.simplifier.poly(position)
        swizzled = [m[0] for m, c in p.items() if c == 1 and len(m) == 1 and self._is_mixed(m[0])]
        rest = {m: c for m, c in p.items() if m != tuple(swizzled)}
        if len(swizzled) != 1 or not all(self.scalar(a) for m in rest for a in m):
            return None
        mixed = swizzled[0]
        assert isinstance(mixed, ir.Binary)
        where, bits = self._address(mixed.a), mixed.b
        if not isinstance(where, ir.Ramp) or constant_value(where.stride) != 1 or not self.scalar(bits):
            return None
        step = 1 << (self.count - 1).bit_length()
        if self.multiples.of(where.base) % step or self.multiples.of(bits) % step:
            return None
        first = binary("xor", where.base, self.expr(bits))
        return ir.Ramp(binary("add", poly.to_expr(rest), first), const(1, i64), self.count)

    def _is_mixed(self, atom: ir.Expr) -> bool:
        return isinstance(atom, ir.Binary) and atom.op == "xor" and not self.scalar(atom)

    def scalar(self, e: ir.Expr) -> bool:
        return e is not self.lane and self.expr(e).lanes == 1

    def expr(self, e: ir.Expr) -> ir.Expr:
        if isinstance(e, ir.Const):
            return e
        known = self.memo.get(e)
        if known is None:
            known = self.memo[e] = self.rewrite(e)
        return known

    def rewrite(self, e: ir.Expr) -> ir.Expr:
        if isinstance(e, ir.Var):
            if e is self.lane:
                return ir.Ramp(const(0, i64), const(1, i64), self.count)
            return self.vars.get(e, e)
        if isinstance(e, ir.Load):
            if e.buffer in self.buffers:
                return load(self.buffers[e.buffer], (self.private(e.indices[0]),))
            return load(e.buffer, (self.address(e.indices[0]),))
        kids = children(e)
        if not kids:
            return e
        new = [self.expr(k) for k in kids]
        if e.dtype == i64 and e.lanes == 1 and any(k.lanes > 1 for k in new):
            p = self.simplifier.poly(e)
            if any(self.lane in m for m in p) and all(m == (self.lane,) or self.lane not in m for m in p):
                if all(self.scalar(a) for m in p for a in m if a is not self.lane):
                    return self.address(e)
        divided = self.divided(e, new)
        return rebuild(e, new) if divided is None else divided

    def divided(self, e: ir.Expr, operands: list[ir.Expr]) -> ir.Expr | None:
        """The quotient, or the remainder, of a ramp by a constant, if the ramp passes one multiple of it at most: that
        of the first element, and in the lanes beyond the multiple one more (or the divisor less)."""
        if not isinstance(e, ir.Binary) or e.op not in _DIVISIONS or e.dtype != i64:
            return None
        ramp, divisor = operands[0], constant_value(operands[1])
        if not isinstance(ramp, ir.Ramp) or divisor is None:
            return None
        step = constant_value(ramp.stride)
        if step is None or step <= 0 or step * (self.count - 1) >= divisor:
            return None
        quotient, remainder = _DIVISIONS[e.op]
        rest = ir.Ramp(binary(remainder, ramp.base, divisor), ramp.stride, self.count)
        beyond = compare("ge", rest, int(divisor))
        if e.op == remainder:
            return select(beyond, binary("sub", rest, int(divisor)), rest)
        whole = binary(quotient, ramp.base, divisor)
        return select(beyond, binary("add", whole, 1), whole)
