"""aten's resizing operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from taskmap.graph.importers.torch.table import Out, lowering
from taskmap.graph.nodes import Node
from taskmap.graph.ops import resample as ops
from taskmap.graph.ops.gradients import resample as gradients
from taskmap.ir.nodes import Dim


def _nearest(rank: int, exact: bool) -> Callable[..., Node]:
    def lower(x: Node, output_size: Sequence[Dim], *scales: float | None) -> Node:
        return ops.upsample_nearest(x, output_size, scales or (None,) * rank, exact)

    return lower


def _nearest_by_factors(rank: int, exact: bool) -> Callable[..., Node]:
    def lower(out: Out, x: Node, output_size: Sequence[Dim] | None, scales: Sequence[float] | None) -> Node:
        return ops.upsample_nearest(x, out.shape[-rank:], scales or (None,) * rank, exact)

    return lower


def _linear(rank: int) -> Callable[..., Node]:
    def lower(x: Node, output_size: Sequence[Dim], align_corners: bool, *scales: float | None) -> Node:
        return ops.upsample_linear(x, output_size, align_corners, scales or (None,) * rank)

    return lower


def _linear_by_factors(rank: int) -> Callable[..., Node]:
    def lower(
        out: Out, x: Node, output_size: Sequence[Dim] | None, align_corners: bool, scales: Sequence[float] | None
    ) -> Node:
        return ops.upsample_linear(x, out.shape[-rank:], align_corners, scales or (None,) * rank)

    return lower


def _nearest_backward(rank: int, exact: bool) -> Callable[..., Node]:
    def lower(grad: Node, _: Sequence[Dim], input_size: Sequence[Dim], *scales: float | None) -> Node:
        return gradients.upsample_nearest_backward(grad, input_size, scales or (None,) * rank, exact)

    return lower


def _linear_backward(rank: int) -> Callable[..., Node]:
    def lower(
        grad: Node, _: Sequence[Dim], input_size: Sequence[Dim], align_corners: bool, *scales: float | None
    ) -> Node:
        return gradients.upsample_linear_backward(grad, input_size, align_corners, scales or (None,) * rank)

    return lower


for _rank in (1, 2, 3):
    lowering(f"upsample_nearest{_rank}d.default")(_nearest(_rank, exact=False))
    lowering(f"upsample_nearest{_rank}d.vec", out=True)(_nearest_by_factors(_rank, exact=False))
    lowering(f"_upsample_nearest_exact{_rank}d.default")(_nearest(_rank, exact=True))
    lowering(f"_upsample_nearest_exact{_rank}d.vec", out=True)(_nearest_by_factors(_rank, exact=True))
    lowering(f"upsample_nearest{_rank}d_backward.default")(_nearest_backward(_rank, exact=False))
    lowering(f"_upsample_nearest_exact{_rank}d_backward.default")(_nearest_backward(_rank, exact=True))
for _rank, _name in ((1, "upsample_linear1d"), (2, "upsample_bilinear2d"), (3, "upsample_trilinear3d")):
    lowering(f"{_name}.default")(_linear(_rank))
    lowering(f"{_name}.vec", out=True)(_linear_by_factors(_rank))
    lowering(f"{_name}_backward.default")(_linear_backward(_rank))
