"""Integers that represent real numbers: quantisation, and products of quantised tensors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from taskmap.graph.build import elementwise, reindex
from taskmap.graph.importers.onnx.ops.convolution import convolved
from taskmap.graph.importers.onnx.ops.creation import numpy_cast
from taskmap.graph.importers.onnx.ops.matmul import matmul
from taskmap.graph.importers.onnx.read.call import OnnxCall
from taskmap.graph.importers.onnx.read.elements import MASKS, NARROW_FLOATS, NARROW_INTEGERS, held_in
from taskmap.graph.importers.onnx.read.host import on_host
from taskmap.graph.importers.onnx.read.table import lowering
from taskmap.graph.importers.onnx.read.values import Tensor
from taskmap.graph.nodes import Node
from taskmap.graph.ops.convolution import add_channel_bias
from taskmap.graph.ops.pointwise import number, pointwise, to_dtype
from taskmap.graph.ops.reductions import amax, amin
from taskmap.graph.ops.views import reshape, slice_
from taskmap.ir.construct import call as function_call
from taskmap.ir.construct import cast, maximum, minimum, static_size
from taskmap.ir.errors import UnsupportedError
from taskmap.ir.nodes import Expr
from taskmap.ir.types import DType, bf16, compute_type, f16, f32, i32, i64

Array = NDArray[Any]
UINT8, INT8 = int(TensorProto.UINT8), int(TensorProto.INT8)
EXACT = 256
"""Sums of this many products of differences of eight-bit integers (at most 255 * 255) stay below 2 ** 24."""
MOST_PARTS = 8
"""Sums of more parts are computed with integers."""


def limits(elem: int) -> tuple[int, int]:
    """The range of an integer type. Raises UnsupportedError for other types."""
    if elem in NARROW_INTEGERS:
        return NARROW_INTEGERS[elem][1:]
    if elem in MASKS:
        return 0, MASKS[elem]
    held = held_in(elem)
    if not held.is_int or elem == TensorProto.UINT64:
        raise UnsupportedError(f"quantisation to {held}")
    return (0, 255) if held.kind == "u" else (-(1 << (held.bits - 1)), (1 << (held.bits - 1)) - 1)


def shifted(x: Node, zero: Node | None) -> Node:
    """x - zero, as i32."""
    wide = to_dtype(x, i32)
    if zero is None:
        return wide
    point = to_dtype(zero, i32)
    return pointwise("shift", (wide, point), lambda a, z: a - z, i32, i32)


def rounded(e: Expr, elem: int, zero: Expr | None) -> Expr:
    """round(e) + zero clamped to the range of ``elem``, as i64; ties round to the even number."""
    low, high = limits(elem)
    whole = cast(
        maximum(minimum(function_call("round", e), number(2.0**31, e.dtype)), number(-(2.0**31), e.dtype)), i64
    )
    moved = whole if zero is None else whole + cast(zero, i64)
    return minimum(maximum(moved, low), high)


def along(call: OnnxCall, x: Node | Tensor, p: Node, default: int = 1) -> Node:
    """A scale or zero point reshaped to broadcast: one for all, one per position of an axis, or one per block."""
    rank = len(x.shape)
    if not p.shape or (all(static_size(n) == 1 for n in p.shape) and len(p.shape) == 1):
        return reshape(p, [])
    axis = call.axis(call.attr("axis", default), rank)
    if len(p.shape) == 1:
        return reshape(p, [p.shape[0] if d == axis else 1 for d in range(rank)])
    block = int(call.attr("block_size", 0))
    if not block:
        raise call.error("a scale of several dimensions needs a block_size")
    return reindex("blocks", p, x.shape, lambda *axes: [a // block if d == axis else a for d, a in enumerate(axes)])


@lowering("QuantizeLinear")
def _quantize(call: OnnxCall) -> Any:
    x, scale = call.node(0), call.node(1)
    zero = call.optional(2)
    elem = call.elem(2) if call.has(2) else int(call.attr("output_dtype", 0)) or UINT8
    if elem in NARROW_FLOATS:
        return _quantize_to_float(call, x, elem)
    target = held_in(elem)
    wide = compute_type(_precision(call, x, scale))
    operands = [x if x.dtype.is_float else to_dtype(x, f32), along(call, x, scale)]
    if zero is not None:
        operands.append(to_dtype(along(call, x, zero), i64))
    node = _quantized(operands, elem, target, wide)
    return Tensor(elem, node.shape, made=node)


def _precision(call: OnnxCall, x: Node, scale: Node) -> DType:
    given = {10: f16, 16: bf16, 1: f32, 11: None}.get(int(call.attr("precision", 0)))
    return given or (x.dtype if x.dtype.is_float else scale.dtype)


def _quantized(operands: list[Node], elem: int, target: DType, wide: DType) -> Node:
    def element(a: Expr, s: Expr, *z: Expr) -> Expr:
        quotient = cast(a, wide) / cast(s, wide)
        return cast(rounded(quotient, elem, z[0] if z else None), target)

    return elementwise("quantize", operands, element, target)


def _quantize_to_float(call: OnnxCall, x: Node, elem: int) -> Any:
    scale = along(call, x, call.node(1))
    wide = compute_type(x.dtype)
    quotient = pointwise("quotient", (x, scale), lambda a, s: a / s, f32, wide)
    helper = Tensor(1, quotient.shape, made=quotient)
    inner = OnnxCall(
        call.proto, call.domain, call.version, [helper], call.attributes, call.library, call.fold, call.sizes
    )
    saturate = bool(call.attr("saturate", 1))
    return on_host(
        inner, lambda a: numpy_cast(a, elem, saturate), [(elem, quotient.shape)], "a narrow type", inputs=[0]
    )


@lowering("DequantizeLinear")
def _dequantize(call: OnnxCall) -> Any:
    x, scale = call.node(0), call.node(1)
    elem = int(call.attr("output_dtype", 0)) or call.elem(1)
    target = held_in(elem)
    wide = compute_type(scale.dtype)
    step = along(call, x, scale)
    if x.dtype.is_float:
        node = pointwise("dequantize", (x, step), lambda a, s: a * s, target, wide)
        return Tensor(elem, node.shape, made=node)
    whole = to_dtype(x, i32) if x.dtype.bits < 32 else x
    if call.has(2):
        point = to_dtype(along(call, x, call.node(2)), whole.dtype)
        whole = pointwise("shift", (whole, point), lambda a, z: a - z, whole.dtype, whole.dtype)
    node = pointwise("dequantize", (whole, step), lambda a, s: a * s, target, wide)
    return Tensor(elem, node.shape, made=node)


@lowering("DynamicQuantizeLinear")
def _dynamic(call: OnnxCall) -> list[Tensor]:
    x = call.node(0)
    dims = tuple(range(len(x.shape)))

    def bound(node: Node, function: Any) -> Node:
        return pointwise("bound", (node,), lambda a: function(a, number(0, f32)), f32)

    high, low = bound(amax(x, dims), maximum), bound(amin(x, dims), minimum)
    scale = pointwise("scale", (high, low), lambda h, m: (h - m) / number(255.0, f32))

    def zero_of(m: Expr, s: Expr) -> Expr:
        point = number(0.0, f32) - m / s
        return cast(
            cast(function_call("round", maximum(minimum(point, number(255.0, f32)), number(0.0, f32))), i64),
            held_in(UINT8),
        )

    zero = pointwise("zero", (low, scale), zero_of, held_in(UINT8), f32)
    made = _quantized([x, scale, to_dtype(zero, i64)], UINT8, held_in(UINT8), f32)
    return [
        Tensor(UINT8, made.shape, made=made),
        Tensor(1, scale.shape, made=scale),
        Tensor(UINT8, zero.shape, made=zero),
    ]


def exact_product(a: Node, b: Node) -> Node:
    """a @ b as i32, for i32 matrices whose elements are differences of eight-bit integers.

    A short sum of such products has no more bits than a 32-bit float holds. Float products are then exact, and several
    times as fast as integer ones; longer sums are added up from parts.
    """
    length = static_size(a.shape[-1])
    if length is None or length > EXACT * MOST_PARTS or len(a.shape) < 2 or len(b.shape) < 2:
        return matmul(a, b, i32)
    parts: list[Node] = []
    for start in range(0, length, EXACT):
        end = min(start + EXACT, length)
        left, right = (a, b) if length <= EXACT else (slice_(a, -1, start, end), slice_(b, -2, start, end))
        parts.append(to_dtype(matmul(to_dtype(left, f32), to_dtype(right, f32), f32), i32))
    total = parts[0]
    for part in parts[1:]:
        total = pointwise("add", (total, part), lambda x, y: x + y, i32, i32)
    return total


def exact_convolution(call: OnnxCall, x: Node, w: Node, reach: Array | None) -> Node:
    """The convolution described by the call, as i32, for i32 tensors whose elements are differences of eight-bit
    integers. Like ``exact_product`` it uses floats, on parts of the input channels. ``reach``: the magnitudes of the
    weights."""
    channels, taps = static_size(w.shape[1]), [static_size(n) for n in w.shape[2:]]
    if channels is None or None in taps or call.elem(0) not in (UINT8, INT8):
        return convolved(call, x, w, None)
    step = _exact_channels(channels, math.prod(n or 1 for n in taps), reach)
    grouped = int(call.attr("group", 1)) > 1
    if not step or -(-channels // step) > MOST_PARTS or (grouped and step < channels):
        return convolved(call, x, w, None)
    total: Node | None = None
    for start in range(0, channels, step):
        end = min(start + step, channels)
        image, kernel = (x, w) if step >= channels else (slice_(x, 1, start, end), slice_(w, 1, start, end))
        part = to_dtype(convolved(call, to_dtype(image, f32), to_dtype(kernel, f32), None), i32)
        total = part if total is None else pointwise("add", (total, part), lambda a, b: a + b, i32, i32)
    assert total is not None
    return total


def _exact_channels(channels: int, taps: int, reach: Array | None) -> int:
    """The largest number of input channels whose sums of products stay below 2 ** 24, for any choice of channels."""
    if reach is None:
        return EXACT // taps
    each = reach.reshape(*reach.shape[:2], -1).sum(-1) * 255  # [output channels, input channels]
    step = channels
    while step and max(each[:, c : c + step].sum(1).max(initial=0) for c in range(0, channels, step)) >= 1 << 24:
        step //= 2
    return step


def _reach(call: OnnxCall, weights: int, zero: int) -> Array | None:
    """The magnitudes of a convolution's weights minus their zero points, or None if either is unknown."""
    known = call.maybe(weights)
    point = call.maybe(zero) if call.has(zero) else np.zeros((), np.int64)
    if known is None or point is None:
        return None
    point = point.astype(np.int64)
    shape = (-1, *[1] * (known.ndim - 1)) if point.size > 1 else ()
    found: Array = np.abs(known.astype(np.int64) - point.reshape(shape))
    return found


@lowering("MatMulInteger")
def _matmul_integer(call: OnnxCall) -> Node:
    a, b = call.node(0), call.node(1)
    left, right = call.optional(2), call.optional(3)
    if left is not None and len(left.shape) == 1 and len(a.shape) > 1 and static_size(left.shape[0]) != 1:
        left = reshape(left, [*left.shape, 1])
    return exact_product(shifted(a, left), shifted(b, right))


@lowering("QLinearMatMul")
def _q_matmul(call: OnnxCall) -> Any:
    a, b = call.node(0), call.node(3)
    elem = call.elem(7)
    if call.elem(0) in NARROW_FLOATS or call.elem(3) in NARROW_FLOATS:
        return _float8_matmul(call, elem)
    points = [call.node(2), call.node(5)]
    scales = [call.node(1), call.node(4)]
    if len(a.shape) > 1:
        points[0], scales[0] = (_row(p) for p in (points[0], scales[0]))
    if len(b.shape) > 1:
        points[1], scales[1] = (p for p in (points[1], scales[1]))
    multiply = exact_product if {call.elem(0), call.elem(3)} <= {UINT8, INT8} else _wide_product
    total = multiply(shifted(a, points[0]), shifted(b, points[1]))
    return requantized(total, scales, call.node(6), call.node(7), elem)


def _wide_product(a: Node, b: Node) -> Node:
    return matmul(a, b, i32)


def _row(p: Node) -> Node:
    return reshape(p, [*p.shape, 1]) if len(p.shape) == 1 and static_size(p.shape[0]) != 1 else p


def _float8_matmul(call: OnnxCall, elem: int) -> Any:
    raise UnsupportedError("a product of eight-bit floats")


def requantized(total: Node, scales: list[Node], scale: Node, zero: Node, elem: int) -> Any:
    """A product of integers in units of ``scales``, converted to units of ``scale`` with zero point ``zero``."""
    wide = f32

    def factor(a: Expr, b: Expr, c: Expr) -> Expr:
        return cast(a, wide) * cast(b, wide) / cast(c, wide)

    steps = pointwise("factor", (scales[0], scales[1], scale), factor, wide, wide)
    point = to_dtype(zero, i64)
    node = elementwise(
        "requantize",
        [total, steps, point],
        lambda t, s, z: cast(rounded(cast(t, wide) * s, elem, z), held_in(elem)),
        held_in(elem),
    )
    return Tensor(elem, node.shape, made=node)


@lowering("QLinearConv")
def _q_conv(call: OnnxCall) -> Any:
    x, w = call.node(0), call.node(3)
    rank = len(w.shape)
    w_scale, w_zero = call.node(4), call.node(5)
    if w_zero.shape and static_size(w_zero.shape[0]) != 1:
        w_zero = reshape(w_zero, [w_zero.shape[0], *([1] * (rank - 1))])
    if w_scale.shape and static_size(w_scale.shape[0]) != 1:
        w_scale = reshape(w_scale, [w_scale.shape[0], *([1] * (rank - 2))])
    bias = call.optional(8)
    total = exact_convolution(call, shifted(x, call.node(2)), shifted(w, w_zero), _reach(call, 3, 5))
    if bias is not None:
        total = add_channel_bias(total, bias)
    return requantized(
        total,
        [reshape_one(call.node(1)), reshape_one(w_scale)],
        reshape_one(call.node(6)),
        reshape_one(call.node(7)),
        call.elem(7),
    )


def reshape_one(p: Node) -> Node:
    """A tensor of one element as a 0-d tensor; any other tensor unchanged."""
    return reshape(p, []) if p.shape and all(static_size(n) == 1 for n in p.shape) else p


@lowering("ConvInteger")
def _conv_integer(call: OnnxCall) -> Any:
    x = shifted(call.node(0), call.optional(2))
    w, zero = call.node(1), call.optional(3)
    if zero is not None and zero.shape and static_size(zero.shape[0]) != 1:
        zero = reshape(zero, [zero.shape[0], *([1] * (len(w.shape) - 1))])
    return exact_convolution(call, x, shifted(w, zero), _reach(call, 1, 3))
