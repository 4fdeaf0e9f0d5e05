"""aten's writes at data-dependent positions."""

from __future__ import annotations

from taskmap.graph.importers.torch.table import lowering
from taskmap.graph.nodes import Node
from taskmap.graph.ops import scatter as ops
from taskmap.graph.ops.promotion import Scalar

lowering("scatter.value", empty=True)(ops.scatter_value)
lowering("scatter.src", empty=True)(ops.scatter)
lowering("scatter_reduce.two", empty=True)(ops.scatter_reduce)
lowering("index_add.default", empty=True)(ops.index_add)
lowering("index_reduce.default", empty=True)(ops.index_reduce)
lowering("index_put.default", "_unsafe_index_put.default", empty=True)(ops.index_put)
lowering("embedding_dense_backward.default", empty=True)(ops.embedding_gradient)


@lowering("scatter_add.default", empty=True)
def scatter_add(x: Node, dim: int, index: Node, source: Node) -> Node:
    return ops.scatter(x, dim, index, source, "sum")


@lowering("scatter.reduce", empty=True)
def scatter_combined(x: Node, dim: int, index: Node, source: Node, reduce: str) -> Node:
    return ops.scatter(x, dim, index, source, reduce)


@lowering("scatter.value_reduce", empty=True)
def scatter_value_combined(x: Node, dim: int, index: Node, value: Scalar, reduce: str) -> Node:
    return ops.scatter_value(x, dim, index, value, reduce)


@lowering("index_copy.default", empty=True)
def index_copy(x: Node, dim: int, index: Node, source: Node) -> Node:
    return ops.index_combine("index_copy", x, dim, index, source, "last")
