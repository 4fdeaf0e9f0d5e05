"""The nodes that operators add, completed: with names for their sizes, and without those on tensors without elements.
Definitions load unconditionally, so operators that read or make such a tensor are not compiled.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from numpy.typing import NDArray

from taskmap.graph.extern import Slot
from taskmap.graph.importers.onnx.read.elements import dense, empty, held_form, reference_form
from taskmap.graph.importers.onnx.read.size_names import SizeNames
from taskmap.graph.importers.onnx.read.values import is_empty
from taskmap.graph.nodes import ConstantNode, ExternNode, InputNode, Node, rebuilt, topological
from taskmap.ir.construct import static_size
from taskmap.ir.interp.definitions import evaluate
from taskmap.ir.lower.flatten import row_major_strides

Array = NDArray[Any]


class NewNodes:
    """Completes the nodes that operators add: their sizes get names, if there are ``names``, and operators that make
    or read a tensor without elements are replaced. No node is visited twice."""

    def __init__(self, names: SizeNames | None) -> None:
        self._names = names
        self._made: dict[Node, Node] = {}
        self._any_empty = False

    def completed(self, node: Node) -> Node:
        """The node that takes the place of ``node``, and reads such nodes.

        An operator that makes a tensor without elements becomes that tensor, and numpy runs one that reads such a
        tensor.
        """
        new = [n for n in topological([node], self._made.__contains__) if n not in self._made]
        new.sort(key=attrgetter("id"))  # the order in which operators were read, and in which sizes get their names
        rebuilt(new, self._visit, self._made)
        for n in new:
            self._made[self._made[n]] = self._made[n]
        return self._made[node]

    def _visit(self, node: Node, was: Node) -> Node:
        if self._names is not None:
            node = self._names.renamed(node)
        if is_empty(node.shape):
            self._any_empty = True
            node = _constant(node)
        if self._any_empty and node.is_compute and any(is_empty(n.shape) for n in node.inputs):
            return _interpreted(node)
        return node


def _constant(node: Node) -> Node:
    """The tensor without elements that ``node`` makes, or ``node`` if that is no tensor or some size is symbolic."""
    shape = tuple(n for n in map(static_size, node.shape) if n is not None)
    if len(shape) < len(node.shape) or node.dtype.kind == "x" or isinstance(node, (InputNode, ConstantNode)):
        return node
    value = empty(shape, node.dtype)
    return ConstantNode((), node.shape, node.dtype, value, strides=row_major_strides(value.shape))


def _interpreted(node: Node) -> Node:
    """An extern in which numpy evaluates the operator's definition."""
    define = node.define
    assert define is not None

    def target(*arrays: Array) -> Array:
        return dense(held_form(evaluate(define, [reference_form(x) for x in arrays]), define.dtype))

    slots = tuple(Slot(i) for i in range(len(node.inputs)))
    call: tuple[Any, Any, dict[str, Any], str] = (target, slots, {}, "an input has no elements")
    strides = row_major_strides(node.shape)
    return ExternNode(node.inputs, node.shape, node.dtype, *call, origin=node.origin, strides=strides)
