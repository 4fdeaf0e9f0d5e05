"""Loops and scans of an ONNX model on the host: the body is a program of its own, run repeatedly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from taskmap.graph.importers.onnx.read.control import ControlStep
from taskmap.graph.importers.onnx.read.values import Value
from taskmap.ir.errors import ImportGraphError
from taskmap.onnx.values import Given, arrays, given

Body = Callable[[Sequence[Any]], list[Any]]
MOST_ITERATIONS = 1 << 20


def run_loop(step: ControlStep, body: Body, value: Callable[[Value | None], Any]) -> list[Any]:
    """Run a loop or a scan: the body repeatedly, on the host."""
    trip = None if step.trip is None else int(arrays(value(step.trip)).reshape(-1)[0])
    going = True if step.condition is None else bool(arrays(value(step.condition)).reshape(-1)[0])
    carried = [value(v) for v in step.carried]
    captured = [value(v) for _, v in step.captured]
    sliced = [value(v) for v in step.sliced]
    if step.batched:
        return _over_batch(step, body, carried, sliced, captured, trip)
    return _iterated(step, body, carried, sliced, captured, trip, going)


def _over_batch(
    step: ControlStep, body: Body, carried: list[Any], sliced: list[Any], captured: list[Any], trip: int | None
) -> list[Any]:
    """One scan for each element of the batch."""
    every: list[list[Given]] = []
    for b in range(sliced[0].tensor.shape[0]):
        first = [Given(v.elem, v.tensor[b, ...]) for v in carried]
        own = [Given(v.elem, v.tensor[b, ...]) for v in sliced]
        every.append(_iterated(step, body, first, own, captured, trip, True))
    return [Given(parts[0].elem, np.stack([p.tensor for p in parts])) for parts in zip(*every, strict=True)]


def _iterated(
    step: ControlStep,
    body: Body,
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
            own = [given(np.int64(done), 7), given(np.bool_(True), 9), *carried]
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
        parts.append(Given(source.elem, np.asarray(source.tensor.take(at, axis))))
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
    return Given(parts[0].elem, np.stack(tensors, axis))
