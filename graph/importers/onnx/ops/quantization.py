"""Integers that represent real numbers: quantisation, dequantisation, requantisation."""

from __future__ import annotations

from typing import Any

from onnx import TensorProto

from taskmap.graph.build import elementwise, reindex
from taskmap.graph.importers.onnx.ops.creation import numpy_cast
from taskmap.graph.importers.onnx.read.call import OnnxCall
from taskmap.graph.importers.onnx.read.elements import MASKS, NARROW_FLOATS, NARROW_INTEGERS, held_in
from taskmap.graph.importers.onnx.read.host import on_host
from taskmap.graph.importers.onnx.read.table import lowering
from taskmap.graph.importers.onnx.read.values import Tensor
from taskmap.graph.nodes import Node
from taskmap.graph.ops.pointwise import number, pointwise, to_dtype
from taskmap.graph.ops.reductions import amax, amin
from taskmap.graph.ops.views import reshape
from taskmap.ir.construct import call as function_call
from taskmap.ir.construct import cast, maximum, minimum, static_size
from taskmap.ir.errors import UnsupportedError
from taskmap.ir.nodes import Expr
from taskmap.ir.types import DType, bf16, compute_type, f16, f32, i32, i64

UINT8, INT8 = int(TensorProto.UINT8), int(TensorProto.INT8)


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
    """round(e) + zero clamped to the range of ``elem``, which contains ``zero``; ties round to the even number.

    As i32 if the type has at most 16 bits, else i64, whose vectors take twice the registers.
    """
    low, high = limits(elem)
    narrow = high - low < 1 << 16
    wide, bound = (i32, high - low + 1) if narrow else (i64, 1 << 31)  # beyond the bound, no zero leads into the range
    near = maximum(minimum(function_call("round", e), number(float(bound), e.dtype)), number(-float(bound), e.dtype))
    whole = cast(near, wide)
    if narrow:
        whole = maximum(whole, -bound)  # NaN is converted to the lowest number, to which no zero may be added
    moved = whole if zero is None else whole + cast(zero, wide)
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
    if call.has(2) and ((zeros := call.maybe(2)) is None or zeros.any()):
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


def reshape_one(p: Node) -> Node:
    """A tensor of one element as a 0-d tensor; any other tensor unchanged."""
    return reshape(p, []) if p.shape and all(static_size(n) == 1 for n in p.shape) else p
