"""Views of views become one view; views and copies that change nothing disappear."""

from __future__ import annotations

from dataclasses import dataclass, replace

from taskmap.graph.analysis.classify import definition, is_identity, redefined
from taskmap.graph.analysis.inlining import views_of_memory
from taskmap.graph.nodes import Graph, Node
from taskmap.graph.passes.base import GraphPass, escaping, no_node, rewrite
from taskmap.ir.analysis.simplify import Simplifier
from taskmap.ir.construct import as_expr, static_size
from taskmap.ir.nodes import Load
from taskmap.ir.types import i64
from taskmap.ir.visit import substitute

SINGLE_VIEWS = no_node("no view reads a view", lambda n: views_of_memory(n) and views_of_memory(n.inputs[0]))


@dataclass(frozen=True, slots=True)
class FoldViews(GraphPass):
    """reshape(reshape(x)) -> reshape(x), likewise permute, expand, slice; drops copies that nothing could write to."""

    name = "fold-views"
    before = ""
    after = "no view reads a view; a copy remains only where the caller gets it or its strides are fixed"
    why_here = "first: every later pass looks through views, and then has at most one to look through"
    ensures = (SINGLE_VIEWS,)

    def run(self, graph: Graph) -> Graph:
        """The graph with no view of a view."""
        kept = {n.id for n in escaping(graph)}

        def visit(node: Node) -> Node:
            if node.op == "copy" and node.strides is None and node.id not in kept:
                return node.inputs[0]
            if not views_of_memory(node):
                return node
            source = node.inputs[0]
            folded = compose(node, source) if views_of_memory(source) else node
            return folded.inputs[0] if node.strides is None and changes_nothing(folded) else folded

        return _without_views_at_the_end(rewrite(graph, visit))


def _without_views_at_the_end(graph: Graph) -> Graph:
    """An output that views an unshared value without change becomes that value, with the output's strides."""
    users = graph.users()
    made: dict[Node, Node] = {}
    for node in dict.fromkeys(n for n in graph.outputs if n is not None):
        if not views_of_memory(node) or users[node] or not changes_nothing(node):
            continue
        (source,) = node.inputs
        alone = users[source] == [node] and source not in graph.outputs
        if alone and source.is_compute and source.strides is None and not views_of_memory(source):
            made[node] = replace(source, strides=node.strides)
    return replace(graph, outputs=[None if n is None else made.get(n, n) for n in graph.outputs]) if made else graph


def changes_nothing(view: Node) -> bool:
    """True if a view has the shape of its input and reads every element at its own position."""
    return view.shape == view.inputs[0].shape and is_identity(definition(view))


def compose(outer: Node, inner: Node) -> Node:
    """The view ``outer`` of the view ``inner`` as one view of the source of ``inner``."""
    define, below = definition(outer), definition(inner)
    assert isinstance(define.body, Load)
    assert isinstance(below.body, Load)
    here = dict(zip(below.axes, define.body.indices, strict=True))
    simplify = Simplifier()
    for axis, size in zip(define.axes, define.shape, strict=True):
        simplify.bind(axis, size)
        if static_size(size) == 1:
            simplify.replace(axis, as_expr(0, i64))
    indices = tuple(simplify(substitute(i, here)) for i in below.body.indices)
    body = Load(below.body.buffer, indices, define.dtype)
    return redefined(outer, inner.inputs, replace(define, inputs=below.inputs, body=body))
