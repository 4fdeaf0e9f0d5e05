"""Arithmetic with one, two and more operands."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import TensorProto

from taskmap.graph.build import broadcast_shapes
from taskmap.graph.importers.onnx.read.call import OnnxCall
from taskmap.graph.importers.onnx.read.elements import PLAIN
from taskmap.graph.importers.onnx.read.host import on_host
from taskmap.graph.importers.onnx.read.table import lowering
from taskmap.graph.importers.onnx.read.values import Tensor
from taskmap.graph.nodes import Node
from taskmap.graph.ops import arithmetic, logic
from taskmap.graph.ops.pointwise import math_function, number, pointwise
from taskmap.graph.ops.views import reshape
from taskmap.ir.construct import binary, cast, compare, const, eq, maximum, minimum, ne, select, static_size, unary
from taskmap.ir.construct import call as function_call
from taskmap.ir.errors import UnsupportedError
from taskmap.ir.nodes import Expr
from taskmap.ir.types import boolean, compute_type, i64

UINT64 = int(TensorProto.UINT64)
MOST_FACTORS = 8
"""The largest number of factors by which a power of integers is computed."""


def operands(call: OnnxCall) -> tuple[Node, Node]:
    """The two inputs; before version 7 the attribute ``axis`` describes how the second one broadcasts."""
    x, y = call.node(0), call.node(1)
    if call.version < 7:
        axis = call.attr("axis")
        if call.attr("broadcast", 0) and axis is not None and len(y.shape) < len(x.shape):
            start = call.axis(axis, len(x.shape))
            y = reshape(y, [*y.shape, *([1] * (len(x.shape) - start - len(y.shape)))])
    return x, y


def is_unsigned(call: OnnxCall) -> bool:
    """True if an operand is uint64, which is held in a signed type."""
    return any(isinstance(v, Tensor) and v.elem == UINT64 for v in call.inputs)


def by_numpy(call: OnnxCall, function: Callable[..., Any], elem: int | None = None) -> list[Tensor]:
    """An element-wise operator that numpy runs on the host."""
    shape = broadcast_shapes(*(call.tensor(i).shape for i in range(len(call.inputs))))
    return on_host(call, function, [(call.elem(0) if elem is None else elem, shape)], "unsigned 64-bit integers")


def _exact(x: Node, y: Node, op: str, function: Callable[[Expr, Expr], Any]) -> Node:
    return pointwise(op, (x, y), function, x.dtype, x.dtype)


@lowering("Add")
def _add(call: OnnxCall) -> Node:
    return _exact(*operands(call), "add", lambda a, b: a + b)


@lowering("Sub")
def _sub(call: OnnxCall) -> Node:
    return _exact(*operands(call), "sub", lambda a, b: a - b)


@lowering("Mul")
def _mul(call: OnnxCall) -> Node:
    return _exact(*operands(call), "mul", lambda a, b: a * b)


@lowering("Div")
def _div(call: OnnxCall) -> Any:
    x, y = operands(call)
    if is_unsigned(call):
        return by_numpy(call, np.floor_divide)
    return _exact(x, y, "div", lambda a, b: a / b if a.dtype.is_float else truncated(a, b))


def nonzero(b: Expr) -> Expr:
    """``b`` with zero replaced by one: division by zero has no result, but must not stop the process."""
    return select(eq(b, const(0, b.dtype)), const(1, b.dtype), b)


def truncated(a: Expr, b: Expr) -> Expr:
    """The quotient of integers, rounded toward zero."""
    divisor = nonzero(b)
    if a.dtype.kind == "u":
        return binary("floordiv", a, divisor)
    zero = const(0, a.dtype)
    minus = eq(divisor, const(-1, a.dtype))
    divisor = select(minus, const(1, a.dtype), divisor)
    quotient = binary("floordiv", a, divisor)
    inexact = ne(binary("mod", a, divisor), zero)
    differ = ne(compare("lt", a, zero), compare("lt", divisor, zero))
    rounded = select(binary("and", inexact, differ), quotient + const(1, a.dtype), quotient)
    return select(minus, unary("neg", a), rounded)


@lowering("Mod")
def _mod(call: OnnxCall) -> Any:
    x, y = operands(call)
    if x.dtype.is_float:
        if call.attr("fmod", 0):
            return pointwise("fmod", (x, y), lambda a, b: function_call("fmod", a, b), x.dtype, x.dtype)
        return pointwise("remainder", (x, y), lambda a, b: function_call("remainder", a, b), x.dtype, x.dtype)
    if is_unsigned(call):
        return by_numpy(call, np.mod)
    if call.attr("fmod", 0):
        return _exact(x, y, "fmod", lambda a, b: a - truncated(a, b) * b)
    return _exact(x, y, "remainder", lambda a, b: _floor_remainder(a, nonzero(b)))


def _floor_remainder(a: Expr, b: Expr) -> Expr:
    if a.dtype.kind == "u":
        return binary("mod", a, b)
    minus = eq(b, const(-1, a.dtype))
    return select(minus, const(0, a.dtype), binary("mod", a, select(minus, const(1, a.dtype), b)))


@lowering("Pow")
def _pow(call: OnnxCall) -> Any:
    x, y = operands(call)
    known = call.maybe(1)
    if x.dtype.is_float and call.elem(1) == UINT64:
        return by_numpy(call, lambda a, b: np.power(a.astype(np.float64), b.astype(np.float64)).astype(a.dtype))
    if x.dtype.is_float:
        if known is not None and known.size == 1:
            exponent = float(known.reshape(-1)[0])
            shape = broadcast_shapes(x.shape, y.shape)
            if exponent in (0.5, 1.0, 2.0, 3.0, -1.0) and len(shape) == len(x.shape):
                return arithmetic.power(x, int(exponent) if exponent == int(exponent) else exponent)
        return pointwise("pow", (x, y), lambda a, b: function_call("pow", a, b), x.dtype, x.dtype)
    shape = broadcast_shapes(x.shape, y.shape)
    out = call.elem(0)
    if known is not None and known.size == 1 and len(shape) == len(x.shape) and PLAIN.get(x.dtype) == out:
        exponent = float(known.reshape(-1)[0])
        if exponent in range(1, MOST_FACTORS + 1):
            return pointwise("pow", (x,), lambda a: math.prod([a] * (int(exponent) - 1), start=a), x.dtype, x.dtype)

    def power(a: Any, b: Any) -> Any:
        if b.dtype.kind == "f" or (b.dtype.kind == "i" and (b < 0).any()):
            return np.power(a.astype(np.float64), b).astype(a.dtype)
        return np.power(a, b.astype(a.dtype))

    return on_host(call, power, [(out, shape)], "powers of integers")


@lowering("Max", "Min")
def _extremum(call: OnnxCall) -> Any:
    if is_unsigned(call):
        wanted = np.maximum if call.op == "Max" else np.minimum
        return by_numpy(call, lambda *arrays: _folded(wanted, arrays))
    choose = maximum if call.op == "Max" else minimum
    result = call.node(0)
    for other in call.nodes()[1:]:
        result = _exact(result, other, call.op.lower(), choose)
    return result


def _folded(function: Callable[..., Any], arrays: tuple[Any, ...]) -> Any:
    total = arrays[0]
    for a in arrays[1:]:
        total = function(total, a)
    return total


@lowering("Sum", "Mean")
def _sum(call: OnnxCall) -> Node:
    nodes = call.nodes()
    wide = compute_type(nodes[0].dtype)
    count = len(nodes)

    def element(*values: Expr) -> Expr:
        total = values[0]
        for v in values[1:]:
            total = total + v
        return total / const(count, wide) if call.op == "Mean" else total

    return pointwise(call.op.lower(), tuple(nodes), element, nodes[0].dtype, nodes[0].dtype)


@lowering("Neg")
def _neg(call: OnnxCall) -> Node:
    return pointwise("neg", (call.node(0),), lambda a: unary("neg", a))


@lowering("Abs")
def _abs(call: OnnxCall) -> Node:
    x = call.node(0)
    if call.elem(0) == UINT64 or x.dtype.kind == "u":
        return x
    return pointwise("abs", (x,), lambda a: unary("abs", a))


@lowering("Sign")
def _sign(call: OnnxCall) -> Any:
    x = call.node(0)
    if call.elem(0) == UINT64:
        return by_numpy(call, np.sign)
    if x.dtype.is_float:
        return pointwise("sign", (x,), lambda a: function_call("sign", a))
    return pointwise(
        "sign", (x,), lambda a: cast(compare("gt", a, 0), a.dtype) - cast(compare("lt", a, 0), a.dtype), x.dtype
    )


_FUNCTIONS = {
    "Acos": "acos",
    "Acosh": "acosh",
    "Asin": "asin",
    "Asinh": "asinh",
    "Atan": "atan",
    "Atanh": "atanh",
    "Ceil": "ceil",
    "Cos": "cos",
    "Cosh": "cosh",
    "Erf": "erf",
    "Exp": "exp",
    "Floor": "floor",
    "Log": "log",
    "Reciprocal": "reciprocal",
    "Round": "round",
    "Sigmoid": "sigmoid",
    "Sin": "sin",
    "Sinh": "sinh",
    "Sqrt": "sqrt",
    "Tan": "tan",
    "Tanh": "tanh",
}


@lowering(*_FUNCTIONS)
def _function(call: OnnxCall) -> Node:
    x = call.node(0)
    if not x.dtype.is_float:
        return _of_integers(call, x)
    return math_function(_FUNCTIONS[call.op], x)


def _of_integers(call: OnnxCall, x: Node) -> Node:
    if call.op == "Erf":
        return pointwise("erf", (x,), lambda a: cast(function_call("erf", cast(a, compute_type(x.dtype))), x.dtype))
    raise UnsupportedError(f"{call.op} of {x.dtype}")


@lowering("Clip", since=11)
def _clip(call: OnnxCall) -> Any:
    x = call.node(0)
    low, high = call.optional(1), call.optional(2)
    if any(bound is not None and any(static_size(n) != 1 for n in bound.shape) for bound in (low, high)):
        raise call.error("a bound has more than one element")
    if is_unsigned(call):
        return by_numpy_clip(call)
    result = x
    if low is not None:
        result = pointwise("clip", (result, reshape(low, [])), maximum, x.dtype, x.dtype)
    if high is not None:
        result = pointwise("clip", (result, reshape(high, [])), minimum, x.dtype, x.dtype)
    return result


def by_numpy_clip(call: OnnxCall) -> list[Tensor]:
    """Clip for uint64."""

    def clip(x: Any, low: Any = None, high: Any = None) -> Any:
        x = x if low is None else np.maximum(x, low)
        return x if high is None else np.minimum(x, high)

    return on_host(call, clip, [(call.elem(0), call.tensor(0).shape)], "unsigned 64-bit integers")


@lowering("Clip", until=6)
def _clip_by_attributes(call: OnnxCall) -> Node:
    x = call.node(0)
    low, high = call.attr("min"), call.attr("max")
    return arithmetic.clamp(x, low, high) if low is not None or high is not None else x


_COMPARISONS = {
    "Equal": ("eq", np.equal),
    "Greater": ("gt", np.greater),
    "GreaterOrEqual": ("ge", np.greater_equal),
    "Less": ("lt", np.less),
    "LessOrEqual": ("le", np.less_equal),
}


@lowering(*_COMPARISONS)
def _compare(call: OnnxCall) -> Any:
    op, function = _COMPARISONS[call.op]
    if is_unsigned(call) and op != "eq":
        return by_numpy(call, function, int(TensorProto.BOOL))
    return logic.comparison(op, *operands(call))


@lowering("And", "Or", "Xor")
def _logical(call: OnnxCall) -> Node:
    return logic.logical(call.op.lower(), *operands(call))


@lowering("Not")
def _not(call: OnnxCall) -> Node:
    return logic.logical_not(call.node(0))


@lowering("BitwiseAnd", "BitwiseOr", "BitwiseXor")
def _bitwise(call: OnnxCall) -> Node:
    op = call.op.removeprefix("Bitwise").lower()
    return _exact(call.node(0), call.node(1), op, lambda a, b: binary(op, a, b))


@lowering("BitwiseNot")
def _bitwise_not(call: OnnxCall) -> Node:
    return logic.bitwise_not(call.node(0))


@lowering("BitShift")
def _shift(call: OnnxCall) -> Any:
    left = call.required("direction") == "LEFT"
    if is_unsigned(call):
        return by_numpy(call, np.left_shift if left else np.right_shift)
    x, y = call.node(0), call.node(1)
    bits = {int(TensorProto.UINT16): 16, int(TensorProto.UINT32): 32}.get(call.elem(0), x.dtype.bits)

    def element(a: Expr, b: Expr) -> Expr:
        wide, by = cast(a, i64), cast(b, i64)
        beyond = compare("lt", by, 0) | compare("ge", by, bits)
        held = minimum(maximum(by, 0), bits - 1)
        if not left:
            sign = select(compare("lt", wide, 0), const(-1, i64), const(0, i64))
            return cast(select(beyond, sign, binary("shr", wide, held)), a.dtype)
        return cast(select(beyond, const(0, i64), binary("shl", wide, held)), a.dtype)

    return pointwise("shift", (x, y), element, x.dtype, x.dtype)


@lowering("IsNaN")
def _isnan(call: OnnxCall) -> Node:
    return logic.isnan(call.node(0))


@lowering("IsInf")
def _isinf(call: OnnxCall) -> Node:
    up, down = call.attr("detect_positive", 1), call.attr("detect_negative", 1)

    def element(a: Expr) -> Expr:
        found = function_call("isinf", a, dtype=boolean)
        if up and down:
            return found
        if not up and not down:
            return const(False, boolean)
        return binary("and", found, compare("gt" if up else "lt", a, number(0, a.dtype)))

    return pointwise("isinf", (call.node(0),), element, boolean)


@lowering("Where")
def _where(call: OnnxCall) -> Node:
    return logic.where(call.node(0), call.node(1), call.node(2))
