"""Weights of two, four and eight bits in blocks with one scale each: unpacked and converted to numbers."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from taskmap.graph.importers.onnx.contract import composed
from taskmap.graph.importers.onnx.read.composition import Body

UINT8 = int(TensorProto.UINT8)
FP4 = (0.0, 5.208333333e-03, 0.66666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25)
"""The non-negative half of the type FP4, as in the code that accompanies its paper."""
NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
"""The type NF4 (QLoRA, appendix E)."""


def unpacked(b: Body, x: str, bits: int, low_first: bool = True) -> str:
    """Bytes [..., n] split into parts of ``bits`` bits: [..., n * 8 / bits] of uint8."""
    if bits == 8:
        return x
    places = np.arange(0, 8, bits, dtype=np.uint8)
    shifts = b.constant(places if low_first else places[::-1], UINT8)
    wide = b("BitShift", b("Unsqueeze", x, b.ints(-1)), shifts, direction="RIGHT")
    parts = b("BitwiseAnd", wide, b.constant((1 << bits) - 1, UINT8))
    rest = b("Concat", b("Shape", x, end=-1), b.ints(-1), axis=0)
    return b("Reshape", parts, rest)


@composed(
    "MatMulNBits",
    "A:F B:u8 scales:F zero_points:A? g_idx:i32? bias:F? -> Y:F",
    "K:i N:i accuracy_level:i bits:i block_size:i weight_prepacked:i",
)
def _n_bits(b: Body) -> None:
    b.refuse("weights in another layout", b.attr("weight_prepacked", 0) or b["g_idx"])
    inner, outer = int(b.call.required("K")), int(b.call.required("N"))
    block, bits = int(b.call.required("block_size")), int(b.attr("bits", 4))
    b.refuse(f"{bits} bits", bits not in (2, 4, 8))
    if block < 1 or inner < 1 or outer < 1:
        raise b.call.error(f"sizes {inner} by {outer} in blocks of {block}")
    elem, blocks = b.elem("A"), -(-inner // block)
    weight = b.cast(unpacked(b, b.reshape("B", outer, blocks, block * bits // 8), bits), elem)
    zero = b.constant(float(1 << (bits - 1)), elem)
    if b["zero_points"]:
        zero = "zero_points"
        if b.elem(zero) == UINT8:
            rows = b.reshape(zero, outer, -1)
            zero = b.cast(b.slice(unpacked(b, rows, bits), 1, 0, blocks), elem)
        zero = b.reshape(zero, outer, blocks, 1)
    scaled = b("Mul", b("Sub", weight, zero), b.reshape("scales", outer, blocks, 1))
    flat = b.slice(b.reshape(scaled, outer, -1), 1, 0, inner)
    b.returns(b.plus(b("MatMul", "A", b("Transpose", flat, perm=[1, 0])), b["bias"]))


@composed("MatMulBnb4", "A:F B:u8 absmax:F -> Y:F", "K:i N:i block_size:i quant_type:i training_mode:i transB:i")
def _bnb4(b: Body) -> None:
    inner, outer = int(b.call.required("K")), int(b.call.required("N"))
    block, kind = int(b.call.required("block_size")), int(b.call.required("quant_type"))
    b.refuse(f"the type {kind}", kind not in (0, 1))
    values = NF4 if kind else (*FP4, *(-v for v in FP4))
    count = inner * outer
    places = b.slice(unpacked(b, b.reshape("B", -1), 4, low_first=False), 0, 0, count)
    numbers = b("Gather", b.constant(np.array(values), b.elem("A")), b.cast(places, int(TensorProto.INT32)))
    padded = b("Pad", numbers, b.ints(0, -count % block))
    scaled = b("Mul", b.reshape(padded, -1, block), b.reshape("absmax", -1, 1))
    weight = b.reshape(b.slice(b.reshape(scaled, -1), 0, 0, count), outer, inner)
    b.returns(b("MatMul", "A", b("Transpose", weight, perm=[1, 0]) if b.attr("transB", 1) else weight))


@composed(
    "GatherBlockQuantized",
    "data:A indices:I scales:F zero_points:A? -> output:F",
    "bits:i block_size:i gather_axis:i quantize_axis:i",
)
def _gather(b: Body) -> None:
    rank, bits = len(b.shape("data")), int(b.attr("bits", 4))
    gather = b.call.axis(b.attr("gather_axis", 0), rank)
    axis = b.call.axis(b.attr("quantize_axis", 1), rank)
    block = int(b.attr("block_size", 128))
    packed = b.elem("data") == UINT8
    b.refuse("floating-point data", b.elem("data") not in (UINT8, int(TensorProto.INT4), int(TensorProto.UINT4)))
    b.refuse("blocks along the gathered axis", gather == axis)
    data = unpacked(b, "data", bits) if packed else "data"
    elem = b.elem("scales")
    rows = b.cast(b("Gather", data, "indices", axis=gather), elem)
    scales = b("Gather", "scales", "indices", axis=gather)
    where = axis if axis < gather else axis + len(b.shape("indices")) - 1
    size = b.size("data", axis) * (8 // bits if packed and axis == rank - 1 else 1)
    if b["zero_points"]:
        zeros = unpacked(b, "zero_points", bits) if packed else "zero_points"
        if packed:
            zeros = b.slice(zeros, rank - 1, 0, -(-size // block) if axis == rank - 1 else b.size("data", rank - 1))
        zero = b.cast(b("Gather", zeros, "indices", axis=gather), elem)
    else:
        zero = b.constant(float(1 << (bits - 1)) if packed else 0.0, elem)
    spread = [_spread(b, n, where, block, size) if n is not zero or b["zero_points"] else n for n in (zero, scales)]
    b.returns(b("Mul", b("Sub", rows, spread[0]), spread[1]))


def _spread(b: Body, x: str, axis: int, block: int, size: int) -> str:
    """``x`` with every entry along ``axis`` repeated ``block`` times, truncated to ``size``."""
    places = np.minimum(np.arange(size) // block, size)
    return b("Gather", x, b.constant(places), axis=axis)
