"""Products of few rows with a matrix whose columns lie together are multiplied the other way round.

    x [m, k] · yᵀ, y [n, k] by rows     ->     y · x0, y · x1, ... stacked, if m is at most 8; one kernel reads y once
                                               (y · xᵀ)ᵀ otherwise

A product's micro-kernel reads vectors along the columns of the right matrix, which lie apart here, so that they are
copied first. Weights that are constant are packed once, but those in training, and matrices that the graph computes,
are not. Dot products copy nothing, and xᵀ is the smaller matrix to copy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from taskmap.graph.analysis.classify import definition, is_view
from taskmap.graph.nodes import Graph, Node
from taskmap.graph.ops.join import stack
from taskmap.graph.ops.matmul import mm, mv
from taskmap.graph.ops.views import reshape, select_, transpose
from taskmap.graph.passes.base import GraphPass, rewrite_known
from taskmap.ir.construct import static_size
from taskmap.ir.nodes import Load
from taskmap.ir.types import f32, f64

_MOST_DOTS = 8
"""Rows whose dot products fill the registers of one kernel."""
_MOST_ROWS = 128
"""With more, copying the matrix is cheap beside the product."""
_COLUMNS = 2
"""Columns for each row from which the matrix is the larger one to copy."""


@dataclass(frozen=True, slots=True)
class MultiplyFewRows(GraphPass):
    """Products of few rows with a transposed matrix that is not packed read the matrix by rows."""

    name = "multiply-few-rows"
    before = "a product of few rows with a transposed matrix reads elements that lie apart"
    after = "unless the matrix is constant, it is the left operand: of dot products, or of the product with the rows"
    why_here = "before weights are packed; views are still nodes"

    def run(self, graph: Graph) -> Graph:
        """The same graph with such products."""
        constant = graph.computed_once()

        def visit(now: Node, was: Node) -> Node:
            if was.op != "mm" or not was.is_compute or len(now.inputs) != 2:
                return now  # weights that are kept narrow have scales, too
            x, turned = now.inputs
            if not x.dtype == turned.dtype == now.dtype or now.dtype not in (f32, f64):
                return now
            if was.inputs[1] in constant or not _is_transposed(turned) or not _few(now):
                return now
            (y,) = turned.inputs
            return replace(_product(x, y, now), strides=now.strides, origin=now.origin)

        return rewrite_known(graph, visit)


def _few(product: Node) -> bool:
    rows, columns = map(static_size, product.shape)
    if rows is None:
        return False
    return rows == 1 or (columns is not None and rows <= _MOST_ROWS and columns >= _COLUMNS * rows)


def _product(x: Node, y: Node, now: Node) -> Node:
    rows = static_size(now.shape[0])
    assert rows is not None

    def at_home(node: Node) -> Node:
        return replace(node, origin=now.origin)

    if rows > _MOST_DOTS:
        return transpose(at_home(mm(y, at_home(transpose(x, 0, 1)))), 0, 1)
    if rows == 1:
        return reshape(at_home(mv(y, at_home(reshape(x, (x.shape[1],))))), now.shape)
    return stack([at_home(mv(y, at_home(select_(x, 0, i)))) for i in range(rows)])


def _is_transposed(node: Node) -> bool:
    """True for a matrix that is the transpose of another."""
    if not node.is_compute or len(node.inputs) != 1 or len(node.shape) != 2 or len(node.inputs[0].shape) != 2:
        return False
    define = definition(node)
    return is_view(define) and isinstance(define.body, Load) and define.body.indices == tuple(reversed(define.axes))
