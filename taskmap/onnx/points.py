"""Places in an ONNX program where graphs begin, and the graphs that begin there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from taskmap.graph.importers.onnx.read.call import HostStep
from taskmap.graph.importers.onnx.read.control import ControlStep
from taskmap.graph.importers.onnx.read.elements import from_held, held_in
from taskmap.graph.importers.onnx.read.state import Scope, copied
from taskmap.graph.importers.onnx.read.values import OptionalValue, PresentedValue, SequenceValue, Tensor, Value
from taskmap.graph.nodes import Graph, InputNode, Origin
from taskmap.ir.construct import static_size
from taskmap.ir.lower.flatten import row_major_strides
from taskmap.ir.nodes import Dim, Expr, Var
from taskmap.onnx.symbolic import Guard
from taskmap.onnx.values import Lookup, placeholders

Array = NDArray[Any]
Run = Callable[[list[Any]], list[Array]]
Shapes = list[tuple[Dim, ...]]


class LoopBody(Protocol):
    """The body of a loop that the host runs: a program of its own."""

    def __call__(self, values: Sequence[Any], /) -> list[Any]:
        """One iteration."""
        ...

    def segments(self) -> list[Segment]:
        """Every graph made so far."""
        ...


@dataclass(slots=True, eq=False)
class Segment:
    """A compiled graph, and its continuation: results, a step on the host, or simply the next graph.

    ``guard``: the sizes it is valid for, if it was made for more than one set. ``shapes``: those of ``live``, if
    they are known for all sizes, in terms of sizes with names and ``forms``.
    """

    run: Run | None
    lookup: Lookup
    finished: list[Value | None] | None = None
    live: list[Tensor] = field(default_factory=list)
    step: HostStep | ControlStep | None = None
    frames: list[Scope] = field(default_factory=list)
    binds: Sequence[str] = ()
    body: LoopBody | None = None
    following: dict[Any, Point] = field(default_factory=dict)
    graph: Graph | None = None
    origin: Origin | None = None
    guard: Guard | None = None
    shapes: Shapes | None = None
    forms: dict[Var, Expr] = field(default_factory=dict)

    def results(self, tensors: list[Array], sizes: tuple[int, ...]) -> list[Array]:
        """The results of the graph."""
        if self.run is None:
            return []
        return self.run(tensors if self.guard is None else [*tensors, *self.guard.values(sizes)])


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why there is no graph for all sizes: the node that prevents it, and its problem."""

    node: str
    what: str

    def __str__(self) -> str:
        return f"{self.node}: {self.what}" if self.node else self.what


@dataclass(slots=True, eq=False)
class Point:
    """A place in a program: the importer's position, the tensors that go in, and the graphs made from here.

    ``valued``: the tensors whose values decide which operators follow; they are part of a graph's key. ``order``: the
    symbolic sizes known here, ``forms`` those with names, ``shapes`` those of ``live`` in terms of them; None if only
    static sizes are possible. ``general``: graphs for many sizes, by the deciding values; ``refusals``: the reasons why
    there are no more of them.
    """

    frames: list[Scope]
    live: list[Tensor]
    valued: set[int] = field(default_factory=set)
    segments: dict[Any, Segment] = field(default_factory=dict)
    order: tuple[Var, ...] = ()
    forms: dict[Var, Expr] = field(default_factory=dict)
    shapes: Shapes | None = None
    general: dict[Any, list[Segment]] = field(default_factory=dict)
    refusals: list[Refusal] = field(default_factory=list)

    def values(self, tensors: Sequence[Array]) -> Any:
        """The deciding values, as part of a key."""
        if not self.valued:
            return None
        return tuple((tensors[i].shape, tensors[i].tobytes()) for i in sorted(self.valued))

    def key(self, tensors: Sequence[Array], sizes: tuple[int, ...]) -> Any:
        """The key of a graph for static sizes."""
        return sizes, tuple(t.shape for t in tensors), self.values(tensors)

    def inputs(self, tensors: Sequence[Array], shapes: Shapes) -> tuple[list[InputNode], dict[Tensor, Tensor]]:
        """The inputs of a graph from here, and the stand-ins for the live tensors; those that decide are
        known."""
        inputs: list[InputNode] = []
        fresh: dict[Tensor, Tensor] = {}
        names = {v: name for frame in self.frames for name, v in frame.values.items() if isinstance(v, Tensor)}
        for i, (placeholder, tensor, shape) in enumerate(zip(self.live, tensors, shapes, strict=True)):
            node = input_node(i, shape, placeholder.elem, names.get(placeholder, ""))
            inputs.append(node)
            if i in self.valued or any(static_size(n) == 0 for n in shape):
                known = np.array(from_held(tensor, placeholder.elem))
                fresh[placeholder] = Tensor(placeholder.elem, tuple(known.shape), known=known)
            else:
                fresh[placeholder] = Tensor(placeholder.elem, shape, made=node)
        return inputs, fresh


def input_node(index: int, shape: tuple[Dim, ...], elem: int, name: str = "") -> InputNode:
    """An input of a graph, in row-major order; ``name`` is its name in the model."""
    return InputNode((), shape, held_in(elem), index, name=name, strides=row_major_strides(shape))


def point_at(frames: list[Scope], live: Sequence[Tensor]) -> Point:
    """The frames with placeholders for computed tensors."""
    stands: dict[Tensor, Tensor] = {t: Tensor(t.elem, ()) for t in live}
    return Point(copied(frames, lambda t: stands.get(t, t)), [stands[t] for t in live])


def after(segment: Segment, structure: Any) -> Point:
    """The point after a host step whose results have the given structure."""
    point = point_at(segment.frames, segment.live)
    for name, part in zip(segment.binds, structure, strict=False):
        if name:
            point.frames[-1].values[name] = placeholders(part, point.live)
        else:
            placeholders(part, point.live)
    for part in structure[len(segment.binds) :]:
        placeholders(part, point.live)
    return point


def tensors_in(value: Value | None) -> list[Tensor]:
    """The tensors of a value, in order."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, SequenceValue):
        return [t for v in value.items for t in tensors_in(v)]
    if isinstance(value, OptionalValue):
        return tensors_in(value.value)
    return [value.tensor] if isinstance(value, PresentedValue) else []


def step_tensors(step: HostStep | ControlStep | None) -> list[Tensor]:
    """The tensors that a host step takes."""
    if step is None:
        return []
    if isinstance(step, HostStep):
        return [t for v in step.inputs for t in tensors_in(v)]
    captured = [v for _, v in step.captured]
    values: list[Value | None] = [step.trip, step.condition, *step.carried, *step.sliced, *captured]
    return [t for v in values for t in tensors_in(v)]
