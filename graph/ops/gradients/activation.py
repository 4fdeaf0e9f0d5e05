"""Gradients of the activation functions: the incoming gradient times the derivative at the saved input or output."""

from __future__ import annotations

import math

from taskmap.graph.nodes import Node
from taskmap.graph.ops.pointwise import number, pointwise
from taskmap.graph.ops.promotion import Scalar
from taskmap.ir.construct import call, compare, select
from taskmap.ir.errors import UnsupportedError
from taskmap.ir.nodes import Expr


def _one(a: Expr) -> Expr:
    return number(1.0, a.dtype)


def _zero(a: Expr) -> Expr:
    return number(0, a.dtype)


def threshold_backward(grad: Node, x: Node, threshold: Scalar) -> Node:
    """grad where x is above the threshold (or NaN), else 0."""
    return pointwise(
        "threshold_backward", (grad, x), lambda g, a: select(compare("le", a, number(threshold, a.dtype)), _zero(g), g)
    )


def sigmoid_backward(grad: Node, output: Node) -> Node:
    """grad * (1 - y) * y."""
    return pointwise("sigmoid_backward", (grad, output), lambda g, y: g * ((_one(y) - y) * y))


def tanh_backward(grad: Node, output: Node) -> Node:
    """grad * (1 - y²)."""
    return pointwise("tanh_backward", (grad, output), lambda g, y: g * (_one(y) - y * y))


def silu_backward(grad: Node, x: Node) -> Node:
    """grad * s * (1 + x * (1 - s)) with s = sigmoid(x)."""

    def element(g: Expr, a: Expr) -> Expr:
        s = call("sigmoid", a)
        return g * s * (_one(a) + a * (_one(a) - s))

    return pointwise("silu_backward", (grad, x), element)


def gelu_backward(grad: Node, x: Node, approximate: str = "none") -> Node:
    """grad times the derivative of gelu: Φ(x) + x φ(x), or that of the tanh formula."""
    if approximate not in ("none", "tanh"):
        raise UnsupportedError(f"gelu with approximate={approximate!r}")

    def exact(g: Expr, a: Expr) -> Expr:
        half = number(0.5, a.dtype)
        cdf = half * (_one(a) + call("erf", a * number(math.sqrt(0.5), a.dtype)))
        pdf = call("exp", a * a * number(-0.5, a.dtype)) * number(1 / math.sqrt(2 * math.pi), a.dtype)
        return g * (cdf + a * pdf)

    def by_tanh(g: Expr, a: Expr) -> Expr:
        beta, kappa, half = (number(v, a.dtype) for v in (math.sqrt(2 / math.pi), 0.044715, 0.5))
        t = call("tanh", beta * (a + kappa * a * a * a))
        slope = beta * (_one(a) + number(3 * 0.044715, a.dtype) * a * a)
        return g * (half * (_one(a) + t) + half * a * (_one(a) - t * t) * slope)

    return pointwise("gelu_backward", (grad, x), by_tanh if approximate == "tanh" else exact)


def hardtanh_backward(grad: Node, x: Node, min_val: Scalar, max_val: Scalar) -> Node:
    """grad strictly between the bounds, else 0."""

    def element(g: Expr, a: Expr) -> Expr:
        outside = compare("le", a, number(min_val, a.dtype)) | compare("ge", a, number(max_val, a.dtype))
        return select(outside, _zero(g), g)

    return pointwise("hardtanh_backward", (grad, x), element)


def hardswish_backward(grad: Node, x: Node) -> Node:
    """0 below -3, grad above 3, else grad * (x / 3 + 1/2)."""

    def element(g: Expr, a: Expr) -> Expr:
        three = number(3.0, a.dtype)
        middle = g * (a / three + number(0.5, a.dtype))
        upper = select(compare("lt", a, three), middle, g)
        return select(compare("le", a, number(-3.0, a.dtype)), _zero(g), upper)

    return pointwise("hardswish_backward", (grad, x), element)


def hardsigmoid_backward(grad: Node, x: Node) -> Node:
    """grad / 6 strictly between -3 and 3, else 0."""

    def element(g: Expr, a: Expr) -> Expr:
        inside = compare("gt", a, number(-3.0, a.dtype)) & compare("lt", a, number(3.0, a.dtype))
        return select(inside, g / number(6.0, a.dtype), _zero(g))

    return pointwise("hardsigmoid_backward", (grad, x), element)


def leaky_relu_backward(grad: Node, x: Node, negative_slope: Scalar, self_is_result: bool) -> Node:
    """grad where x is positive, else grad * slope; x may be the result, which has the same sign."""
    if self_is_result and isinstance(negative_slope, (int, float)) and negative_slope < 0:
        raise UnsupportedError("leaky_relu_backward from the result with a negative slope")
    return pointwise(
        "leaky_relu_backward", (grad, x), lambda g, a: select(a > _zero(a), g, g * number(negative_slope, g.dtype))
    )


def elu_backward(grad: Node, alpha: Scalar, scale: Scalar, input_scale: Scalar, is_result: bool, x: Node) -> Node:
    """The derivative of elu from its input, or from its result when ``is_result``."""

    def element(g: Expr, a: Expr) -> Expr:
        factor = number(alpha, a.dtype) * number(scale, a.dtype)
        inner = number(input_scale, a.dtype)
        if is_result:
            negative = g * inner * (a + factor)
        else:
            negative = g * inner * factor * call("exp", a * inner)
        return select(compare("le", a, _zero(a)), negative, g * number(scale, a.dtype))

    return pointwise("elu_backward", (grad, x), element)


def softplus_backward(grad: Node, x: Node, beta: Scalar, threshold: Scalar) -> Node:
    """grad * sigmoid(beta * x), grad where beta * x exceeds the threshold."""

    def element(g: Expr, a: Expr) -> Expr:
        scaled = a * number(beta, a.dtype)
        return select(scaled > number(threshold, a.dtype), g, g * call("sigmoid", scaled))

    return pointwise("softplus_backward", (grad, x), element)


def log_sigmoid_backward(grad: Node, x: Node) -> Node:
    """grad * sigmoid(-x)."""
    return pointwise("log_sigmoid_backward", (grad, x), lambda g, a: g * call("sigmoid", -a))


def mish_backward(grad: Node, x: Node) -> Node:
    """grad * (t + x * s * (1 - t²)) with s = sigmoid(x), t = tanh(log(1 + exp(x)))."""

    def element(g: Expr, a: Expr) -> Expr:
        s = call("sigmoid", a)
        t = call("tanh", call("log1p", call("exp", a)))
        return g * (t + a * s * (_one(a) - t * t))

    return pointwise("mish_backward", (grad, x), element)
