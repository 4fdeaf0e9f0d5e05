"""The nodes that operators add: each names its operator, and stands in a graph once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper

from taskmap.graph.nodes import ConstantNode, Graph, InputNode
from taskmap.onnx.engines import by_definition
from taskmap.onnx.model import load_model
from taskmap.onnx.points import Run
from tests.onnx.models import FLOAT, model, scan

Array = NDArray[Any]
PARTS = [np.arange(rows * 6, dtype=np.float32).reshape(rows, 6) for rows in (4, 7)]


def graphs_of(proto: onnx.ModelProto, *calls: Mapping[str, Array]) -> tuple[list[Graph], list[list[Any]]]:
    """The graphs that the calls make, and their results."""
    found: list[Graph] = []

    def engine(graph: Graph) -> Run:
        found.append(graph)
        return by_definition(graph)

    loaded = load_model(proto, engine=engine)
    return found, [loaded(dict(feeds)) for feeds in calls]


def splits() -> onnx.ModelProto:
    """The parts of a tensor: two are read one by one, one of them twice, and all are a result."""
    nodes = [
        helper.make_node("SplitToSequence", ["x", "two"], ["parts"], axis=1),
        helper.make_node("SequenceAt", ["parts", "first"], ["a"]),
        helper.make_node("SequenceAt", ["parts", "last"], ["b"]),
        helper.make_node("Mul", ["a", "b"], ["ab"]),
        helper.make_node("SequenceAt", ["parts", "first"], ["again"]),
        helper.make_node("Add", ["ab", "again"], ["y"]),
    ]
    stored = {"two": np.array(2), "first": np.array(0), "last": np.array(-1)}
    proto = model(nodes, {"x": (FLOAT, ["rows", 6])}, ["y"], stored)
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, None))
    proto.graph.output.append(helper.make_value_info("parts", kind))
    return proto


def test_parts_of_a_sequence_are_single_nodes() -> None:
    graphs, results = graphs_of(splits(), *({"x": x} for x in PARTS))
    for nodes in (graph.nodes() for graph in graphs):
        assert len({n.id for n in nodes}) == len(nodes)
        assert {n.origin.operator for n in nodes if not isinstance(n, InputNode)} == {"SplitToSequence", "Mul", "Add"}
    for x, (y, parts) in zip(PARTS, results, strict=True):
        np.testing.assert_array_equal(y, x[:, :2] * x[:, 4:] + x[:, :2])
        np.testing.assert_array_equal(np.concatenate(parts, 1), x)


@pytest.mark.parametrize("backwards", [False, True])
def test_what_a_loop_slices_and_stacks_is_its_own(backwards: bool) -> None:
    proto, feeds = scan(backwards)
    (graph,), _ = graphs_of(proto, feeds)
    made = [n for n in graph.nodes() if not isinstance(n, (InputNode, ConstantNode))]
    assert {n.op: n.origin.operator for n in made} == {
        "select": "Scan", "unsqueeze": "Scan", "cat": "Scan", "add": "Add", "mul": "Mul"
    }  # fmt: skip
