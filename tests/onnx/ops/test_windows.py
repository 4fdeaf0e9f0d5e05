"""Operators on windows and sequences at data-dependent positions, compiled: places of maxima, their inverse,
overlapping blocks, moved taps, reversed sequences, running sums; and trees and label tables, evaluated on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from taskmap.ir.errors import IndexOutOfRangeError, TaskmapError
from taskmap.onnx.engines import by_definition
from taskmap.onnx.model import elem_of, load_model
from tests.onnx.models import model

RNG = np.random.default_rng(0)


def draw(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def single(op: str, given: dict[str, Any], outputs: int = 1, opset: int = 22, **attributes: Any) -> Any:
    """A model of one operator."""
    ports: dict[str, tuple[int, list[Any]]] = {n: (elem_of(v.dtype), list(v.shape)) for n, v in given.items()}
    names = [f"out{i}" for i in range(outputs)]
    return model([helper.make_node(op, list(given), names, **attributes)], ports, names, opset=opset)


def pool(**attributes: Any) -> tuple[str, dict[str, Any], dict[str, Any], int]:
    return "MaxPool", {"x": draw(2, 3, 9, 8)}, {"kernel_shape": [3, 2], **attributes}, 2


PLACES = np.stack([RNG.permutation(30)[:6] for _ in range(4)]).reshape(1, 1, 4, 6) % 24
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any], int]] = {
    "places, padded on one side": pool(pads=[2, 0, 1, 1], strides=[2, 1]),
    "places in columns": pool(pads=[0, 1, 2, 0], strides=[2, 2], storage_order=1),
    "ReverseSequence": (
        "ReverseSequence",
        {"x": draw(5, 3, 2), "n": np.array([5, 0, 3])},
        {"time_axis": 0, "batch_axis": 1},
        1,
    ),
    "CumSum, exclusive": ("CumSum", {"x": draw(3, 7, 2), "axis": np.array(1)}, {"exclusive": 1, "reverse": 1}, 1),
    "Col2Im": (
        "Col2Im",
        {"x": draw(2, 12, 16), "image": np.array([7, 6]), "block": np.array([3, 2])},
        {"strides": [2, 2], "pads": [1, 0, 1, 2], "dilations": [1, 1]},
        1,
    ),
    "DeformConv": (
        "DeformConv",
        {
            "x": draw(2, 4, 6, 5),
            "w": draw(6, 2, 3, 2),
            "offset": draw(2, 24, 6, 6) * 2,
            "bias": draw(6),
            "mask": np.abs(draw(2, 12, 6, 6)),
        },
        {"pads": [1, 1, 1, 1], "group": 2, "offset_group": 2},
        1,
    ),
}


def check(name: str, proto: Any, given: dict[str, Any], loaded: Any) -> None:
    """Asserts that the results equal the reference's."""
    got = loaded(given)
    wanted: Any = ReferenceEvaluator(proto).run(None, given)
    for g, w in zip(got, wanted, strict=True):
        assert g.dtype == w.dtype, name
        np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-5)
    assert loaded.host_operators == 0


@pytest.mark.parametrize("name", CASES)
def test_definitions_equal_the_reference(name: str) -> None:
    op, given, attributes, outputs = CASES[name]
    proto = single(op, given, outputs, **attributes)
    check(name, proto, given, load_model(proto, engine=by_definition))


@pytest.mark.parametrize("name", ["places, padded on one side", "ReverseSequence", "Col2Im"])
def test_compiled_equals_the_reference(name: str) -> None:
    op, given, attributes, outputs = CASES[name]
    proto = single(op, given, outputs, **attributes)
    check(name, proto, given, load_model(proto))


def test_unpooled_is_what_was_pooled() -> None:
    x = draw(2, 2, 6, 8)
    pooled, places = load_model(
        single("MaxPool", {"x": x}, 2, kernel_shape=[2, 2], strides=[2, 2]), engine=by_definition
    )(x)
    given = {"x": pooled, "i": places, "shape": np.array([2, 2, 7, 8])}
    proto = single("MaxUnpool", given, kernel_shape=[2, 2], strides=[2, 2])
    loaded = load_model(proto)
    (made,) = loaded(given)
    expected = np.zeros((2, 2, 6, 8), np.float32)
    expected.reshape(-1)[places.reshape(-1)] = pooled.reshape(-1)
    np.testing.assert_array_equal(made, np.pad(expected, [(0, 0), (0, 0), (0, 1), (0, 0)]))
    assert loaded.host_operators == 0


@pytest.mark.parametrize("exponent", [np.array(3), np.array(2.0, np.float32), np.array(11)])
def test_powers_of_integers(exponent: Any) -> None:
    x = np.arange(-4, 5)
    node = helper.make_node("Pow", ["x", "e"], ["y"])
    proto = model([node], {"x": (elem_of(x.dtype), [9])}, ["y"], {"e": exponent})
    loaded = load_model(proto, engine=by_definition)
    np.testing.assert_array_equal(loaded(x)[0], x ** int(exponent))
    assert loaded.host_operators == (int(exponent) > 8)


@pytest.mark.parametrize("length", [-1, 6])
def test_lengths_out_of_range_are_refused(length: int) -> None:
    given = {"x": draw(5, 2), "n": np.array([1, length])}
    with pytest.raises(IndexOutOfRangeError):
        load_model(single("ReverseSequence", given))(given)


@pytest.mark.parametrize(
    ("op", "given", "attributes"),
    [
        ("ReverseSequence", {"x": draw(5, 2), "n": np.array([1, 2])}, {"time_axis": 1, "batch_axis": 1}),
        ("ReverseSequence", {"x": draw(5, 2), "n": np.array([1, 2, 3])}, {}),
        ("MaxUnpool", {"x": draw(1, 1, 2), "i": np.array([[[0, 1]]]), "s": np.array([4])}, {"kernel_shape": [2]}),
        ("Col2Im", {"x": draw(2, 5), "image": np.array([4]), "block": np.array([2])}, {}),
        ("DeformConv", {"x": draw(1, 3, 4, 4), "w": draw(2, 2, 2, 2), "o": draw(1, 8, 3, 3)}, {}),
    ],
)
def test_what_does_not_fit_is_refused(op: str, given: dict[str, Any], attributes: dict[str, Any]) -> None:
    with pytest.raises(TaskmapError, match=op):
        load_model(single(op, given, **attributes), engine=by_definition)(given)


def test_the_last_of_equal_labels_counts() -> None:
    node = helper.make_node(
        "LabelEncoder",
        ["x"],
        ["y"],
        domain="ai.onnx.ml",
        keys_floats=[3.0, float("nan"), 1.0, 3.0],
        values_int64s=[7, 8, 9, 10],
        default_int64=-5,
    )
    proto = model([node], {"x": (1, [5])}, ["y"])
    proto.opset_import.add(domain="ai.onnx.ml", version=4)
    x = np.array([1, 3, np.nan, 2, np.inf], np.float32)
    np.testing.assert_array_equal(load_model(proto, engine=by_definition)(x)[0], [9, 10, 8, -5, -5])


def _trees(cycle: bool, aggregate: int) -> Any:
    """Two trees over three features: one with two levels and a missing value, one that is a single leaf."""
    node = helper.make_node(
        "TreeEnsemble",
        ["x"],
        ["y"],
        domain="ai.onnx.ml",
        n_targets=2,
        aggregate_function=aggregate,
        nodes_featureids=[0, 2, 0],
        nodes_modes=helper.make_tensor("m", 2, [3], [0, 3, 0]),
        nodes_splits=helper.make_tensor("s", 1, [3], [0.5, -1.0, 0.0]),
        nodes_truenodeids=[0 if cycle else 1, 0, 2],
        nodes_trueleafs=[0, 1, 1],
        nodes_falsenodeids=[1, 1, 2],
        nodes_falseleafs=[1, 1, 1],
        nodes_missing_value_tracks_true=[0, 1, 0],
        tree_roots=[0, 2],
        leaf_targetids=[0, 1, 0],
        leaf_weights=helper.make_tensor("w", 1, [3], [2.0, 3.0, 4.0]),
    )
    proto = model([node], {"x": (1, ["n", 3])}, ["y"])
    proto.opset_import.add(domain="ai.onnx.ml", version=5)
    return proto


@pytest.mark.parametrize(("aggregate", "joined"), [(1, np.add), (2, np.minimum), (3, np.maximum)])
def test_trees_walked_together(aggregate: int, joined: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskmap.graph.importers.onnx.ml.forests.MOST_WALKS", 6)  # three rows at once
    x = np.array([[0, 0, 0], [0, 0, -2], [1, 0, 0], [0, 0, np.nan], [np.nan, 0, 0]], np.float32)
    (made,) = load_model(_trees(False, aggregate), engine=by_definition)(x)
    firsts = [(0, 2.0), (1, 3.0), (1, 3.0), (0, 2.0), (1, 3.0)]
    neutral = {1: 0.0, 2: np.inf, 3: -np.inf}[aggregate]
    expected = np.full((5, 2), neutral)
    for row, (target, weight) in enumerate(firsts):
        expected[row, target] = joined(expected[row, target], weight)
        expected[row, 0] = joined(expected[row, 0], 4.0)
    np.testing.assert_array_equal(made, np.where(np.isinf(expected), 0, expected))


def test_trees_that_do_not_end_are_refused() -> None:
    with pytest.raises(TaskmapError, match="cycle"):
        load_model(_trees(True, 1), engine=by_definition)(np.zeros((2, 3), np.float32))
