"""Activation functions."""

from __future__ import annotations

from taskmap.graph.importers.onnx.read.call import OnnxCall
from taskmap.graph.importers.onnx.read.table import lowering
from taskmap.graph.nodes import Node
from taskmap.graph.ops import activations
from taskmap.graph.ops.creation import arange
from taskmap.graph.ops.pointwise import number, pointwise
from taskmap.graph.ops.reductions import argmax
from taskmap.graph.ops.softmax import log_softmax, softmax
from taskmap.graph.ops.views import reshape
from taskmap.ir.construct import call as function_call
from taskmap.ir.construct import eq, maximum, minimum, product, select, unary
from taskmap.ir.nodes import Expr
from taskmap.ir.types import i64


def _exp(e: Expr) -> Expr:
    return function_call("exp", e)


@lowering("Relu")
def _relu(call: OnnxCall) -> Node:
    x = call.node(0)
    if not x.dtype.is_float:
        return pointwise("relu", (x,), lambda a: maximum(a, number(0, a.dtype)))
    return activations.relu(x)


@lowering("LeakyRelu")
def _leaky_relu(call: OnnxCall) -> Node:
    """x where it is not negative. PyTorch's version also multiplies zero, which matters for an infinite slope."""
    alpha, x = call.attr("alpha", 0.01), call.node(0)
    return pointwise("leaky_relu", (x,), lambda a: select(a < number(0, a.dtype), a * number(alpha, a.dtype), a))


@lowering("PRelu")
def _prelu(call: OnnxCall) -> Node:
    x, slope = call.node(0), call.node(1)
    if call.version < 7 and len(slope.shape) == 1 and len(x.shape) > 2:
        slope = reshape(slope, [*slope.shape, *([1] * (len(x.shape) - 2))])

    def element(a: Expr, s: Expr) -> Expr:
        return select(a < number(0, a.dtype), a * s, a)

    return pointwise("prelu", (x, slope), element, x.dtype, x.dtype)


@lowering("Elu")
def _elu(call: OnnxCall) -> Node:
    return activations.elu(call.node(0), call.attr("alpha", 1.0))


@lowering("Celu")
def _celu(call: OnnxCall) -> Node:
    alpha = call.attr("alpha", 1.0)

    def element(a: Expr) -> Expr:
        zero, scale = number(0, a.dtype), number(alpha, a.dtype)
        negative = minimum(zero, scale * function_call("expm1", a / scale))
        return maximum(zero, a) + negative

    return pointwise("celu", (call.node(0),), element)


@lowering("Selu")
def _selu(call: OnnxCall) -> Node:
    alpha = call.attr("alpha", 1.6732631921768188)
    return activations.elu(call.node(0), alpha, call.attr("gamma", 1.0507010221481323))


@lowering("ThresholdedRelu")
def _thresholded(call: OnnxCall) -> Node:
    alpha = call.attr("alpha", 1.0)
    return pointwise(
        "thresholded_relu", (call.node(0),), lambda a: select(a > number(alpha, a.dtype), a, number(0, a.dtype))
    )


@lowering("HardSigmoid")
def _hard_sigmoid(call: OnnxCall) -> Node:
    alpha, beta = call.attr("alpha", 0.2), call.attr("beta", 0.5)

    def element(a: Expr) -> Expr:
        line = a * number(alpha, a.dtype) + number(beta, a.dtype)
        return maximum(number(0, a.dtype), minimum(number(1, a.dtype), line))

    return pointwise("hard_sigmoid", (call.node(0),), element)


@lowering("HardSwish")
def _hard_swish(call: OnnxCall) -> Node:
    def element(a: Expr) -> Expr:
        line = a * number(1 / 6, a.dtype) + number(0.5, a.dtype)
        return a * maximum(number(0, a.dtype), minimum(number(1, a.dtype), line))

    return pointwise("hard_swish", (call.node(0),), element)


@lowering("Swish")
def _swish(call: OnnxCall) -> Node:
    alpha = call.attr("alpha", 1.0)

    def element(a: Expr) -> Expr:
        scaled = a if alpha == 1.0 else a * number(alpha, a.dtype)
        return a * function_call("sigmoid", scaled)

    return pointwise("swish", (call.node(0),), element)


@lowering("Mish")
def _mish(call: OnnxCall) -> Node:
    return activations.mish(call.node(0))


@lowering("Gelu")
def _gelu(call: OnnxCall) -> Node:
    return activations.gelu(call.node(0), call.attr("approximate", "none"))


@lowering("Softplus")
def _softplus(call: OnnxCall) -> Node:
    def element(a: Expr) -> Expr:
        zero = number(0, a.dtype)
        return maximum(a, zero) + function_call("log1p", _exp(unary("neg", unary("abs", a))))

    return pointwise("softplus", (call.node(0),), element)


@lowering("Softsign")
def _softsign(call: OnnxCall) -> Node:
    return pointwise("softsign", (call.node(0),), lambda a: a / (unary("abs", a) + number(1, a.dtype)))


@lowering("Shrink")
def _shrink(call: OnnxCall) -> Node:
    lambd, bias = call.attr("lambd", 0.5), call.attr("bias", 0.0)
    x = call.node(0)

    def element(a: Expr) -> Expr:
        threshold, shift = number(lambd, a.dtype), number(bias, a.dtype)
        low = a < unary("neg", threshold)
        return select(low, a + shift, select(a > threshold, a - shift, number(0, a.dtype)))

    return pointwise("shrink", (x,), element, x.dtype)


@lowering("Softmax", "LogSoftmax", since=13)
def _softmax(call: OnnxCall) -> Node:
    x = call.node(0)
    axis = call.axis(call.attr("axis", -1), len(x.shape))
    return (softmax if call.op == "Softmax" else log_softmax)(x, axis)


@lowering("Softmax", "LogSoftmax", until=12)
def _softmax_of_matrix(call: OnnxCall) -> Node:
    """Softmax over all dimensions from ``axis`` on, as defined before version 13."""
    x = call.node(0)
    axis = call.axis(call.attr("axis", 1), len(x.shape))
    function = softmax if call.op == "Softmax" else log_softmax
    if axis == len(x.shape) - 1:
        return function(x, axis)
    flat = reshape(x, [*x.shape[:axis], product(x.shape[axis:])])
    return reshape(function(flat, axis), x.shape)


@lowering("Hardmax")
def _hardmax(call: OnnxCall) -> Node:
    x = call.node(0)
    default = -1 if call.version >= 13 else 1
    axis = call.axis(call.attr("axis", default), len(x.shape))
    if call.version >= 13 or axis == len(x.shape) - 1:
        return _one_at_largest(x, axis)
    flat = reshape(x, [*x.shape[:axis], product(x.shape[axis:])])
    return reshape(_one_at_largest(flat, axis), x.shape)


def _one_at_largest(x: Node, axis: int) -> Node:
    winner = argmax(x, axis, True)
    size = x.shape[axis]
    places = reshape(arange(0, size, 1, i64), [size if d == axis else 1 for d in range(len(x.shape))])
    return pointwise(
        "hardmax", (winner, places), lambda a, b: select(eq(a, b), number(1, x.dtype), number(0, x.dtype)), x.dtype, i64
    )
