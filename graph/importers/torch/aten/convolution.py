"""aten's convolution."""

from __future__ import annotations

from collections.abc import Sequence

from taskmap.graph.importers.torch.table import lowering
from taskmap.graph.nodes import Node
from taskmap.graph.ops import convolution as ops
from taskmap.graph.ops.gradients import convolution as gradients
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
    groups: Dim,
) -> Node:
    y = ops.convolution(x, w, stride, padding, dilation, transposed, output_padding, ops.known_groups(groups))
    return y if bias is None else ops.add_channel_bias(y, bias)


@lowering("convolution_backward.default")
def convolution_backward(
    grad: Node,
    x: Node,
    w: Node,
    bias_sizes: Sequence[Dim] | None,
    stride: Sequence[Dim],
    padding: Sequence[Dim],
    dilation: Sequence[Dim],
    transposed: bool,
    output_padding: Sequence[Dim],
    groups: Dim,
    output_mask: Sequence[bool],
) -> tuple[Node | None, ...]:
    """The gradients of input, weight and bias that ``output_mask`` requests."""
    how = (stride, padding, dilation, transposed, ops.known_groups(groups))
    return (
        gradients.input_gradient(grad, x, w, *how) if output_mask[0] else None,
        gradients.weight_gradient(grad, x, w, *how) if output_mask[1] else None,
        gradients.bias_gradient(grad) if output_mask[2] else None,
    )
