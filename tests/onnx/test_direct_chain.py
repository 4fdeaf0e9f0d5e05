"""Data-dependent branches: each has a direct path once a call has taken it, with the same results as the call."""

import gc
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from taskmap.ir.errors import IndexOutOfRangeError
from taskmap.onnx import program as onnx_program
from taskmap.onnx.direct_chain import DirectChain
from taskmap.onnx.model import OnnxModel, load_model

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def branch(nodes: list[Any]) -> Any:
    return helper.make_graph(nodes, "branch", [], [helper.make_tensor_value_info("r", FLOAT, None)])


def node(op: str, inputs: list[str], output: str, **attributes: Any) -> Any:
    return helper.make_node(op, inputs, [output], **attributes)


def model(then: list[Any], other: list[Any], size: int | str = 32) -> OnnxModel:
    """y = then(...) if the sum of x is above 0, else other(...); both may read x, a = x + x and the index i."""
    nodes = [
        node("Add", ["x", "x"], "a"),
        node("ReduceSum", ["a"], "s", keepdims=0),
        node("Greater", ["s", "zero"], "c"),
        helper.make_node("If", ["c"], ["y"], then_branch=branch(then), else_branch=branch(other)),
    ]
    ports = [helper.make_tensor_value_info("x", FLOAT, [size]), helper.make_tensor_value_info("i", INT64, [1])]
    stored = [numpy_helper.from_array(np.array(v, np.float32), n) for n, v in (("zero", 0.0), ("ten", 10.0))]
    made = helper.make_tensor_value_info("y", FLOAT, None)
    graph = helper.make_graph(nodes, "g", ports, [made], stored)
    return load_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10))


def chains(made: OnnxModel) -> list[DirectChain]:
    return [d for d in made._direct.values() if isinstance(d, DirectChain)]


UP, DOWN = np.arange(32, dtype=np.float32), -np.arange(32, dtype=np.float32)
"""Long enough to count as data: the values of a few elements decide which graph is read."""
FIRST = np.array([1])


def test_each_branch_gives_its_own_results() -> None:
    made = model([node("Mul", ["a", "x"], "r")], [node("Sub", ["a", "ten"], "r")])
    kept = []
    for x in (UP, UP, DOWN, UP, DOWN, DOWN + 1, UP * 2):
        (y,) = made(x, FIRST)
        kept.append((y, 2 * x * x if x.sum() > 0 else 2 * x - 10))
    for y, expected in kept:
        np.testing.assert_array_equal(y, expected)
    (chain,) = chains(made)
    assert len(chain.following) == 2
    assert None not in chain.following.values()


def test_a_branch_that_computes_nothing_copies() -> None:
    made = model([node("Identity", ["x"], "r")], [node("Identity", ["a"], "r")])
    for x in (UP.copy(), DOWN.copy()) * 3:
        (y,) = made(x, FIRST)
        np.testing.assert_array_equal(y, x if x.sum() > 0 else 2 * x)
        before = x.copy()
        y[:] = 7
        np.testing.assert_array_equal(x, before)
    assert len(chains(made)) == 1


def test_branches_within_branches() -> None:
    inner = [
        node("ReduceMax", ["x"], "m", keepdims=0),
        node("Greater", ["m", "ten"], "d"),
        helper.make_node(
            "If",
            ["d"],
            ["r"],
            then_branch=branch([node("Neg", ["a"], "r")]),
            else_branch=branch([node("Abs", ["a"], "r")]),
        ),
    ]
    made = model(inner, [node("Sub", ["a", "ten"], "r")])
    for x in (UP / 8, DOWN, UP, UP / 16, UP * 2, DOWN, UP / 8):
        expected = 2 * x - 10 if x.sum() <= 0 else -2 * x if x.max() > 10 else abs(2 * x)
        np.testing.assert_array_equal(made(x, FIRST)[0], expected)
    assert len(chains(made)) == 1


def test_an_index_out_of_range_is_an_error_in_its_branch_alone() -> None:
    made = model([node("Gather", ["a", "i"], "r")], [node("Sub", ["a", "ten"], "r")])
    for _ in range(3):
        np.testing.assert_array_equal(made(UP, np.array([2]))[0], [4.0])
        with pytest.raises(IndexOutOfRangeError):
            made(UP, np.array([32]))
        np.testing.assert_array_equal(made(DOWN, np.array([32]))[0], 2 * DOWN - 10)


def test_sizes_have_ways_of_their_own() -> None:
    made = model([node("Mul", ["a", "x"], "r")], [node("Sub", ["a", "ten"], "r")], "n")
    for n in (30, 50, 30, 50, 30):
        for sign in (1, -1):
            x = sign * np.arange(1, n + 1, dtype=np.float32)
            np.testing.assert_array_equal(made(x, FIRST)[0], 2 * x * x if sign > 0 else 2 * x - 10)


def test_a_direct_way_keeps_the_constants_of_a_graph_that_was_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_program, "MOST_SEGMENTS", 2)
    weights = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32)
    nodes = [node("Slice", ["x", "zero", "k"], "s"), node("MatMul", ["s", "w"], "y")]
    ports = [helper.make_tensor_value_info("x", FLOAT, [8, 256]), helper.make_tensor_value_info("k", INT64, [1])]
    stored = [numpy_helper.from_array(v, n) for n, v in (("w", weights), ("zero", np.array([0])))]
    graph = helper.make_graph(nodes, "g", ports, [helper.make_tensor_value_info("y", FLOAT, None)], stored)
    made = load_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    x = np.random.default_rng(1).standard_normal((8, 256)).astype(np.float32)
    for k in (8, 8, 7, 7, 6, 5, 4, 8, 7):
        gc.collect()
        other = [np.full((256, 256), 7, np.float32) for _ in range(8)]  # reuses the constants' memory if freed
        np.testing.assert_allclose(made(x, np.array([k]))[0], x[:k] @ weights, rtol=1e-4, atol=1e-3)
        del other
