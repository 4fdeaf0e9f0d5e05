"""aten's softmax family."""

from __future__ import annotations

from taskmap.graph.importers.torch.table import lowering
from taskmap.graph.nodes import Node
from taskmap.graph.ops import softmax as ops
from taskmap.ir.errors import UnsupportedError

lowering("_softmax_backward_data.default")(ops.softmax_backward)
lowering("_log_softmax_backward_data.default")(ops.log_softmax_backward)


def _checked(x: Node, half_to_float: bool) -> Node:
    if half_to_float or not x.dtype.is_float:
        raise UnsupportedError(f"softmax of {x.dtype} into another type")
    return x


@lowering("_softmax.default")
def softmax(x: Node, dim: int, half_to_float: bool) -> Node:
    return ops.softmax(_checked(x, half_to_float), dim)


@lowering("_log_softmax.default")
def log_softmax(x: Node, dim: int, half_to_float: bool) -> Node:
    return ops.log_softmax(_checked(x, half_to_float), dim)
