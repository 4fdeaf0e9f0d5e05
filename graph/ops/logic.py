"""Comparisons, logical and bitwise operators, tests for special values, and choices between tensors."""

from __future__ import annotations

from taskmap.graph.build import elementwise
from taskmap.graph.nodes import Node
from taskmap.graph.ops.pointwise import number, pointwise, predicate, refuse_overflow
from taskmap.graph.ops.promotion import Operand, Scalar, result_type
from taskmap.ir.construct import binary, call, cast, compare, const, select, unary
from taskmap.ir.errors import UnsupportedError
from taskmap.ir.nodes import Expr
from taskmap.ir.types import boolean


def comparison(op: str, x: Operand, y: Operand) -> Node:
    """x ``op`` y (lt, le, gt, ge, eq, ne) in the operands' common type."""
    return predicate(op, (x, y), lambda a, b: compare(op, a, b))


def _truth(e: Expr) -> Expr:
    return cast(e, boolean)


def logical(op: str, x: Operand, y: Operand) -> Node:
    """``op`` (and, or, xor) of the operands' truth values; NaN counts as true."""
    return predicate(f"logical_{op}", (x, y), lambda a, b: binary(op, _truth(a), _truth(b)))


def logical_not(x: Node) -> Node:
    """True where x is zero."""
    return predicate("logical_not", (x,), lambda a: unary("not", _truth(a)))


def bitwise(op: str, x: Operand, y: Operand) -> Node:
    """``op`` (and, or, xor) of integers bit by bit, or of bools logically."""
    if result_type(x, y).is_float:
        raise UnsupportedError(f"bitwise_{op} of floats is not defined")
    return pointwise(f"bitwise_{op}", (x, y), lambda a, b: binary(op, a, b))


def shift(op: str, x: Node, places: Operand) -> Node:
    """The bits of integers moved by a fixed number of ``places``, left ("shl") or right ("shr"), where signed ones
    keep their sign. Raises UnsupportedError for places that are a tensor, negative, or not fewer than the bits."""
    if not x.dtype.is_int or not isinstance(places, int) or not 0 <= places < x.dtype.bits:
        raise UnsupportedError(f"a shift of {x.dtype} by {places if isinstance(places, int) else 'a tensor'}")
    return pointwise(op, (x,), lambda e: binary(op, e, const(places, e.dtype)))


def bitwise_not(x: Node) -> Node:
    """Every bit flipped; logical not for bools."""
    return pointwise("bitwise_not", (x,), lambda a: unary("not", a))


def isnan(x: Node) -> Node:
    """True where x is NaN; never for integers."""
    return _special("isnan", x, otherwise=False)


def isinf(x: Node) -> Node:
    """True where x is infinite."""
    return _special("isinf", x, otherwise=False)


def isfinite(x: Node) -> Node:
    """True where x is neither infinite nor NaN."""
    return _special("isfinite", x, otherwise=True)


def _special(name: str, x: Node, otherwise: bool) -> Node:
    if x.dtype.is_float:
        return predicate(name, (x,), lambda a: call(name, a, dtype=boolean))
    return predicate(name, (x,), lambda a: const(otherwise, boolean))


def signbit(x: Node) -> Node:
    """True where the sign bit is set, including -0.0."""
    if x.dtype.is_float:
        return predicate("signbit", (x,), lambda a: call("signbit", a, dtype=boolean))
    return predicate("signbit", (x,), lambda a: const(False, boolean) if a.dtype.is_bool else a < const(0, a.dtype))


def where(condition: Node, x: Operand, y: Operand) -> Node:
    """x where condition, else y, in the common type of x and y."""
    dtype = result_type(x, y)
    operands = (condition, x, y)

    def element(*values: Expr) -> Expr:
        rest = iter(values)
        test = next(rest)
        chosen = [cast(next(rest), dtype) if isinstance(v, Node) else number(v, dtype) for v in (x, y)]
        return select(test, chosen[0], chosen[1])

    return elementwise("where", tuple(v for v in operands if isinstance(v, Node)), element)


def masked_fill(x: Node, mask: Node, value: Node | Scalar) -> Node:
    """``value`` (a number or a 0-d tensor) where mask, else x; in the type of x."""
    refuse_overflow("masked_fill", x.dtype, *(() if isinstance(value, Node) else (value,)))

    def element(a: Expr, m: Expr, *v: Expr) -> Expr:
        fill = number(value, x.dtype) if not isinstance(value, Node) else cast(v[0], x.dtype)
        return select(m, fill, a)

    return elementwise("masked_fill", (x, mask, value) if isinstance(value, Node) else (x, mask), element)


def nan_to_num(x: Node, nan: float | None = None, posinf: float | None = None, neginf: float | None = None) -> Node:
    """x with NaN replaced by ``nan`` (0) and infinities by ``posinf`` and ``neginf`` (the largest finite numbers)."""
    if not x.dtype.is_float:
        return pointwise("nan_to_num", (x,), lambda a: a)
    largest = {
        "f64": 1.7976931348623157e308,
        "f32": 3.4028234663852886e38,
        "f16": 65504.0,
        "bf16": 3.3895313892515355e38,
    }
    high = largest[x.dtype.name] if posinf is None else posinf
    low = -largest[x.dtype.name] if neginf is None else neginf

    def element(a: Expr) -> Expr:
        infinite = select(a > number(0, a.dtype), number(high, a.dtype), number(low, a.dtype))
        finite = select(call("isinf", a, dtype=boolean), infinite, a)
        return select(call("isnan", a, dtype=boolean), number(nan or 0.0, a.dtype), finite)

    return pointwise("nan_to_num", (x,), element)
