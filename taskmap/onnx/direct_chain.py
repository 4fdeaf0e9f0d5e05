"""Direct calls of a model that is several graphs: values computed by one decide which comes next.

Branches taken by earlier calls are remembered under their deciding values: the arrays of one graph go straight
into the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from taskmap.graph.importers.onnx.read.elements import dense, to_held
from taskmap.graph.importers.onnx.read.values import Tensor
from taskmap.onnx.direct_call import DirectCall, Key, native_call
from taskmap.onnx.points import Point, Segment
from taskmap.onnx.program import OnnxProgram
from taskmap.onnx.values import Given

MOST_BRANCHES = 64
"""The number of combinations of deciding values whose continuation is kept."""
Arrays = list[NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Passing:
    """Results that are available arrays, by number; they are copied, because the caller may own them."""

    numbers: tuple[int, ...]

    def __call__(self, inputs: Sequence[NDArray[Any]]) -> Arrays:
        """The results."""
        return [inputs[i].copy() for i in self.numbers]


@dataclass(slots=True, eq=False)
class DirectChain:
    """A graph whose arrays, at ``point``, decide by the values of ``deciding`` which graph follows."""

    program: OnnxProgram
    head: DirectCall
    point: Point
    sizes: tuple[int, ...]
    elems: tuple[int, ...]
    deciding: tuple[int, ...] = ()
    following: dict[Key, Way | None] = field(default_factory=dict)

    def __call__(self, inputs: Sequence[NDArray[Any]]) -> Arrays | None:
        """The results; None if no earlier call took this path. Raises IndexOutOfRangeError."""
        live = self.head(inputs)
        way = self.following.get(self._key(live))
        return None if way is None else way(live)

    def learn(self, inputs: Sequence[NDArray[Any]]) -> None:
        """Record the path of these inputs, with which the program has just been called."""
        live = self.head(inputs)
        tensors = [dense(a) for a in live]
        segment = self.program.segment(self.point, tensors, self.sizes)
        deciding = tuple(sorted(self.point.valued))
        if deciding != self.deciding:
            self.following, self.deciding = {}, deciding
        key = self._key(live)
        if key not in self.following and len(self.following) < MOST_BRANCHES:
            self.following[key] = _way(self.program, segment, tensors, self.sizes, self.elems)
        way = self.following.get(key)
        if isinstance(way, DirectChain):
            way.learn(live)

    def _key(self, live: Arrays) -> Key:
        return tuple(live[i].tobytes() for i in self.deciding)


Way = DirectCall | DirectChain | Passing


def direct_way(
    program: OnnxProgram, values: Sequence[Given], inputs: Sequence[NDArray[Any]], outputs: Sequence[int]
) -> DirectCall | DirectChain | None:
    """The direct path for arrays like ``inputs``, with which the program has just been called; None if there is none.

    ``values``: the inputs as the program takes them; ``outputs``: the element types of the model's results.
    """
    if not all(to_held(x, v.elem) is x for x, v in zip(inputs, values, strict=True)):
        return None
    segment, tensors, sizes = program.beginning(values)
    way = _way(program, segment, tensors, sizes, tuple(outputs))
    if isinstance(way, DirectChain):
        way.learn(inputs)
    return None if isinstance(way, Passing) else way


def _way(
    program: OnnxProgram, segment: Segment, tensors: Sequence[Any], sizes: tuple[int, ...], elems: tuple[int, ...]
) -> Way | None:
    """The direct path from a segment's tensors to the model's results."""
    arguments = [*tensors, *(() if segment.guard is None else segment.guard.values(sizes))]
    if segment.finished is not None:
        if segment.run is None:
            return _passing(segment)
        made = native_call(segment, segment.finished, arguments, len(tensors), elems)
        return None if made is None or any(isinstance(part, int) for part in made.results) else made
    if segment.step is not None:
        return None
    head = native_call(segment, segment.live, arguments, len(tensors), [t.elem for t in segment.live])
    if head is None:
        return None
    kept = sizes if segment.shapes is not None else ()
    return DirectChain(program, head, segment.following[None], kept, elems)


def _passing(segment: Segment) -> Passing | None:
    places = [segment.lookup.places.get(v, ("known", 0)) for v in segment.finished or () if isinstance(v, Tensor)]
    if len(places) != len(segment.finished or ()) or any(kind != "input" for kind, _ in places):
        return None
    return Passing(tuple(number for _, number in places))
