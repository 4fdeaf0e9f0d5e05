"""aten's pooling operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from taskmap.graph.importers.torch.table import lowering
from taskmap.graph.nodes import Node
from taskmap.graph.ops import pooling as ops
from taskmap.graph.ops.gradients import pooling as gradients
from taskmap.ir.nodes import Dim


def _max_pool(rank: int) -> Callable[..., tuple[Node, Node]]:
    return lambda x, *window: ops.max_pool(x, rank, *window)


def _avg_pool(rank: int) -> Callable[..., Node]:
    return lambda x, *window: ops.avg_pool(x, rank, *window)


def _max_pool_backward(rank: int) -> Callable[..., Node]:
    def lower(
        grad: Node,
        x: Node,
        kernel_size: Sequence[Dim],
        stride: Sequence[Dim],
        padding: Sequence[Dim],
        dilation: Sequence[Dim],
        ceil_mode: bool,
        indices: Node,
    ) -> Node:
        return gradients.max_pool_backward(grad, x, indices, rank, kernel_size, stride, padding, dilation)

    return lower


def _avg_pool_backward(rank: int) -> Callable[..., Node]:
    return lambda grad, x, *window: gradients.avg_pool_backward(grad, x, rank, *window)


for _rank in (1, 2, 3):
    lowering(f"avg_pool{_rank}d.default")(_avg_pool(_rank))
for _rank in (2, 3):
    lowering(f"max_pool{_rank}d_with_indices.default")(_max_pool(_rank))
    lowering(f"max_pool{_rank}d_with_indices_backward.default")(_max_pool_backward(_rank))
    lowering(f"avg_pool{_rank}d_backward.default")(_avg_pool_backward(_rank))
lowering("_adaptive_avg_pool2d.default", "_adaptive_avg_pool3d.default")(ops.adaptive_avg_pool)


@lowering("_adaptive_avg_pool2d_backward.default")
def adaptive_avg_pool2d_backward(grad: Node, x: Node) -> Node:
    return gradients.adaptive_avg_pool_backward(grad, x, 2)


@lowering("_adaptive_avg_pool3d_backward.default")
def adaptive_avg_pool3d_backward(grad: Node, x: Node) -> Node:
    return gradients.adaptive_avg_pool_backward(grad, x, 3)
