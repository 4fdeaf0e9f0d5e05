"""Products of quantised tensors: MatMulInteger, QLinearMatMul, ConvInteger, QLinearConv.

Sums are i32, exact unless they leave it. Those of MatMulInteger and ConvInteger wrap, as the standard allows; those
that are scaled afterwards are cut into parts that cannot overflow, and the parts are added as i64.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from taskmap.graph.importers.onnx.ops.convolution import convolved, geometry
from taskmap.graph.importers.onnx.ops.matmul import matmul
from taskmap.graph.importers.onnx.ops.quantization import INT8, UINT8, requantized, reshape_one, shifted
from taskmap.graph.importers.onnx.read.call import OnnxCall
from taskmap.graph.importers.onnx.read.elements import NARROW_FLOATS
from taskmap.graph.importers.onnx.read.table import lowering
from taskmap.graph.nodes import Node
from taskmap.graph.ops.convolution import add_channel_bias
from taskmap.graph.ops.pointwise import pointwise, to_dtype
from taskmap.graph.ops.views import reshape, slice_
from taskmap.graph.quantised.convolution import PaddedWindow, convolution_product
from taskmap.graph.quantised.products import LONGEST, QuantisedOperand, byte_sums, corrected, integer_product, signed
from taskmap.ir.construct import product, static_size
from taskmap.ir.errors import UnsupportedError
from taskmap.ir.types import f32, i32, i64

Array = NDArray[Any]
EXACT = 256
"""Sums of this many products of differences of eight-bit integers (at most 255 * 255) stay below 2 ** 24."""
MOST_PARTS = 8
"""Sums of more parts are computed with integers."""
_BYTES = frozenset((int(TensorProto.UINT8), int(TensorProto.INT8)))


def _factor(call: OnnxCall, place: int, zero: int, per_row: bool = False) -> QuantisedOperand:
    """Input ``place`` with its zero point, input ``zero``, one for all or one per row (else per column)."""
    values = call.node(place)
    if not call.has(zero):
        return QuantisedOperand(values)
    point = reshape_one(call.node(zero))
    if per_row and len(point.shape) == 1 and len(values.shape) > 1:
        point = reshape(point, [*point.shape, 1])
    known = call.maybe(zero)
    same = known is not None and known.size and (known == known.reshape(-1)[0]).all()
    return QuantisedOperand(values, point, int(known.reshape(-1)[0]) if known is not None and same else None)


def _product(a: QuantisedOperand, b: QuantisedOperand) -> Node:
    """The product as i32, which wraps; of vectors as of matrices with one row or column."""
    if len(a.values.shape) < 2 or len(b.values.shape) < 2:
        return matmul(shifted(a.values, a.zero), shifted(b.values, b.zero), i32)
    return integer_product(a, b, lambda x, y: matmul(x, y, i32))


def _safe_product(a: QuantisedOperand, b: QuantisedOperand) -> Node:
    """The product, as i64 if i32 may not hold it."""
    length = static_size(a.values.shape[-1])
    if length is not None and length <= LONGEST:
        return _product(a, b)
    if length is None or len(a.values.shape) < 2 or len(b.values.shape) < 2:
        return matmul(to_dtype(shifted(a.values, a.zero), i64), to_dtype(shifted(b.values, b.zero), i64), i64)
    parts = []
    for start in range(0, length, LONGEST):
        end = min(start + LONGEST, length)
        left, right = slice_(a.values, -1, start, end), slice_(b.values, -2, start, end)
        parts.append(
            to_dtype(_product(QuantisedOperand(left, a.zero, a.known), QuantisedOperand(right, b.zero, b.known)), i64)
        )
    total = parts[0]
    for part in parts[1:]:
        total = pointwise("add", (total, part), lambda x, y: x + y, i64, i64)
    return total


@lowering("MatMulInteger")
def _matmul_integer(call: OnnxCall) -> Node:
    a, b = _factor(call, 0, 2, per_row=True), _factor(call, 1, 3)
    _check(call, a.values, b.values)
    return _product(a, b)


def _check(call: OnnxCall, a: Node, b: Node) -> None:
    if not a.shape or not b.shape:
        raise call.error("a matrix product of a tensor without dimensions")
    call.same(a.shape[-1], b.shape[0] if len(b.shape) == 1 else b.shape[-2])
    call.broadcasts(a.shape[:-2], b.shape[:-2])


@lowering("QLinearMatMul")
def _q_matmul(call: OnnxCall) -> Any:
    elem = call.elem(7)
    if call.elem(0) in NARROW_FLOATS or call.elem(3) in NARROW_FLOATS:
        raise UnsupportedError("a product of eight-bit floats")
    a, b = _factor(call, 0, 2, per_row=True), _factor(call, 3, 5)
    _check(call, a.values, b.values)
    scales = [call.node(1), call.node(4)]
    if len(a.values.shape) > 1:
        scales[0] = _row(scales[0])
    if {call.elem(0), call.elem(3)} <= _BYTES:
        total = _safe_product(a, b)
    else:
        total = matmul(shifted(a.values, a.zero), shifted(b.values, b.zero), i32)
    return requantized(total, scales, call.node(6), call.node(7), elem)


def _row(p: Node) -> Node:
    return reshape(p, [*p.shape, 1]) if len(p.shape) == 1 and static_size(p.shape[0]) != 1 else p


@lowering("QLinearConv")
def _q_conv(call: OnnxCall) -> Any:
    rank = len(call.node(3).shape)
    w_scale = reshape_one(call.node(4))
    if w_scale.shape:
        w_scale = reshape(w_scale, [w_scale.shape[0], *([1] * (rank - 2))])
    total = _convolution(call, (0, 2), (3, 5), wraps=False)
    bias = call.optional(8)
    if bias is not None:
        total = add_channel_bias(total, bias)
    scales = [reshape_one(call.node(1)), w_scale]
    return requantized(total, scales, reshape_one(call.node(6)), reshape_one(call.node(7)), call.elem(7))


@lowering("ConvInteger")
def _conv_integer(call: OnnxCall) -> Any:
    return _convolution(call, (0, 2), (1, 3), wraps=True)


def _convolution(call: OnnxCall, image: tuple[int, int], weight: tuple[int, int], *, wraps: bool) -> Node:
    """The convolution of an input with another, each given by its place and that of its zero point, as i32."""
    x, w = _factor(call, *image), signed(_factor(call, *weight))
    slide = _slide(call, x.values, w.values)
    terms = static_size(product(w.values.shape[1:]))
    bytes_only = {call.elem(image[0]), call.elem(weight[0])} <= _BYTES
    fits = terms is not None and (wraps or terms <= LONGEST)
    if slide is None or not bytes_only or w.shifted or not fits or (x.zero is not None and x.zero.shape):
        return _by_floats(call, image, weight)
    total = convolution_product(x.values, x.zero if x.shifted else None, w.values, slide)
    if not x.shifted:
        return total
    rank = len(w.values.shape)
    sums = reshape(byte_sums(w.values, tuple(range(1, rank))), [w.values.shape[0], *([1] * (rank - 2))])
    return corrected(total, terms or 0, (x, QuantisedOperand(w.values)), (None, sums))


def _slide(call: OnnxCall, x: Node, w: Node) -> PaddedWindow | None:
    """The movement of the kernel; None for a convolution in groups, or with a padding that is negative or symbolic."""
    g = geometry(call, x, w)
    pairs = [(a, b) for a, b in g.pairs if isinstance(a, int) and isinstance(b, int) and min(a, b) >= 0]
    if g.groups != 1 or len(pairs) != len(g.pairs):
        return None
    return PaddedWindow(tuple(g.strides), tuple(g.dilations), tuple(pairs))


def _by_floats(call: OnnxCall, image: tuple[int, int], weight: tuple[int, int]) -> Node:
    """A convolution whose zero points are subtracted first: of floats where their sums are exact."""
    x = shifted(call.node(image[0]), call.optional(image[1]))
    w, zero = call.node(weight[0]), call.optional(weight[1])
    if zero is not None:
        zero = reshape_one(zero)
        zero = reshape(zero, [zero.shape[0], *([1] * (len(w.shape) - 1))]) if zero.shape else zero
    return exact_convolution(call, x, shifted(w, zero), _reach(call, *weight))


def exact_convolution(call: OnnxCall, x: Node, w: Node, reach: Array | None) -> Node:
    """The convolution described by the call, as i32, for i32 tensors whose elements are differences of eight-bit
    integers. It uses floats, on parts of the input channels: a short sum of such products has no more bits than a
    32-bit float holds. ``reach``: the magnitudes of the weights."""
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
