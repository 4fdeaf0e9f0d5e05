"""CastMap and DictVectorizer, whose inputs are maps, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from taskmap.errors import InputError
from taskmap.onnx.engines import by_definition
from taskmap.onnx.model import load_model
from tests.onnx.rival import onnxruntime_results

STRING, INT64, FLOAT, DOUBLE = TensorProto.STRING, TensorProto.INT64, TensorProto.FLOAT, TensorProto.DOUBLE
Case = tuple[str, tuple[int, int], Mapping[Any, Any], dict[str, Any], list[Any]]


def single(op: str, pair: tuple[int, int], attributes: dict[str, Any]) -> onnx.ModelProto:
    """A model of one operator on a map, and a node after it."""
    node = helper.make_node(op, ["m"], ["x"], domain="ai.onnx.ml", **attributes)
    kind = helper.make_map_type_proto(pair[0], helper.make_tensor_type_proto(pair[1], []))
    graph = helper.make_graph(
        [node, helper.make_node("Identity", ["x"], ["y"])],
        "g",
        [helper.make_value_info("m", kind)],
        [helper.make_empty_tensor_value_info("y")],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


FRUIT = ["plum", "fig", "pear"]
PRICES = {"pear": 2.5, "apple": 1.25, "plum": -3.0}
CASES: dict[str, Case] = {
    "dense": ("CastMap", (INT64, FLOAT), {5: 1.5, 2: -2.25, 9: 7.0}, {"cast_to": "TO_FLOAT"}, [-2.25, 1.5, 7]),
    "whole numbers": ("CastMap", (INT64, FLOAT), {5: 1.5, 2: -2.75}, {"cast_to": "TO_INT64"}, [-2, 1]),
    "written": ("CastMap", (INT64, FLOAT), {5: 1.5, 2: -2.75}, {"cast_to": "TO_STRING"}, ["-2.750000", "1.500000"]),
    "from text": ("CastMap", (INT64, STRING), {1: "0.5", 0: " 12"}, {"cast_to": "TO_FLOAT"}, [12, 0.5]),
    "text": ("CastMap", (INT64, STRING), {1: "b", 0: "a"}, {"cast_to": "TO_STRING"}, ["a", "b"]),
    "sparse": (
        "CastMap",
        (INT64, FLOAT),
        {5: 1.5, 2: -2.25, 9: 7.0},
        {"map_form": "SPARSE", "max_map": 7},
        [0, 0, -2.25, 0, 0, 1.5, 0],
    ),
    "sparse text": (
        "CastMap",
        (INT64, STRING),
        {3: "c", 0: "a"},
        {"map_form": "SPARSE", "max_map": 4, "cast_to": "TO_STRING"},
        ["a", "", "", "c"],
    ),
    "words to floats": ("DictVectorizer", (STRING, FLOAT), PRICES, {"string_vocabulary": FRUIT}, [-3, 0, 2.5]),
    "words to doubles": ("DictVectorizer", (STRING, DOUBLE), PRICES, {"string_vocabulary": FRUIT}, [-3, 0, 2.5]),
    "words to numbers": (
        "DictVectorizer",
        (STRING, INT64),
        {"fig": 3},
        {"string_vocabulary": FRUIT},
        [0, 3, 0],
    ),
    "numbers to floats": ("DictVectorizer", (INT64, FLOAT), {4: 0.5, 7: 1.5}, {"int64_vocabulary": [7, 8]}, [1.5, 0]),
    "numbers to words": ("DictVectorizer", (INT64, STRING), {4: "x", 7: "y"}, {"int64_vocabulary": [7, 8]}, ["y", ""]),
}
OTHERS: dict[int, str] = {INT64: "int64", FLOAT: "float32", DOUBLE: "float64", STRING: "object"}


@pytest.mark.parametrize("name", CASES)
def test_rows_of_maps(name: str) -> None:
    op, pair, given, attributes, row = CASES[name]
    (made,) = load_model(single(op, pair, attributes), engine=by_definition)({"m": given})
    cast = {"TO_INT64": "int64", "TO_STRING": "object"}.get(attributes.get("cast_to", ""), "float32")
    assert (made.tolist(), made.shape) == ([row], (1, len(row)))
    assert made.dtype == (cast if op == "CastMap" else OTHERS[pair[1]])


@pytest.mark.parametrize("name", [n for n, case in CASES.items() if case[1][1] == FLOAT])
def test_equals_onnxruntime(name: str) -> None:
    """ONNX Runtime takes dicts of f32 alone."""
    pytest.importorskip("onnxruntime")
    op, pair, given, attributes, _ = CASES[name]
    proto = single(op, pair, attributes)
    (theirs,) = onnxruntime_results(proto, {"m": given})  # type: ignore[dict-item]  # a map
    (ours,) = load_model(proto, engine=by_definition)({"m": given})
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    assert ours.tolist() == theirs.tolist()


def test_maps_of_other_sizes_use_the_same_graph() -> None:
    model = load_model(single("DictVectorizer", (STRING, FLOAT), {"string_vocabulary": ["a", "b"]}))
    assert model({"m": {"a": 1.0, "b": 2.0}})[0].tolist() == [[1, 2]]
    assert model({"m": {"b": 3.0}})[0].tolist() == [[0, 3]]
    assert model({"m": {}})[0].tolist() == [[0, 0]]


def test_what_is_no_map_is_refused() -> None:
    model = load_model(single("CastMap", (INT64, FLOAT), {"map_form": "SPARSE", "max_map": 3}), engine=by_definition)
    for given, message in (([1.0], "must be a dict"), ({"a": 1.0}, "not a map from int64 to float")):
        with pytest.raises(InputError, match=message):
            model({"m": given})
    with pytest.raises(InputError, match="the key -1"):
        model({"m": {-1: 0.0}})
