"""Convolutions, and the geometry they share with pooling: padding on each side, auto_pad."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from taskmap.graph.importers.onnx.ops.matmul import matmul
from taskmap.graph.importers.onnx.ops.sampling import shifted_windows
from taskmap.graph.importers.onnx.ops.symbolic_padding import open_pad
from taskmap.graph.importers.onnx.read.assumptions import decides
from taskmap.graph.importers.onnx.read.call import OnnxCall
from taskmap.graph.importers.onnx.read.host import concrete
from taskmap.graph.importers.onnx.read.table import lowering
from taskmap.graph.nodes import Node
from taskmap.graph.ops.convolution import add_channel_bias, convolution
from taskmap.graph.ops.pointwise import to_dtype
from taskmap.graph.ops.rearrange import constant_pad
from taskmap.graph.ops.views import reshape, slice_
from taskmap.ir.construct import ceil_div, index, maximum, static_size
from taskmap.ir.errors import UnsupportedError
from taskmap.ir.nodes import Dim

Pairs = list[tuple[int, int]]
OpenPairs = list[tuple[Dim, Dim]]


def listed(call: OnnxCall, name: str, rank: int, default: int) -> list[int]:
    """An attribute with one number per spatial dimension."""
    values = call.attr(name) or [default] * rank
    if len(values) != rank:
        raise call.error(f"the attribute {name} has {len(values)} numbers for {rank} dimensions")
    if any(not 0 <= v < 1 << 31 for v in values) or (default == 1 and 0 in values):
        raise call.error(f"the attribute {name} is {values}")
    return [int(v) for v in values]


def padding_of(
    call: OnnxCall, sizes: Sequence[Dim], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> OpenPairs:
    """Padding before and after each spatial dimension, by ``pads`` or ``auto_pad``."""
    rank = len(kernel)
    mode = call.attr("auto_pad", "NOTSET") or "NOTSET"
    if mode == "NOTSET":
        pads = call.attr("pads") or [0] * (2 * rank)
        if len(pads) != 2 * rank or any(abs(p) >= 1 << 31 for p in pads):
            raise call.error(f"the attribute pads is {pads}")
        return [(int(pads[d]), int(pads[d + rank])) for d in range(rank)]
    if mode == "VALID":
        return [(0, 0)] * rank
    pairs: OpenPairs = []
    for size, k, s, d in zip(sizes, kernel, strides, dilations, strict=True):
        known = static_size(size)
        if known is None and s != 1:
            missing = maximum((ceil_div(size, s) - 1) * s + (d * (k - 1) + 1) - size, 0)
            less, more = missing // 2, missing - missing // 2
            pairs.append((less, more) if mode == "SAME_UPPER" else (more, less))
            continue
        if known is None:
            known = k
        total = max((-(-known // s) - 1) * s + d * (k - 1) + 1 - known, 0)
        small = total // 2
        pairs.append((small, total - small) if mode == "SAME_UPPER" else (total - small, small))
    return pairs


def padded(x: Node, pairs: OpenPairs, value: float = 0) -> tuple[Node, list[int]]:
    """``x`` padded if the two sides of a dimension differ, and the padding that remains for both sides."""
    known = [(static_size(a), static_size(b)) for a, b in pairs]
    if all(a is not None and a == b and a >= 0 for a, b in known):
        return x, [a for a, _ in known if a is not None]
    if any(n is None for pair in known for n in pair):
        before, behind = ([0, 0, *(pair[side] for pair in pairs)] for side in (0, 1))
        return open_pad(x, before, behind, value), [0] * len(pairs)
    flat = [n or 0 for pair in reversed(known) for n in pair]
    return constant_pad(x, flat, value), [0] * len(pairs)


def check_window(
    call: OnnxCall, sizes: Sequence[Dim], pairs: OpenPairs, kernel: Sequence[int], dilations: Sequence[int]
) -> None:
    """Raises ImportGraphError for a window larger than the padded tensor."""
    for size, (a, b), k, d in zip(sizes, pairs, kernel, dilations, strict=True):
        whole, window = index(size) + a + b, d * (k - 1) + 1
        known = static_size(whole)
        if known is not None and known < window:
            raise call.error(f"a window of {window} elements does not fit into {known}")
        call.at_least(whole, window)


@lowering("Conv")
def _conv(call: OnnxCall) -> Node:
    x, w = call.node(0), call.node(1)
    return convolved(call, x, w, call.optional(2))


@dataclass(frozen=True, slots=True)
class ConvolutionWindow:
    """The checked attributes of a convolution: strides and dilations, groups, output channels, and the padding before
    and behind each spatial dimension."""

    strides: list[int]
    dilations: list[int]
    groups: int
    made: int
    pairs: OpenPairs


def geometry(call: OnnxCall, x: Node, w: Node) -> ConvolutionWindow:
    """The geometry of the convolution of x with w. Raises ImportGraphError where they do not fit the attributes."""
    rank = len(w.shape) - 2
    kernel = concrete(w.shape[2:], "a kernel")
    if rank < 1 or len(x.shape) != rank + 2:
        raise call.error(f"a convolution of tensors of rank {len(x.shape)} and {len(w.shape)}")
    given = call.attr("kernel_shape")
    if given and tuple(given) != kernel:
        raise call.error(f"the attribute kernel_shape is {given}, but the weight has {list(kernel)}")
    strides, dilations = listed(call, "strides", rank, 1), listed(call, "dilations", rank, 1)
    groups = int(call.attr("group", 1))
    channels, per_group, made = static_size(x.shape[1]), static_size(w.shape[1]), static_size(w.shape[0])
    if groups < 1 or None in (channels, per_group, made):
        raise decides(f"a convolution of {x.shape[1]} channels in {groups} groups", [x.shape[1], *w.shape[:2]])
    assert channels is not None
    assert per_group is not None
    assert made is not None
    if channels != per_group * groups or made % groups:
        raise call.error(f"a weight of shape {list(w.shape)} in {groups} groups does not fit {channels} channels")
    pairs = padding_of(call, x.shape[2:], kernel, strides, dilations)
    check_window(call, x.shape[2:], pairs, kernel, dilations)
    return ConvolutionWindow(strides, dilations, groups, made, pairs)


def convolved(call: OnnxCall, x: Node, w: Node, bias: Node | None, pad_value: float = 0) -> Node:
    """The convolution described by the call's attributes."""
    g = geometry(call, x, w)
    x, padding = padded(x, g.pairs, pad_value)
    result = convolution(x, w, g.strides, padding, g.dilations, groups=g.groups)
    if bias is not None and (len(bias.shape) != 1 or static_size(bias.shape[0]) != g.made):
        raise call.error(f"a bias of shape {list(bias.shape)} for {g.made} channels")
    return result if bias is None else add_channel_bias(result, bias)


@lowering("ConvTranspose")
def _conv_transpose(call: OnnxCall) -> Node:
    x, w = call.node(0), call.node(1)
    rank = len(w.shape) - 2
    kernel = concrete(w.shape[2:], "a kernel")
    if rank < 1 or len(x.shape) != rank + 2:
        raise call.error(f"a convolution of tensors of rank {len(x.shape)} and {len(w.shape)}")
    strides, dilations = listed(call, "strides", rank, 1), listed(call, "dilations", rank, 1)
    extra = listed(call, "output_padding", rank, 0)
    if any(not 0 <= e < max(s, d) for e, s, d in zip(extra, strides, dilations, strict=True)):
        raise call.error(f"an output padding of {extra}", "it must be less than the stride or the dilation.")
    groups = int(call.attr("group", 1))
    if groups < 1 or static_size(x.shape[1]) != static_size(w.shape[0]) or (static_size(x.shape[1]) or 0) % groups:
        raise call.error(f"a weight of shape {list(w.shape)} in {groups} groups does not fit {x.shape[1]} channels")
    sizes = x.shape[2:]
    pairs = _transposed_padding(call, sizes, kernel, strides, dilations, extra)
    result = convolution(x, w, strides, [0] * rank, dilations, True, [0] * rank, groups)
    result = _cropped(result, pairs, extra)
    if not call.has(2):
        return result
    bias = call.node(2)
    if len(bias.shape) != 1 or static_size(bias.shape[0]) != static_size(result.shape[1]):
        raise call.error(f"a bias of shape {list(bias.shape)} for {result.shape[1]} channels")
    return add_channel_bias(result, bias)


def _transposed_padding(
    call: OnnxCall,
    sizes: Sequence[Dim],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    extra: Sequence[int],
) -> Pairs:
    rank = len(kernel)
    mode = call.attr("auto_pad", "NOTSET") or "NOTSET"
    shape = call.attr("output_shape")
    if shape is None and mode not in ("SAME_UPPER", "SAME_LOWER"):
        return [
            (a, b)
            for a, b in padding_of(call, sizes, kernel, strides, dilations)
            if isinstance(a, int) and isinstance(b, int)
        ]
    if shape is None:
        return [
            _split_evenly(d * (k - 1) + 1 - s + e, mode)
            for k, s, d, e in zip(kernel, strides, dilations, extra, strict=True)
        ]
    known = concrete(sizes, "an output_shape")
    geometry = zip(known, kernel, strides, dilations, extra, list(shape)[-rank:], strict=True)
    return [_split_evenly(s * (n - 1) + e + (k - 1) * d + 1 - t, mode) for n, k, s, d, e, t in geometry]


def _split_evenly(total: int, mode: str) -> tuple[int, int]:
    half = total // 2
    return (half, total - half) if mode == "SAME_UPPER" else (total - half, half)


def _cropped(result: Node, pairs: Pairs, extra: Sequence[int]) -> Node:
    """``result`` without the padding, and with ``extra`` elements added at each end."""
    border: list[int] = []
    for (a, b), e in reversed(list(zip(pairs, extra, strict=True))):
        border += [-a, e - b]
    if not any(border):
        return result
    if all(v <= 0 for v in border):
        for d, ((a, b), e) in enumerate(zip(pairs, extra, strict=True)):
            size = result.shape[2 + d]
            result = slice_(result, 2 + d, a, size - (b - e) if b != e else None)
        return result
    return constant_pad(result, border, 0)


@lowering("DeformConv")
def _deform(call: OnnxCall) -> Any:
    x, w = call.tensor(0), call.tensor(1)
    rank = len(w.shape) - 2
    kernel = concrete(w.shape[2:], "a kernel")
    if rank != 2:
        raise UnsupportedError("a deformable convolution in other than two dimensions")
    strides, dilations = listed(call, "strides", rank, 1), listed(call, "dilations", rank, 1)
    pairs = padding_of(call, concrete(x.shape[2:], "a deformable convolution"), kernel, strides, dilations)
    groups, shifts = int(call.attr("group", 1)), int(call.attr("offset_group", 1))
    spatial = concrete(call.tensor(2).shape[2:], "an offset")

    n, c, _, _ = concrete(x.shape, "a deformable convolution")
    made, each = concrete(w.shape[:2], "a kernel")
    taps = math.prod(kernel)
    if len(spatial) != 2 or min(groups, shifts) < 1 or c != groups * each or made % groups or c % shifts:
        raise call.error(f"a kernel of shape {list(w.shape)} over a tensor of shape {list(x.shape)}")
    offset = reshape(call.node(2), [n, shifts, taps, 2, *spatial])
    mask = reshape(call.node(4), [n, shifts, taps, *spatial]) if call.has(4) else None
    before = [static_size(a) or 0 for a, _ in pairs]
    columns = shifted_windows(call.node(0), offset, mask, kernel, strides, dilations, before)
    rows = reshape(columns, [n, groups, each * taps, math.prod(spatial)])
    weights = reshape(to_dtype(call.node(1), rows.dtype), [groups, made // groups, each * taps])
    result = to_dtype(reshape(matmul(weights, rows), [n, made, *spatial]), call.node(0).dtype)
    return add_channel_bias(result, call.node(3)) if call.has(3) else result
