"""aten's reads at data-dependent positions."""

from __future__ import annotations

from collections.abc import Sequence

from taskmap.graph.importers.torch.table import lowering
from taskmap.graph.nodes import Node
from taskmap.graph.ops import gather as ops
from taskmap.graph.ops.creation import arange_of
from taskmap.graph.ops.reductions import mean, sum_
from taskmap.graph.ops.views import reshape
from taskmap.ir.construct import static_size
from taskmap.ir.errors import UnsupportedError

lowering("index_select.default")(ops.index_select)
lowering("take.default")(ops.take)


@lowering("embedding.default")
def embedding(
    weight: Node, indices: Node, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Node:
    """weight[indices]; the options affect only the gradient."""
    return ops.embedding(weight, indices)


@lowering("_embedding_bag.default", "_embedding_bag_forward_only.default", first_only=True)
def embedding_bag(
    weight: Node,
    indices: Node,
    offsets: Node,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Node | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Node | None, ...]:
    """Sums or means of bags of rows; the bags must be equally long, as those of a matrix of indices are."""
    if per_sample_weights is not None or include_last_offset or padding_idx >= 0:
        raise UnsupportedError("an embedding bag with weights, a last offset or padding")
    if mode not in (0, 1):
        raise UnsupportedError("the maxima of bags: PyTorch keeps a NaN only where it comes first")
    bags, length = static_size(offsets.shape[0]), static_size(indices.shape[0])
    if bags is None or length is None or length % bags or arange_of(offsets) != (0, length // bags):
        raise UnsupportedError("bags that may differ in length")
    rows = ops.embedding(weight, reshape(indices, (bags, length // bags)))
    return ((sum_, mean)[mode](rows, (1,)), None, None, None)


@lowering("gather.default")
def gather(x: Node, dim: int, index: Node, sparse_grad: bool = False) -> Node:
    return ops.gather(x, dim, index)


@lowering("index.Tensor", "_unsafe_index.Tensor")
def index_by_tensors(x: Node, indices: Sequence[Node | None]) -> Node:
    if not any(n is not None for n in indices):
        raise UnsupportedError("indexing without indices")
    return ops.advanced_index(x, indices)
