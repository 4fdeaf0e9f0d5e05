"""The state of reading a model: a stack of graphs being read, with the values of their names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from onnx import AttributeProto, GraphProto, NodeProto

from taskmap.graph.importers.onnx.read.library import FunctionLibrary
from taskmap.graph.importers.onnx.read.protos import graphs_of
from taskmap.graph.importers.onnx.read.values import OptionalValue, PresentedValue, SequenceValue, Tensor, Value
from taskmap.graph.nodes import Origin

Replace = Callable[[Tensor], Tensor]


@dataclass(slots=True, eq=False)
class Unrolled:
    """A loop whose body is read once per iteration.

    ``slices`` holds the parts of a Scan's inputs, one list per iteration; ``scans`` collects the results that grow.
    ``trip``: the largest number of iterations; ``done``: the number completed. ``origin``: the loop's own.
    """

    body: GraphProto
    trip: int
    carried: list[Value]
    scans: list[list[Tensor]]
    slices: list[list[Tensor]]
    is_scan: bool
    origin: Origin
    scan_axes: Sequence[int] = ()
    scan_backward: Sequence[bool] = ()
    done: int = 0


@dataclass(slots=True, eq=False)
class Scope:
    """A graph being read; ``at`` is its next node. After the last one, the values called ``outputs`` are bound to the
    names ``binds`` of the frame below, whose names are visible here if ``sees`` holds.
    """

    nodes: Sequence[NodeProto]
    outputs: Sequence[str]
    binds: Sequence[str]
    values: dict[str, Value | None]
    library: FunctionLibrary
    sees: bool
    attributes: Mapping[str, AttributeProto] = field(default_factory=dict)
    at: int = 0
    loop: Unrolled | None = None


def lookup(frames: Sequence[Scope], name: str) -> Value | None:
    """The value of a name as seen from the topmost frame. Raises KeyError if it has none."""
    for frame in reversed(frames):
        if name in frame.values:
            return frame.values[name]
        if not frame.sees:
            break
    raise KeyError(name)


def remapped(value: Value | None, replace: Replace) -> Value | None:
    """``value`` with every tensor replaced."""
    if value is None:
        return None
    if isinstance(value, Tensor):
        return replace(value)
    if isinstance(value, SequenceValue):
        return SequenceValue([_certain(remapped(v, replace)) for v in value.items], value.elem)
    if isinstance(value, PresentedValue):
        return PresentedValue(replace(value.tensor), value.present)
    return OptionalValue(remapped(value.value, replace))


def _certain(value: Value | None) -> Value:
    assert value is not None
    return value


def copied(frames: Sequence[Scope], replace: Replace) -> list[Scope]:
    """Copies of the frames with every tensor replaced; the originals are unchanged."""
    return [_frame(frame, replace) for frame in frames]


def _frame(frame: Scope, replace: Replace) -> Scope:
    loop = frame.loop
    if loop is not None:
        loop = Unrolled(
            loop.body,
            loop.trip,
            [_certain(remapped(v, replace)) for v in loop.carried],
            [[replace(t) for t in parts] for parts in loop.scans],
            [[replace(t) for t in parts] for parts in loop.slices],
            loop.is_scan,
            loop.origin,
            loop.scan_axes,
            loop.scan_backward,
            loop.done,
        )
    values = {name: remapped(v, replace) for name, v in frame.values.items()}
    return Scope(
        frame.nodes, frame.outputs, frame.binds, values, frame.library, frame.sees, frame.attributes, frame.at, loop
    )


def drop_dead(frames: Sequence[Scope]) -> None:
    """Drops the values that nothing will read."""
    wanted: set[str] = set()
    for frame in reversed(frames):
        below = set(wanted) if _top(frames) is not frame else set()
        rest = set(frame.outputs) | names_read(frame.nodes[frame.at :]) | below
        if frame.loop is not None:
            rest |= names_read(frame.loop.body.node) | {o.name for o in frame.loop.body.output}
        frame.values = {name: v for name, v in frame.values.items() if name in rest}
        wanted = rest if frame.sees else set()


def _top(frames: Sequence[Scope]) -> Scope:
    return frames[-1]


def names_read(nodes: Sequence[NodeProto]) -> set[str]:
    """All names that the nodes, or graphs inside them, read."""
    names: set[str] = set()
    for node in nodes:
        names.update(node.input)
        for attribute in node.attribute:
            for graph in graphs_of(attribute):
                names |= names_read(graph.node) | {o.name for o in graph.output}
    return names


def tensors_of(frames: Sequence[Scope]) -> list[Tensor]:
    """Every tensor in the frames, each once."""
    found: dict[Tensor, None] = {}

    def note(tensor: Tensor) -> Tensor:
        found.setdefault(tensor)
        return tensor

    copied(frames, note)
    return list(found)
