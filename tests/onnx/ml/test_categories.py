"""Tables of labels, one-hot encoding, and features side by side, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from taskmap.errors import ImportGraphError, UnsupportedError
from taskmap.onnx.engines import by_definition
from taskmap.onnx.model import load_model
from tests.onnx.models import model
from tests.onnx.rival import Array, onnxruntime_results

WORDS = {"cats_int64s": [3, 1, 2], "cats_strings": ["three", "one", "two"]}
PLACES = np.array([[1, 2, 7], [3, -1, 1]], np.int64)
TEXTS = np.array([["one", "", "two"], ["ten", "two", "one"]], object)
ROWS = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)


def single(op: str, inputs: dict[str, Array], attributes: dict[str, Any]) -> onnx.ModelProto:
    node = helper.make_node(op, list(inputs), ["y"], domain="ai.onnx.ml", **attributes)
    ports = {k: (int(helper.np_dtype_to_tensor_dtype(v.dtype)), list(v.shape)) for k, v in inputs.items()}
    proto = model([node], ports, ["y"])
    proto.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    return proto


CASES: dict[str, tuple[str, dict[str, Array], dict[str, Any]]] = {
    "numbers to words": ("CategoryMapper", {"x": PLACES}, WORDS | {"default_string": "other"}),
    "the default word": ("CategoryMapper", {"x": PLACES}, WORDS),
    "labels that are words": (
        "LabelEncoder",
        {"x": PLACES},
        {"keys_int64s": [1, 2, 4], "values_strings": ["a", "b", "c"]},
    ),
    "labels of floats": (
        "LabelEncoder",
        {"x": np.array([0.5, 0.25, 2], np.float32)},
        {"keys_floats": [0.5, 0.25], "values_strings": ["half", "quarter"], "default_string": "other"},
    ),
    "labels that are numbers": (
        "LabelEncoder",
        {"x": PLACES},
        {"keys_int64s": [1, 2, 3], "values_floats": [0.5, 1.5, 2.5], "default_float": -1.0},
    ),
    "one hot": ("OneHotEncoder", {"x": PLACES}, {"cats_int64s": [2, 1, 5]}),
    "one hot, floats": ("OneHotEncoder", {"x": PLACES.astype(np.float32)}, {"cats_int64s": [2, 1, 5]}),
    "one hot, a vector": ("OneHotEncoder", {"x": PLACES[0]}, {"cats_int64s": [7]}),
    "words to numbers": ("CategoryMapper", {"x": TEXTS}, WORDS | {"default_int64": 9}),
    "labels of words": ("LabelEncoder", {"x": TEXTS}, {"keys_strings": ["one", "two"], "values_int64s": [10, 20]}),
    "floats of words": (
        "LabelEncoder",
        {"x": TEXTS},
        {"keys_strings": ["two", "one"], "values_floats": [0.5, 1.5], "default_float": -2.0},
    ),
    "words of words": ("LabelEncoder", {"x": TEXTS}, {"keys_strings": ["one", ""], "values_strings": ["uno", "none"]}),
    "one hot, words": ("OneHotEncoder", {"x": TEXTS}, {"cats_strings": ["two", "", "one"]}),
    "features": ("FeatureVectorizer", {"x": ROWS, "z": ROWS[:, :2]}, {"inputdimensions": [3, 2]}),
    "features, cut and extended": ("FeatureVectorizer", {"x": ROWS, "z": ROWS[:, :2]}, {"inputdimensions": [2, 4]}),
    "features, integers": ("FeatureVectorizer", {"x": PLACES, "z": PLACES}, {"inputdimensions": [3, 3]}),
}


@pytest.mark.parametrize("name", CASES)
def test_equals_onnxruntime(name: str) -> None:
    pytest.importorskip("onnxruntime")
    op, inputs, attributes = CASES[name]
    proto = single(op, inputs, attributes)
    (theirs,) = onnxruntime_results(proto, inputs)
    (ours,) = load_model(proto, engine=by_definition)(inputs)
    assert ours.shape == theirs.shape
    assert ours.dtype == theirs.dtype
    assert ours.tolist() == theirs.tolist()


def test_a_fraction_is_no_category() -> None:
    x = np.array([1.5, 2.0], np.float32)
    (y,) = load_model(single("OneHotEncoder", {"x": x}, {"cats_int64s": [1, 2]}), engine=by_definition)({"x": x})
    assert y.tolist() == [[0, 0], [0, 1]]


def test_what_does_not_fit_is_refused() -> None:
    cases: tuple[tuple[str, dict[str, Any], type[Exception], str], ...] = (
        ("OneHotEncoder", {"cats_int64s": [1, 1]}, ImportGraphError, "distinct"),
        ("OneHotEncoder", {"cats_int64s": [1], "zeros": 0}, UnsupportedError, "outside the categories"),
        ("CategoryMapper", {"cats_int64s": [1], "cats_strings": ["a", "b"]}, ImportGraphError, "differ in number"),
        ("FeatureVectorizer", {"inputdimensions": [1, 2]}, ImportGraphError, "2 numbers of columns for 1"),
        ("LabelEncoder", {"keys_strings": ["a"], "values_int64s": [1]}, ImportGraphError, "another type"),
        ("OneHotEncoder", {"cats_strings": ["a"]}, ImportGraphError, "cats_int64s is missing"),
    )
    for op, attributes, error, message in cases:
        with pytest.raises(error, match=message):
            load_model(single(op, {"x": PLACES}, attributes), engine=by_definition)({"x": PLACES})
    vector = np.ones(3, np.float32)
    proto = single("FeatureVectorizer", {"x": vector}, {"inputdimensions": [3]})
    with pytest.raises(UnsupportedError, match="dimensions"):
        load_model(proto, engine=by_definition)({"x": vector})
