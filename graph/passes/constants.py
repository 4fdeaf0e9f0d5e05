"""Tensors of one value become numbers in the expressions that read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from taskmap.graph.analysis.classify import definition, redefined
from taskmap.graph.analysis.inlining import is_anchor
from taskmap.graph.nodes import ConstantNode, Graph, Node
from taskmap.graph.passes.base import GraphPass, no_node, rewrite
from taskmap.ir.construct import const, static_size
from taskmap.ir.nodes import Buffer, Const, Expr, Load
from taskmap.ir.visit import map_expr, walk_exprs


@dataclass(frozen=True, slots=True)
class FoldConstants(GraphPass):
    """x * full(2) -> x * 2; views of such tensors count as such tensors."""

    name = "fold-constants"
    before = ""
    after = "no operator reads a tensor whose elements are known to be one value"
    why_here = "before duplicates: nodes that read equal constants become equal"
    ensures = (no_node("no operator reads a tensor of one known value", lambda n: _visit(n) is not n),)

    def run(self, graph: Graph) -> Graph:
        """The graph with numbers in place of such tensors."""
        return rewrite(graph, _visit)


def _visit(node: Node) -> Node:
    if not node.is_compute or is_anchor(node):  # a template identifies its operands by position
        return node
    define = definition(node)
    known = {
        formal: value
        for formal, source in zip(define.inputs, node.inputs, strict=True)
        if (value := single_value(source)) is not None
    }
    if not known:
        return node
    body = replace_loads(define.body, known)
    # With a number inserted, an expression may no longer need another operand: x or True.
    loaded = {e.buffer for e in walk_exprs(body) if isinstance(e, Load)}
    rest = [(f, n) for f, n in zip(define.inputs, node.inputs, strict=True) if f in loaded]
    inputs = tuple(f for f, _ in rest)
    return redefined(node, tuple(n for _, n in rest), replace(define, inputs=inputs, body=body))


def single_value(node: Node) -> Const | None:
    """The number that every element of ``node`` equals, or None when that is unknown."""
    if node.is_compute:
        body = definition(node).body
        return body if isinstance(body, Const) else None
    if not isinstance(node, ConstantNode) or any(static_size(n) != 1 for n in node.shape):
        return None
    value: Any = node.value
    return const(value.item(), node.dtype)


def replace_loads(body: Expr, values: Mapping[Buffer, Const]) -> Expr:
    """``body`` with every element of the given tensors replaced by its value."""
    return map_expr(body, lambda e: values.get(e.buffer) if isinstance(e, Load) else None)
