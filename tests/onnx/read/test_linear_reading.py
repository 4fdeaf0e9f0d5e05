"""Reading takes time proportional to the number of nodes: calls are counted for n nodes and for 2 n."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from taskmap.graph.nodes import Graph
from taskmap.onnx.model import load_model

F32, I64 = TensorProto.FLOAT, TensorProto.INT64
Nodes = list[onnx.NodeProto]


class ReadError(Exception):
    """Reads the graph and compiles nothing."""


def _engine(graph: Graph) -> Any:
    graph.nodes()
    raise ReadError


def _calls(model: onnx.ModelProto) -> int:
    """The number of Python function calls that reading makes."""
    count = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    loaded = None
    sys.setprofile(note)
    try:
        loaded = load_model(model, engine=_engine)
        loaded(np.ones((2, 8), np.float32))
    except ReadError:
        pass
    finally:
        sys.setprofile(None)
    assert loaded is not None
    return count


def _model(nodes: Nodes, result: str, stored: dict[str, Any]) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", F32, [2, 8])],
        [helper.make_tensor_value_info(result, F32, None)],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in stored.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def quantised(n: int) -> onnx.ModelProto:
    """Quantised and back, added, and reshaped to a shape computed from its own."""
    nodes: Nodes = []
    last = "x"
    for i in range(n):
        nodes += [
            helper.make_node("QuantizeLinear", [last, "s", "z"], [f"q{i}"]),
            helper.make_node("DequantizeLinear", [f"q{i}", "s", "z"], [f"d{i}"]),
            helper.make_node("Shape", [f"d{i}"], [f"s{i}"]),
            helper.make_node("Gather", [f"s{i}", "first"], [f"g{i}"]),
            helper.make_node("Concat", [f"g{i}", "eight"], [f"c{i}"], axis=0),
            helper.make_node("Reshape", [f"d{i}", f"c{i}"], [f"r{i}"]),
        ]
        last = f"r{i}"
    stored = {"s": np.float32(0.1), "z": np.int8(0), "first": np.array([0]), "eight": np.array([8])}
    return _model(nodes, last, stored)


def constants(n: int) -> onnx.ModelProto:
    """A chain of constants whose values are requested one after another."""
    nodes: Nodes = []
    last = "x"
    for i in range(n):
        nodes += [
            helper.make_node("Mul", ["w" if i == 0 else f"t{i - 1}", "w"], [f"t{i}"]),
            helper.make_node("ReduceSum", [f"t{i}"], [f"s{i}"], keepdims=0),
            helper.make_node("Cast", [f"s{i}"], [f"k{i}"], to=I64),
            helper.make_node("Unsqueeze", [f"k{i}", "axis"], [f"u{i}"]),
            helper.make_node("Tile", [last, "ones"], [f"v{i}"]),
            helper.make_node("Slice", [f"v{i}", "axis", f"u{i}", "axis"], [f"x{i}"]),
        ]
        last = f"x{i}"
    stored = {"w": np.ones(2, np.float32), "axis": np.array([0]), "ones": np.array([1, 1])}
    return _model(nodes, last, stored)


def empties(n: int) -> onnx.ModelProto:
    """Tensors without elements, concatenated with others again and again."""
    nodes: Nodes = []
    last = "x"
    for i in range(n):
        nodes += [
            helper.make_node("Slice", [last, "zero", "zero", "zero"], [f"e{i}"]),
            helper.make_node("Concat", [f"e{i}", last], [f"c{i}"], axis=0),
        ]
        last = f"c{i}"
    return _model(nodes, last, {"zero": np.array([0])})


def branches(n: int) -> onnx.ModelProto:
    """Branches whose graphs see every name before them."""
    nodes: Nodes = []
    last = "x"
    for i in range(n):
        arms: dict[str, Any] = {
            f"{arm}_branch": helper.make_graph(
                [helper.make_node(op, [last], [f"{arm}{i}"])],
                arm,
                [],
                [helper.make_tensor_value_info(f"{arm}{i}", F32, None)],
            )
            for arm, op in (("then", "Relu"), ("else", "Neg"))
        }
        nodes.append(helper.make_node("If", ["yes"], [f"b{i}"], **arms))
        last = f"b{i}"
    return _model(nodes, last, {"yes": np.array(True)})


def shared(n: int) -> onnx.ModelProto:
    """Each operator reads the first result and its predecessor's."""
    nodes = [helper.make_node("Relu", ["x"], ["y0"]), helper.make_node("Neg", ["y0"], ["y1"])]
    nodes += [helper.make_node("Add", ["y0", f"y{i}"], [f"y{i + 1}"]) for i in range(1, n)]
    return _model(nodes, f"y{n}", {})


def _check(calls: Callable[[int], int]) -> None:
    calls(10)  # one-time work: parsed definitions, imported modules
    one, two = calls(100), calls(200)
    assert two <= 2.1 * one, f"{one} calls for 100, {two} for 200"


@pytest.mark.parametrize("build", [quantised, constants, empties, branches, shared])
def test_twice_the_nodes_are_twice_the_calls(build: Callable[[int], onnx.ModelProto]) -> None:
    _check(lambda n: _calls(build(n)))


@pytest.mark.parametrize("build", [quantised, branches, shared])
def test_twice_the_nodes_of_a_model_with_an_open_size(build: Callable[[int], onnx.ModelProto]) -> None:
    def calls(n: int) -> int:
        model = build(n)
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "rows"
        return _calls(model)

    _check(calls)
