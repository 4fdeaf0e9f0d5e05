"""Operators that ONNX Runtime had before the standard did, and a standard one in NHWC order."""

from __future__ import annotations

from taskmap.graph.importers.onnx.contract import composed
from taskmap.graph.importers.onnx.microsoft.convolutions import channels_first, channels_last
from taskmap.graph.importers.onnx.read.composition import Body


@composed("Trilu", "X:A k:i64? -> Y:A", "upper:i")
def _trilu(b: Body) -> None:
    b.returns(b("Trilu", "X", b["k"], upper=int(b.attr("upper", 1))))


@composed("Range", "start:A limit:A delta:A? -> Y:A")
def _range(b: Body) -> None:
    delta = b["delta"] or b.number(1, "start")
    scalars = [b("Reshape", x, b.constant([])) for x in ("start", "limit", delta)]
    b.returns(b("Range", *scalars))


@composed("ExpandDims", "X:A axis:i32 -> Y:A")
def _expand_dims(b: Body) -> None:
    b.returns(b("Unsqueeze", "X", b.ints(int(b.known("axis").reshape(-1)[0]))))


@composed("GatherND", "data:A indices:I -> output:A")
def _gather_nd(b: Body) -> None:
    b.returns(b("GatherND", "data", b.cast("indices", 7)))


@composed("Pad", "data:A pads:i64 value:A? -> output:A", "mode:s")
def _pad(b: Body) -> None:
    value = b("Reshape", "value", b.constant([])) if b["value"] else ""
    b.returns(b("Pad", "data", b.reshape("pads", -1), value, mode=b.attr("mode", "constant")))


@composed("NhwcMaxPool", "x:Q -> y:Q", "auto_pad:s ceil_mode:i dilations:is kernel_shape:is pads:is strides:is")
def _nhwc_max_pool(b: Body) -> None:
    names = ("auto_pad", "ceil_mode", "dilations", "kernel_shape", "pads", "strides")
    given = {n: b.call.attributes[n] for n in names if n in b.call.attributes}
    rank = len(b.shape("x"))
    b.returns(channels_last(b, b("MaxPool", channels_first(b, "x", rank), **given), rank))
