"""Expansions: the products that only a depthwise convolution reads, chosen for computing in its kernel.

    image [24] ─► product ─► bias ─► relu6 ─► depthwise [144] ─► ...        one kernel; the wide image is never stored

The convolution gets an attribute, by which fusion joins both anchors, and the product another, by which its weights are
packed for the kernel of both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Protocol
from typing import cast as typed

from taskmap.graph.analysis.classify import definition, is_injective, same_position
from taskmap.graph.nodes import Graph, Node, OperatorNode
from taskmap.graph.ops.convolution import window_of
from taskmap.graph.passes.base import GraphPass, rewrite_known
from taskmap.ir.construct import static_size
from taskmap.ir.expansion import ATTRIBUTE, WIDTH, ExpansionChoice, ExpansionSizes
from taskmap.ir.nodes import Load, Var
from taskmap.ir.types import f32
from taskmap.ir.visit import walk_exprs


class ChooseExpansion(Protocol):
    """Decides if a product is computed in the kernel of the depthwise convolution that reads it."""

    def __call__(self, sizes: ExpansionSizes, hints: Mapping[Var, int]) -> ExpansionChoice:
        """``hints``: likely values of symbolic sizes."""
        ...


@dataclass(frozen=True, slots=True)
class JoinExpansions(GraphPass):
    """Marks the depthwise convolutions whose image a product makes, and these products, where ``choose`` expects a
    gain."""

    choose: ChooseExpansion
    name = "join-expansions"
    before = "a product and the depthwise convolution that reads it have a kernel each"
    after = "depthwise convolutions that compute their image have an attribute that says so"
    why_here = "after operators were folded into weights; before packing, which looks at the attribute of products"

    def run(self, graph: Graph) -> Graph:
        """The same graph with marks."""
        constant = graph.computed_once()
        users = graph.users()
        results = {n for n in graph.outputs if n is not None}
        alone = {n for n, readers in users.items() if len(readers) == 1 and n not in results}
        marks: dict[Node, tuple[str, object]] = {}
        remarks = dict(graph.remarks)
        for node in users:
            product = None
            if _is_depthwise(node) and node not in constant:
                product = _product_behind(node.inputs[0], alone, constant)
            if product is None:
                continue
            chosen = self.choose(_sizes(node, product), graph.hints)
            remarks[node.id] = chosen.reason
            if chosen.width:
                marks[node], marks[product] = (ATTRIBUTE, True), (WIDTH, chosen.width)

        def visit(now: Node, was: Node) -> Node:
            return _marked(now, *marks[was]) if was in marks else now

        marked = rewrite_known(graph, visit)
        return marked if remarks == graph.remarks else replace(marked, remarks=remarks)


def _marked(node: Node, name: str, value: object) -> Node:
    assert isinstance(node, OperatorNode)
    return replace(node, attrs=MappingProxyType({**node.attrs, name: value}))


def _is_depthwise(node: Node) -> bool:
    """True for a depthwise convolution of two-dimensional images of f32."""
    if node.op != "convolution" or not node.is_compute or len(node.inputs) != 2 or len(node.shape) != 4:
        return False
    (x, w), groups = node.inputs, node.attrs["groups"]
    channels = static_size(x.shape[1])
    alone = channels == groups == static_size(w.shape[0]) != 1
    return alone and not node.attrs["transposed"] and x.dtype == w.dtype == node.dtype == f32


def _product_behind(x: Node, alone: AbstractSet[Node], constant: AbstractSet[Node]) -> Node | None:
    """The convolution of 1×1 with constant weights from which element-wise operators with vectors make ``x``, if no
    value on the way is read elsewhere."""
    while x in alone and x not in constant and x.is_compute:
        if _is_pointwise(x):
            return x if x.inputs[1] in constant else None
        if not is_injective(definition(x)):
            return None
        wide = [n for n in x.inputs if not _is_vector(n)]
        if len(wide) != 1 or wide[0].shape != x.shape or not _is_element_wise(x, wide[0]):
            return None
        (x,) = wide
    return None


def _is_pointwise(node: Node) -> bool:
    """True for a convolution of f32 whose window is one pixel, without borders."""
    if node.op != "convolution" or len(node.inputs) != 2 or node.attrs["transposed"] or node.attrs["groups"] != 1:
        return False
    x, w = node.inputs
    same = x.dtype == w.dtype == node.dtype == f32
    return same and all(static_size(n) == 1 for n in w.shape[2:]) and not any(map(any, window_of(node).pairs))


def _is_vector(node: Node) -> bool:
    return sum(static_size(n) != 1 for n in node.shape) <= 1


def _is_element_wise(node: Node, wide: Node) -> bool:
    """True if every read of ``wide`` is at the position of the result."""
    define = definition(node)
    formal = define.inputs[node.inputs.index(wide)]
    loads = [e for e in walk_exprs(define.body) if isinstance(e, Load) and e.buffer is formal]
    return all(same_position(define, load) for load in loads)


def _sizes(node: Node, product: Node) -> ExpansionSizes:
    slide = window_of(node)
    pairs = [typed("tuple[int, int]", tuple(pair)) for pair in slide.pairs]
    return ExpansionSizes(
        node.inputs[0].shape,
        static_size(product.inputs[1].shape[1]) or 0,
        _two(node.inputs[1].shape[2:]),
        _two(slide.stride),
        (pairs[0][0], pairs[1][0]),
        _two(slide.dilation),
    )


def _two(values: Sequence[object]) -> tuple[int, int]:
    first, second = values
    return typed(int, first), typed(int, second)
