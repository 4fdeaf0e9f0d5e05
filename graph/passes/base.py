"""What a graph pass is, and how it rewrites a graph."""

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
        """A word for dumps and messages."""

    @property
    def before(self) -> str:
        """What must hold of the graph that comes in; "" for nothing."""

    @property
    def after(self) -> str:
        """What holds of the graph that goes out."""

    @property
    def why_here(self) -> str:
        """Why it stands after the passes before it and before those after it."""

    def run(self, graph: Graph) -> Graph:
        """The rewritten graph; the given one is not changed."""


def rewrite(graph: Graph, visit: Callable[[Node], Node]) -> Graph:
    """``graph`` with ``visit`` applied to every node, inputs first, so that ``visit`` sees a node with new inputs."""
    made: dict[Node, Node] = {}
    for node in graph.nodes():
        inputs = tuple(made[n] for n in node.inputs)
        unchanged = all(a is b for a, b in zip(inputs, node.inputs, strict=True))
        made[node] = visit(node if unchanged else replace(node, inputs=inputs))
    outputs = [None if n is None else made[n] for n in graph.outputs]
    return replace(graph, outputs=outputs)


def escaping(graph: Graph) -> set[Node]:
    """Outputs, and what they are views of: the caller may write to that memory, so two of them are never made one."""
    found: set[Node] = set()
    stack = [n for n in graph.outputs if n is not None]
    while stack:
        node = stack.pop()
        found.add(node)
        if views_of_memory(node):
            stack.extend(node.inputs)
    return found
