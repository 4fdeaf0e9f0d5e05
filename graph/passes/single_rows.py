"""The product of one row with a matrix whose columns lie together is one dot product for each column.

    x [1, k] · yᵀ, y [n, k] by rows     ->     y · x, reshaped

A product's micro-kernel reads vectors along n, which lie apart here; weights that are constant are packed for it, but
those in training, and matrices that the graph computes, are not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from taskmap.graph.analysis.classify import definition, is_view
from taskmap.graph.nodes import Graph, Node
from taskmap.graph.ops.matmul import mv
from taskmap.graph.ops.views import reshape
from taskmap.graph.passes.base import GraphPass, rewrite_known
from taskmap.ir.construct import static_size
from taskmap.ir.nodes import Load
from taskmap.ir.types import f32, f64


@dataclass(frozen=True, slots=True)
class MultiplySingleRows(GraphPass):
    """Products of one row with a transposed matrix that is not packed read the matrix by rows."""

    name = "multiply-single-rows"
    before = "a product of one row with a transposed matrix reads elements that lie apart"
    after = "unless the matrix is constant, it is the matrix times a vector"
    why_here = "before weights are packed; views are still nodes"

    def run(self, graph: Graph) -> Graph:
        """The same graph with such products."""
        constant = graph.computed_once()

        def visit(now: Node, was: Node) -> Node:
            if was.op != "mm" or not was.is_compute or static_size(was.shape[0]) != 1 or len(now.inputs) != 2:
                return now  # weights that are kept narrow have scales, too
            x, turned = now.inputs
            if not x.dtype == turned.dtype == now.dtype:
                return now
            if was.inputs[1] in constant or not _is_transposed(turned) or now.dtype not in (f32, f64):
                return now
            (y,) = turned.inputs
            row = replace(reshape(x, (x.shape[1],)), origin=now.origin)
            product = replace(mv(y, row), origin=now.origin)
            return replace(reshape(product, now.shape), strides=now.strides, origin=now.origin)

        return rewrite_known(graph, visit)


def _is_transposed(node: Node) -> bool:
    """True for a matrix that is the transpose of another."""
    if not node.is_compute or len(node.inputs) != 1 or len(node.shape) != 2 or len(node.inputs[0].shape) != 2:
        return False
    define = definition(node)
    return is_view(define) and isinstance(define.body, Load) and define.body.indices == tuple(reversed(define.axes))
