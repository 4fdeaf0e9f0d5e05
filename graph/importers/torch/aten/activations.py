"""aten's activation functions and their gradients."""

from __future__ import annotations

from taskmap.graph.importers.torch.table import lowering
from taskmap.graph.nodes import Node
from taskmap.graph.ops import activations as ops
from taskmap.graph.ops.gradients import activation as gradients

lowering("relu.default")(ops.relu)
lowering("relu6.default")(ops.relu6)
lowering("silu.default")(ops.silu)
lowering("gelu.default")(ops.gelu)
lowering("hardtanh.default")(ops.hardtanh)
lowering("hardswish.default")(ops.hardswish)
lowering("hardsigmoid.default")(ops.hardsigmoid)
lowering("leaky_relu.default")(ops.leaky_relu)
lowering("elu.default")(ops.elu)
lowering("softplus.default")(ops.softplus)
lowering("mish.default")(ops.mish)
lowering("hardshrink.default")(ops.hardshrink)
lowering("softshrink.default")(ops.softshrink)
lowering("threshold.default")(ops.threshold)
lowering("_prelu_kernel.default")(ops.prelu)
lowering("logit.default")(ops.logit)
lowering("sign.default", "sgn.default")(ops.sign)

lowering("threshold_backward.default")(gradients.threshold_backward)
lowering("sigmoid_backward.default")(gradients.sigmoid_backward)
lowering("tanh_backward.default")(gradients.tanh_backward)
lowering("silu_backward.default")(gradients.silu_backward)
lowering("gelu_backward.default")(gradients.gelu_backward)
lowering("hardtanh_backward.default")(gradients.hardtanh_backward)
lowering("hardswish_backward.default")(gradients.hardswish_backward)
lowering("hardsigmoid_backward.default")(gradients.hardsigmoid_backward)
lowering("leaky_relu_backward.default")(gradients.leaky_relu_backward)
lowering("elu_backward.default")(gradients.elu_backward)
lowering("softplus_backward.default")(gradients.softplus_backward)
lowering("mish_backward.default")(gradients.mish_backward)


@lowering("log_sigmoid_forward.default")
def log_sigmoid_forward(x: Node) -> tuple[Node, Node]:
    """log(sigmoid(x)); the second result is exp(-|x|), which PyTorch's own gradient reads."""
    return ops.log_sigmoid(x), ops.exp_of_distance(x)


@lowering("log_sigmoid_backward.default")
def log_sigmoid_backward(grad: Node, x: Node, buffer: Node | None) -> Node:
    return gradients.log_sigmoid_backward(grad, x)
