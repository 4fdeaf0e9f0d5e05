"""Activation functions, each a single expression; whether they fuse follows from the expression.

Sources are the formulas in the documentation of torch.nn.functional.
"""

from __future__ import annotations

import math

from taskmap.graph.nodes import Node
from taskmap.graph.ops.arithmetic import clamp, held
from taskmap.graph.ops.pointwise import float_pointwise, number, pointwise, refuse_bools, require_floats
from taskmap.graph.ops.promotion import Scalar
from taskmap.ir.construct import call, cast, compare, const, maximum, minimum, select, unary
from taskmap.ir.errors import UnsupportedError
from taskmap.ir.nodes import Expr


def relu(x: Node) -> Node:
    """max(x, 0); NaN and -0 pass through."""
    refuse_bools("relu", x)
    return pointwise("relu", (x,), lambda a: select(a < const(0, a.dtype), const(0, a.dtype), a))


def sigmoid_of(x: Expr) -> Expr:
    """1 / (1 + exp(-x))."""
    return call("sigmoid", x)


def silu(x: Node) -> Node:
    """x * sigmoid(x)."""
    require_floats("silu", x)
    return pointwise("silu", (x,), lambda a: a * sigmoid_of(a))


def gelu_of(a: Expr, approximate: str) -> Expr:
    """x * Φ(x), by erf or by the tanh formula of Hendrycks & Gimpel (2016)."""
    if approximate == "tanh":
        inner = number(math.sqrt(2 / math.pi), a.dtype) * (a + number(0.044715, a.dtype) * a * a * a)
        return number(0.5, a.dtype) * a * (number(1.0, a.dtype) + call("tanh", inner))
    if approximate != "none":
        raise UnsupportedError(f"gelu with approximate={approximate!r}")
    return number(0.5, a.dtype) * a * (number(1.0, a.dtype) + call("erf", a * number(math.sqrt(0.5), a.dtype)))


def gelu(x: Node, approximate: str = "none") -> Node:
    """x * Φ(x), Φ the distribution function of the normal distribution."""
    require_floats("gelu", x)
    return pointwise("gelu", (x,), lambda a: gelu_of(a, approximate))


def hardtanh(x: Node, min_val: Scalar = -1, max_val: Scalar = 1) -> Node:
    """x clamped to [min_val, max_val]."""
    return pointwise("hardtanh", (x,), lambda a: held(a, number(min_val, a.dtype), number(max_val, a.dtype)))


def relu6(x: Node) -> Node:
    """x clamped to [0, 6]."""
    return clamp(x, 0, 6)


def _hard(a: Expr) -> Expr:
    """relu6(x + 3)."""
    return minimum(maximum(a + number(3.0, a.dtype), number(0.0, a.dtype)), number(6.0, a.dtype))


def hardswish(x: Node) -> Node:
    """x * relu6(x + 3) / 6."""
    return pointwise("hardswish", (x,), lambda a: a * _hard(a) / number(6.0, a.dtype))


def hardsigmoid(x: Node) -> Node:
    """relu6(x + 3) / 6."""
    return pointwise("hardsigmoid", (x,), lambda a: _hard(a) / number(6.0, a.dtype))


def leaky_relu(x: Node, negative_slope: Scalar = 0.01) -> Node:
    """x where positive, else negative_slope * x."""
    return pointwise(
        "leaky_relu", (x,), lambda a: select(a > number(0, a.dtype), a, a * number(negative_slope, a.dtype))
    )


def elu(x: Node, alpha: Scalar = 1, scale: Scalar = 1, input_scale: Scalar = 1) -> Node:
    """scale * x where positive, else scale * alpha * (exp(input_scale * x) - 1)."""

    def element(a: Expr) -> Expr:
        negative = number(alpha, a.dtype) * number(scale, a.dtype) * call("expm1", a * number(input_scale, a.dtype))
        return select(compare("le", a, number(0, a.dtype)), negative, a * number(scale, a.dtype))

    return pointwise("elu", (x,), element)


def softplus(x: Node, beta: Scalar = 1, threshold: Scalar = 20) -> Node:
    """log(1 + exp(beta * x)) / beta, linear where beta * x exceeds the threshold."""
    require_floats("softplus", x)

    def element(a: Expr) -> Expr:
        scaled = a * number(beta, a.dtype)
        curve = call("log1p", call("exp", scaled)) / number(beta, a.dtype)
        return select(scaled > number(threshold, a.dtype), a, curve)

    return pointwise("softplus", (x,), element)


def mish(x: Node) -> Node:
    """x * tanh(log(1 + exp(x)))."""
    require_floats("mish", x)
    return pointwise("mish", (x,), lambda a: a * call("tanh", _log1p_exp(a)))


def _log1p_exp(a: Expr) -> Expr:
    """log(1 + exp(x)) without overflow."""
    return maximum(a, number(0.0, a.dtype)) + call("log1p", call("exp", unary("neg", unary("abs", a))))


def log_sigmoid(x: Node) -> Node:
    """log(sigmoid(x)) without overflow."""

    def element(a: Expr) -> Expr:
        return minimum(a, number(0.0, a.dtype)) - call("log1p", call("exp", unary("neg", unary("abs", a))))

    return pointwise("log_sigmoid", (x,), element)


def exp_of_distance(x: Node) -> Node:
    """exp(-|x|)."""
    return pointwise("exp", (x,), lambda a: call("exp", unary("neg", unary("abs", a))))


def hardshrink(x: Node, lambd: Scalar = 0.5) -> Node:
    """x outside [-lambd, lambd], else 0; NaN passes through."""

    def element(a: Expr) -> Expr:
        inside = compare("ge", a, number(-lambd, a.dtype)) & compare("le", a, number(lambd, a.dtype))
        return select(inside, number(0, a.dtype), a)

    return pointwise("hardshrink", (x,), element)


def softshrink(x: Node, lambd: Scalar = 0.5) -> Node:
    """x moved toward zero by lambd, 0 within lambd of it; NaN passes through."""

    def element(a: Expr) -> Expr:
        width = number(lambd, a.dtype)
        low = select(a < unary("neg", width), a + width, a * number(0, a.dtype))
        return select(a > width, a - width, low)

    return pointwise("softshrink", (x,), element)


def threshold(x: Node, threshold: Scalar, value: Scalar) -> Node:
    """x where above the threshold, else value; NaN passes through."""
    return pointwise(
        "threshold", (x,), lambda a: select(compare("le", a, number(threshold, a.dtype)), number(value, a.dtype), a)
    )


def prelu(x: Node, weight: Node) -> Node:
    """x where positive, else weight * x; weight is already broadcast."""
    return pointwise("prelu", (x, weight), lambda a, w: select(a > number(0, a.dtype), a, a * w))


def logit(x: Node, eps: float | None = None) -> Node:
    """log(x / (1 - x)), with x first clamped to [eps, 1 - eps] if eps is given."""

    def element(a: Expr) -> Expr:
        held = a
        if eps is not None:
            held = minimum(maximum(a, number(eps, a.dtype)), number(1.0 - eps, a.dtype))
        return call("log", held / (number(1.0, a.dtype) - held))

    return float_pointwise("logit", (x,), element)


def sign_of(a: Expr) -> Expr:
    """-1, 0 or 1 in the type of ``a``."""
    if a.dtype.is_float:
        return call("sign", a)
    zero = const(0, a.dtype)
    return cast(a > zero, a.dtype) - cast(a < zero, a.dtype)


def sign(x: Node) -> Node:
    """-1, 0 or 1; 0 for NaN."""
    return pointwise("sign", (x,), lambda a: a if a.dtype.is_bool else sign_of(a))
