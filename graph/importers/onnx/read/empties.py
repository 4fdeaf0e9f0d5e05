"""Tensors without elements. Definitions load unconditionally, so operators that read or make one are not compiled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from taskmap.graph.extern import Slot
from taskmap.graph.importers.onnx.read.elements import dense, empty, held_form, reference_form
from taskmap.graph.importers.onnx.read.values import is_empty
from taskmap.graph.nodes import ConstantNode, ExternNode, InputNode, Node, topological
from taskmap.ir.construct import static_size
from taskmap.ir.interp.definitions import evaluate
from taskmap.ir.lower.flatten import row_major_strides

Array = NDArray[Any]


class Empties:
    """Replaces operators that make or read a tensor without elements. No node is visited twice."""

    def __init__(self) -> None:
        self._clean: set[Node] = set()

    def without(self, node: Node) -> Node:
        """``node`` with two kinds of operators replaced: one that makes a tensor without elements becomes that tensor,
        and numpy runs one that reads such a tensor."""
        nodes = topological([node], self._clean.__contains__)
        if any(is_empty(n.shape) for n in nodes):
            made: dict[Node, Node] = {}
            for n in nodes:
                made[n] = n if n in self._clean else _visit(n, tuple(made[s] for s in n.inputs))
            nodes, node = list(made.values()), made[node]
        self._clean.update(nodes)
        return node


def _visit(node: Node, inputs: tuple[Node, ...]) -> Node:
    if isinstance(node, (InputNode, ConstantNode)):
        return node
    shape = tuple(static_size(n) for n in node.shape)
    if is_empty(node.shape) and None not in shape and node.dtype.kind != "x":
        value = empty(tuple(n or 0 for n in shape), node.dtype)
        return ConstantNode((), node.shape, node.dtype, value, strides=row_major_strides(value.shape))
    changed = any(a is not b for a, b in zip(inputs, node.inputs, strict=True))
    if node.is_compute and any(is_empty(n.shape) for n in inputs):
        return _interpreted(node, inputs)
    return replace(node, inputs=inputs) if changed else node


def _interpreted(node: Node, inputs: tuple[Node, ...]) -> Node:
    """An extern in which numpy evaluates the operator's definition."""
    define = node.define
    assert define is not None

    def target(*arrays: Array) -> Array:
        return dense(held_form(evaluate(define, [reference_form(x) for x in arrays]), define.dtype))

    slots = tuple(Slot(i) for i in range(len(inputs)))
    call: tuple[Any, Any, dict[str, Any], str] = (target, slots, {}, "an input has no elements")
    return ExternNode(inputs, node.shape, node.dtype, *call, origin=node.origin, strides=row_major_strides(node.shape))
