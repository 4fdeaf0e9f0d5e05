"""Selects the concatenations made in place: their inputs are written directly into the result, without a kernel."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType

from taskmap.graph.analysis.classify import definition, is_injective
from taskmap.graph.analysis.inlining import inlined_nodes, is_anchor, views_of_memory
from taskmap.graph.build import same_dim
from taskmap.graph.fusion.in_place_cat import concatenated_axis
from taskmap.graph.nodes import ExternNode, Graph, Node, OperatorNode
from taskmap.graph.ops.views import copy
from taskmap.graph.passes.base import GraphPass, escaping, rewrite
from taskmap.graph.passes.growing import growth
from taskmap.ir.construct import product, static_size
from taskmap.ir.passes import Condition


def _elsewhere(graph: Graph) -> str | None:
    """The first input of an in-place concatenation that cannot be written there, or None."""
    taken: set[int] = set()
    for node in graph.nodes():
        if not node.attrs.get("in_place"):
            continue
        for part in node.inputs:
            if not part.is_compute or part.strides is not None or part.id in taken:
                return f"{node!r} reads {part!r}."
            taken.add(part.id)
    return None


@dataclass(frozen=True, slots=True)
class ConcatenateInPlace(GraphPass):
    """Marks a ``cat`` as in place when the kernels that make its inputs can write most of it.

    The other inputs are copied. A ``cat`` that only element-wise operators read stays an operator: fused with them, it
    needs no memory. But a growing one (``graph.passes.growing``) needs none of its own: its tensors are in memory for
    the longer one. An input can be written in place when a kernel makes it, nothing else fixes its place, and it
    occurs in one concatenation only, once; a shorter concatenation that is made in place is such an input.
    """

    name = "concatenate-in-place"
    before = "views are folded"
    after = "every input of a cat in place is made by a kernel and has no other place"
    why_here = "last: it depends on inlining, and the copies that it adds must not be folded"
    ensures = (Condition("a kernel makes every input of an in-place cat, which goes nowhere else", _elsewhere),)

    def run(self, graph: Graph) -> Graph:
        """The graph with concatenations marked, and with copies of inputs that cannot be written in place."""
        users = graph.users()
        free = _movable(graph, users)
        taken: set[int] = set()

        def visit(node: Node) -> Node:
            if not isinstance(node, OperatorNode) or node.op != "cat" or not _is_whole(node):
                return node
            original, node = node, grown.with_shorter(node)
            if not _needs_memory(node.id, readers) and not grown.grows(node):
                return original
            ready = [n.id in free and n.id not in taken and node.inputs.count(n) == 1 for n in node.inputs]
            if 2 * sum(_share(n) for n, r in zip(node.inputs, ready, strict=True) if r) < sum(map(_share, node.inputs)):
                return original
            taken.update(n.id for n, r in zip(node.inputs, ready, strict=True) if r)
            parts = tuple(n if r else copy(n) for n, r in zip(node.inputs, ready, strict=True))
            grown.made[node.id] = replace(node, inputs=parts, attrs=MappingProxyType({**node.attrs, "in_place": True}))
            return grown.made[node.id]

        grown = growth(users)
        readers = {n.id: _readers(n, users) for n in users if n.op == "cat"}
        return rewrite(graph, visit)


def _movable(graph: Graph, users: dict[Node, list[Node]]) -> set[int]:
    """The ids of values that a kernel makes and that can be placed anywhere."""
    nodes = list(users)
    once = graph.computed_once()
    fixed = escaping(graph) | {n for node in nodes if isinstance(node, ExternNode) for n in node.inputs}
    inlined = inlined_nodes(nodes, fixed, once)
    return {
        n.id
        for n in nodes
        if n.is_compute and n not in fixed and n not in inlined and n not in once and n.strides is None
    }


def _is_whole(cat: Node) -> bool:
    """True if the inputs cover the whole result; a constant part, for example, is no longer an input."""
    axis = concatenated_axis(cat)
    total = product([sum((n.shape[axis] for n in cat.inputs), 0)])
    return same_dim(total, cat.shape[axis])


def _readers(node: Node, users: dict[Node, list[Node]]) -> list[Node]:
    """The nodes that read ``node``, directly or through views."""
    found: list[Node] = []
    for user in users[node]:
        found += _readers(user, users) if views_of_memory(user) else [user]
    return found


def _needs_memory(cat: int, readers: dict[int, list[Node]]) -> bool:
    """True if no reader can inline the concatenation into its own expression."""
    return all(
        is_anchor(r) or not r.is_compute or r.op == "cat" or not is_injective(definition(r)) for r in readers[cat]
    )


def _share(part: Node) -> int:
    """The size of a part, for comparison; a symbolic size counts as 1."""
    return static_size(product(part.shape)) or 1
