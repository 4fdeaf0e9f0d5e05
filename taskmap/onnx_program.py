"""An ONNX graph as a program: compiled graphs one after another, with what only the host can do between them.

Most models are one graph. A graph ends where a value decides a shape or a branch, and where an operator's result has a
size that depends on data; the next graph is read when that value is there, and kept for the next time that it is the
same. A loop whose iterations depend on data runs its body as a program of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from taskmap.graph.graph import Graph, Node, Origin
from taskmap.graph.importers.onnx.call import HostStep
from taskmap.graph.importers.onnx.control import ControlStep
from taskmap.graph.importers.onnx.elements import from_held, from_torch, held_in
from taskmap.graph.importers.onnx.folding import depends_on, varying
from taskmap.graph.importers.onnx.frames import graph_frame
from taskmap.graph.importers.onnx.reader import Finished, Reader, Stopped
from taskmap.graph.importers.onnx.state import Frame, copied, drop_dead, tensors_of
from taskmap.graph.importers.onnx.values import OptionalValue, PresentedValue, SequenceValue, Tensor, Value
from taskmap.graph.layout import row_major
from taskmap.ir.errors import ImportGraphError, TaskmapError
from taskmap.ir.nodes import Dim, Var
from taskmap.onnx_general import Guard, Shapes, variables
from taskmap.onnx_limits import check_size
from taskmap.onnx_values import Given, Lookup, arrays, flatten, given, placeholders

Run = Callable[[list[torch.Tensor]], list[torch.Tensor]]
Engine = Callable[[Graph], Run]
"""From a graph to the function that runs it."""
SMALL = 4096
"""Inputs of at most so many elements may decide by their values what is read."""
MOST_ITERATIONS = 1 << 20
MOST_SEGMENTS = 1024
"""So many graphs are kept for one place of a program; then they are forgotten and made again."""


@dataclass(frozen=True, slots=True)
class HostOperator:
    """An operator of a model that the host runs: its name, its node, and why. ``between`` tells that graphs end at it;
    others are nodes of a graph."""

    operator: str
    node: str
    reason: str
    between: bool

    def __str__(self) -> str:
        return f"{self.operator} {self.node}: {self.reason}"


@dataclass(slots=True, eq=False)
class Segment:
    """A compiled graph, and what comes after it: results, a step of the host, or simply the next graph."""

    run: Run | None
    lookup: Lookup
    finished: list[Value | None] | None = None
    live: list[Tensor] = field(default_factory=list)
    step: HostStep | ControlStep | None = None
    frames: list[Frame] = field(default_factory=list)
    binds: Sequence[str] = ()
    body: Program | None = None
    following: dict[Any, Point] = field(default_factory=dict)
    graph: Graph | None = None
    origin: Origin | None = None


@dataclass(slots=True, eq=False)
class Point:
    """A place in a program: where reading stands, the tensors that go in, and the graphs that were made from here.

    ``valued`` are the tensors whose values decide what is read; they are part of the key of a graph.
    """

    frames: list[Frame]
    live: list[Tensor]
    valued: set[int] = field(default_factory=set)
    segments: dict[Any, Segment] = field(default_factory=dict)


class Program:
    """The values of one graph of a model: its inputs by name in, its outputs in order out."""

    def __init__(
        self,
        frame: Callable[[dict[str, Value | None]], Frame],
        names: Sequence[str],
        engine: Engine,
        shapes: Shapes | None = None,
    ) -> None:
        self.frame = frame
        self.names = list(names)
        self.engine = engine
        self.roots: dict[Any, Point] = {}
        self.shapes = shapes
        self.general: dict[Any, tuple[Segment, Guard] | None] = {}
        self.hints: dict[Var, int] = {}

    def __call__(self, values: Sequence[Any]) -> list[Any]:
        """The outputs for inputs at run time (see onnx_values)."""
        flat: list[Given] = []
        structure = tuple(flatten(v, flat) for v in values)
        if structure not in self.roots:
            self.roots[structure] = self._root(structure)
        point, tensors = self.roots[structure], [g.tensor for g in flat]
        if self.shapes is not None:
            if structure not in self.general:
                self.general[structure] = self._general(point, tensors)
            general = self.general[structure]
            if general is not None and general[1].allows(tensors):
                segment = general[0]
                results = segment.run(tensors) if segment.run is not None else []
                assert segment.finished is not None
                return [segment.lookup.value(v, tensors, results) for v in segment.finished]
        while True:
            segment = self.segment(point, tensors)
            results = segment.run(tensors) if segment.run is not None else []
            if segment.finished is not None:
                return [segment.lookup.value(v, tensors, results) for v in segment.finished]
            point, tensors = self._next(segment, tensors, results)

    def _root(self, structure: Any) -> Point:
        live: list[Tensor] = []
        values = {name: placeholders(s, live) for name, s in zip(self.names, structure, strict=True)}
        return Point([self.frame(values)], live)

    def _general(self, point: Point, tensors: Sequence[torch.Tensor]) -> tuple[Segment, Guard] | None:
        """The graph for all sizes, if the whole model can be read without knowing them; they are likely to be those of
        ``tensors``."""
        found = variables(self.shapes or ())
        if found is None or len(found[0]) != len(point.live):
            return None
        shapes, dims = found
        sizes = {v: tensors[int(str(at[1]))].shape[int(str(at[2]))] for v, at in dims.items() if at[0] == "size"}
        self.hints.update(sizes)
        inputs = [input_node(i, s, t.elem) for i, (s, t) in enumerate(zip(shapes, point.live, strict=True))]
        fresh = {t: Tensor(t.elem, s, made=node) for t, s, node in zip(point.live, shapes, inputs, strict=True)}
        reader = Reader(copied(point.frames, lambda t: fresh.get(t, t)))
        try:
            outcome = reader.run()
            if isinstance(outcome, Stopped):
                return None
            segment = self._cut(reader.frames, outcome, inputs, dims)
            nodes = segment.graph.nodes() if segment.graph is not None else []
            return segment, Guard(dims, reader.checks, nodes)
        except TaskmapError:
            return None  # for known sizes there is more that can be done

    def _next(
        self, segment: Segment, tensors: list[torch.Tensor], results: list[torch.Tensor]
    ) -> tuple[Point, list[torch.Tensor]]:
        kept = [segment.lookup.value(t, tensors, results).tensor for t in segment.live]
        if segment.step is None:
            return segment.following[None], kept
        made = self._host(segment, tensors, results)
        flat: list[Given] = []
        structure = tuple(flatten(v, flat) for v in made)
        if structure not in segment.following:
            segment.following[structure] = _after(segment, structure)
        return segment.following[structure], [*kept, *(g.tensor for g in flat)]

    def _host(self, segment: Segment, tensors: list[torch.Tensor], results: list[torch.Tensor]) -> list[Any]:
        def value(v: Value | None) -> Any:
            return segment.lookup.value(v, tensors, results)

        step = segment.step
        if isinstance(step, ControlStep):
            if segment.body is None:
                segment.body = self._body(step)
            return run_loop(step, segment.body, value)
        assert step is not None
        with np.errstate(all="ignore"):
            made = step.function(*(arrays(value(v)) for v in step.inputs))
        listed = made if isinstance(made, tuple) else (made,)
        return [given(m, elem) for m, elem in zip(listed, step.elems, strict=True)]

    def _body(self, step: ControlStep) -> Program:
        names = [i.name for i in step.body.input] + [name for name, _ in step.captured]
        return Program(lambda inputs: graph_frame(step.body, step.library, inputs, (), sees=False), names, self.engine)

    def segments(self) -> list[Segment]:
        """Every graph made so far, with those of loops' bodies."""
        found: list[Segment] = [g[0] for g in self.general.values() if g is not None]
        points = list(self.roots.values())
        while points:
            for segment in points.pop().segments.values():
                found.append(segment)
                points += segment.following.values()
                if segment.body is not None:
                    found += segment.body.segments()
        return found

    def on_host(self) -> list[HostOperator]:
        """The operators of these graphs that run on the host, inside or between them, each once."""
        found: dict[HostOperator, None] = {}
        for made in self.segments():
            for n in made.graph.nodes() if made.graph is not None else ():
                if n.op == "extern":
                    found[HostOperator(n.origin.operator or "", n.origin.text, str(n.attrs["reason"]), False)] = None
            if made.step is not None and made.origin is not None:
                origin = made.origin
                found[HostOperator(origin.operator or "", origin.text, made.step.reason, True)] = None
        return list(found)

    # Making graphs.

    def segment(self, point: Point, tensors: Sequence[torch.Tensor]) -> Segment:
        """The graph from ``point`` on, for tensors of these shapes and, where they decide, these values."""
        while True:
            key = _key(point, tensors)
            found = point.segments.get(key)
            if found is not None:
                return found
            built = self._build(point, tensors)
            if built is not None:
                if len(point.segments) >= MOST_SEGMENTS:
                    point.segments.clear()
                point.segments[key] = built
                return built
            point.segments.clear()

    def _build(self, point: Point, tensors: Sequence[torch.Tensor]) -> Segment | None:
        """A new graph; None when the values of more tensors decide than were known to, which are noted."""
        inputs: list[Node] = []
        fresh: dict[Tensor, Tensor] = {}
        for i, (placeholder, tensor) in enumerate(zip(point.live, tensors, strict=True)):
            shape = tuple(int(n) for n in tensor.shape)
            node = input_node(i, shape, placeholder.elem)
            inputs.append(node)
            if i in point.valued or 0 in shape:
                known = np.array(from_held(from_torch(tensor), placeholder.elem))
                fresh[placeholder] = Tensor(placeholder.elem, shape, known=known)
            else:
                fresh[placeholder] = Tensor(placeholder.elem, shape, made=node)
        frames = copied(point.frames, lambda t: fresh.get(t, t))
        outcome = Reader(frames).run()
        if isinstance(outcome, Stopped) and outcome.needs and _note_values(point, outcome, inputs, tensors):
            return None
        return self._cut(frames, outcome, inputs, {})

    def _cut(
        self, frames: list[Frame], outcome: Finished | Stopped, inputs: list[Node], dims: dict[Var, tuple[object, ...]]
    ) -> Segment:
        """The segment that ends here."""
        if isinstance(outcome, Finished):
            wanted = [t for v in outcome.outputs for t in _tensors(v)]
            run, lookup, graph = self._compiled(wanted, inputs, dims)
            return Segment(run, lookup, finished=outcome.outputs, graph=graph)
        drop_dead(frames)
        held = [t for t in tensors_of(frames) if t.known is None and t.made is not None]
        varies = varying(t.made for t in held if t.made is not None)
        live = [t for t in held if t.made in varies]
        step = outcome.step
        used = _step_tensors(step)
        needed = [t for t in outcome.needs if t not in live]
        live += needed
        run, lookup, graph = self._compiled([*live, *used], inputs, dims)
        segment = Segment(run, lookup, live=live, step=step, frames=frames, binds=outcome.binds, graph=graph)
        segment.origin = outcome.origin
        if step is None:
            point = _point(frames, live)
            point.valued = {live.index(t) for t in outcome.needs}
            segment.following[None] = point
        return segment

    def _compiled(
        self, wanted: Sequence[Tensor], inputs: list[Node], dims: dict[Var, tuple[object, ...]]
    ) -> tuple[Run | None, Lookup, Graph | None]:
        places: dict[Tensor, tuple[str, int]] = {}
        outputs: dict[Node, int] = {}
        positions = {node: i for i, node in enumerate(inputs)}
        for tensor in wanted:
            if tensor.known is not None and not tensor.is_symbolic:
                continue
            if tensor.is_symbolic:
                raise ImportGraphError("a symbolic size leaves the graph as data")
            node = tensor.node()
            if node.op == "input":
                places[tensor] = ("input", positions[node])
            else:
                places[tensor] = ("result", outputs.setdefault(node, len(outputs)))
        if not outputs:
            return None, Lookup(places), None
        for node in outputs:
            if node.strides is None:
                node.strides = row_major(node.shape)
        hints = {v: self.hints[v] for v in dims if v in self.hints}
        graph = Graph(list(inputs), list(outputs), dict(dims), hints=hints)
        check_size(graph)
        return self.engine(graph), Lookup(places), graph


def input_node(index: int, shape: tuple[Dim, ...], elem: int) -> Node:
    """An input of a graph, in row-major order."""
    node = Node("input", (), shape, held_in(elem), attrs={"index": index})
    node.strides = row_major(shape)
    return node


def _key(point: Point, tensors: Sequence[torch.Tensor]) -> Any:
    shapes = tuple(t.shape for t in tensors)
    if not point.valued:
        return shapes
    return shapes, tuple(from_torch(tensors[i]).tobytes() for i in sorted(point.valued))


def _note_values(point: Point, outcome: Stopped, inputs: list[Node], tensors: Sequence[torch.Tensor]) -> bool:
    """Whether what is needed follows from the values of small inputs, which are noted."""
    sources = {n for t in outcome.needs for n in depends_on(t.node())}
    places = {inputs.index(n) for n in sources}
    if not places or any(tensors[i].numel() > SMALL or i in point.valued for i in places):
        return False
    # A float that is the model's data is computed with, unless it is asked for itself.
    direct = {t.node() for t in outcome.needs}
    if any(tensors[i].is_floating_point() and inputs[i] not in direct and tensors[i].numel() > 16 for i in places):
        return False
    point.valued |= places
    return True


def _point(frames: list[Frame], live: Sequence[Tensor]) -> Point:
    """The frames with placeholders for the tensors that are computed."""
    stands: dict[Tensor, Tensor] = {t: Tensor(t.elem, ()) for t in live}
    return Point(copied(frames, lambda t: stands.get(t, t)), [stands[t] for t in live])


def _after(segment: Segment, structure: Any) -> Point:
    """The point after a step of the host whose results have that structure."""
    point = _point(segment.frames, segment.live)
    for name, part in zip(segment.binds, structure, strict=False):
        if name:
            point.frames[-1].values[name] = placeholders(part, point.live)
        else:
            placeholders(part, point.live)
    for part in structure[len(segment.binds) :]:
        placeholders(part, point.live)
    return point


def _tensors(value: Value | None) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, SequenceValue):
        return [t for v in value.items for t in _tensors(v)]
    if isinstance(value, OptionalValue):
        return _tensors(value.value)
    return [value.tensor] if isinstance(value, PresentedValue) else []


def _step_tensors(step: HostStep | ControlStep | None) -> list[Tensor]:
    if step is None:
        return []
    if isinstance(step, HostStep):
        return [t for v in step.inputs for t in _tensors(v)]
    captured = [v for _, v in step.captured]
    values: list[Value | None] = [step.trip, step.condition, *step.carried, *step.sliced, *captured]
    return [t for v in values for t in _tensors(v)]


def run_loop(step: ControlStep, body: Program, value: Callable[[Value | None], Any]) -> list[Any]:
    """A loop or a scan: the body again and again, on the host."""
    trip = None if step.trip is None else int(arrays(value(step.trip)).reshape(-1)[0])
    going = True if step.condition is None else bool(arrays(value(step.condition)).reshape(-1)[0])
    carried = [value(v) for v in step.carried]
    captured = [value(v) for _, v in step.captured]
    sliced = [value(v) for v in step.sliced]
    if step.batched:
        return _over_batch(step, body, carried, sliced, captured, trip)
    return _iterated(step, body, carried, sliced, captured, trip, going)


def _over_batch(
    step: ControlStep, body: Program, carried: list[Any], sliced: list[Any], captured: list[Any], trip: int | None
) -> list[Any]:
    """One scan for each element of the batch."""
    every: list[list[Given]] = []
    for b in range(sliced[0].tensor.shape[0]):
        first = [Given(v.elem, v.tensor[b]) for v in carried]
        own = [Given(v.elem, v.tensor[b]) for v in sliced]
        every.append(_iterated(step, body, first, own, captured, trip, True))
    return [Given(parts[0].elem, torch.stack([p.tensor for p in parts])) for parts in zip(*every, strict=True)]


def _iterated(
    step: ControlStep,
    body: Program,
    carried: list[Any],
    sliced: list[Any],
    captured: list[Any],
    trip: int | None,
    going: bool,
) -> list[Any]:
    scans: list[list[Given]] = [[] for _ in range(step.scans)]
    if trip is not None and trip > MOST_ITERATIONS:
        raise ImportGraphError(f"a loop of {trip} iterations", why=f"at most {MOST_ITERATIONS} are run.")
    done = 0
    while going and (trip is None or done < trip):
        if step.is_scan:
            assert trip is not None
            own = [*carried, *_slices(step, sliced, done, trip)]
        else:
            own = [Given(7, torch.tensor(done)), Given(9, torch.tensor(True)), *carried]
        outputs = body([*own, *captured])
        if not step.is_scan:
            going = bool(arrays(outputs[0]).reshape(-1)[0])
            outputs = outputs[1:]
        carried = outputs[: len(carried)]
        for collected, part in zip(scans, outputs[len(carried) :], strict=True):
            collected.append(part)
        done += 1
        if done > MOST_ITERATIONS:
            raise ImportGraphError(f"a loop does not end after {MOST_ITERATIONS} iterations")
    return [*carried, *(_stacked(step, place, parts) for place, parts in enumerate(scans))]


def _slices(step: ControlStep, sliced: Sequence[Given], done: int, trip: int) -> list[Given]:
    parts: list[Given] = []
    for source, axis, backward in zip(sliced, step.slice_axes, step.slice_backward, strict=True):
        at = trip - 1 - done if backward else done
        parts.append(Given(source.elem, source.tensor.select(axis, at)))
    return parts


def _stacked(step: ControlStep, place: int, parts: list[Given]) -> Given:
    if not parts:
        port = step.body.output[len(step.body.output) - step.scans + place].type.tensor_type
        sizes = [d.dim_value if d.HasField("dim_value") else 1 for d in port.shape.dim]
        empty: Given = given(np.zeros([0, *sizes], np.float32), port.elem_type or 1)
        return empty
    axis = step.scan_axes[place] if place < len(step.scan_axes) else 0
    backward = place < len(step.scan_backward) and step.scan_backward[place]
    tensors = [p.tensor for p in (reversed(parts) if backward else parts)]
    if any(t.shape != tensors[0].shape for t in tensors):
        raise ImportGraphError("a loop collects tensors of different shapes")
    return Given(parts[0].elem, torch.stack(tensors, axis))
