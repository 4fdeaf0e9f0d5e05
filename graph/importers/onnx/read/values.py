"""The values on the edges of an ONNX graph while it is read: tensors, sequences, optionals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskmap.graph.build import define
from taskmap.graph.importers.onnx.read.elements import STRING, dense, held_in, to_held
from taskmap.graph.importers.onnx.read.ratios import Ratio
from taskmap.graph.importers.onnx.strings import STRINGS
from taskmap.graph.nodes import ConstantNode, Node
from taskmap.graph.ops.pointwise import number
from taskmap.ir.construct import eq, index, select, static_size
from taskmap.ir.errors import UnsupportedError
from taskmap.ir.lower.flatten import row_major_strides
from taskmap.ir.nodes import Dim, Expr

Array = NDArray[Any]
MOST_SIZES = 64
"""The largest number of elements of a tensor of symbolic sizes that is used as data."""


@dataclass(slots=True, eq=False)
class Tensor:
    """A tensor: its ONNX element type, its shape, and its value as a node of the graph, as an array, or both.

    ``known`` holds the value if it is known while the graph is read: an array of the type that ONNX declares, or an
    array of objects if entries are expressions of symbolic sizes or ratios of them.
    """

    elem: int
    shape: tuple[Dim, ...]
    made: Node | None = None
    known: Array | None = None

    @property
    def is_symbolic(self) -> bool:
        """True if the known value contains expressions of symbolic sizes."""
        return self.known is not None and self.known.dtype == object and self.elem != STRING

    def node(self) -> Node:
        """The tensor as a node; a known value becomes a constant."""
        if self.made is None:
            assert self.known is not None
            make = sizes_node if self.is_symbolic else constant_node
            self.made = make(self.known, self.elem)
        return self.made


@dataclass(slots=True, eq=False)
class SequenceValue:
    """A sequence of values of known length; ``elem`` is the element type of its tensors, 0 if unknown."""

    items: list[Value]
    elem: int = 0


@dataclass(slots=True, eq=False)
class OptionalValue:
    """An optional value."""

    value: Value | None


@dataclass(slots=True, eq=False)
class PresentedValue:
    """A tensor that the caller receives in another form, such as maps, which ``present`` makes from an array."""

    tensor: Tensor
    present: Callable[[Array], Any]


Value = Tensor | SequenceValue | OptionalValue | PresentedValue


def constant_node(array: Array, elem: int) -> Node:
    """A constant of the graph."""
    value = dense(STRINGS.numbers(array, keep=True) if elem == STRING else to_held(array, elem))
    return ConstantNode((), value.shape, held_in(elem), value, strides=row_major_strides(value.shape))


def sizes_node(array: Array, elem: int) -> Node:
    """A small tensor of numbers, symbolic sizes and ratios of them, computed where it is read."""
    if array.size > MOST_SIZES:
        raise UnsupportedError(f"{array.size} symbolic sizes as data", why=f"the limit is {MOST_SIZES}.")
    dtype = held_in(elem)
    entries = [v.value(dtype) if isinstance(v, Ratio) else number(v, dtype) for v in array.reshape(-1)]

    def at(*axes: Expr) -> Expr:
        place: Expr = index(0)
        for axis, n in zip(axes, array.shape, strict=True):
            place = place * n + axis
        chosen = entries[-1]
        for i in reversed(range(len(entries) - 1)):
            chosen = select(eq(place, index(i)), entries[i], chosen)
        return chosen

    return define("sizes", [], array.shape, lambda: at, dtype)


def of_array(array: Any, elem: int) -> Tensor:
    """A tensor with a known value."""
    array = np.asarray(array)
    return Tensor(elem, tuple(array.shape), known=array)


def is_empty(shape: tuple[Dim, ...]) -> bool:
    """True if a tensor of this shape is known to have no elements."""
    return any(static_size(n) == 0 for n in shape)
