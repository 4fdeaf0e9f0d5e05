"""Alignment: the largest power of two known to divide an address."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from taskmap.ir.analysis import polynomial as poly
from taskmap.ir.construct import constant_value
from taskmap.ir.nodes import Binary, Compare, Const, Expr, Select, Var

_LARGEST = 1 << 30


@dataclass(frozen=True, slots=True)
class Multiples:
    """Known divisors of expressions. ``known`` holds those from conditions such as n % 8 == 0 and from Let values."""

    known: dict[Expr, int] = field(default_factory=dict)

    def define(self, var: Var, value: Expr) -> None:
        """``var`` names ``value``, which holds wherever the name is in scope."""
        self.known[var] = self.of(value)

    def assume(self, cond: Expr) -> Multiples:
        """The facts known where ``cond`` holds."""
        if isinstance(cond, Binary) and cond.op == "and":
            return self.assume(cond.a).assume(cond.b)
        if not isinstance(cond, Compare) or cond.op != "eq" or constant_value(cond.b) != 0:
            return self
        rest, divisor = cond.a, None
        if isinstance(rest, Binary) and rest.op in ("mod", "tmod"):
            divisor = constant_value(rest.b)
        if not isinstance(rest, Binary) or divisor is None or divisor <= 0:
            return self
        return Multiples({**self.known, rest.a: math.lcm(int(divisor), self.of(rest.a))})

    def of(self, e: Expr) -> int:
        """The largest power of two, up to 2**30, that divides every value of ``e``."""
        divisor = 0
        for monomial, coefficient in poly.to_poly(e).items():
            term = coefficient
            for atom in monomial:
                term *= self._atom(atom)
            divisor = math.gcd(divisor, term)
        return _power(divisor)

    def _atom(self, e: Expr) -> int:
        if e in self.known:
            return _power(self.known[e])
        if isinstance(e, Const):
            return _power(int(e.value))
        if isinstance(e, Select):
            return math.gcd(self.of(e.a), self.of(e.b))
        if isinstance(e, Binary) and e.op in ("min", "max", "xor", "or", "mod", "tmod"):
            return math.gcd(self.of(e.a), self.of(e.b))
        if isinstance(e, Binary) and e.op == "and":
            return max(self.of(e.a), self.of(e.b))
        return 1


def _power(n: int) -> int:
    return _LARGEST if n == 0 else min(n & -n, _LARGEST)
