"""aten's reads at data-dependent positions."""

from __future__ import annotations

from collections.abc import Sequence

from taskmap.graph.importers.torch.table import lowering
from taskmap.graph.nodes import Node
from taskmap.graph.ops import gather as ops
from taskmap.ir.errors import UnsupportedError

lowering("index_select.default")(ops.index_select)
lowering("take.default")(ops.take)


@lowering("embedding.default")
def embedding(
    weight: Node, indices: Node, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Node:
    """weight[indices]; the options affect only the gradient."""
    return ops.embedding(weight, indices)


@lowering("gather.default")
def gather(x: Node, dim: int, index: Node, sparse_grad: bool = False) -> Node:
    return ops.gather(x, dim, index)


@lowering("index.Tensor", "_unsafe_index.Tensor")
def index_by_tensors(x: Node, indices: Sequence[Node | None]) -> Node:
    if not any(n is not None for n in indices):
        raise UnsupportedError("indexing without indices")
    return ops.advanced_index(x, indices)
