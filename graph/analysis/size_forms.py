"""The normal form of symbolic sizes, in which sizes that are equal for simple reasons are written identically.

(n + 6 - 7) // 4 + 1   and   1 + (n - 1) // 4      ->  (n - 1) // 4 + 1
(8 * n * m) // (n * m)                             ->  8
"""

from __future__ import annotations

from taskmap.ir.analysis import polynomial as poly
from taskmap.ir.analysis.polynomial import ONE, Poly, to_expr
from taskmap.ir.construct import binary, static_size
from taskmap.ir.nodes import Binary, Dim, Expr, Var
from taskmap.ir.types import i64


def normal(size: Dim) -> Dim:
    """The size in normal form, an int if it is constant. Its variables are assumed to be positive."""
    if not isinstance(size, Expr):
        return size
    known = static_size(size)
    if known is not None:
        return known
    if size.dtype != i64:
        return size
    made = _poly(size)
    number = poly.constant_value(made)
    return to_expr(made) if number is None else number


def is_plain(size: Dim) -> bool:
    """True if a normal form is a number, or a number plus at most two products of variables."""
    if not isinstance(size, Expr):
        return True
    made = poly.to_poly(size)
    atoms = {a for monomial in made for a in monomial}
    return len([m for m in made if m != ONE]) <= 2 and all(isinstance(a, Var) for a in atoms)


def _poly(e: Expr) -> Poly:
    if isinstance(e, Binary) and e.op == "add":
        return poly.add(_poly(e.a), _poly(e.b))
    if isinstance(e, Binary) and e.op == "sub":
        return poly.add(_poly(e.a), _poly(e.b), -1)
    if isinstance(e, Binary) and e.op == "mul":
        return poly.multiply(_poly(e.a), _poly(e.b))
    if isinstance(e, Binary) and e.op == "floordiv":
        return _quotient(_poly(e.a), _poly(e.b))
    if isinstance(e, Binary) and e.op in ("min", "max"):
        return _extremum(e.op, _poly(e.a), _poly(e.b))
    if isinstance(e, Binary) and e.op == "mod":
        return _remainder(_poly(e.a), _poly(e.b))
    return poly.to_poly(e)


def _quotient(a: Poly, b: Poly) -> Poly:
    divisor = poly.constant_value(b)
    if divisor is not None and divisor <= 0:
        return poly.atom(binary("floordiv", to_expr(a), to_expr(b)))
    quotient, rest = poly.divide(a, b)
    if not rest:
        return quotient
    if divisor is None:  # the quotient of a remainder is unknown unless the remainder is known to be smaller
        return poly.atom(binary("floordiv", to_expr(a), to_expr(b)))
    known = poly.constant_value(rest)
    if known is not None:
        return poly.add(quotient, poly.constant(known // divisor))
    return poly.add(quotient, poly.atom(binary("floordiv", to_expr(rest), divisor)))


def _remainder(a: Poly, b: Poly) -> Poly:
    divisor = poly.constant_value(b)
    if divisor is None or divisor <= 0:
        return {} if a == b else poly.atom(binary("mod", to_expr(a), to_expr(b)))
    _, rest = poly.divide(a, b)
    known = poly.constant_value(rest)
    return poly.constant(known % divisor) if known is not None else poly.atom(binary("mod", to_expr(rest), divisor))


def _extremum(op: str, a: Poly, b: Poly) -> Poly:
    difference = poly.constant_value(poly.add(a, b, -1))
    if difference is not None:
        return a if (difference >= 0) == (op == "max") else b
    first, second = sorted((to_expr(a), to_expr(b)), key=repr)
    return poly.atom(binary(op, first, second))
