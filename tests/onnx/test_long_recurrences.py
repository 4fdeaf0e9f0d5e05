"""Recurrences over more steps than are unrolled: the same as unrolled, in pieces that the host strings together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from taskmap.graph.importers.onnx import long_recurrences, recurrent
from taskmap.ir.errors import UnsupportedError
from taskmap.onnx_engines import by_definition
from taskmap.onnx_model import load_model
from tests.onnx.models import FLOAT, model

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def case(op: str, steps: int, directions: int, full: bool, **attributes: Any) -> tuple[Any, dict[str, Any]]:
    """A model of one recurrence over ``steps`` steps, batch 2, 3 wide, hidden 4, and its inputs."""
    rng = np.random.default_rng(steps)
    gates = GATES[op]
    shapes: dict[str, tuple[int, ...]] = {
        "X": (2, steps, 3) if attributes.get("layout") else (steps, 2, 3),
        "W": (directions, gates * 4, 3),
        "R": (directions, gates * 4, 4),
    }
    names = ["X", "W", "R"]
    if full:
        state = (2, directions, 4) if attributes.get("layout") else (directions, 2, 4)
        shapes |= {"B": (directions, 2 * gates * 4), "h": state}
        names += ["B", "", "h"]
        if op == "LSTM":
            shapes |= {"c": state, "P": (directions, 12)}
            names += ["c", "P"]
    given = {n: (rng.standard_normal(s) * 0.5).astype(np.float32) for n, s in shapes.items()}
    outputs = ["Y", "Yh", "Yc"] if op == "LSTM" else ["Y", "Yh"]
    node = helper.make_node(op, names, outputs, hidden_size=4, **attributes)
    return model([node], {n: (FLOAT, list(v.shape)) for n, v in given.items()}, outputs, opset=21), given


CASES = [
    ("LSTM", 23, 2, True, {"direction": "bidirectional"}),
    ("LSTM", 20, 1, False, {"direction": "reverse", "clip": 0.5}),
    ("LSTM", 19, 1, True, {"layout": 1}),
    ("GRU", 23, 2, True, {"direction": "bidirectional", "linear_before_reset": 1}),
    ("RNN", 23, 2, True, {"direction": "bidirectional", "activations": ["Relu", "Tanh"]}),
]


@pytest.mark.parametrize(("op", "steps", "directions", "full", "attributes"), CASES)
def test_pieces_are_the_same_as_the_whole(
    op: str, steps: int, directions: int, full: bool, attributes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    proto, given = case(op, steps, directions, full, **attributes)
    want = load_model(proto, engine=by_definition)(given)
    monkeypatch.setattr(recurrent, "LONGEST", 6)
    monkeypatch.setattr(long_recurrences, "PIECE", 5)
    loaded = load_model(proto, engine=by_definition)
    for got, expected in zip(loaded(given), want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    assert loaded.host_operators > 0


def test_pieces_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recurrent, "LONGEST", 8)
    monkeypatch.setattr(long_recurrences, "PIECE", 8)
    proto, given = case("GRU", 27, 1, False)
    y, last = load_model(proto)(given)
    np.testing.assert_array_equal(y[-1], last)
    monkeypatch.undo()
    np.testing.assert_allclose(load_model(proto, engine=by_definition)(given)[0], y, rtol=1e-5, atol=1e-6)


def test_many_steps_of_several_lengths_are_refused() -> None:
    proto, given = case("GRU", recurrent.LONGEST + 1, 1, True)
    proto.graph.node[0].input[4] = "lengths"
    proto.graph.input.append(helper.make_tensor_value_info("lengths", 6, [2]))
    with pytest.raises(UnsupportedError, match="steps"):
        load_model(proto, engine=by_definition)({**given, "lengths": np.array([3, 4], np.int32)})
