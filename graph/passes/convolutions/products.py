"""Convolutions of narrow floats become matrix products, where instructions multiply several of these floats at a time.

    x [n, c, spatial...] * w [o, c, kernel...]   ->   the image, padded, with channels innermost · w [o, taps · c]

A product adds a pair of terms at once, or 32 in tiles; a convolution template multiplies floats one by one. The product
reads the window through its indices, so only the frame of zeros is copied (``graph.quantised.convolution``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from taskmap.graph.nodes import Graph, Node
from taskmap.graph.ops.convolution import window_of
from taskmap.graph.passes.base import GraphPass, rewrite_known
from taskmap.graph.quantised.convolution import PaddedWindow, convolution_product
from taskmap.ir.construct import product, static_size
from taskmap.ir.types import DType

_FEWEST_TERMS, _FEWEST_FILTERS = 16, 8
"""Terms of a sum, and filters, that fill enough of a tile, or of vectors."""


@dataclass(frozen=True, slots=True)
class MultiplyConvolutions(GraphPass):
    """Convolutions with constant weights, of one group, are products where the target multiplies several neighbours.

    together: the number of neighbours along a sum of products of these types that one instruction multiplies.
    """

    together: Callable[[DType, DType], int]
    name = "multiply-convolutions"
    before = "convolutions of narrow floats slide a window over their image"
    after = "where an instruction multiplies several of these floats at a time, convolutions are matrix products"
    why_here = "before weights are packed, which are then those of products"

    def run(self, graph: Graph) -> Graph:
        """The same graph with such products."""
        constant = graph.computed_once()

        def visit(now: Node, was: Node) -> Node:
            is_product = was not in constant and self._suits(was) and was.inputs[1] in constant
            return _product(now) if is_product else now

        return rewrite_known(graph, visit)

    def _suits(self, node: Node) -> bool:
        if node.op != "convolution" or not node.is_compute or len(node.inputs) != 2:
            return False
        x, w = node.inputs
        if node.attrs["transposed"] or node.attrs["groups"] != 1 or not (x.dtype == w.dtype == node.dtype):
            return False
        terms, filters = static_size(product(w.shape[1:])), static_size(w.shape[0])
        if terms is None or filters is None or terms < _FEWEST_TERMS or filters < _FEWEST_FILTERS:
            return False
        return x.dtype.is_float and self.together(x.dtype, w.dtype) > 1


def _product(node: Node) -> Node:
    (x, w), slide = node.inputs, window_of(node)
    made = convolution_product(x, None, w, PaddedWindow(slide.stride, slide.dilation, slide.pairs))
    inputs = tuple(n if n is x else replace(n, origin=node.origin) for n in made.inputs)
    return replace(made, inputs=inputs, strides=node.strides, origin=node.origin)
