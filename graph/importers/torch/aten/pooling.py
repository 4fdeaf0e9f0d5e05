"""aten's pooling operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from taskmap.graph.importers.torch.table import lowering
from taskmap.graph.nodes import Node
from taskmap.graph.ops import pooling as ops
from taskmap.graph.ops import pooling_gradients as gradients
from taskmap.ir.nodes import Dim


def _max_pool(rank: int) -> Callable[..., tuple[Node, Node]]:
    def lower(
        x: Node,
        kernel_size: Sequence[Dim],
        stride: Sequence[Dim] = (),
        padding: Sequence[Dim] = (0,),
        dilation: Sequence[Dim] = (1,),
        ceil_mode: bool = False,
    ) -> tuple[Node, Node]:
        return ops.max_pool(x, rank, kernel_size, stride, padding, dilation, ceil_mode)

    return lower


def _avg_pool(rank: int) -> Callable[..., Node]:
    def lower(
        x: Node,
        kernel_size: Sequence[Dim],
        stride: Sequence[Dim] = (),
        padding: Sequence[Dim] = (0,),
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Node:
        return ops.avg_pool(x, rank, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)

    return lower


lowering("max_pool2d_with_indices.default")(_max_pool(2))
lowering("max_pool3d_with_indices.default")(_max_pool(3))
lowering("avg_pool1d.default")(_avg_pool(1))
lowering("avg_pool2d.default")(_avg_pool(2))
lowering("avg_pool3d.default")(_avg_pool(3))
lowering("_adaptive_avg_pool2d.default", "_adaptive_avg_pool3d.default")(ops.adaptive_avg_pool)


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
    def lower(
        grad: Node,
        x: Node,
        kernel_size: Sequence[Dim],
        stride: Sequence[Dim],
        padding: Sequence[Dim],
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: int | None,
    ) -> Node:
        return gradients.avg_pool_backward(
            grad, x, rank, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
        )

    return lower


for _rank in (2, 3):
    lowering(f"max_pool{_rank}d_with_indices_backward.default")(_max_pool_backward(_rank))
    lowering(f"avg_pool{_rank}d_backward.default")(_avg_pool_backward(_rank))


@lowering("_adaptive_avg_pool2d_backward.default")
def adaptive_avg_pool2d_backward(grad: Node, x: Node) -> Node:
    return gradients.adaptive_avg_pool_backward(grad, x, 2)


@lowering("_adaptive_avg_pool3d_backward.default")
def adaptive_avg_pool3d_backward(grad: Node, x: Node) -> Node:
    return gradients.adaptive_avg_pool_backward(grad, x, 3)
