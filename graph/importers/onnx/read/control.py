"""If, Loop and Scan. A branch is read when its condition is known, and a short loop is unrolled. The host runs a loop
whose iterations depend on data, with the body as a model of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from onnx import GraphProto

from taskmap.graph.importers.onnx.read.call import OnnxCall, ValuesNeededError
from taskmap.graph.importers.onnx.read.elements import PLAIN
from taskmap.graph.importers.onnx.read.folding import Folding
from taskmap.graph.importers.onnx.read.frames import graph_frame
from taskmap.graph.importers.onnx.read.library import FunctionLibrary, all_nodes
from taskmap.graph.importers.onnx.read.state import Scope, Unrolled, lookup, names_read
from taskmap.graph.importers.onnx.read.values import Tensor, Value, constant_node, of_array
from taskmap.graph.ops.join import cat
from taskmap.graph.ops.views import select_, unsqueeze
from taskmap.ir.construct import static_size
from taskmap.ir.errors import ImportGraphError, UnsupportedError
from taskmap.ir.types import i64

MOST_UNROLLED = 2048
"""A loop is unrolled if all its iterations together have at most this many nodes."""
INT64, BOOL = PLAIN[i64], 9


class Scopes(Protocol):
    """The reader, as control flow sees it: its scopes, innermost last, and what it knows of values."""

    frames: list[Scope]
    folding: Folding

    def bind(self, names: Sequence[str], values: Sequence[Value | None]) -> None:
        """Gives values names in the innermost scope."""

    def completed(self, tensor: Tensor) -> Tensor:
        """The tensor with its new nodes completed."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class ControlStep:
    """A loop that the host runs. ``inputs``: carried values, then sliced ones, then captured ones.

    ``trip``: the number of iterations or None; ``condition``: the first condition or None (both may become known only
    when the loop is reached). ``captured`` names the values of outer graphs that the body reads.
    """

    body: GraphProto
    library: FunctionLibrary
    trip: Tensor | None
    condition: Tensor | None
    carried: tuple[Value, ...]
    sliced: tuple[Tensor, ...]
    captured: tuple[tuple[str, Value], ...]
    scans: int
    slice_axes: tuple[int, ...] = ()
    slice_backward: tuple[bool, ...] = ()
    scan_axes: tuple[int, ...] = ()
    scan_backward: tuple[bool, ...] = ()
    is_scan: bool = False
    batched: bool = False

    @property
    def reason(self) -> str:
        """The reason why the host runs it."""
        if self.is_scan:
            return "it has too many steps to unroll; its body is compiled"
        return "its number of iterations depends on data or is too large to unroll; its body is compiled"


def begin(reader: Scopes, frame: Scope, call: OnnxCall) -> ControlStep | None:
    """Enters the graph of a control-flow operator, or returns it as a step for the host."""
    if call.op == "If":
        _branch(reader, frame, call)
        return None
    return _loop(reader, frame, call) if call.op == "Loop" else _scan(reader, frame, call)


def _branch(reader: Scopes, frame: Scope, call: OnnxCall) -> None:
    chosen = call.required("then_branch" if bool(call.number(0)) else "else_branch")
    frame.at += 1
    reader.frames.append(_inner(chosen, frame, {}, list(call.proto.output)))


def _inner(graph: GraphProto, frame: Scope, inputs: dict[str, Value | None], binds: list[str]) -> Scope:
    from_graph = _stored(graph, frame.library)
    from_graph.update(inputs)
    return Scope(
        graph.node, [o.name for o in graph.output], binds, from_graph, frame.library, True, attributes=frame.attributes
    )


def _stored(graph: GraphProto, library: FunctionLibrary) -> dict[str, Value | None]:
    return graph_frame(graph, library, {}, (), True).values


def _loop(reader: Scopes, frame: Scope, call: OnnxCall) -> ControlStep | None:
    body: GraphProto = call.required("body")
    carried = [call.value(i) for i in range(2, len(call.inputs))]
    trip = call.maybe(0)
    condition = call.maybe(1)
    scans = len(body.output) - 1 - len(carried)
    if len(body.input) != 2 + len(carried) or scans < 0:
        raise call.error("the loop's body does not have the inputs and outputs that the loop requires")
    steady = _is_steady(body)
    if steady and trip is not None and (condition is not None or not call.has(1)):
        count = max(int(trip.reshape(-1)[0]), 0) if condition is None or bool(condition.reshape(-1)[0]) else 0
        sequences = any(not isinstance(v, Tensor) for v in carried)
        if count * max(_size(body), 1) <= MOST_UNROLLED or sequences:
            loop = Unrolled(body, count, carried, [[] for _ in range(scans)], [], is_scan=False, origin=call.origin)
            _start(reader, frame, call, loop)
            return None
    return ControlStep(
        body,
        frame.library,
        call.tensor(0) if call.has(0) else None,
        call.tensor(1) if call.has(1) else None,
        tuple(carried),
        (),
        captured(reader, body),
        scans,
    )


def _size(graph: GraphProto) -> int:
    return sum(1 for _ in all_nodes(graph.node))


def _is_steady(body: GraphProto) -> bool:
    """True if the condition that the body returns is a constant or the condition it received."""
    name = body.output[0].name
    while True:
        if len(body.input) > 1 and name == body.input[1].name:
            return True
        for stored in body.initializer:
            if stored.name == name:
                return True
        maker = next((n for n in body.node if name in n.output), None)
        if maker is None or maker.op_type not in ("Identity", "Constant"):
            return False
        if maker.op_type == "Constant":
            return True
        name = maker.input[0]


def captured(reader: Scopes, body: GraphProto) -> tuple[tuple[str, Value], ...]:
    """The values of outer graphs that ``body`` reads."""
    own = {i.name for i in body.input}
    names = names_read(body.node) | {o.name for o in body.output}
    found: list[tuple[str, Value]] = []
    for name in sorted(names - own):
        try:
            value = lookup(reader.frames, name)
        except KeyError:
            continue
        if value is not None:
            found.append((name, value))
    return tuple(found)


def _scan(reader: Scopes, frame: Scope, call: OnnxCall) -> ControlStep | None:
    body: GraphProto = call.required("body")
    count = int(call.required("num_scan_inputs"))
    first = 1 if call.version < 9 else 0
    given = [call.value(i) for i in range(first, len(call.inputs))]
    if not 1 <= count <= len(given) or len(body.input) != len(given):
        raise call.error("the scan's body does not have the inputs that the scan requires")
    carried, sources = given[: len(given) - count], given[len(given) - count :]
    scans = len(body.output) - len(carried)
    tensors = [s for s in sources if isinstance(s, Tensor)]
    if scans < 0 or len(tensors) != count:
        raise call.error("the scan's body does not have the outputs that the scan requires")
    if first:
        return _batched_scan(reader, frame, call, body, carried, tensors, scans)
    axes = [call.axis(a, len(t.shape)) for a, t in zip(call.attr("scan_input_axes", [0] * count), tensors, strict=True)]
    backward = [bool(d) for d in call.attr("scan_input_directions", [0] * count)]
    out_axes = tuple(int(a) for a in call.attr("scan_output_axes", [0] * scans))
    out_backward = tuple(bool(d) for d in call.attr("scan_output_directions", [0] * scans))
    lengths = {static_size(t.shape[a]) for t, a in zip(tensors, axes, strict=True)}
    if None in lengths:
        raise UnsupportedError("a scan of a symbolic size")
    if len(lengths) != 1:
        raise call.error("the scanned tensors differ in length")
    (trip,) = lengths
    assert trip is not None
    if trip * max(_size(body), 1) > MOST_UNROLLED:
        return ControlStep(
            body,
            frame.library,
            of_array(np.array(trip, np.int64), INT64),
            None,
            tuple(carried),
            tuple(tensors),
            captured(reader, body),
            scans,
            tuple(axes),
            tuple(backward),
            out_axes,
            out_backward,
            True,
        )
    slices = [
        [
            reader.completed(_slice(t, a, trip - 1 - i if back else i))
            for t, a, back in zip(tensors, axes, backward, strict=True)
        ]
        for i in range(trip)
    ]
    collected: list[list[Tensor]] = [[] for _ in range(scans)]
    loop = Unrolled(body, trip, carried, collected, slices, True, call.origin, out_axes, out_backward)
    _start(reader, frame, call, loop)
    return None


def _batched_scan(
    reader: Scopes,
    frame: Scope,
    call: OnnxCall,
    body: GraphProto,
    carried: list[Value],
    tensors: list[Tensor],
    scans: int,
) -> ControlStep:
    """Scan of version 8, in which every tensor has a batch before the scanned dimension."""
    if call.has(0):
        raise UnsupportedError("a Scan of version 8 with sequences of different lengths")
    length = static_size(tensors[0].shape[1])
    if length is None:
        raise UnsupportedError("a scan of a symbolic size")
    backward = tuple(bool(d) for d in call.attr("directions", [0] * len(tensors)))
    return ControlStep(
        body,
        frame.library,
        of_array(np.array(length, np.int64), INT64),
        None,
        tuple(carried),
        tuple(tensors),
        captured(reader, body),
        scans,
        (0,) * len(tensors),
        backward,
        (0,) * scans,
        (False,) * scans,
        is_scan=True,
        batched=True,
    )


def _slice(tensor: Tensor, axis: int, at: int) -> Tensor:
    node = select_(tensor.node(), axis, at)
    return Tensor(tensor.elem, node.shape, made=node)


def _start(reader: Scopes, frame: Scope, call: OnnxCall, loop: Unrolled) -> None:
    frame.at += 1
    if loop.trip == 0:
        if loop.scans:
            reader.bind(list(call.proto.output), [*loop.carried, *(_no_scan(loop, i) for i in range(len(loop.scans)))])
        else:
            reader.bind(list(call.proto.output), loop.carried)
        return
    inner = _inner(loop.body, frame, _inputs(loop), list(call.proto.output))
    inner.loop = loop
    reader.frames.append(inner)


def _no_scan(loop: Unrolled, index: int) -> Value:
    """The collected result of a loop without iterations: an empty tensor of the type that the body declares."""
    port = loop.body.output[len(loop.body.output) - len(loop.scans) + index]
    kind = port.type.tensor_type
    shape = [0, *(d.dim_value if d.HasField("dim_value") else 1 for d in kind.shape.dim)]
    from_numpy = np.zeros(shape, np.float32)
    value = of_array(from_numpy, kind.elem_type or 1)
    value.made = constant_node(from_numpy, value.elem)
    return value


def _inputs(loop: Unrolled) -> dict[str, Value | None]:
    names = [i.name for i in loop.body.input]
    if loop.is_scan:
        return dict(zip(names, [*loop.carried, *loop.slices[loop.done]], strict=True))
    number = of_array(np.array(loop.done, np.int64), INT64)
    true = of_array(np.array(True), BOOL)
    return dict(zip(names, [number, true, *loop.carried], strict=True))


def next_iteration(reader: Scopes, frame: Scope, outputs: list[Value | None]) -> list[Value | None] | None:
    """Takes the results of one iteration. Returns None if another follows, else the results of the loop."""
    loop = frame.loop
    assert loop is not None
    state = outputs if loop.is_scan else outputs[1:]
    keep_on = True
    if not loop.is_scan:
        condition = outputs[0]
        if isinstance(condition, Tensor):
            known = reader.folding.fold(condition)
            if known is None:
                raise ValuesNeededError([condition])
            keep_on = bool(known.reshape(-1)[0])
    count = len(loop.carried)
    if any(v is None for v in state):
        raise ImportGraphError("the body of a loop does not return all its values")
    loop.carried = [v for v in state[:count] if v is not None]
    for place, value in enumerate(state[count:]):
        if not isinstance(value, Tensor):
            raise ImportGraphError("a loop collects a value that is not a tensor")
        loop.scans[place].append(value)
    loop.done += 1
    if loop.done < loop.trip and keep_on:
        frame.values = {**_stored(loop.body, frame.library), **_inputs(loop)}
        frame.at = 0
        return None
    return [*loop.carried, *(reader.completed(_collected(loop, place)) for place in range(len(loop.scans)))]


def _collected(loop: Unrolled, place: int) -> Tensor:
    """The results of all iterations, stacked along a new dimension."""
    parts = list(loop.scans[place])
    axis = loop.scan_axes[place] if place < len(loop.scan_axes) else 0
    if place < len(loop.scan_backward) and loop.scan_backward[place]:
        parts.reverse()
    if all(p.known is not None and not p.is_symbolic for p in parts):
        return of_array(np.stack([p.known for p in parts if p.known is not None], axis), parts[0].elem)
    nodes = [unsqueeze(p.node(), axis) for p in parts]
    while len(nodes) > 1:
        nodes = [cat(nodes[i : i + 32], axis) for i in range(0, len(nodes), 32)]
    return Tensor(parts[0].elem, nodes[0].shape, made=nodes[0])
