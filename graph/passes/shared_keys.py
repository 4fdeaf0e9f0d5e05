"""Query heads that share a key head become queries of one head, where each has a single query.

    attention(q [b, h, 1, d], k [b, hk, j, d], v)   ->   attention(q' [b, hk, h / hk, d], k, v), seen as [b, h, 1, d]

A template arranges the keys of a head once for all its queries. A decoder that makes one token at a time has one query
per head, so keys that several heads share would be arranged once for each of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from taskmap.graph.analysis.classify import definition, redefined
from taskmap.graph.build import reindex
from taskmap.graph.nodes import Graph, Node
from taskmap.graph.passes.base import GraphPass, rewrite
from taskmap.ir.analysis.simplify import Simplifier
from taskmap.ir.construct import index, load, static_size
from taskmap.ir.nodes import Expr, Load, Var
from taskmap.ir.task import Compute, formal
from taskmap.ir.visit import map_expr, substitute, walk_exprs


@dataclass(frozen=True, slots=True)
class GroupQueries(GraphPass):
    """Single queries that read the same keys are queries of one head, as long as heads remain for ``cores`` cores."""

    cores: int
    name = "group-queries"
    before = "every query head of an attention reads its keys alone"
    after = "single queries of heads that share their keys are one head's"
    why_here = "after attention is recovered and views are folded; before templates read the operands"

    def run(self, graph: Graph) -> Graph:
        """The same graph with fewer heads of more queries."""
        return rewrite(graph, lambda node: self._grouped(node) or node)

    def _grouped(self, node: Node) -> Node | None:
        if not node.is_compute or node.op != "attention" or node.attrs.get("causal") or len(node.inputs) < 3:
            return None
        q, k = node.inputs[:2]
        batch, heads, shared = (static_size(n) for n in (node.shape[0], node.shape[1], k.shape[1]))
        if batch is None or heads is None or shared is None or heads % shared or static_size(node.shape[2]) != 1:
            return None
        if len(q.shape) != 4 or q.shape[:3] != node.shape[:3]:
            return None
        enough = min(self.cores, batch * heads)
        parts = (p for p in range(1, heads // shared + 1) if heads // shared % p == 0 and batch * shared * p >= enough)
        size = heads // shared // next(parts)
        made = _of_heads(node, size) if size > 1 else None
        if made is None:
            return None
        apart = reindex("ungroup", made, node.shape, lambda b, h, i, d: (b, h // size, h % size, d))
        return replace(apart, strides=node.strides, origin=node.origin)


def _of_heads(node: Node, size: int) -> Node | None:
    """The attention ``node`` of one query per head with ``size`` heads in one, or None if the keys or the values that
    these read differ, or its queries are read in another order than they are stored in."""
    d, (q, *others) = definition(node), node.inputs
    b, h, i, last = d.axes
    queries, *held = d.inputs
    shape = (q.shape[0], (static_size(q.shape[1]) or 0) // size, size, q.shape[3])
    grouped = reindex("group", q, shape, lambda b, h, i, d: (b, h * size + i, 0, d))
    now, head, row = formal(queries.name, shape, q.dtype), Var(h.name), Var(i.name)
    simplifier = Simplifier()
    simplifier.bind(head, shape[1])
    simplifier.bind(row, size)

    def one(e: Expr) -> Expr | None:
        if not isinstance(e, Load):
            return None
        if e.buffer is queries:
            return load(now, (b, head, row, e.indices[3]))
        return load(e.buffer, [simplifier(substitute(at, {h: head * size + row, i: index(0)})) for at in e.indices])

    loads = [e for e in walk_exprs(d.body) if isinstance(e, Load)]
    body = map_expr(d.body, one)
    if any(e.indices[:3] != (b, h, i) for e in loads if e.buffer is queries) or {h, i} & set(walk_exprs(body)):
        return None
    keys = [e for e in walk_exprs(body) if isinstance(e, Load) and e.buffer in held[:2]]
    if any(row in walk_exprs(at) for e in keys for at in e.indices):
        return None
    made = Compute(d.name, (now, *held), (*shape[:3], node.shape[3]), d.dtype, (b, head, row, last), body)
    return replace(redefined(node, (grouped, *others), made), shape=made.shape, strides=None)
