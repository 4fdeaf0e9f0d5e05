"""A bias is added to a sum of products before the sum is rounded, as PyTorch's fused products do.

    p = narrow(sum);  y = narrow(wide(p) + wide(bias))     ->     p = sum;  y = narrow(p + wide(bias))

A product of bf16 or f16 adds in f32. Rounded once instead of twice, the result is more accurate, and a kernel that
fuses both has less to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from taskmap.graph.analysis.classify import definition, is_contraction, redefined
from taskmap.graph.nodes import Graph, Node
from taskmap.graph.passes.base import GraphPass
from taskmap.ir.construct import static_size
from taskmap.ir.nodes import Buffer, Cast, Expr, Load
from taskmap.ir.task import formal
from taskmap.ir.types import compute_type
from taskmap.ir.visit import map_expr, walk_exprs

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class AddBiases(GraphPass):
    """Sums of narrow floats to which only a bias is added keep the type in which they are summed."""

    name = "add-biases"
    before = "products of narrow floats are rounded, then a bias is added, and the result is rounded"
    after = "the bias is added to the sum before it is rounded"
    why_here = "after products have their final form; before weights are packed, which does not look at results"

    def run(self, graph: Graph) -> Graph:
        """The same graph with fewer roundings."""
        users = graph.users()
        results = {n for n in graph.outputs if n is not None}
        alone = {n for n, readers in users.items() if len(readers) == 1 and n not in results}
        made: dict[Node, Node] = {}
        for node in graph.nodes():
            inputs = tuple(made[n] for n in node.inputs)
            same = all(a is b for a, b in zip(inputs, node.inputs, strict=True))
            current = node if same else replace(node, inputs=inputs)
            place = _biased(node, alone)
            made[node] = current if place is None else _unrounded(current, place)
        outputs = [None if n is None else made[n] for n in graph.outputs]
        return replace(graph, outputs=outputs)


def _biased(node: Node, alone: set[Node]) -> int | None:
    """The place of a rounded sum among the inputs of ``node``, which adds a bias to it; None for other nodes."""
    if node.op != "add" or not node.is_compute or len(node.inputs) != 2 or not _is_narrow(node):
        return None
    for place, (total, bias) in enumerate((node.inputs, node.inputs[::-1])):
        if total in alone and _is_rounded_sum(total) and total.shape == node.shape and _is_vector(bias):
            formal_total = definition(node).inputs[place]
            return place if _is_widened(definition(node).body, formal_total) else None
    return None


def _is_narrow(node: Node) -> bool:
    return node.dtype.is_float and compute_type(node.dtype) != node.dtype


def _is_rounded_sum(node: Node) -> bool:
    if not node.is_compute or not _is_narrow(node) or node.strides is not None or not is_contraction(definition(node)):
        return False
    body = definition(node).body
    return isinstance(body, Cast) and body.a.dtype == compute_type(node.dtype)


def _is_vector(bias: Node) -> bool:
    return sum(static_size(n) != 1 for n in bias.shape) <= 1


def _is_widened(body: Expr, total: Buffer) -> bool:
    """True if every element of ``total`` is read by a conversion to the type of its sums."""
    wide = compute_type(total.dtype)
    loads = {id(e) for e in walk_exprs(body) if isinstance(e, Load) and e.buffer is total}
    cast = {id(e.a) for e in walk_exprs(body) if isinstance(e, Cast) and e.dtype == wide}
    return bool(loads) and loads <= cast


def _unrounded(node: Node, place: int) -> Node:
    """``node`` with the sum at ``place`` of its inputs in the type in which it is summed."""
    total, d = node.inputs[place], definition(node)
    whole, was = definition(total), d.inputs[place]
    assert isinstance(whole.body, Cast)
    wide = whole.body.a.dtype
    wider = replace(redefined(total, total.inputs, replace(whole, dtype=wide, body=whole.body.a)), dtype=wide)
    now = formal(was.name, was.shape, wide)

    def one(e: Expr) -> Expr | None:
        if isinstance(e, Cast) and isinstance(e.a, Load) and e.a.buffer is was:
            return now[e.a.indices]
        return None

    define = replace(d, inputs=_with(d.inputs, place, now), body=map_expr(d.body, one))
    return redefined(node, _with(node.inputs, place, wider), define)


def _with(items: Sequence[_T], place: int, item: _T) -> tuple[_T, ...]:
    return tuple(item if i == place else x for i, x in enumerate(items))
