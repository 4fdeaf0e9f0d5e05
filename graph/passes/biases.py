"""Values of narrow floats that are rounded once, not after each of several operators.

    p = narrow(sum);  y = narrow(wide(p) + wide(bias))     ->     p = sum;  y = narrow(p + wide(bias))
    p = narrow(x);    y = relu(p)                          ->     p = x;    y = narrow(relu(p))

A product of bf16 or f16 adds in f32, and PyTorch's fused layers add the bias before they round. A normalisation by
constants of each channel is such a bias with a factor. A limit, such as relu, gives the same result before the rounding
as after it, up to the sign of a zero. Rounded once, a result is at least as accurate, and its kernel has less to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from taskmap.graph.analysis.classify import definition, is_contraction, is_injective, redefined
from taskmap.graph.nodes import Graph, Node
from taskmap.graph.passes.base import GraphPass, rewrite_known
from taskmap.ir.construct import static_size
from taskmap.ir.nodes import Buffer, Cast, Expr, Load
from taskmap.ir.task import formal
from taskmap.ir.types import compute_type
from taskmap.ir.visit import map_expr, walk_exprs

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class AddBiases(GraphPass):
    """Sums of narrow floats to which only a bias is added, and values that are only limited, are not rounded before."""

    name = "add-biases"
    before = "products of narrow floats are rounded, and again after a bias, a normalisation or a limit"
    after = "biases, normalisations and limits work on values that are not yet rounded"
    why_here = "after products have their final form; before weights are packed, which does not look at results"

    def run(self, graph: Graph) -> Graph:
        """The same graph with fewer roundings."""
        users = graph.users()
        results = {n for n in graph.outputs if n is not None}
        alone = {n for n, readers in users.items() if len(readers) == 1 and n not in results}

        def visit(now: Node, was: Node) -> Node:
            place = _biased(was, alone)
            return now if place is None else _unrounded(now, place)

        return rewrite_known(graph, visit)


_BIASED, _LIMITED = ("add", "batch_norm"), ("relu", "hardtanh")
"""Operators that shift or scale by channels, and those that limit."""


def _biased(node: Node, alone: set[Node]) -> int | None:
    """The place of a rounded value among the inputs of ``node``, which adds a bias to it or limits it; None for other
    nodes."""
    if not node.is_compute or not _is_narrow(node):
        return None
    for place, value in enumerate(node.inputs):
        others = (*node.inputs[:place], *node.inputs[place + 1 :])
        if node.op in _BIASED:
            wanted = bool(others) and all(map(_is_vector, others)) and _is_sum(value)
        else:
            wanted = node.op in _LIMITED and not others and value.is_compute and is_injective(definition(value))
        if wanted and value in alone and _is_rounded(value) and value.shape == node.shape:
            return place if _is_widened(definition(node).body, definition(node).inputs[place]) else None
    return None


def _is_sum(value: Node) -> bool:
    """True if a node sums products."""
    return value.is_compute and is_contraction(definition(value))


def _is_narrow(node: Node) -> bool:
    return node.dtype.is_float and compute_type(node.dtype) != node.dtype


def _is_rounded(node: Node) -> bool:
    """True if a value of a wider float is rounded at last."""
    if not node.is_compute or not _is_narrow(node) or node.strides is not None:
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
