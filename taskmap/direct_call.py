"""Calls of an ONNX model whose arrays go into native code as they are: what was found out by one call is not found out
again by the next with arrays of the same shapes and types.

A small model takes less time than the way there: checking names, types and shapes, making tensors of arrays and arrays
of tensors. All of that depends on shapes and types alone where a model is one graph, its inputs are held as they are
given, and its results are what the graph makes.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskmap.binding import View
from taskmap.constants import FrozenGraph
from taskmap.graph.importers.onnx.elements import held_alike, numpy_type, to_held
from taskmap.graph.importers.onnx.values import Tensor
from taskmap.ir.nodes import Dim
from taskmap.kept_outputs import SMALLEST
from taskmap.ledger import LEDGER
from taskmap.onnx_program import Program
from taskmap.onnx_values import Given
from taskmap.runtime import CompiledGraph, Place

Key = tuple[Any, ...]
"""Shapes and types of the inputs, then the values of those that decide what is computed."""


def key_of(inputs: Sequence[Any], deciding: Sequence[int] = ()) -> Key | None:
    """The key of inputs that native code can take as they are; None for others."""
    found: list[Any] = []
    for x in inputs:
        if type(x) is not np.ndarray or not x.flags.c_contiguous or not x.size:
            return None
        found.append((x.shape, x.dtype))
    for i in deciding:
        found.append(inputs[i].tobytes())
    return tuple(found)


@dataclass(frozen=True, slots=True, eq=False)
class DirectCall:
    """The native code for arrays of one key. ``entries``: where addresses of inputs and results go in the table."""

    graph: CompiledGraph
    constants: array[int]
    dims: tuple[int, ...]
    table: array[int]
    entries: tuple[tuple[int, int], ...]
    results: tuple[tuple[tuple[int, ...], np.dtype[Any]], ...]

    def __call__(self, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """The results for arrays of the key. Raises IndexOutOfRangeError."""
        LEDGER.count_call()
        made = [np.empty(shape, dtype) for shape, dtype in self.results]
        every = [*inputs, *made]
        table = self.table[:]
        for entry, number in self.entries:
            table[entry] = every[number].__array_interface__["data"][0]
        self.graph.executable(table, self.dims, self.constants)
        return made


def direct_call(
    program: Program, values: Sequence[Given], inputs: Sequence[NDArray[Any]], outputs: Sequence[int]
) -> DirectCall | None:
    """The direct way for arrays like ``inputs``, with which the program has been called; None where it has none.

    ``values`` are the same as the program takes them, ``outputs`` the element types of the model's results.
    """
    segment, arguments = program.beginning(values)
    call, finished = getattr(segment.run, "call", None), segment.finished
    if call is None or finished is None or not all(isinstance(v, Tensor) for v in finished):
        return None
    if not all(to_held(x, v.elem) is x for x, v in zip(inputs, values, strict=True)) or not all(
        map(held_alike, outputs)
    ):
        return None
    if isinstance(call, FrozenGraph):
        if call.watched or call.prepared is None:
            return None
        main, constants = call.main, call.prepared.constants
    else:
        main, constants = call, call.constants
    places = [segment.lookup.places.get(v, ("known", 0)) for v in finished if isinstance(v, Tensor)]
    binding = main.binding
    if binding.externs or any(kind != "result" for kind, _ in places):
        return None
    dims = main.read_dims([*arguments, *main.tail])
    laid = main.places(dims)
    found = [_result(binding.outputs[number], laid) for _, number in places]
    slots = [slot for slot, _ in found]
    if sorted(slots) != sorted(binding.allocate):
        return None
    numbers = {**{i: i for i in range(len(inputs))}, **{slot: len(inputs) + i for i, slot in enumerate(slots)}}
    if not all(slot in numbers for slot in binding.io):
        return None
    results = tuple((shape, numpy_type(elem)) for (_, shape), elem in zip(found, outputs, strict=True))
    if sum(math.prod(shape) * dtype.itemsize for shape, dtype in results) >= SMALLEST:
        return None
    entries = tuple((entry, numbers[slot]) for entry, slot in enumerate(binding.io))
    return DirectCall(main, constants, dims, array("q", bytes(8 * len(binding.io))), entries, results)


def _result(out: View | Dim | None, laid: Mapping[Any, Place]) -> tuple[int, tuple[int, ...]]:
    """The slot that a result is the whole of, and the result's shape, where both are in C order; else (-1, ())."""
    if not isinstance(out, View) or out.copy or out.of is not None:
        return -1, ()
    shape, strides, _ = laid[out.slot]
    if strides != _strides(shape):
        return -1, ()
    if out.spec is None:
        return out.slot, shape
    seen, steps, offset = laid[id(out)]
    if offset or steps != _strides(seen) or math.prod(seen) != math.prod(shape):
        return -1, ()
    return out.slot, seen


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Those in elements of an array in C order."""
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
