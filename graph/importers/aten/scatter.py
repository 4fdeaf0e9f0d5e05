"""aten's scatters."""

from __future__ import annotations

from taskmap.graph.graph import Node
from taskmap.graph.importers.table import lowering
from taskmap.graph.ops import scatter as ops

lowering("scatter.value")(ops.scatter_value)
lowering("scatter.src")(ops.scatter)


@lowering("scatter_add.default")
def scatter_add(x: Node, dim: int, index: Node, source: Node) -> Node:
    return ops.scatter(x, dim, index, source, accumulate=True)
