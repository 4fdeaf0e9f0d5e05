"""Convolutions fused with an activation, and convolutions in NHWC order."""

from __future__ import annotations

from typing import Any

from taskmap.graph.importers.onnx.contract import composed
from taskmap.graph.importers.onnx.microsoft.fused import activated
from taskmap.graph.importers.onnx.read.composition import Body

WINDOW = "auto_pad:s dilations:is group:i kernel_shape:is pads:is strides:is"
_NAMES = tuple(part.split(":")[0] for part in WINDOW.split())


def window(b: Body) -> dict[str, Any]:
    """The attributes of the call that describe the kernel's movement."""
    return {n: b.call.attributes[n] for n in _NAMES if n in b.call.attributes}


def channels_first(b: Body, x: str, rank: int) -> str:
    """NHWC to NCHW."""
    return b("Transpose", x, perm=[0, rank - 1, *range(1, rank - 1)])


def channels_last(b: Body, x: str, rank: int) -> str:
    """NCHW to NHWC."""
    return b("Transpose", x, perm=[0, *range(2, rank), 1])


def _convolved(b: Body, x: str, z: str) -> str:
    made = b.plus(b("Conv", x, "W", b["B"], **window(b)), z)
    return activated(b, made, b.attr("activation", ""), list(b.attr("activation_params", [])), "X")


@composed("FusedConv", "X:F W:F B:F? Z:F? -> Y:F", f"{WINDOW} activation:s activation_params:fs")
def _fused_conv(b: Body) -> None:
    b.returns(_convolved(b, "X", b["Z"]))


@composed("NhwcConv", "X:F W:F B:F? -> Y:F", WINDOW)
@composed("NhwcFusedConv", "X:F W:F B:F? Z:F? -> Y:F", f"{WINDOW} activation:s activation_params:fs")
def _nhwc(b: Body) -> None:
    rank = len(b.shape("X"))
    z = channels_first(b, "Z", rank) if b["Z"] else ""
    b.returns(channels_last(b, _convolved(b, channels_first(b, "X", rank), z), rank))
