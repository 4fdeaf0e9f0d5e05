"""Sums, products, quotients, powers, extrema: the element-wise operators of two and three operands."""

from __future__ import annotations

from taskmap.graph.nodes import Node
from taskmap.graph.ops.pointwise import (
    float_pointwise,
    number,
    pointwise,
    refuse_bools,
    refuse_overflow,
    require_floats,
)
from taskmap.graph.ops.promotion import Operand, Scalar, result_type
from taskmap.ir.construct import binary, call, cast, compare, const, eq, maximum, minimum, ne, select, unary
from taskmap.ir.errors import UnsupportedError
from taskmap.ir.nodes import Expr
from taskmap.ir.types import DType, boolean, compute_type


def add(x: Operand, y: Operand, alpha: Scalar = 1) -> Node:
    """x + alpha * y; logical or for bools."""
    dtype = result_type(x, y)
    if dtype.is_bool:
        return pointwise("add", (x, y), lambda a, b: a | (b if alpha else const(False, boolean)))
    _check_alpha(alpha, dtype)
    factor = number(alpha, compute_type(dtype))
    return pointwise("add", (x, y), lambda a, b: a + (b if _is_one(alpha) else b * factor))


def sub(x: Operand, y: Operand, alpha: Scalar = 1) -> Node:
    """x - alpha * y; raises UnsupportedError for bools."""
    refuse_bools("subtraction", x, y)
    dtype = result_type(x, y)
    _check_alpha(alpha, dtype)
    factor = number(alpha, compute_type(dtype))
    return pointwise("sub", (x, y), lambda a, b: a - (b if _is_one(alpha) else b * factor))


def rsub(x: Operand, y: Operand, alpha: Scalar = 1) -> Node:
    """y - alpha * x."""
    return sub(y, x, alpha)


def _check_alpha(alpha: Scalar, dtype: DType) -> None:
    if isinstance(alpha, bool) and not dtype.is_bool:
        raise UnsupportedError(f"a bool as the factor of {dtype}")


def _is_one(alpha: Scalar) -> bool:
    return not isinstance(alpha, Expr) and alpha == 1


def mul(x: Operand, y: Operand) -> Node:
    """x * y; logical and for bools."""
    if result_type(x, y).is_bool:
        return pointwise("mul", (x, y), lambda a, b: a & b)
    return pointwise("mul", (x, y), lambda a, b: a * b)


def div(x: Operand, y: Operand, rounding_mode: str | None = None) -> Node:
    """x / y: true division in floating point, or rounded toward zero ("trunc") or minus infinity ("floor")."""
    if rounding_mode is None:
        return float_pointwise("div", (x, y), lambda a, b: a / b)
    if result_type(x, y).is_float:
        if rounding_mode == "floor":
            return pointwise("div", (x, y), lambda a, b: call("floor_div", a, b))
        half = result_type(x, y)
        return pointwise("div", (x, y), lambda a, b: call("trunc", _rounded(a / b, half)))
    divisor = _divisor(x, y)
    if rounding_mode == "floor":
        return pointwise("div", (x, y), lambda a, b: _floor_quotient(a, b, divisor))
    return pointwise("div", (x, y), lambda a, b: _trunc_quotient(a, b, divisor))


def _rounded(e: Expr, dtype: DType) -> Expr:
    """``e`` rounded to the precision of ``dtype``: PyTorch rounds a quotient of half types before it truncates it."""
    return cast(cast(e, dtype), e.dtype)


def _divisor(x: Operand, y: Operand) -> int:
    """The integer divisor as the type of the quotient holds it: -1 is 255 for u8. A tensor divisor may hold a zero,
    which PyTorch reports and a kernel cannot."""
    dtype = result_type(x, y)
    held = 0 if isinstance(y, (Node, Expr)) else const(int(y), dtype).value
    if not held:
        raise UnsupportedError("integer division by a tensor, in which a zero must raise PyTorch's error")
    return int(held)


def _floor_quotient(a: Expr, b: Expr, divisor: int) -> Expr:
    return unary("neg", a) if divisor == -1 else binary("floordiv", a, b)


def _trunc_quotient(a: Expr, b: Expr, divisor: int) -> Expr:
    if divisor == -1:
        return unary("neg", a)
    quotient = binary("floordiv", a, b)
    inexact = ne(binary("mod", a, b), const(0, a.dtype))
    differ = compare("lt" if divisor > 0 else "gt", a, const(0, a.dtype))
    return select(binary("and", inexact, differ), quotient + const(1, a.dtype), quotient)


def floor_divide(x: Operand, y: Operand) -> Node:
    """floor(x / y)."""
    return div(x, y, "floor")


def remainder(x: Operand, y: Operand) -> Node:
    """x modulo y with the sign of y, as Python's %."""
    if result_type(x, y).is_float:
        return pointwise("remainder", (x, y), lambda a, b: call("remainder", a, b))
    divisor = _divisor(x, y)
    return pointwise("remainder", (x, y), lambda a, b: const(0, a.dtype) if divisor == -1 else binary("mod", a, b))


def fmod(x: Operand, y: Operand) -> Node:
    """x modulo y with the sign of x, as C's fmod."""
    if result_type(x, y).is_float:
        return pointwise("fmod", (x, y), lambda a, b: call("fmod", a, b))
    divisor = _divisor(x, y)

    def element(a: Expr, b: Expr) -> Expr:
        return const(0, a.dtype) if divisor == -1 else a - _trunc_quotient(a, b, divisor) * b

    return pointwise("fmod", (x, y), element)


def power(x: Operand, y: Operand) -> Node:
    """x ** y. A small integer exponent becomes products, ±1/2 a (reciprocal) square root."""
    dtype = result_type(x, y)
    if isinstance(y, (int, float)) and isinstance(x, Node):
        return _power_of(x, y)
    if not dtype.is_float:
        raise UnsupportedError("an integer power with an exponent that is a tensor")
    return pointwise("pow", (x, y), lambda a, b: call("pow", a, b))


def _power_of(x: Node, exponent: float) -> Node:
    dtype = result_type(x, exponent)
    if dtype.is_bool:
        raise UnsupportedError("a power of bools")
    if dtype.is_int and not 0 <= exponent <= 16:
        raise UnsupportedError(f"an integer power with exponent {exponent}")
    if dtype.is_int or exponent in (0, 1, 2, 3):
        return pointwise("pow", (x,), lambda a: _product(a, int(exponent)), dtype, dtype)
    special = {0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}
    if exponent in special:
        return pointwise("pow", (x,), lambda a: call(special[exponent], a), dtype, dtype)
    if exponent == -2:
        return pointwise("pow", (x,), lambda a: call("reciprocal", a * a), dtype, dtype)
    return pointwise("pow", (x, exponent), lambda a, b: call("pow", a, b), dtype, dtype)


def _product(a: Expr, count: int) -> Expr:
    """``a`` multiplied ``count`` times, by repeated squaring beyond three."""
    if count == 0:
        return const(1, a.dtype)
    if count <= 3:
        return a if count == 1 else _product(a, count - 1) * a
    half = _product(a, count // 2)
    return half * half if count % 2 == 0 else half * half * a


def greater_of(x: Operand, y: Operand) -> Node:
    """The larger of two; NaN where either is NaN."""
    return pointwise("maximum", (x, y), maximum)


def smaller_of(x: Operand, y: Operand) -> Node:
    """The smaller of two; NaN where either is NaN."""
    return pointwise("minimum", (x, y), minimum)


def fmax(x: Operand, y: Operand) -> Node:
    """The larger of two; where one is NaN, the other."""
    return _ignoring_nan("fmax", x, y)


def fmin(x: Operand, y: Operand) -> Node:
    """The smaller of two; where one is NaN, the other."""
    return _ignoring_nan("fmin", x, y)


def _ignoring_nan(op: str, x: Operand, y: Operand) -> Node:
    if result_type(x, y).is_float:
        return pointwise(op, (x, y), lambda a, b: call(op, a, b))
    return pointwise(op, (x, y), maximum if op == "fmax" else minimum)


def held(a: Expr, low: Expr | None, high: Expr | None) -> Expr:
    """``a`` clamped to bounds that are not NaN. NaN passes through, and so does a zero at a bound of the other sign."""
    bounded = a if low is None else select(a < low, low, a)
    return bounded if high is None else select(bounded > high, high, bounded)


def clamp(x: Node, low: Operand | None = None, high: Operand | None = None) -> Node:
    """min(max(x, low), high), either bound optional. NaN passes through, and a NaN bound gives NaN."""
    bounds = [b for b in (low, high) if b is not None]
    dtype = result_type(x, *bounds)
    if dtype.is_bool:
        raise UnsupportedError("clamp of bools is not defined")
    refuse_overflow("clamp", dtype, *bounds)

    def element(a: Expr, *limits: Expr) -> Expr:
        rest = iter(limits)
        if not any(isinstance(b, Node) or b != b for b in bounds):
            return held(a, None if low is None else next(rest), None if high is None else next(rest))
        bounded = a if low is None else maximum(a, next(rest))
        return bounded if high is None else minimum(bounded, next(rest))

    return pointwise("clamp", (x, *bounds), element, dtype, dtype)


def atan2(x: Operand, y: Operand) -> Node:
    """The angle of the point (y, x), in (-π, π]."""
    return float_pointwise("atan2", (x, y), lambda a, b: call("atan2", a, b))


def hypot(x: Operand, y: Operand) -> Node:
    """sqrt(x² + y²) without overflow; floats only."""
    if not result_type(x, y).is_float:
        raise UnsupportedError("hypot of integers is not defined")
    return pointwise("hypot", (x, y), lambda a, b: call("hypot", a, b))


def copysign(x: Operand, y: Operand) -> Node:
    """|x| with the sign of y."""
    return float_pointwise("copysign", (x, y), lambda a, b: call("copysign", a, b))


def addcmul(x: Node, y: Node, z: Node, value: Scalar = 1) -> Node:
    """x + value * y * z."""
    dtype = result_type(x, y, z)
    return pointwise("addcmul", (x, y, z, value), lambda a, b, c, v: a + v * b * c, dtype, dtype)


def addcdiv(x: Node, y: Node, z: Node, value: Scalar = 1) -> Node:
    """x + value * y / z; floats only."""
    dtype = result_type(x, y, z)
    if not dtype.is_float:
        raise UnsupportedError("addcdiv of integers is not defined")
    return pointwise("addcdiv", (x, y, z, value), lambda a, b, c, v: a + v * b / c, dtype, dtype)


def lerp(x: Node, y: Node, weight: Operand) -> Node:
    """x + weight * (y - x), computed from the nearer end: from y where |weight| is at least one half. Floats only."""
    require_floats("lerp", x, y)

    def element(a: Expr, b: Expr, w: Expr) -> Expr:
        near = compare("lt", unary("abs", w), number(0.5, w.dtype))
        return select(near, a + w * (b - a), b - (b - a) * (number(1.0, w.dtype) - w))

    return pointwise("lerp", (x, y, weight), element, x.dtype, x.dtype)


def logaddexp(x: Operand, y: Operand) -> Node:
    """log(exp(x) + exp(y)), exact for infinities."""

    def element(a: Expr, b: Expr) -> Expr:
        same = binary("and", call("isinf", a, dtype=boolean), eq(a, b))
        top = maximum(a, b)
        distance = unary("neg", unary("abs", a - b))
        return select(same, a, top + call("log1p", call("exp", distance)))

    return pointwise("logaddexp", (x, y), element)


def xlogy(x: Operand, y: Operand) -> Node:
    """x * log(y), zero where x is zero unless y is NaN."""

    def element(a: Expr, b: Expr) -> Expr:
        product = a * call("log", b)
        value = select(eq(a, number(0, a.dtype)), number(0, a.dtype), product)
        return select(call("isnan", b, dtype=boolean), b, value)

    return float_pointwise("xlogy", (x, y), element)
