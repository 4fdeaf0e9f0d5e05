"""Repeated calls of an ONNX model pass arrays straight to native code: checks made by one call are not repeated by the
next with arrays of the same shapes and types.

A small model runs faster than its call is prepared: checking names, types and shapes, converting arrays to tensors and
back. All of that depends only on shapes and types if the model is one graph, its inputs are used in the type
given, and its results are tensors made by the graph.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskmap.backend.program.binding import Place, View
from taskmap.calls.graph import BoundGraph
from taskmap.calls.memory import SMALLEST
from taskmap.calls.prepared import PreparedGraph
from taskmap.graph.importers.onnx.read.elements import held_alike, numpy_type
from taskmap.graph.importers.onnx.read.values import Tensor
from taskmap.ir.nodes import Dim
from taskmap.onnx.points import Segment
from taskmap.util.metrics import COUNTERS

Key = tuple[Any, ...]
"""Shapes and types of the inputs, then the values of those that decide which operators run."""


def key_of(inputs: Sequence[Any], deciding: Sequence[int] = ()) -> Key | None:
    """The key of inputs that native code can use in place; None for others."""
    found: list[Any] = []
    for x in inputs:
        if type(x) is not np.ndarray or not x.flags.c_contiguous or not x.size:
            return None
        found.append((x.shape, x.dtype))
    for i in deciding:
        found.append(inputs[i].tobytes())
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Part:
    """A result: ``count`` elements of memory number ``memory``, from ``first`` on, in C order; a copy of them if
    that memory is another result."""

    memory: int
    first: int
    count: int
    shape: tuple[int, ...]
    copied: bool


@dataclass(frozen=True, slots=True, eq=False)
class DirectCall:
    """The native code for arrays of one key. ``memory``: elements and type of each tensor made; ``entries``: the
    positions of the addresses of inputs, then of memory, in the table; ``results``: parts of memory, or inputs by
    number. ``owner`` keeps the memory behind ``constants`` alive."""

    owner: object
    graph: BoundGraph
    constants: array[int]
    dims: tuple[int, ...]
    table: array[int]
    entries: tuple[tuple[int, int], ...]
    memory: tuple[tuple[int, np.dtype[Any]], ...]
    results: tuple[_Part | int, ...]

    def __call__(self, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """The results for arrays of the key. Raises IndexOutOfRangeError."""
        COUNTERS.count_call()
        made = [np.empty(count, dtype) for count, dtype in self.memory]
        every = [*inputs, *made]
        table = self.table[:]
        for entry, number in self.entries:
            table[entry] = every[number].__array_interface__["data"][0]
        self.graph.executable(table, self.dims, self.constants)
        found: list[NDArray[Any]] = []
        for part in self.results:
            if isinstance(part, int):
                found.append(inputs[part])
                continue
            whole = made[part.memory]
            piece = whole if part.count == whole.size else whole[part.first : part.first + part.count]
            found.append((piece.copy() if part.copied else piece).reshape(part.shape))
        return found


def native_call(
    segment: Segment, wanted: Sequence[Any], arguments: Sequence[Any], inputs: int, elems: Sequence[int]
) -> DirectCall | None:
    """The direct call from ``inputs`` arrays to the values ``wanted`` of element types ``elems``, for a segment that
    computes them from ``arguments``, the arrays' tensors and sizes; None if there is none."""
    call = getattr(segment.run, "call", None)
    if call is None or not all(isinstance(v, Tensor) for v in wanted) or not all(map(held_alike, elems)):
        return None
    if isinstance(call, PreparedGraph):
        if call.watched or call.prepared is None:
            return None
        main, constants = call.main, call.prepared.constants
    else:
        main, constants = call, call.constants
    places = [segment.lookup.places.get(v, ("known", 0)) for v in wanted]
    binding = main.binding
    if binding.externs or any(kind not in ("result", "input") for kind, _ in places):
        return None
    dims = main.read_dims([*arguments, *main.tail])
    laid = main.places(dims)
    found = [number if kind == "input" else _result(binding.outputs[number], laid) for kind, number in places]
    made = {r.slot: numpy_type(elem) for r, elem in zip(found, elems, strict=True) if isinstance(r, _Found)}
    slots = list(made)
    if None in found or sorted(slots) != sorted(binding.allocate):
        return None
    numbers = {**{i: i for i in range(inputs)}, **{slot: inputs + i for i, slot in enumerate(slots)}}
    if not all(slot in numbers for slot in binding.io):
        return None
    memory = tuple((_span(laid[slot]), dtype) for slot, dtype in made.items())
    if sum(count * dtype.itemsize for count, dtype in memory) >= SMALLEST:
        return None
    parts = tuple(
        r if isinstance(r, int) else _Part(slots.index(r.slot), r.first, math.prod(r.shape), r.shape, r.copied or again)
        for r, again in zip(found, _repeated(places), strict=True)
        if r is not None
    )
    entries = tuple((entry, numbers[slot]) for entry, slot in enumerate(binding.io))
    owner = (call, call.prepared) if isinstance(call, PreparedGraph) else call
    table = array("q", bytes(8 * len(binding.io)))
    return DirectCall(owner, main, constants, dims, table, entries, memory, parts)


def _repeated(places: Sequence[tuple[str, int]]) -> list[bool]:
    """True for each result that an earlier one equals."""
    return [place in places[:i] for i, place in enumerate(places)]


@dataclass(frozen=True, slots=True)
class _Found:
    slot: int
    first: int
    shape: tuple[int, ...]
    copied: bool


def _result(out: View | Dim | None, laid: Mapping[Any, Place]) -> _Found | None:
    """A result's place in its slot, in C order; None if it has another layout, is a constant, or is not a tensor."""
    place = laid.get(out.slot if out.spec is None else id(out)) if isinstance(out, View) and out.of is None else None
    if place is None or not isinstance(out, View):
        return None
    shape, strides, first = place
    return _Found(out.slot, first, shape, out.copy) if strides == _strides(shape) else None


def _span(place: Place) -> int:
    """The number of elements from the first to the last."""
    shape, strides, _ = place
    return sum((n - 1) * step for n, step in zip(shape, strides, strict=True)) + 1


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides in elements of an array in C order."""
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
