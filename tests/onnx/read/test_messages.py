"""Errors of ONNX models use names that the reader knows: nodes, inputs and operators of the model."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from taskmap.graph.importers.onnx import load
from taskmap.ir.errors import ImportGraphError, IndexOutOfRangeError, UnsupportedError
from taskmap.onnx.model import load_model
from tests.onnx.models import FLOAT, INT64, model

RNG = np.random.default_rng(9)
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def recurrent(operator: str, hidden: int = 8, width: int = 5) -> onnx.ModelProto:
    """A layer for inputs of ``width`` in a model that declares no sizes."""
    rows = GATES[operator] * hidden
    stored = {
        "W": RNG.normal(size=(1, rows, width)).astype(np.float32),
        "R": RNG.normal(size=(1, rows, hidden)).astype(np.float32),
    }
    node = helper.make_node(operator, ["x", "W", "R", "", "", "h"], ["y"], name="tagger", hidden_size=hidden)
    return model([node], {"x": (FLOAT, ["t", "b", "c"]), "h": (FLOAT, [1, "b", "s"])}, ["y"], stored)


def floats(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


@pytest.mark.parametrize("operator", sorted(GATES))
def test_a_wrong_width_blames_the_input(operator: str) -> None:
    loaded = load_model(recurrent(operator))
    with pytest.raises(ImportGraphError) as caught:
        loaded(floats(3, 2, 4), floats(1, 2, 8))
    assert str(caught.value).splitlines() == [
        f"taskmap: the {operator} node 'tagger': the input 'x' of shape [3, 2, 4] has a width of 4",
        "  its weights 'W' are for a width of 5.",
    ]
    with pytest.raises(ImportGraphError, match=r"the input 'h' has shape \[1, 2, 7\], not \[1, 2, 8\]"):
        loaded(floats(3, 2, 5), floats(1, 2, 7))
    (y,) = loaded(floats(3, 2, 5), floats(1, 2, 8))
    assert y.shape == (3, 1, 2, 8)


def test_sizes_that_differ_are_said_with_the_inputs() -> None:
    proto = model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": (FLOAT, ["b", "k"])}, ["y"], {"w": floats(5, 4)}
    )
    with pytest.raises(ImportGraphError, match=r"inputs are 'x' \[2, 3\], 'w' \[5, 4\]\."):
        load_model(proto)(floats(2, 3))


def gathers() -> onnx.ModelProto:
    """Two Gathers that fuse with their readers, one of them at computed positions."""
    nodes = [
        helper.make_node("Gather", ["words", "ids"], ["a"], name="words/Gather"),
        helper.make_node("Cast", ["kinds"], ["whole"], name="kinds/Cast", to=INT64),
        helper.make_node("Gather", ["types", "whole"], ["b"], name="types/Gather"),
        helper.make_node("Add", ["a", "b"], ["sum"], name="sum"),
        helper.make_node("Relu", ["sum"], ["y"], name="act"),
    ]
    stored = {"words": floats(10, 4), "types": floats(2, 4)}
    return model(nodes, {"ids": (INT64, ["n"]), "kinds": (FLOAT, ["n"])}, ["y"], stored)


def test_an_index_out_of_range_names_the_gather_and_its_input() -> None:
    loaded = load_model(gathers())
    kinds = floats(2)
    loaded(np.array([0, 9]), kinds)
    with pytest.raises(IndexOutOfRangeError) as caught:
        loaded(np.array([0, 10]), kinds)
    text = str(caught.value)
    assert "in the Gather node 'words/Gather', whose indices are 'ids'" in text
    assert "the Gather node 'types/Gather', whose indices are" in text
    assert "relu" not in text.lower()
    one = model(
        [helper.make_node("Gather", ["words", "ids"], ["y"], name="g")],
        {"ids": (INT64, [2])},
        ["y"],
        {"words": floats(10, 4)},
    )
    with pytest.raises(
        IndexOutOfRangeError, match=r"index out of range in the Gather node 'g', whose indices are 'ids'\n"
    ):
        load_model(one)(np.array([0, -11]))


def test_unsupported_operators_are_grouped() -> None:
    nodes = [helper.make_node("Foo", ["x"], [f"y{i}"], name=f"node{i}") for i in range(12)]
    proto = model([*nodes, helper.make_node("Bar", ["x"], ["z"])], {"x": (FLOAT, [2])}, ["z"])
    with pytest.raises(UnsupportedError, match=r"2 operators .* in 13 nodes") as caught:
        load(proto)
    lines = str(caught.value).splitlines()
    assert len(lines) == 4
    assert lines[1].endswith("12 nodes, 'node0', 'node1', 'node2', 9 more")
    assert lines[2].endswith("1 node, 'z'")
