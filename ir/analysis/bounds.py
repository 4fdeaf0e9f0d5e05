"""Interval analysis of integer expressions, and proofs of inequalities between them.

``bounds`` gives the range of an expression from the ranges of its variables. ``Facts`` also knows symbolic limits
(i < n) and conditions that hold, and proves a <= b on polynomials: it sets every variable to the end that maximises
a - b, or subtracts a condition known to hold, and bounds the remainder. Symbolic sizes are at least 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from taskmap.ir import nodes as ir
from taskmap.ir.analysis import polynomial as poly
from taskmap.ir.analysis.polynomial import Poly
from taskmap.ir.construct import index, static_size
from taskmap.ir.types import DType, i64
from taskmap.ir.visit import map_expr, substitute

End = int | float
_INF = math.inf


@dataclass(frozen=True, slots=True)
class Interval:
    """All integers from lo to hi, both included; an end may be infinite."""

    lo: End
    hi: End

    def __add__(self, other: Interval) -> Interval:
        return Interval(self.lo + other.lo, self.hi + other.hi)

    def __neg__(self) -> Interval:
        return Interval(-self.hi, -self.lo)

    def __sub__(self, other: Interval) -> Interval:
        return self + -other

    def __mul__(self, other: Interval) -> Interval:
        ends = [0 if 0 in (x, y) else x * y for x in (self.lo, self.hi) for y in (other.lo, other.hi)]
        return Interval(min(ends), max(ends))

    def __or__(self, other: Interval) -> Interval:
        return Interval(min(self.lo, other.lo), max(self.hi, other.hi))

    def __contains__(self, value: int) -> bool:
        return self.lo <= value <= self.hi

    @property
    def is_finite(self) -> bool:
        """True if both ends are finite."""
        return math.isfinite(self.lo) and math.isfinite(self.hi)


EVERYTHING = Interval(-_INF, _INF)
BIT = Interval(0, 1)


def type_range(dtype: DType) -> Interval:
    """The values of an integer type; i64 counts as unbounded, since an index does not overflow."""
    if dtype.is_bool:
        return BIT
    if not dtype.is_int or dtype == i64:
        return EVERYTHING
    if dtype.kind == "u":
        return Interval(0, (1 << dtype.bits) - 1)
    return Interval(-(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1)


def bounds(expr: ir.Expr, env: Mapping[ir.Var, Interval]) -> Interval:
    """An interval with every value of ``expr``, in every lane. A variable not in ``env`` has the range of its type."""
    return node_bounds(expr, env, lambda e: bounds(e, env))


def node_bounds(expr: ir.Expr, env: Mapping[ir.Var, Interval], of: Callable[[ir.Expr], Interval]) -> Interval:
    """``bounds`` of ``expr``, with ``of`` giving those of its operands, for callers that cache them."""
    known = type_range(expr.dtype)
    if isinstance(expr, ir.Const):
        return Interval(int(expr.value), int(expr.value)) if not expr.dtype.is_float else EVERYTHING
    if isinstance(expr, ir.Var):
        return env.get(expr, known)
    if isinstance(expr, ir.Compare):
        return BIT
    found = EVERYTHING
    if isinstance(expr, ir.Binary):
        found = _OPERATIONS.get(expr.op, _unknown)(of(expr.a), of(expr.b))
    elif isinstance(expr, ir.Unary):
        found = _unary(expr.op, of(expr.a))
    elif isinstance(expr, ir.Select):
        found = of(expr.a) | of(expr.b)
    elif isinstance(expr, (ir.Broadcast, ir.Cast)):
        found = EVERYTHING if expr.a.dtype.is_float else of(expr.a)
    elif isinstance(expr, ir.LaneReduce) and expr.op in ("min", "max", "and", "or"):
        found = of(expr.a)
    elif isinstance(expr, ir.Ramp):
        found = of(expr.base) + of(expr.stride) * Interval(0, expr.lanes - 1)
    elif isinstance(expr, ir.Call) and expr.name == "checked_index":
        found = Interval(0, max(0, of(expr.args[1]).hi - 1))
    fits = found.lo >= known.lo and found.hi <= known.hi
    return found if fits else known


def _unknown(a: Interval, b: Interval) -> Interval:
    return EVERYTHING


def _quotient(a: Interval, b: Interval) -> Interval:
    if b.lo < 1:
        return EVERYTHING
    ends = [_floor(x, y) for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
    return Interval(min(ends), max(ends))


def _floor(x: End, y: End) -> End:
    if math.isinf(x):
        return x
    return (0 if x >= 0 else -1) if math.isinf(y) else int(x) // int(y)


def _remainder(a: Interval, b: Interval) -> Interval:
    if b.lo < 1:
        return EVERYTHING
    if a.lo >= 0 and a.hi < b.lo:
        return a
    return Interval(0, min(b.hi - 1, a.hi) if a.lo >= 0 else b.hi - 1)


def _conjunction(a: Interval, b: Interval) -> Interval:
    return Interval(0, min(a.hi, b.hi)) if a.lo >= 0 and b.lo >= 0 else EVERYTHING


def _bits(a: Interval, b: Interval) -> Interval:
    """or and xor of non-negative values set no bit above the highest of either."""
    if a.lo < 0 or b.lo < 0 or not (a.is_finite and b.is_finite):
        return EVERYTHING
    return Interval(0, (1 << max(int(a.hi).bit_length(), int(b.hi).bit_length())) - 1)


def _shift_right(a: Interval, b: Interval) -> Interval:
    if not b.is_finite or b.lo < 0 or b.hi > 62:
        return EVERYTHING
    return _quotient(a, Interval(1 << int(b.lo), 1 << int(b.hi)))


def _shift_left(a: Interval, b: Interval) -> Interval:
    if not b.is_finite or b.lo < 0 or b.hi > 62:
        return EVERYTHING
    return a * Interval(1 << int(b.lo), 1 << int(b.hi))


_OPERATIONS: dict[str, Callable[[Interval, Interval], Interval]] = {
    "add": Interval.__add__,
    "sub": Interval.__sub__,
    "mul": Interval.__mul__,
    "floordiv": _quotient,
    "tdiv": _quotient,
    "mod": _remainder,
    "tmod": _remainder,
    "min": lambda a, b: Interval(min(a.lo, b.lo), min(a.hi, b.hi)),
    "max": lambda a, b: Interval(max(a.lo, b.lo), max(a.hi, b.hi)),
    "and": _conjunction,
    "or": _bits,
    "xor": _bits,
    "shr": _shift_right,
    "shl": _shift_left,
}


def _unary(op: str, a: Interval) -> Interval:
    if op == "neg":
        return -a
    if op == "abs":
        return Interval(0 if 0 in a else min(abs(a.lo), abs(a.hi)), max(abs(a.lo), abs(a.hi)))
    return EVERYTHING


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts known at one place of a kernel. Each method that adds knowledge returns new facts.

    ranges: of variables. limits: variables below a symbolic size. values: the values that Lets name. nonpositive:
    polynomials that are at most 0 because a condition holds.
    """

    ranges: dict[ir.Var, Interval] = field(default_factory=dict)
    limits: dict[ir.Var, Poly] = field(default_factory=dict)
    values: dict[ir.Var, ir.Expr] = field(default_factory=dict)
    nonpositive: tuple[Poly, ...] = ()

    def below(self, var: ir.Var, extent: ir.Dim) -> Facts:
        """0 <= var < extent, and so extent is at least 1."""
        size = static_size(extent)
        if size is not None:
            return self.within(var, Interval(0, size - 1))
        inlined = self.inline(index(extent))
        limits = {**self.limits, var: poly.to_poly(inlined)}
        top = self.bounds(inlined).hi - 1
        some = poly.add(poly.constant(1), limits[var], -1)
        return Facts({**self.ranges, var: Interval(0, top)}, limits, self.values, (*self.nonpositive, some))

    def within(self, var: ir.Var, interval: Interval) -> Facts:
        """var lies in ``interval``."""
        return Facts({**self.ranges, var: interval}, self.limits, self.values, self.nonpositive)

    def define(self, var: ir.Var, value: ir.Expr) -> Facts:
        """var names ``value``."""
        if not value.dtype.is_int:
            return self
        inlined = self.inline(value)
        known = self.within(var, self.bounds(inlined))
        return Facts(known.ranges, known.limits, {**self.values, var: inlined}, known.nonpositive)

    def assume(self, cond: ir.Expr, holds: bool = True) -> Facts:
        """``cond`` holds, or does not. Comparisons of i64 scalars and their conjunctions are understood."""
        if isinstance(cond, ir.Unary) and cond.op == "not":
            return self.assume(cond.a, not holds)
        if isinstance(cond, ir.Binary) and cond.op == ("and" if holds else "or"):
            return self.assume(cond.a, holds).assume(cond.b, holds)
        if not isinstance(cond, ir.Compare) or cond.a.dtype != i64 or cond.lanes != 1:
            return self
        op = cond.op if holds else _NEGATION[cond.op]
        gap = poly.add(self.poly(cond.a), self.poly(cond.b), -1)
        back = poly.add({}, gap, -1)
        one = poly.constant(1)
        new = {
            "lt": (poly.add(gap, one),),
            "le": (gap,),
            "gt": (poly.add(back, one),),
            "ge": (back,),
            "eq": (gap, back),
            "ne": (),
        }[op]
        return Facts(self.ranges, self.limits, self.values, (*self.nonpositive, *new))

    def inline(self, expr: ir.Expr) -> ir.Expr:
        """``expr`` with Let names replaced by their values, and one variable in place of all lanes of a vector."""
        scalar = map_expr(expr, self._one_lane) if expr.lanes in _LANE else expr
        return substitute(scalar, self.values) if self.values else scalar

    @staticmethod
    def _one_lane(e: ir.Expr) -> ir.Expr | None:
        if isinstance(e, ir.Ramp) and e.lanes in _LANE:
            return e.base + e.stride * _LANE[e.lanes]
        return e.a if isinstance(e, ir.Broadcast) else None

    def poly(self, expr: ir.Expr) -> Poly:
        """The polynomial of an i64 expression with Lets inlined."""
        return poly.to_poly(self.inline(expr))

    def bounds(self, expr: ir.Expr) -> Interval:
        """The range of ``expr`` here."""
        return bounds(self.inline(expr), {**self.ranges, **_LANE_RANGES})

    def at_most(self, a: ir.Expr, b: ir.Expr) -> bool:
        """True if a <= b can be proved."""
        return self.is_nonpositive(poly.add(self.poly(a), self.poly(b), -1))

    def is_nonpositive(self, p: Poly, depth: int = 4) -> bool:
        """True if p <= 0 can be proved. An extremum in p is expanded into its operands, up to ``depth`` times."""
        if self._largest(p) <= 0:
            return True
        if any(self._largest(poly.add(p, known, -1)) <= 0 for known in self.nonpositive):
            return True
        return depth > 0 and self._by_extrema(p, depth - 1)

    def _by_extrema(self, p: Poly, depth: int) -> bool:
        """Prove p <= 0 for p with a min or max: min(a, b) <= a and <= b, so for c > 0 one side of c * min suffices."""
        for monomial, coefficient in p.items():
            (e,) = monomial if len(monomial) == 1 else (None,)
            if not isinstance(e, ir.Binary) or e.op not in ("min", "max"):
                continue
            rest = {m: c for m, c in p.items() if m != monomial}
            sides = (poly.add(rest, self.poly(side), coefficient) for side in (e.a, e.b))
            proved = (self.is_nonpositive(side, depth) for side in sides)
            if any(proved) if (coefficient > 0) == (e.op == "min") else all(proved):
                return True
        return False

    def poly_range(self, p: Poly) -> Interval:
        """The range of a polynomial by interval arithmetic."""
        total = Interval(0, 0)
        for monomial, coefficient in p.items():
            term = Interval(coefficient, coefficient)
            for atom in monomial:
                term = term * self.bounds(atom)
            total = total + term
        return total

    def _largest(self, p: Poly) -> End:
        """The smaller of two upper bounds of p: by interval arithmetic, and with limited variables at their ends."""
        best = self.poly_range(p).hi
        for _ in range(_DEPTH):
            var = next((v for m, c in p.items() for v in m if c > 0 and v in self.limits), None)
            raised = None if var is None else self._at_top(p, var)
            if raised is None:
                break
            p = raised
            best = min(best, self.poly_range(p).hi)
        return best

    def _at_top(self, p: Poly, var: ir.Expr) -> Poly | None:
        """p with ``var`` at its limit minus one where its coefficient is positive, and at 0 where it is negative."""
        if not isinstance(var, ir.Var):
            return None
        top = poly.add(self.limits[var], poly.constant(1), -1)
        total: Poly = {}
        for monomial, coefficient in p.items():
            if var not in monomial:
                total = poly.add(total, {monomial: coefficient})
                continue
            rest = list(monomial)
            rest.remove(var)
            if any(self.bounds(a).lo < 0 for a in rest):
                return None
            if coefficient > 0:
                total = poly.add(total, poly.multiply({tuple(rest): coefficient}, top))
        return total


_NEGATION = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt", "eq": "ne", "ne": "eq"}

_DEPTH = 8
"""The longest chain of limits that mention other limited variables."""

_LANE = {1 << b: ir.Var(f"lane{1 << b}") for b in range(1, 9)}
"""A variable that stands for the lane, for each common number of lanes."""

LANES = frozenset(_LANE.values())
_LANE_RANGES = {var: Interval(0, lanes - 1) for lanes, var in _LANE.items()}
