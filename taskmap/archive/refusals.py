"""The checks before archiving: all reasons why a model cannot be archived, in one error."""

from __future__ import annotations

from collections.abc import Sequence

from taskmap.graph.importers.onnx import Model, Port
from taskmap.graph.importers.onnx.read.elements import STRING
from taskmap.graph.importers.onnx.read.library import described
from taskmap.graph.importers.onnx.read.protos import shown
from taskmap.graph.nodes import ExternNode
from taskmap.ir.errors import InputError, UnsupportedError
from taskmap.onnx.points import Segment

_HINT = "Run the model itself: taskmap run model.onnx"
_MOST_LISTED = 50


def check_archivable(model: Model) -> None:
    """Raises UnsupportedError for inputs and outputs that an archive cannot represent, and InputError for those of
    unknown rank."""
    wrong = [_port_text(p) for p in model.inputs if not p.is_tensor or p.type is None or p.type.elem == STRING]
    wrong += [
        _port_text(p)
        for p in model.outputs
        if p.kind not in ("tensor", "nothing") or (p.type is not None and p.type.elem == STRING)
    ]
    if wrong:
        raise UnsupportedError(
            "the model cannot be archived",
            where="\n".join(wrong),
            why="an archive has tensors of numbers as inputs and outputs.",
            hint=_HINT,
        )
    unknown = [shown(p.name) for p in model.inputs if p.type is not None and p.type.shape is None]
    if unknown:
        raise InputError(
            f"the inputs {', '.join(unknown)} have no shape",
            why="an archive is made for inputs of known rank.",
            hint="Declare the shapes in the model.",
        )


def check_segments(segments: Sequence[Segment], valued: Sequence[str]) -> None:
    """Raises UnsupportedError unless this is one graph that native code computes alone. ``valued``: inputs whose values
    determined the graph."""
    reasons = [f"the values of the input {shown(name)} decide what is computed" for name in valued]
    for s in segments:
        if s.step is not None:
            reasons.append(f"{_stopped_at(s)}: the next operators depend on data")
        elif s.finished is None and not valued:
            reasons.append("a computed value decides which operators run next")
        nodes = [] if s.graph is None else s.graph.nodes()
        reasons += [f"{n.origin or n.op}: runs on the host ({n.reason})" for n in nodes if isinstance(n, ExternNode)]
    reasons = list(dict.fromkeys(reasons))
    if reasons:
        more = [f"and {len(reasons) - _MOST_LISTED} more"] if len(reasons) > _MOST_LISTED else []
        raise UnsupportedError(
            "the model cannot be archived",
            where="\n".join(reasons[:_MOST_LISTED] + more),
            why="an archive holds one native sequence, and no Python.",
            hint=_HINT,
        )


def _stopped_at(segment: Segment) -> str:
    for frame in reversed(segment.frames):
        for node in frame.nodes:
            if list(node.output) == list(segment.binds):
                return str(described(node))
    return "an operator"


def _port_text(port: Port) -> str:
    of_strings = port.type is not None and port.type.elem == STRING
    return f"{shown(port.name)} is {'a tensor of strings' if of_strings else f'not a tensor ({port.kind})'}"
