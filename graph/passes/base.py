"""The base of graph passes, and the function by which passes rewrite graphs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from taskmap.graph.analysis.inlining import views_of_memory
from taskmap.graph.nodes import Graph, Node, rebuilt
from taskmap.ir.passes import Condition, Invariant, Pass


def _other_interface(given: Graph, made: Graph) -> str | None:
    was, now = _interface(given), _interface(made)
    return None if was == now else f"{was} became {now}."


def _interface(graph: Graph) -> tuple[object, ...]:
    outputs = tuple(None if n is None else (n.shape, n.dtype) for n in graph.outputs)
    return tuple((n.shape, n.dtype) for n in graph.inputs), outputs, graph.constant_inputs


class GraphPass(Pass[Graph]):
    """A rewrite of a graph into another with the same inputs and the same results."""

    __slots__ = ()

    keeps = (Invariant("number, shapes and types of inputs and results", _other_interface),)


def no_node(text: str, wrong: Callable[[Node], bool]) -> Condition[Graph]:
    """The condition that ``wrong`` holds of no node; a breach names the first one."""

    def breach(graph: Graph) -> str | None:
        found = next(filter(wrong, graph.nodes()), None)
        return None if found is None else f"{found!r}  {found.origin}"

    return Condition(text, breach)


def rewrite(graph: Graph, visit: Callable[[Node], Node]) -> Graph:
    """``graph`` with ``visit`` applied to every node, inputs first: ``visit`` sees a node with its new inputs."""
    return rewrite_known(graph, lambda now, was: visit(now))


def rewrite_known(graph: Graph, visit: Callable[[Node, Node], Node]) -> Graph:
    """``rewrite`` by facts about the given nodes: ``visit`` sees a node with its new inputs, and as it was."""
    made = rebuilt(graph.nodes(), visit)
    outputs = [None if n is None else made[n] for n in graph.outputs]
    return graph if outputs == graph.outputs else replace(graph, outputs=outputs)


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
