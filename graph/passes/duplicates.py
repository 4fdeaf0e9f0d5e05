"""Nodes that compute the same value are merged."""

from __future__ import annotations

from dataclasses import dataclass

from taskmap.graph.analysis.classify import definition
from taskmap.graph.nodes import Graph, Node
from taskmap.graph.passes.base import GraphPass, escaping, rewrite
from taskmap.ir.analysis.key import Structure, structure
from taskmap.ir.nodes import Buffer
from taskmap.ir.passes import Condition
from taskmap.ir.task import Stage, Task


def _duplicate(graph: Graph) -> str | None:
    """The first two nodes that compute the same and whose results may share memory, or None."""
    apart = {n.id for n in escaping(graph)}
    alike: dict[object, list[Node]] = {}
    for node in graph.nodes():
        if not node.is_compute or node.op == "copy" or node.strides is not None or node.id in apart:
            continue
        seen = alike.setdefault((node.op, node.inputs, node.shape, node.dtype), [])
        for other in seen:
            if structural_key(other) == structural_key(node):
                return f"{other!r} and {node!r} compute the same."
        seen.append(node)
    return None


NO_DUPLICATES = Condition("no two nodes compute the same, results of the graph aside", _duplicate)


@dataclass(frozen=True, slots=True)
class MergeDuplicates(GraphPass):
    """Eliminates common subexpressions: equal definitions over equal inputs. Values that the caller gets stay apart."""

    name = "merge-duplicates"
    before = "views are folded, constants are in expressions"
    after = "no two nodes compute the same value from the same inputs, outputs of the graph aside"
    why_here = "after the passes that make nodes equal, before those that count users"
    ensures = (NO_DUPLICATES,)

    def run(self, graph: Graph) -> Graph:
        """The graph with one node per value."""
        apart = {n.id for n in escaping(graph)}
        seen: dict[object, list[Node]] = {}
        keys: dict[Node, Structure] = {}

        def key(node: Node) -> Structure:
            if node not in keys:
                keys[node] = structural_key(node)
            return keys[node]

        def visit(node: Node) -> Node:
            if not node.is_compute or node.op == "copy":
                return node
            alike = seen.setdefault((node.op, node.inputs, node.shape, node.dtype), [])
            if node.strides is None and node.id not in apart:
                for other in alike:
                    if key(other) == key(node):
                        return other
            alike.append(node)
            return node

        return rewrite(graph, visit)


def structural_key(node: Node) -> Structure:
    """A key that is equal for nodes with equal definitions over the same symbolic sizes."""
    define = definition(node)
    out = Buffer("out", define.dtype, define.shape)
    stage = Stage(out, define.axes, define.body, node.op, tuple(sorted(node.attrs.items())))
    return structure(Task("", define.inputs, (stage,), (out,)))
