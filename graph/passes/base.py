"""The interface of a graph pass, and the function by which passes rewrite graphs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from taskmap.graph.analysis.inlining import views_of_memory
from taskmap.graph.nodes import Graph, Node


class GraphPass(Protocol):
    """A rewrite of a graph into another with the same inputs and the same results."""

    @property
    def name(self) -> str:
        """The word used in dumps and messages."""

    @property
    def before(self) -> str:
        """The condition on the incoming graph; "" for none."""

    @property
    def after(self) -> str:
        """The property of the outgoing graph."""

    @property
    def why_here(self) -> str:
        """The reason for its place: after its predecessors and before its successors."""

    def run(self, graph: Graph) -> Graph:
        """The rewritten graph; ``graph`` itself is unchanged."""


def rewrite(graph: Graph, visit: Callable[[Node], Node]) -> Graph:
    """``graph`` with ``visit`` applied to every node, inputs first: ``visit`` sees a node with its new inputs."""
    made: dict[Node, Node] = {}
    for node in graph.nodes():
        inputs = tuple(made[n] for n in node.inputs)
        unchanged = all(a is b for a, b in zip(inputs, node.inputs, strict=True))
        made[node] = visit(node if unchanged else replace(node, inputs=inputs))
    outputs = [None if n is None else made[n] for n in graph.outputs]
    return replace(graph, outputs=outputs)


def escaping(graph: Graph) -> set[Node]:
    """Outputs and the values they are views of. The caller may write to that memory, so no two of them are merged."""
    found: set[Node] = set()
    stack = [n for n in graph.outputs if n is not None]
    while stack:
        node = stack.pop()
        found.add(node)
        if views_of_memory(node):
            stack.extend(node.inputs)
    return found
