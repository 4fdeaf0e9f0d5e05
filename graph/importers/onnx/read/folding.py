"""Values that do not depend on inputs, computed by numpy while a model is read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskmap.graph.extern import call_extern
from taskmap.graph.importers.onnx.read.elements import STRING, dense, from_held, held_form, reference_form
from taskmap.graph.importers.onnx.read.values import Tensor
from taskmap.graph.nodes import ConstantNode, ExternNode, InputNode, Node, SizeNode, topological
from taskmap.graph.reference import node_value
from taskmap.ir.construct import static_size
from taskmap.ir.nodes import Expr
from taskmap.ir.visit import free_vars

Array = NDArray[Any]
LARGEST = 1 << 22
"""Values with more elements than this are not computed while reading."""
MOST_KEPT = 1 << 24
"""The number of elements of values kept while a graph is read; beyond it no more values are computed."""


def depends_on(node: Node) -> list[Node]:
    """The graph inputs from which ``node`` is computed."""
    return [n for n in topological([node]) if isinstance(n, InputNode)]


def varying(roots: Iterable[Node]) -> set[Node]:
    """The nodes at or below ``roots`` that are computed from graph inputs; a single walk for all roots."""
    found: set[Node] = set()
    for n in topological(roots):
        if isinstance(n, InputNode) or not found.isdisjoint(n.inputs):
            found.add(n)
    return found


class Folding:
    """The values of nodes that do not depend on inputs.

    It records whether each node is open (computed from inputs, of symbolic size, or too expensive) or closed, and its
    value once computed. A growing graph is therefore walked once, and each operator is computed once.
    """

    def __init__(self) -> None:
        self._open: set[Node] = set()
        self._closed: set[Node] = set()
        self._values: dict[Node, Array] = {}
        self._kept = 0

    def fold(self, tensor: Tensor) -> Array | None:
        """The value of a tensor if it does not depend on inputs, computed at most once."""
        if tensor.known is None and tensor.made is not None:
            value = self.value(tensor.made)
            if value is None:
                return None
            tensor.known = from_held(value, tensor.elem)
        if tensor.known is not None and tensor.known.dtype == object and tensor.elem != STRING:
            return None
        return tensor.known

    def value(self, node: Node) -> Array | None:
        """The value of ``node`` in the type that holds it, or None if it depends on inputs or is too large."""
        if isinstance(node, ConstantNode):
            found: Array = node.value
            return found
        for n in topological([node], lambda n: n in self._open or n in self._closed):
            is_open = isinstance(n, (InputNode, SizeNode)) or not self._open.isdisjoint(n.inputs) or _of_sizes(n)
            (self._open if is_open else self._closed).add(n)
        if node in self._open:
            return None
        needed = topological([node], self._values.__contains__)
        work = sum(_size(n) or 0 for n in needed if n not in self._values and not isinstance(n, ConstantNode))
        if work > LARGEST or self._kept + work > MOST_KEPT:
            self._open.add(node)
            return None
        self._kept += work
        for n in needed:
            if n not in self._values:
                self._values[n] = node_value(n, [self._values[s] for s in n.inputs], {}, run_extern)
        return held_form(self._values[node], node.dtype)


def _of_sizes(node: Node) -> bool:
    """True if symbolic sizes occur in the shape of a node or in its definition."""
    if _size(node) is None:
        return True
    return node.define is not None and bool(free_vars(node.define.body) - set(node.define.axes))


def _size(node: Node) -> int | None:
    """The number of elements, or None if it is symbolic."""
    count = 1
    for n in node.shape:
        known = static_size(n)
        if known is None:
            return None
        count *= known
    return count


def run_extern(node: ExternNode, arguments: list[Any], size: Any) -> Any:
    """Runs a host operator, for ``graph.reference``."""
    arrays = [dense(held_form(value, source.dtype)) for source, value in zip(node.inputs, arguments, strict=True)]

    def number(e: Expr) -> int | float:
        found: int | float = size(e)
        return found

    result = call_extern(node, arrays, number)
    if isinstance(result, (list, tuple)):
        return [reference_form(x) for x in result]
    return reference_form(np.asarray(result))
