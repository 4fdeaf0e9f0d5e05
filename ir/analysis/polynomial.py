"""Integer expressions as polynomials: the normal form behind index simplification.

A polynomial is a dict from a monomial, a sorted tuple of atoms, to its integer coefficient; the empty monomial is the
constant. An atom is anything that is not a sum or a product: a variable, a quotient, a minimum, a load.
"""

from __future__ import annotations

from functools import lru_cache

from taskmap.ir.construct import as_expr, binary, const
from taskmap.ir.nodes import Binary, Cast, Const, Expr, Unary, Var
from taskmap.ir.types import i64

Monomial = tuple[Expr, ...]
Poly = dict[Monomial, int]
ONE: Monomial = ()


def atom_order(atom: Expr) -> tuple[int, str]:
    """A stable order of atoms: older variables first, then everything else by its text."""
    return (atom.uid, atom.name) if isinstance(atom, Var) else (1 << 60, _text(atom))


@lru_cache(maxsize=1024)  # the few quotients and minima of a kernel are sorted again and again
def _text(atom: Expr) -> str:
    return repr(atom)


def constant(value: int) -> Poly:
    """The polynomial of a constant."""
    return {ONE: value} if value else {}


def atom(expr: Expr) -> Poly:
    """The polynomial of one atom."""
    return {(expr,): 1}


def add(p: Poly, q: Poly, scale: int = 1) -> Poly:
    """p + scale * q."""
    if not q:
        return p
    if not p and scale == 1:
        return q
    total = dict(p)
    for monomial, coefficient in q.items():
        value = total.get(monomial, 0) + scale * coefficient
        if value:
            total[monomial] = value
        else:
            total.pop(monomial, None)
    return total


def multiply(p: Poly, q: Poly) -> Poly:
    """p * q."""
    if not p or not q:
        return {}
    if len(q) == 1 and ONE in q:
        factor = q[ONE]
        return p if factor == 1 else {m: a * factor for m, a in p.items()}
    if len(p) == 1 and ONE in p:
        return multiply(q, p)
    total: Poly = {}
    for m, a in p.items():
        for n, b in q.items():
            key = m + n
            if m and n:
                key = tuple(sorted(key, key=atom_order))
            value = total.get(key, 0) + a * b
            if value:
                total[key] = value
            else:
                total.pop(key, None)
    return total


def constant_value(p: Poly) -> int | None:
    """The value of a constant polynomial, else None."""
    if not p:
        return 0
    return p[ONE] if len(p) == 1 and ONE in p else None


def to_poly(expr: Expr) -> Poly:
    """The polynomial of an i64 expression, without simplifying inside its atoms."""
    if isinstance(expr, Const):
        return constant(int(expr.value))
    if isinstance(expr, Binary):
        if expr.op == "add":
            return add(to_poly(expr.a), to_poly(expr.b))
        if expr.op == "sub":
            return add(to_poly(expr.a), to_poly(expr.b), -1)
        if expr.op == "mul":
            return multiply(to_poly(expr.a), to_poly(expr.b))
    if isinstance(expr, Unary) and expr.op == "neg":
        return add({}, to_poly(expr.a), -1)
    if isinstance(expr, Cast) and expr.a.dtype == i64 and expr.dtype == i64:
        return to_poly(expr.a)
    return atom(expr)


def _monomial_order(item: tuple[Monomial, int]) -> tuple[bool, list[tuple[int, str]]]:
    return (not item[0], [atom_order(a) for a in item[0]])


def to_expr(p: Poly) -> Expr:
    """The expression of a polynomial: terms from the oldest variable to the constant."""
    total: Expr | None = None
    terms = sorted(p.items(), key=_monomial_order) if len(p) > 1 else list(p.items())
    for monomial, coefficient in terms:
        if total is None:
            total = _term(monomial, coefficient)
        else:
            total = _joined("add" if coefficient > 0 else "sub", total, _term(monomial, abs(coefficient)))
    return as_expr(0, i64) if total is None else total


# Addresses of a kernel share most of their terms, and begin with the same ones.
@lru_cache(maxsize=4096)
def _term(monomial: Monomial, coefficient: int) -> Expr:
    term: Expr | None = None
    for factor in monomial:
        term = factor if term is None else binary("mul", term, factor)
    if term is None:
        return const(coefficient, i64)
    return term if coefficient == 1 else binary("mul", term, coefficient)


@lru_cache(maxsize=4096)
def _joined(op: str, total: Expr, term: Expr) -> Expr:
    return binary(op, total, term)


def divide(p: Poly, d: Poly) -> tuple[Poly, Poly]:
    """(q, r) with p = d * q + r; every term of p divisible by the one-term divisor d goes into q."""
    if len(d) != 1:
        return ({ONE: 1}, {}) if p == d and p else ({}, dict(p))
    ((factors, scale),) = d.items()
    quotient: Poly = {}
    rest: Poly = {}
    for monomial, coefficient in p.items():
        remaining = without(monomial, factors)
        if remaining is None or coefficient % scale:
            part = coefficient // scale if not factors and not monomial else 0
            if part:
                quotient[monomial] = part
            left = coefficient - part * scale
            if left:
                rest[monomial] = left
        else:
            quotient[remaining] = quotient.get(remaining, 0) + coefficient // scale
    return quotient, rest


def without(monomial: Monomial, factors: Monomial) -> Monomial | None:
    """The monomial divided by ``factors``; None if it lacks one of them."""
    left = list(monomial)
    for f in factors:
        if f not in left:
            return None
        left.remove(f)
    return tuple(left)


def linear_coefficient(p: Poly, var: Var) -> int | None:
    """The coefficient of ``var`` if p is linear in it and no other term contains it; else None."""
    coefficient = 0
    for monomial, value in p.items():
        if var not in monomial:
            continue
        if monomial != (var,):
            return None
        coefficient = value
    return coefficient
