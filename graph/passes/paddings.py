"""Zeros around an image become the padding of the convolution that reads it.

    conv(constant_pad(x, 1, 2), w, padding=1)    ->    conv(x, w, padding=2 before, 3 after)

Networks that pad by TensorFlow's rule do so by an operator of its own, since it may add one more element after an image
than before it. A convolution reads its image with any padding, and a padded copy costs as much as a small convolution.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast as typed

from taskmap.graph.nodes import Graph, Node
from taskmap.graph.ops.convolution import convolution, window_of
from taskmap.graph.passes.base import GraphPass, no_node, rewrite


@dataclass(frozen=True, slots=True)
class FoldPaddings(GraphPass):
    """A convolution reads the image that a border of zeros surrounds."""

    name = "fold-paddings"
    before = "borders of zeros are operators, and convolutions have a padding of their own"
    after = "no convolution that is not transposed reads a border of zeros"
    why_here = "after duplicates; before passes that choose how to compute a convolution by its window"
    ensures = (no_node("a convolution of an image in a border of zeros", lambda n: _border(n) is not None),)

    def run(self, graph: Graph) -> Graph:
        """The graph with such convolutions."""
        return rewrite(graph, _folded)


def _folded(node: Node) -> Node:
    border = _border(node)
    if border is None:
        return node
    (padded, w), slide = node.inputs, window_of(node)
    pairs = [(a + b, c + d) for (a, c), (b, d) in zip(slide.pairs, border, strict=True)]
    before, after = zip(*pairs, strict=True)
    groups = typed(int, node.attrs["groups"])
    made = convolution(padded.inputs[0], w, slide.stride, before, slide.dilation, groups=groups, padding_after=after)
    return replace(made, strides=node.strides, origin=node.origin)


def _border(node: Node) -> list[tuple[int, int]] | None:
    """The zeros before and after each spatial dimension of the image that a convolution reads; None for other nodes."""
    if node.op != "convolution" or node.attrs.get("transposed") or len(node.inputs) != 2 or not node.dtype.is_float:
        return None
    padded = node.inputs[0]
    if padded.op != "constant_pad" or padded.attrs.get("value") != 0 or "pads" not in padded.attrs:
        return None
    outer, pairs = [(0, 0), (0, 0)], typed("tuple[tuple[int, int], ...]", padded.attrs["pads"])
    kept = list(pairs[:2]) == outer and min(min(pair) for pair in pairs) >= 0
    return list(pairs[2:]) if kept and padded.inputs[0].dtype == node.inputs[1].dtype else None
