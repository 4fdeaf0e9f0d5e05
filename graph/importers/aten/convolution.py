"""aten's convolution."""

from __future__ import annotations

from collections.abc import Sequence

from taskmap.graph.graph import Node
from taskmap.graph.importers.table import lowering
from taskmap.graph.ops import convolution as ops
from taskmap.ir.nodes import Dim


@lowering("convolution.default")
def convolution(
    x: Node,
    w: Node,
    bias: Node | None,
    stride: Sequence[Dim],
    padding: Sequence[Dim],
    dilation: Sequence[Dim],
    transposed: bool,
    output_padding: Sequence[Dim],
    groups: int,
) -> Node:
    y = ops.convolution(x, w, stride, padding, dilation, transposed, output_padding, groups)
    return y if bias is None else ops.add_channel_bias(y, bias)
