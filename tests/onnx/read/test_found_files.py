"""Files as converters leave them: unordered nodes, placeholders for sizes, names without a definition."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from taskmap.errors import ImportGraphError
from taskmap.onnx.engines import by_definition
from taskmap.onnx.model import load_model

F32 = TensorProto.FLOAT
Shape = list[int | str | None]


def model(nodes: list[onnx.NodeProto], shapes: list[Shape], result: str = "y") -> onnx.ModelProto:
    """A model with the inputs a, b, ... of these shapes."""
    ports = [helper.make_tensor_value_info(name, F32, s) for name, s in zip("abc", shapes, strict=False)]
    out = helper.make_tensor_value_info(result, F32, None)
    graph = helper.make_graph(nodes, "g", ports, [out])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def chain() -> list[onnx.NodeProto]:
    """Twenty nodes, including a branch that reads a name of the outer graph."""
    nodes = [helper.make_node("Relu" if i % 2 else "Neg", [f"v{i - 1}" if i else "a"], [f"v{i}"]) for i in range(18)]
    arms: dict[str, Any] = {
        f"{arm}_branch": helper.make_graph(
            [helper.make_node(op, ["v9"], [f"{arm}_out"])],
            arm,
            [],
            [helper.make_tensor_value_info(f"{arm}_out", F32, None)],
        )
        for arm, op in (("then", "Abs"), ("else", "Neg"))
    }
    yes = helper.make_node("Constant", [], ["yes"], value=onnx.numpy_helper.from_array(np.array(True)))
    return [*nodes, yes, helper.make_node("If", ["yes"], ["w"], **arms), helper.make_node("Add", ["w", "v17"], ["y"])]


@pytest.mark.parametrize("seed", range(4))
def test_nodes_in_any_order(seed: int) -> None:
    x = np.random.default_rng(seed).standard_normal((2, 3)).astype(np.float32)
    nodes = chain()
    (expected,) = load_model(model(nodes, [[2, 3]]), engine=by_definition)(x)
    random.Random(seed).shuffle(nodes)
    given = model(nodes, [[2, 3]])
    before = given.SerializeToString()
    (made,) = load_model(given, engine=by_definition)(x)
    np.testing.assert_array_equal(made, expected)
    assert given.SerializeToString() == before, "the caller's model is changed"


def test_nodes_of_a_function_in_any_order() -> None:
    body = [helper.make_node("Relu", ["t"], ["y"]), helper.make_node("Neg", ["x"], ["t"])]
    function = helper.make_function("own", "F", ["x"], ["y"], body, [helper.make_opsetid("", 17)])
    proto = model([helper.make_node("F", ["a"], ["y"], domain="own")], [[2]])
    proto.functions.append(function)
    proto.opset_import.append(helper.make_opsetid("own", 1))
    (made,) = load_model(proto, engine=by_definition)(np.array([-1, 2], np.float32))
    np.testing.assert_array_equal(made, [1, 0])


def test_a_cycle_is_refused() -> None:
    nodes = [helper.make_node("Add", ["a", "z"], ["y"]), helper.make_node("Relu", ["y"], ["z"])]
    with pytest.raises(ImportGraphError, match="cycle"):
        load_model(model(nodes, [[2]]))


@pytest.mark.parametrize("size", [-1, "?", "None", "-1", "*", ""])
def test_sizes_that_say_nothing_are_independent(size: int | str) -> None:
    """Two dimensions with this name may have different sizes."""
    proto = model([helper.make_node("MatMul", ["a", "b"], ["y"])], [[size, 4], [4, size]])
    loaded = load_model(proto, engine=by_definition)
    assert [p.type.shape for p in loaded.inputs if p.type is not None] == [(None, 4), (4, None)]
    (made,) = loaded(np.ones((2, 4), np.float32), np.ones((4, 3), np.float32))
    assert made.shape == (2, 3)


def test_other_negative_sizes_are_refused() -> None:
    with pytest.raises(ImportGraphError, match="-2"):
        load_model(model([helper.make_node("Relu", ["a"], ["y"])], [[-2, 4]]))
