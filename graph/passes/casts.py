"""A pair of conversions of which the first is exact becomes one conversion, or none."""

from __future__ import annotations

from dataclasses import dataclass, replace

from taskmap.graph.analysis.classify import definition, redefined, same_position
from taskmap.graph.nodes import Graph, Node
from taskmap.graph.passes.base import GraphPass, no_node, rewrite
from taskmap.graph.passes.views import SINGLE_VIEWS
from taskmap.ir.construct import cast
from taskmap.ir.nodes import Cast, Load
from taskmap.ir.types import is_exact


@dataclass(frozen=True, slots=True)
class FoldCasts(GraphPass):
    """to(to(x, wider), type) -> to(x, type), or x itself when that is already its type."""

    name = "fold-casts"
    before = ""
    after = "no conversion follows an exact one"
    why_here = "after views, which may lie between two conversions; before duplicates, of which it creates some"
    requires = (SINGLE_VIEWS,)
    ensures = (no_node("no conversion follows an exact one", lambda n: _visit(n) is not n),)

    def run(self, graph: Graph) -> Graph:
        """The graph with such pairs replaced."""
        return rewrite(graph, _visit)


def _visit(node: Node) -> Node:
    outer = converted(node)
    inner = converted(node.inputs[0]) if outer is not None else None
    if outer is None or inner is None or not is_exact(inner.dtype, outer.dtype):
        return node
    source = node.inputs[0].inputs[0]
    if source.dtype == node.dtype:
        return source if node.strides is None else node
    define = definition(node.inputs[0])
    body = cast(inner, node.dtype)
    return redefined(node, (source,), replace(define, name=node.op, dtype=node.dtype, body=body))


def converted(node: Node) -> Load | None:
    """The load that ``node`` converts element by element; None when it does anything else."""
    if not node.is_compute or len(node.inputs) != 1:
        return None
    define = definition(node)
    body = define.body
    if not (isinstance(body, Cast) and isinstance(body.a, Load) and node.shape == node.inputs[0].shape):
        return None
    return body.a if same_position(define, body.a) else None
