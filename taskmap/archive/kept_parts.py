"""The parts of a kept ONNX model: the graphs of its last call, each with its inputs, its results and the path to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from numpy.typing import NDArray

from taskmap.archive.graph import GraphRecord
from taskmap.archive.kept_chain import path_from
from taskmap.archive.refusals import check_segments
from taskmap.compile.session import Compilation, Fallback
from taskmap.graph.importers.onnx import Model, Port
from taskmap.graph.importers.onnx.read.elements import OnnxTensorType, to_held
from taskmap.graph.importers.onnx.read.values import Tensor
from taskmap.ir.errors import UnsupportedError
from taskmap.onnx.model import OnnxModel
from taskmap.onnx.points import Segment

Array = NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class KeptPart:
    """A graph, and ``model``, which has its inputs and results. ``path`` and ``deciding`` as in kept_models."""

    model: Model
    graph: GraphRecord
    path: tuple[str, ...]
    deciding: tuple[int, ...] | None


def parts_of(
    model: OnnxModel, record: Sequence[Compilation | Fallback], inputs: Sequence[Array]
) -> tuple[KeptPart, ...]:
    """The parts of a model that has run on ``inputs``.

    Raises UnsupportedError for a part with operators on the host, and for several graphs one of which is for all sizes:
    sizes that decided something may not be visible in what the next graph takes.
    """
    used = model.program.used
    ends = [s if s.finished is not None else replace(s, finished=list(s.live)) for s in used]
    # A graph that stops at a step of the host keeps this step, which is refused here.
    check_segments(ends, ())
    if len(used) != 1 and any(s.guard is not None for s in used):
        raise UnsupportedError("the model is several graphs, one of them for all sizes")
    if len(used) != len(model.program.segments()):
        raise UnsupportedError("the model is several graphs")
    compiled = {id(c.imported): c for c in record if isinstance(c, Compilation)}

    def recorded(end: Segment, shapes: tuple[tuple[int, ...], ...], values: tuple[tuple[int, str], ...]) -> GraphRecord:
        compilation = None if end.graph is None else compiled[id(end.graph)]
        if end.guard is not None:
            return GraphRecord(end, compilation, None, tuple(end.guard.checks), end.guard.forms, values)
        return GraphRecord(end, compilation, shapes, values=values)

    deciding = sorted({i for point, _ in model.program.roots.values() for i in point.valued})
    elems = [0 if port.type is None else port.type.elem for port in model.inputs]
    values = tuple((i, to_held(inputs[i], elems[i]).tobytes().hex()) for i in deciding)
    first = tuple(tuple(x.shape) for x in inputs)
    parts = [KeptPart(model.model, recorded(ends[0], first, values), (), None)]
    path = path_from(first, [text for _, text in values])
    for before, segment, end in zip(used, used[1:], ends[1:], strict=False):
        shapes, values = _met(before, segment)
        given = _ports(before.live, shapes)
        last = parts[-1]
        parts[-1] = replace(last, model=replace(last.model, outputs=given), deciding=tuple(i for i, _ in values))
        path = (*path, *(text for _, text in values))
        parts.append(KeptPart(replace(model.model, inputs=given), recorded(end, shapes, values), path, None))
    return tuple(parts)


def _met(before: Segment, segment: Segment) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, str], ...]]:
    """The shapes of the tensors with which ``segment`` was made after ``before``, and the values that decided."""
    point = before.following[None]
    for (_, shapes, values), made in point.segments.items():
        if made is segment:
            texts = [content.hex() for _, content in values or ()]
            return tuple(map(tuple, shapes)), tuple(zip(sorted(point.valued), texts, strict=True))
    raise UnsupportedError("the model is several graphs")


def _ports(live: Sequence[Tensor], shapes: Sequence[tuple[int, ...]]) -> tuple[Port, ...]:
    return tuple(
        Port(str(i), "tensor", OnnxTensorType(t.elem, shape))
        for i, (t, shape) in enumerate(zip(live, shapes, strict=True))
    )
