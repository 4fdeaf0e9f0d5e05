"""Operators of object-detection models, against ONNX's reference: scatter, samples at regions, suppression."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from taskmap.ir.errors import IndexOutOfRangeError, TaskmapError
from taskmap.onnx.engines import by_definition
from taskmap.onnx.model import load_model
from tests.onnx.models import FLOAT, INT64, model

RNG = np.random.default_rng(0)


def draw(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def boxes(count: int, size: float) -> Any:
    corners = np.sort(RNG.random((count, 2, 2)).astype(np.float32) * size, 1)
    return corners.reshape(count, 4)


def single(op: str, given: dict[str, Any], outputs: int = 1, **attributes: Any) -> Any:
    """A model of one operator."""
    ports: dict[str, tuple[int, list[Any]]] = {
        n: (FLOAT if v.dtype == np.float32 else INT64, list(v.shape)) for n, v in given.items()
    }
    names = [f"out{i}" for i in range(outputs)]
    return model([helper.make_node(op, list(given), names, **attributes)], ports, names, opset=20)


def reference(proto: Any, given: dict[str, Any]) -> Any:
    """The results of ONNX's reference."""
    return ReferenceEvaluator(proto).run(None, given)


POSITIONS = RNG.integers(-6, 6, (2, 3, 2))
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "ScatterND": ("ScatterND", {"x": draw(6, 7, 3), "i": POSITIONS, "u": draw(2, 3, 3)}, {"reduction": "add"}),
    "ScatterElements": (
        "ScatterElements",
        {"x": draw(4, 6), "i": RNG.integers(-6, 6, (3, 5)), "u": draw(3, 5)},
        {"axis": 1, "reduction": "max"},
    ),
    "GridSample": ("GridSample", {"x": draw(2, 3, 7, 5), "g": draw(2, 4, 6, 2)}, {}),
    "GridSample, reflected": (
        "GridSample",
        {"x": draw(1, 2, 7, 5), "g": draw(1, 4, 6, 2) * 2},
        {"padding_mode": "reflection", "mode": "cubic"},
    ),
    "GridSample, cubic": ("GridSample", {"x": draw(1, 2, 7, 5), "g": draw(1, 4, 6, 2)}, {"mode": "cubic"}),
    "RoiAlign": (
        "RoiAlign",
        {"x": draw(2, 3, 20, 24), "r": boxes(5, 30), "b": RNG.integers(0, 2, 5)},
        {"output_height": 3, "output_width": 4, "sampling_ratio": 2, "spatial_scale": 0.5},
    ),
}


SLOW_TO_COMPILE = frozenset(n for n, (_, _, attributes) in CASES.items() if attributes.get("mode") == "cubic")
"""Sixteen samples for each element, for which the C compiler takes seconds."""


@pytest.mark.parametrize(
    ("name", "compiled"), [(n, c) for n in CASES for c in (False, True) if not (c and n in SLOW_TO_COMPILE)]
)
def test_equals_the_reference(name: str, compiled: bool) -> None:
    op, given, attributes = CASES[name]
    proto = single(op, given, **attributes)
    loaded = load_model(proto) if compiled else load_model(proto, engine=by_definition)
    (got,) = loaded(given)
    (want,) = reference(proto, given)
    assert loaded.host_operators == 0
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38])
@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_nan_positions_read_nothing_outside(value: float, mode: str, padding: str) -> None:
    given = {"x": draw(1, 1, 3, 4), "g": np.full((1, 2, 2, 2), value, np.float32)}
    proto = single("GridSample", given, mode=mode, padding_mode=padding)
    assert load_model(proto, engine=by_definition)(given)[0].shape == (1, 1, 2, 2)


def test_many_boxes_are_suppressed() -> None:
    given = {
        "boxes": boxes(300, 10)[None],
        "scores": RNG.random((1, 4, 300)).astype(np.float32),
        "most": np.array([50]),
        "overlap": np.array([0.3], np.float32),
        "least": np.array([0.4], np.float32),
    }
    proto = single("NonMaxSuppression", given)
    (got,) = load_model(proto, engine=by_definition)(given)
    (want,) = reference(proto, given)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("op", "given", "attributes"),
    [
        ("ScatterND", {"x": draw(6, 7), "i": np.array([[6, 0]]), "u": draw(1)}, {}),
        ("ScatterElements", {"x": draw(4, 6), "i": np.full((1, 1), -7), "u": draw(1, 1)}, {"axis": 1}),
        ("RoiAlign", {"x": draw(2, 3, 8, 8), "r": boxes(1, 5), "b": np.array([2])}, {"sampling_ratio": 1}),
    ],
)
def test_positions_out_of_range_are_refused(op: str, given: dict[str, Any], attributes: dict[str, Any]) -> None:
    with pytest.raises(IndexOutOfRangeError):
        load_model(single(op, given, **attributes))(given)


@pytest.mark.parametrize(
    ("op", "given", "attributes"),
    [
        ("ScatterND", {"x": draw(6, 7), "i": np.array([[5, 0]]), "u": draw(2)}, {}),
        ("GridSample", {"x": draw(1, 1, 3, 3), "g": draw(1, 2, 2, 3)}, {}),
        ("MaxPool", {"x": draw(1, 1, 3, 3)}, {"kernel_shape": [2, 2], "pads": [2, 0, 0, 0]}),
        ("GlobalAveragePool", {"x": draw(3, 3)}, {}),
        ("Relu", {"x": draw(3)}, {"axis": 1}),
        ("LeakyRelu", {"x": draw(3)}, {"alpha": 1}),
        ("ReduceSum", {"x": draw(3)}, {"keepdims": 2}),
        ("Clip", {"x": draw(3), "low": draw(3)}, {}),
        ("ConvTranspose", {"x": draw(1, 1, 3), "w": draw(1, 1, 3)}, {"output_padding": [1]}),
    ],
)
def test_what_does_not_fit_is_refused(op: str, given: dict[str, Any], attributes: dict[str, Any]) -> None:
    with pytest.raises(TaskmapError, match=op):
        load_model(single(op, given, **attributes), engine=by_definition)(given)


def test_a_result_of_another_type_than_declared_is_refused() -> None:
    proto = single("Relu", {"x": draw(3)})
    proto.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    with pytest.raises(TaskmapError, match="int64"):
        load_model(proto, engine=by_definition)(draw(3))
