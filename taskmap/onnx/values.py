"""Inputs and outputs of an ONNX program: arrays, lists of them, None; and their flat form, a list of arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskmap.graph.importers.onnx.read.elements import dense, from_held, to_held
from taskmap.graph.importers.onnx.read.values import (
    OptionalValue,
    PresentedValue,
    SequenceValue,
    Tensor,
    Value,
    of_array,
)

Array = NDArray[Any]
Structure = Any
"""A hashable description of a value without its contents: an element type, nested tuples, None."""


class Given:
    """A tensor at run time: its element type, and its elements in their storage type."""

    __slots__ = ("elem", "tensor")

    def __init__(self, elem: int, tensor: Array) -> None:
        self.elem = elem
        self.tensor = tensor


def given(array: Any, elem: int) -> Any:
    """An array (or list, or None) as an argument of a program."""
    if array is None:
        return None
    if isinstance(array, (list, tuple)):
        return [given(item, elem) for item in array]
    array = np.asarray(array)
    return Given(elem, dense(to_held(array, elem)))


def flatten(value: Any, into: list[Given]) -> Structure:
    """Appends the tensors of a value to ``into``, and returns its structure."""
    if value is None:
        return None
    if isinstance(value, Given):
        into.append(value)
        return value.elem
    return tuple(flatten(item, into) for item in value)


def placeholders(structure: Structure, into: list[Tensor]) -> Value | None:
    """A value of placeholders with that structure, which are appended to ``into``."""
    if structure is None:
        return OptionalValue(None)
    if isinstance(structure, int):
        tensor = Tensor(structure, ())
        into.append(tensor)
        return tensor
    items = [placeholders(s, into) for s in structure]
    return SequenceValue([v for v in items if v is not None])


class Lookup:
    """Finds the value of a tensor of the model: among results, among inputs, or known."""

    def __init__(self, places: Mapping[Tensor, tuple[str, int]]) -> None:
        self.places = places

    def value(self, value: Value | None, inputs: Sequence[Array], results: Sequence[Array]) -> Any:
        """``value`` with run-time tensors: Given, list or None."""
        if value is None:
            return None
        if isinstance(value, OptionalValue):
            return self.value(value.value, inputs, results)
        if isinstance(value, SequenceValue):
            return [self.value(v, inputs, results) for v in value.items]
        if isinstance(value, PresentedValue):
            return value.present(arrays(self.value(value.tensor, inputs, results)))
        kind, place = self.places.get(value, ("known", 0))
        if kind == "known":
            assert value.known is not None
            return Given(value.elem, dense(to_held(np.array(value.known), value.elem)))
        return Given(value.elem, inputs[place] if kind == "input" else results[place])


def arrays(value: Any) -> Any:
    """A run-time value as arrays of the ONNX element types."""
    if isinstance(value, Given):
        return from_held(value.tensor, value.elem)
    if isinstance(value, list):
        return [arrays(v) for v in value]
    return value


__all__ = ["Given", "Lookup", "arrays", "flatten", "given", "of_array", "placeholders"]
