"""Operators on quantised tensors (QLinear...): dequantise the operands, apply the operator, quantise the result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onnx import TensorProto

from taskmap.graph.importers.onnx.contract import composed
from taskmap.graph.importers.onnx.microsoft.convolutions import channels_first, channels_last
from taskmap.graph.importers.onnx.read.composition import Body

INT8 = int(TensorProto.INT8)


def numbers(b: Body, x: str, scale: str, zero: str) -> str:
    """A quantised tensor converted to numbers."""
    return b("DequantizeLinear", x, scale, zero)


def quantised(b: Body, x: str, scale: str, zero: str, elem: int) -> str:
    """Numbers quantised to the type ``elem``."""
    return b("QuantizeLinear", x, scale, zero or b.constant(0, elem))


_BINARY = "A:Q A_scale:f32 A_zero_point:Q? B:Q B_scale:f32 B_zero_point:Q? C_scale:f32 C_zero_point:Q? -> C:Q"


def _binary(op: str) -> Callable[[Body], None]:
    def define(b: Body) -> None:
        operands = [numbers(b, n, f"{n}_scale", b[f"{n}_zero_point"]) for n in ("A", "B")]
        b.returns(quantised(b, b(op, *operands), "C_scale", b["C_zero_point"], b.elem("A")))

    return define


for _name in ("Add", "Mul"):
    composed(f"QLinear{_name}", _BINARY)(_binary(_name))

_UNARY = "X:Q X_scale:f32 X_zero_point:Q? Y_scale:f32 Y_zero_point:Q? -> Y:Q"


def _unary(b: Body, function: Callable[[str], str]) -> None:
    made = function(numbers(b, "X", "X_scale", b["X_zero_point"]))
    b.returns(quantised(b, made, "Y_scale", b["Y_zero_point"], b.elem("X")))


@composed("QLinearSigmoid", _UNARY)
def _sigmoid(b: Body) -> None:
    _unary(b, lambda x: b("Sigmoid", x))


@composed("QLinearLeakyRelu", _UNARY, "alpha:f")
def _leaky_relu(b: Body) -> None:
    _unary(b, lambda x: b("LeakyRelu", x, alpha=b.attr("alpha", 0.01)))


@composed("QLinearSoftmax", _UNARY, "axis:i opset:i")
def _softmax(b: Body) -> None:
    rank = len(b.shape("X"))
    axis = b.call.axis(b.attr("axis", -1), rank)

    def softmax(x: str) -> str:
        if int(b.call.required("opset")) >= 13:
            return b("Softmax", x, axis=axis)
        flat = b("Reshape", x, b("Concat", b.sizes("X", 0, axis), b.ints(-1), axis=0))
        return b("Reshape", b("Softmax", flat, axis=axis), b.sizes("X", 0, rank))

    _unary(b, softmax)


def _ordered(b: Body, x: str, function: Callable[[str], str]) -> str:
    """``function`` applied in NCHW order, with transposes around it if the call's tensors have their channels last."""
    if not b.attr("channels_last", 0):
        return function(x)
    rank = len(b.shape("X"))
    return channels_last(b, function(channels_first(b, x, rank)), rank)


@composed("QLinearGlobalAveragePool", _UNARY, "channels_last:i")
def _global_pool(b: Body) -> None:
    _unary(b, lambda x: _ordered(b, x, lambda y: b("GlobalAveragePool", y)))


_POOL = ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")


@composed(
    "QLinearAveragePool",
    _UNARY,
    "auto_pad:s ceil_mode:i channels_last:i count_include_pad:i kernel_shape:is pads:is strides:is",
)
def _pool(b: Body) -> None:
    settings: dict[str, Any] = {n: b.call.attributes[n] for n in _POOL if n in b.call.attributes}
    _unary(b, lambda x: _ordered(b, x, lambda y: b("AveragePool", y, **settings)))


@composed(
    "QLinearReduceMean",
    "data:Q data_scale:f32 data_zero_point:Q? reduced_scale:f32 reduced_zero_point:Q? -> reduced:Q",
    "axes:is keepdims:i",
)
def _mean(b: Body) -> None:
    x = numbers(b, "data", "data_scale", b["data_zero_point"])
    mean = b("ReduceMean", x, b.ints(*b.attr("axes", [])), keepdims=int(b.attr("keepdims", 1)))
    b.returns(quantised(b, mean, "reduced_scale", b["reduced_zero_point"], b.elem("data")))


@composed("QLinearConcat", "Y_scale:f32 Y_zero_point:Q inputs:A* -> Y:Q", "axis:i")
def _concat(b: Body) -> None:
    given = b.inputs[2:]
    if len(given) % 3 or not given:
        raise b.call.error(f"{len(given)} inputs, which is not three per tensor")
    parts = [numbers(b, *given[i : i + 3]) for i in range(0, len(given), 3)]
    whole = b("Concat", *parts, axis=int(b.call.required("axis")))
    b.returns(quantised(b, whole, "Y_scale", "Y_zero_point", b.elem("Y_zero_point")))


@composed(
    "QLinearWhere",
    "condition:bool X:Q x_scale:f32 x_zero_point:Q Y:Q y_scale:f32 y_zero_point:Q z_scale:f32 z_zero_point:Q -> Z:Q",
)
def _where(b: Body) -> None:
    x, y = (numbers(b, n, f"{n.lower()}_scale", f"{n.lower()}_zero_point") for n in ("X", "Y"))
    b.returns(quantised(b, b("Where", "condition", x, y), "z_scale", "z_zero_point", b.elem("X")))


@composed("MulInteger", "A:Q A_zero_point:Q? B:Q B_zero_point:Q? -> C:i32")
def _mul_integer(b: Body) -> None:
    operands = []
    for name in ("A", "B"):
        wide = b.cast(name, int(TensorProto.INT32))
        zero = b[f"{name}_zero_point"]
        operands.append(b("Sub", wide, b.cast(zero, int(TensorProto.INT32))) if zero else wide)
    b.returns(b("Mul", *operands))


@composed("ReduceSumInteger", "data:Q -> reduced:i32", "axes:is keepdims:i")
def _sum_integer(b: Body) -> None:
    wide = b.cast("data", int(TensorProto.INT32))
    b.returns(b("ReduceSum", wide, b.ints(*b.attr("axes", [])), keepdims=int(b.attr("keepdims", 1))))


@composed("QuantizeLinear", "x:F y_scale:F y_zero_point:Q? -> y:Q", "axis:i")
def _quantize(b: Body) -> None:
    elem = b.elem("y_zero_point") if b["y_zero_point"] else int(TensorProto.UINT8)
    zero = b["y_zero_point"] or b("Cast", b("Sub", "y_scale", "y_scale"), to=elem)
    b.returns(b("QuantizeLinear", "x", "y_scale", zero, axis=int(b.attr("axis", 1))))


@composed("DequantizeLinear", "x:A x_scale:F x_zero_point:A? -> y:F", "axis:i")
def _dequantize(b: Body) -> None:
    b.returns(b("DequantizeLinear", "x", "x_scale", b["x_zero_point"], axis=int(b.attr("axis", 1))))
