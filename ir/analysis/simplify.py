"""Simplification of expressions under known ranges of variables.

Integer index arithmetic goes through a polynomial normal form; quotients and remainders use the ranges:

    (16*i + l) // 16            ->  i                  for l in [0, 16)
    (n*i + j) % n               ->  j                  for j in [0, n), n symbolic too
    (16*i + l) // 64            ->  i // 4             for l in [0, 16)
    (16*i + l) // (16*n)        ->  i // n             for l in [0, 16), n symbolic
    (n*i + j) // (4*n)          ->  i // 4             for j in [0, n)
    x // c * c + x % c          ->  x
    min(i, 7), i < 8            ->  i, true            for i in [0, 8)
    (64*i + j) ^ k              ->  64*i + (j ^ k)     for k in [0, 64)

A loop's extent is assumed to be at least one inside that loop, so a symbolic size counts as positive.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from taskmap.ir import nodes as ir
from taskmap.ir.analysis import polynomial as poly
from taskmap.ir.analysis.polynomial import Monomial, Poly
from taskmap.ir.construct import binary, call, cast, compare, const, constant_value, index, select, static_size, unary
from taskmap.ir.recurrence import Recurrence
from taskmap.ir.types import i64
from taskmap.ir.visit import children, rebuild, walk_exprs

Range = tuple[float, float]
UNBOUNDED: Range = (-math.inf, math.inf)


@dataclass(frozen=True, slots=True)
class _Reduced:
    """p = factor * high + low with 0 <= low < factor, and d = factor * divisor: so p // d = high // divisor."""

    factor: Poly
    high: Poly
    low: Poly
    divisor: Poly


@dataclass(slots=True)
class Simplifier:
    """Simplifies expressions; ``bind`` and ``bind_range`` add what is known about variables.

    Results are cached per expression, so one simplifier serves a whole kernel as long as each variable is bound only
    once.
    """

    extents: dict[ir.Var, Poly] = field(default_factory=dict)
    ranges: dict[ir.Var, Range] = field(default_factory=dict)
    values: dict[ir.Var, ir.Expr] = field(default_factory=dict)
    _memo: dict[ir.Expr, ir.Expr] = field(default_factory=dict)
    _polys: dict[ir.Expr, Poly] = field(default_factory=dict)
    _ranges: dict[ir.Expr, Range] = field(default_factory=dict)
    _wholes: dict[ir.Binary, Poly] = field(default_factory=dict)
    """x // d * d for each x % d."""

    def bind(self, var: ir.Var, extent: ir.Dim) -> None:
        """``var`` runs over [0, extent); sizes in the extent without a known range are at least 1."""
        size = static_size(extent)
        self.ranges[var] = (0, size - 1 if size is not None else math.inf)
        if size is None:
            self.extents[var] = poly.to_poly(self(index(extent)))
            for v in walk_exprs(poly.to_expr(self.extents[var])):
                if isinstance(v, ir.Var):
                    self.ranges.setdefault(v, (1, math.inf))

    def bind_range(self, var: ir.Var, bounds: Range) -> None:
        """``var`` lies in the closed range ``bounds``."""
        self.ranges[var] = bounds

    def replace(self, var: ir.Var, value: ir.Expr) -> None:
        """Every use of ``var`` becomes ``value``, which must be simplified already."""
        self.values[var] = value

    def __call__(self, expr: ir.Expr) -> ir.Expr:
        if isinstance(expr, ir.Const):
            return expr
        if isinstance(expr, ir.Var):
            return self.values.get(expr, expr)
        known = self._memo.get(expr)
        if known is None:
            known = self._memo[expr] = self._simplify(expr)
        return known

    def dim(self, size: ir.Dim) -> ir.Dim:
        """A simplified size; an int when it is constant."""
        if isinstance(size, int):
            return size
        simple = self(size)
        value = constant_value(simple)
        return simple if value is None else int(value)

    def _simplify(self, e: ir.Expr) -> ir.Expr:
        if isinstance(e, ir.Binary):
            if e.lanes == 1 and e.op in _INTEGER and e.dtype == i64:
                simple = self._integer(e)
                return e if simple == e else simple
            a, b = self(e.a), self(e.b)
            return e if a is e.a and b is e.b else binary(e.op, a, b)
        remake = _REMAKE.get(type(e))
        if remake is not None:
            kids = children(e)
            new = tuple(map(self, kids))
            return e if all(map(operator.is_, new, kids)) else remake(e, new)
        if isinstance(e, ir.Compare):
            return self._compare(e)
        if isinstance(e, ir.Select):
            return select(self(e.cond), self(e.a), self(e.b))
        if isinstance(e, ir.Call):
            return call(e.name, *(self(a) for a in e.args), dtype=e.dtype)
        if isinstance(e, ir.Unary):
            if e.dtype == i64 and e.lanes == 1 and e.op == "neg":
                return poly.to_expr(self.poly(e))
            return unary(e.op, self(e.a))
        if isinstance(e, ir.Cast):
            return cast(self(e.a), e.dtype)
        if isinstance(e, ir.Reduce):
            for var, extent in e.axes:
                self.bind(var, extent)
            return ir.Reduce(e.op, tuple((v, self.dim(d)) for v, d in e.axes), self(e.body), e.dtype)
        if isinstance(e, ir.Scatter):
            for var, extent in e.axes:
                self.bind(var, extent)
            axes = tuple((v, self.dim(d)) for v, d in e.axes)
            here, at = (tuple(self(i) for i in position) for position in (e.here, e.at))
            return ir.Scatter(e.op, here, self(e.initial), axes, at, self(e.body), e.dtype)
        if isinstance(e, Recurrence):
            for var, extent in e.bound:
                self.bind(var, extent)
            return rebuild(e, [self(k) for k in children(e)])
        return e

    def poly(self, e: ir.Expr) -> Poly:
        """The polynomial of an integer expression with simplified atoms."""
        if isinstance(e, ir.Const):
            return poly.constant(int(e.value))
        if isinstance(e, ir.Var) and e not in self.values:
            return poly.atom(e)
        known = self._polys.get(e)
        if known is None:
            known = self._polys[e] = poly.to_poly(self.values[e]) if isinstance(e, ir.Var) else self._poly(e)
        return known

    def _poly(self, e: ir.Expr) -> Poly:
        if isinstance(e, ir.Binary) and e.lanes == 1 and e.dtype == i64:
            if e.op == "add":
                return self._joined(poly.add(self.poly(e.a), self.poly(e.b)))
            if e.op == "sub":
                return self._joined(poly.add(self.poly(e.a), self.poly(e.b), -1))
            if e.op == "mul":
                return self._joined(poly.multiply(self.poly(e.a), self.poly(e.b)))
        if isinstance(e, ir.Unary) and e.op == "neg":
            return poly.add({}, self.poly(e.a), -1)
        simple = self(e)
        return poly.to_poly(simple)

    def _integer(self, e: ir.Binary) -> ir.Expr:
        if e.op in ("add", "sub", "mul"):
            return poly.to_expr(self.poly(e))
        if e.op in ("floordiv", "tdiv"):
            return self._quotient(self.poly(e.a), self.poly(e.b))
        if e.op in ("mod", "tmod"):
            return self._remainder(self.poly(e.a), self.poly(e.b))
        if e.op == "xor":
            return self._exclusive_or(self.poly(e.a), self.poly(e.b))
        return self._extremum(e.op, self(e.a), self(e.b))

    def _quotient(self, p: Poly, d: Poly) -> ir.Expr:
        if not d:
            return binary("floordiv", poly.to_expr(p), 0)
        whole, rest = poly.divide(p, d)
        if self._below(rest, d):
            return poly.to_expr(whole)
        reduced = self._common_factor(rest, d)
        if reduced is not None:
            above = self._quotient(reduced.high, reduced.divisor)
            return poly.to_expr(poly.add(whole, poly.to_poly(above)))
        offset: Poly = {(): rest[()]} if () in rest else {}
        inner = poly.to_expr(poly.add(rest, offset, -1))
        if isinstance(inner, ir.Binary) and inner.op == "floordiv" and self.poly_range(d)[0] >= 1:
            size = poly.to_poly(inner.b)
            if self.poly_range(size)[0] >= 1:  # (x // size + offset) // d = (x + offset * size) // (size * d)
                x = poly.add(poly.to_poly(inner.a), poly.multiply(offset, size))
                q = self._quotient(x, poly.multiply(size, d))
                return poly.to_expr(poly.add(whole, poly.to_poly(q)))
        quotient = binary("floordiv", poly.to_expr(rest), poly.to_expr(d))
        return poly.to_expr(poly.add(whole, poly.to_poly(quotient)))

    def _remainder(self, p: Poly, d: Poly) -> ir.Expr:
        if not d:
            return binary("mod", poly.to_expr(p), 0)
        _, rest = poly.divide(p, d)
        if self._below(rest, d):
            return poly.to_expr(rest)
        reduced = self._common_factor(rest, d)
        if reduced is not None:
            inner = poly.to_poly(self._remainder(reduced.high, reduced.divisor))
            return poly.to_expr(poly.add(reduced.low, poly.multiply(inner, reduced.factor)))
        size = poly.constant_value(d)
        if size is not None and size > 0:
            inner_e = poly.to_expr(rest)
            if (
                isinstance(inner_e, ir.Binary)
                and inner_e.op == "mod"
                and (c := constant_value(inner_e.b))
                and c % size == 0
            ):
                return self._remainder(poly.to_poly(inner_e.a), d)
        return binary("mod", poly.to_expr(rest), poly.to_expr(d))

    def _exclusive_or(self, p: Poly, bits: Poly) -> ir.Expr:
        """p ^ bits. The terms of p that are multiples of a power of two above all the bits are added afterwards."""
        low, high = self.poly_range(bits)
        if low < 0 or math.isinf(high):
            return binary("xor", poly.to_expr(p), poly.to_expr(bits))
        size = 1 << int(high).bit_length()
        above = {m: c // size * size for m, c in p.items() if c // size}
        rest = poly.add(p, above, -1)
        if not rest or not bits:
            return poly.to_expr(poly.add(above, poly.add(rest, bits)))
        mixed = binary("xor", poly.to_expr(rest), poly.to_expr(bits))
        return poly.to_expr(poly.add(above, poly.to_poly(mixed)))

    def _common_factor(self, rest: Poly, d: Poly) -> _Reduced | None:
        """A factor (a number above 1, or a size) that the one-term divisor d > 0 shares with terms of ``rest``, such
        that the other terms together are less than it; None if there is no such factor."""
        if len(d) != 1:
            return None
        ((sizes, scale),) = d.items()
        if scale < 1 or any(self.range(n)[0] < 1 for n in sizes):
            return None
        numbers = sorted({math.gcd(c, scale) for m, c in rest.items() if m}, reverse=True)
        shared = [n for n in dict.fromkeys(sizes) if any(n in m for m in rest)]
        for factor in (*(poly.constant(g) for g in numbers if g > 1), *map(poly.atom, shared)):
            high, low = poly.divide(rest, factor)
            if high and self._below(low, factor):
                return _Reduced(factor, high, low, poly.divide(d, factor)[0])
        return None

    def _joined(self, p: Poly) -> Poly:
        """p with every c * (x // d) * d + c * (x % d) replaced by c * x; c may contain sizes. A number added to the
        quotient may stand in p in any multiple."""
        remainders = [m for m in p for a in m if isinstance(a, ir.Binary) and a.op == "mod"]
        for monomial in dict.fromkeys(remainders):
            for mod in dict.fromkeys(a for a in monomial if isinstance(a, ir.Binary) and a.op == "mod"):
                if monomial not in p:
                    break
                others = list(monomial)
                others.remove(mod)
                c: Poly = {tuple(others): p[monomial]}
                scaled = poly.multiply(self._whole(mod), c)
                terms = [(m, v) for m, v in scaled.items() if m]
                if terms and all(p.get(m, 0) == v for m, v in terms):
                    p = poly.add(p, scaled, -1)
                    p = poly.add(p, {monomial: p[monomial]}, -1)
                    return self._joined(poly.add(p, poly.multiply(poly.to_poly(mod.a), c)))
        return p

    def _whole(self, mod: ir.Binary) -> Poly:
        """x // d * d for the remainder x % d."""
        known = self._wholes.get(mod)
        if known is None:
            d = poly.to_poly(mod.b)
            quotient = self._quotient(poly.to_poly(mod.a), d)
            known = self._wholes[mod] = poly.multiply(poly.to_poly(quotient), d)
        return known

    def _below(self, rest: Poly, d: Poly) -> bool:
        """True if 0 <= rest < d can be proved."""
        if not rest:
            return True
        low, high = self.poly_range(rest)
        if low < 0:
            return False
        size = poly.constant_value(d)
        if size is not None and math.isfinite(high):
            return high < size
        gap = poly.add(poly.add(d, self._symbolic_top(rest), -1), poly.constant(1), -1)
        return self.poly_range(gap)[0] >= 0

    def _symbolic_top(self, p: Poly) -> Poly:
        """An upper bound of p as a polynomial in sizes: every variable at its extent minus one."""
        total: Poly = {}
        for monomial, coefficient in p.items():
            total = poly.add(total, self._top_of_term(monomial, coefficient))
        return total

    def _top_of_term(self, monomial: Monomial, coefficient: int) -> Poly:
        low = self.poly_range({monomial: 1})[0]
        if coefficient < 0 and math.isfinite(low) and any(a in self.extents for a in monomial):
            return poly.constant(coefficient * int(low))
        if coefficient < 0 or (len(monomial) > 1 and any(self.range(a)[0] < 0 for a in monomial)):
            return {monomial: coefficient}
        term = poly.constant(coefficient)
        for a in monomial:
            term = poly.multiply(term, self._top_of(a))
        return term

    def _top_of(self, a: ir.Expr) -> Poly:
        if isinstance(a, ir.Var) and a in self.extents:
            return poly.add(self.extents[a], poly.constant(1), -1)
        high = self.range(a)[1]
        if math.isfinite(high):
            return poly.constant(int(high))
        if isinstance(a, ir.Binary) and a.op == "mod" and self.range(a.b)[0] >= 1:
            return poly.add(poly.to_poly(a.b), poly.constant(1), -1)
        return self._top_of_quotient(a) or poly.atom(a)

    def _top_of_quotient(self, a: ir.Expr) -> Poly | None:
        """n - 1 for x // d, where x lies below n * d; else None."""
        if not isinstance(a, ir.Binary) or a.op != "floordiv" or not isinstance(a.a, ir.Var):
            return None
        if a.a not in self.extents or self.range(a.b)[0] < 1:
            return None
        count, rest = poly.divide(self.extents[a.a], poly.to_poly(a.b))
        return None if rest else poly.add(count, poly.constant(1), -1)

    def poly_range(self, p: Poly) -> Range:
        """The range of a polynomial by interval arithmetic."""
        low = high = 0.0
        for monomial, coefficient in p.items():
            r: Range = (coefficient, coefficient)
            for a in monomial:
                r = _times(r, self.range(a))
            low, high = low + r[0], high + r[1]
        return low, high

    def range(self, e: ir.Expr) -> Range:
        """The closed range of an integer expression; symbolic sizes are at least 1."""
        if isinstance(e, ir.Const):
            return (e.value, e.value) if not isinstance(e.value, bool) else (int(e.value), int(e.value))
        if isinstance(e, ir.Var):
            return self.ranges.get(e, UNBOUNDED)
        if isinstance(e, ir.Binary):
            known = self._ranges.get(e)
            if known is None:
                known = self._ranges[e] = self._binary_range(e)
            return known
        if isinstance(e, ir.Select):
            a, b = self.range(e.a), self.range(e.b)
            return min(a[0], b[0]), max(a[1], b[1])
        if isinstance(e, ir.Call) and e.name == "checked_index":
            return 0, self.range(e.args[1])[1] - 1
        if isinstance(e, ir.Unary) and e.op == "neg":
            a = self.range(e.a)
            return -a[1], -a[0]
        return UNBOUNDED

    def _binary_range(self, e: ir.Binary) -> Range:
        if e.op in ("add", "sub", "mul"):
            return self.poly_range(poly.to_poly(e))
        a, b = self.range(e.a), self.range(e.b)
        if e.op == "min":
            return min(a[0], b[0]), min(a[1], b[1])
        if e.op == "max":
            return max(a[0], b[0]), max(a[1], b[1])
        if e.op in ("floordiv", "tdiv") and b[0] >= 1:
            corners = [_floor(x, y) for x in a for y in b]
            return min(corners), max(corners)
        if e.op == "xor" and min(a[0], b[0]) >= 0 and math.isfinite(max(a[1], b[1])):
            return 0, (1 << int(max(a[1], b[1])).bit_length()) - 1
        if e.op in ("mod", "tmod") and b[0] >= 1:
            return 0, min(b[1] - 1, a[1]) if a[0] >= 0 else b[1] - 1
        return UNBOUNDED

    def _extremum(self, op: str, a: ir.Expr, b: ir.Expr) -> ir.Expr:
        if a == b:
            return a
        low, high = self.poly_range(poly.add(poly.to_poly(a), poly.to_poly(b), -1))
        if not (high <= 0 or low >= 0):
            low, high = (0, math.inf) if self._at_most(b, a) else (-math.inf, 0) if self._at_most(a, b) else (low, high)
        if high <= 0:
            return a if op == "min" else b
        if low >= 0:
            return b if op == "min" else a
        return binary(op, a, b)

    def _at_most(self, a: ir.Expr, b: ir.Expr) -> bool:
        """True if a <= b follows from symbolic extents."""
        top = self._symbolic_top(poly.to_poly(a))
        return self.poly_range(poly.add(poly.to_poly(b), top, -1))[0] >= 0

    def _compare(self, e: ir.Compare) -> ir.Expr:
        a, b = self(e.a), self(e.b)
        if a.dtype != i64 or a.lanes != 1:
            return compare(e.op, a, b)
        low, high = self.poly_range(poly.add(poly.to_poly(a), poly.to_poly(b), -1))
        op = e.op
        if op in ("gt", "ge"):
            a, b, low, high, op = b, a, -high, -low, {"gt": "lt", "ge": "le"}[op]
        limit = -1 if op == "lt" else 0
        if op in ("lt", "le"):
            one = const(1, i64)
            if high <= limit or self._at_most(binary("add", a, one) if op == "lt" else a, b):
                return compare("eq", one, one)
            if low > limit or self._at_most(b if op == "lt" else binary("add", b, one), a):
                return compare("ne", one, one)
        elif low > 0 or high < 0:
            return compare("ne" if op == "eq" else "eq", const(0, i64), const(0, i64))
        return compare(op, a, b)


_REMAKE: dict[type, Callable[[Any, tuple[ir.Expr, ...]], ir.Expr]] = {
    ir.Load: lambda e, kids: ir.Load(e.buffer, kids, e.dtype, e.lanes),
    ir.Ramp: lambda e, kids: ir.Ramp(kids[0], kids[1], e.lanes),
    ir.Broadcast: lambda e, kids: ir.Broadcast(kids[0], e.lanes, e.dtype),
    ir.LaneReduce: lambda e, kids: ir.LaneReduce(e.op, kids[0], e.dtype),
    ir.Intrinsic: lambda e, kids: ir.Intrinsic(e.instruction, kids, e.dtype, e.lanes),
}
"""The nodes that stay what they are when their children become simpler."""
_INTEGER = frozenset(("add", "sub", "mul", "floordiv", "mod", "tdiv", "tmod", "min", "max", "xor"))


def _times(a: Range, b: Range) -> Range:
    products = [0.0 if 0 in (x, y) else x * y for x in a for y in b]
    return min(products), max(products)


def _floor(x: float, y: float) -> float:
    if math.isinf(y):
        return 0.0 if x >= 0 else -1.0
    return x if math.isinf(x) else x // y
