"""Nodes in the order of computation. Files may store them in any order, and ONNX Runtime sorts them."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

from onnx import GraphProto, ModelProto, NodeProto

from taskmap.graph.importers.onnx.read.protos import graphs_of


def ordered(proto: ModelProto) -> ModelProto:
    """``proto``, or a copy whose graphs and functions list every node after those that it reads.

    Nodes on a cycle keep their places; the check of names finds them.
    """
    if _is_ordered(proto.graph) and all(_in_order(f.node, set(f.input)) for f in proto.functions):
        return proto
    made = ModelProto()
    made.CopyFrom(proto)
    _sort_graph(made.graph)
    for function in made.functions:
        _sort(function.node)
    return made


def _is_ordered(graph: GraphProto) -> bool:
    inner = (g for node in graph.node for a in node.attribute for g in graphs_of(a))
    return _in_order(graph.node, set()) and all(_is_ordered(g) for g in inner)


def _in_order(nodes: Sequence[NodeProto], known: set[str]) -> bool:
    """True if no node reads a result of a later one."""
    later = {name for node in nodes for name in node.output if name} - known
    for node in nodes:
        if not later.isdisjoint(_read(node)):
            return False
        later.difference_update(node.output)
    return True


def _read(node: NodeProto) -> set[str]:
    """The names that a node reads, including those that graphs inside it read from outside."""
    names = set(node.input)
    for attribute in node.attribute:
        for graph in graphs_of(attribute):
            own = {p.name for p in (*graph.input, *graph.initializer)} | {n for m in graph.node for n in m.output}
            inner = {o.name for o in graph.output}.union(*(_read(n) for n in graph.node))
            names |= inner - own
    return names - {""}


def _sort_graph(graph: GraphProto) -> None:
    for node in graph.node:
        for attribute in node.attribute:
            for inner in graphs_of(attribute):
                _sort_graph(inner)
    _sort(graph.node)


def _sort(nodes: Any) -> None:
    """Sorts in place: among the nodes that could come next, the first one does."""
    listed = list(nodes)
    maker = {name: i for i, node in enumerate(listed) for name in node.output if name}
    waits = [{maker[n] for n in _read(node) if n in maker} for node in listed]
    users: dict[int, list[int]] = {}
    for i, sources in enumerate(waits):
        for source in sources:
            users.setdefault(source, []).append(i)
    ready = [i for i, sources in enumerate(waits) if not sources]
    order: list[int] = []
    while ready:
        i = heapq.heappop(ready)
        order.append(i)
        for user in users.get(i, ()):
            waits[user].discard(i)
            if not waits[user]:
                heapq.heappush(ready, user)
    placed = set(order)
    order += [i for i in range(len(listed)) if i not in placed]
    copies = [NodeProto.FromString(listed[i].SerializeToString()) for i in order]
    del nodes[:]
    nodes.extend(copies)
