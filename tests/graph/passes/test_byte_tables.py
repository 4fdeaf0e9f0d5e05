"""Functions from bytes to bytes become tables: which ones, and that no bit changes."""

from __future__ import annotations

import numpy as np
import pytest

from taskmap.graph.build import elementwise
from taskmap.graph.nodes import Graph, InputNode, Node
from taskmap.graph.ops.arithmetic import add, mul
from taskmap.graph.ops.logic import where
from taskmap.graph.ops.pointwise import math_function, pointwise, to_dtype
from taskmap.graph.ops.views import permute
from taskmap.graph.passes.byte_tables import TabulateBytes
from taskmap.graph.reference import run
from taskmap.ir.construct import call, cast, maximum, minimum
from taskmap.ir.nodes import Expr
from taskmap.ir.types import DType, boolean, f32, i8, i32, u8

SHAPE = (4, 64)


def given(*tensors: tuple[tuple[int, ...], DType]) -> list[InputNode]:
    return [InputNode((), shape, dtype, i) for i, (shape, dtype) in enumerate(tensors)]


def dequantized(q: Node, scale: float, zero: int) -> Node:
    """(q - zero) * scale."""
    return pointwise("dequantize", (to_dtype(q, i32),), lambda e: cast(e - zero, f32) * scale, f32, i32)


def quantized(x: Node, scale: float, zero: int, dtype: DType) -> Node:
    """round(x / scale) + zero, saturated."""
    low, high = (-128, 127) if dtype == i8 else (0, 255)

    def element(e: Expr) -> Expr:
        whole = minimum(maximum(call("round", e / scale), -300.0), 300.0)
        return cast(minimum(maximum(cast(whole, i32) + zero, low), high), dtype)

    return elementwise("quantize", [x], element, dtype)


def swish(q: Node, dtype: DType) -> Node:
    """x * sigmoid(x), each result quantised, as exporters write it."""
    x = dequantized(q, 0.05, 3)
    gate = dequantized(quantized(math_function("sigmoid", x), 1 / 256, 0, dtype), 1 / 256, 0)
    return quantized(mul(x, gate), 0.04, 10, dtype)


def looked_up(graph: Graph) -> tuple[Graph, list[str]]:
    """The graph after the pass, and the operators between its inputs and its results."""
    made = TabulateBytes().run(graph)
    return made, [n.op for n in made.nodes() if n.op != "input"]


@pytest.mark.parametrize("source", [u8, i8])
@pytest.mark.parametrize("result", [u8, i8])
def test_a_chain_of_quantised_operators_is_one_table(source: DType, result: DType) -> None:
    (q,) = inputs = given((SHAPE, source))
    graph = Graph(inputs, [swish(q, result)])
    made, ops = looked_up(graph)
    assert ops == ["byte_table", "look_up"]
    array = np.arange(256).astype(np.uint8).view(np.int8 if source == i8 else np.uint8).reshape(SHAPE)
    np.testing.assert_array_equal(run(made, [array])[0], run(graph, [array])[0])


def test_the_second_of_two_chains_reads_the_first_byte() -> None:
    (q,) = inputs = given((SHAPE, u8))
    first = swish(q, u8)
    graph = Graph(inputs, [first, swish(first, i8)])
    made, _ = looked_up(graph)
    assert [n.inputs[0] for n in made.outputs if n is not None] == [q, q]
    array = np.random.default_rng().integers(0, 256, SHAPE).astype(np.uint8)
    for got, want in zip(run(made, [array]), run(graph, [array]), strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_scale_in_memory_is_read_by_the_table() -> None:
    q, scale = inputs = given((SHAPE, u8), ((1, 1), f32))
    graph = Graph(inputs, [quantized(mul(dequantized(q, 0.1, 0), scale), 0.2, 0, u8)], {}, frozenset({1}))
    made, ops = looked_up(graph)
    assert ops == ["byte_table", "look_up"]
    arrays = [np.random.default_rng().integers(0, 256, SHAPE).astype(np.uint8), np.array([[0.7]], np.float32)]
    np.testing.assert_array_equal(run(made, arrays)[0], run(graph, arrays)[0])


def test_other_functions_stay() -> None:
    """Of two tensors, of floats, of a scale that changes or differs by position, of moved elements; to other types."""
    p, q, x, scale, row = inputs = given(
        (SHAPE, u8), (SHAPE, u8), (SHAPE, f32), ((1, 1), f32), ((1, 64), f32)
    )  # fmt: skip
    wide = dequantized(p, 0.1, 0)
    outputs = [
        quantized(add(wide, dequantized(q, 0.1, 0)), 0.2, 0, u8),
        quantized(x, 0.2, 0, u8),
        quantized(mul(wide, scale), 0.2, 0, u8),
        quantized(mul(wide, row), 0.2, 0, u8),
        quantized(permute(wide, (1, 0)), 0.2, 0, u8),
        math_function("sigmoid", wide),
        to_dtype(p, i8),
    ]
    for out in outputs:
        graph = Graph(inputs, [out], {}, frozenset({4}))
        assert TabulateBytes().run(graph).outputs[0] is out


def test_a_choice_between_equal_elements_becomes_the_element() -> None:
    """The expression is simplified to a load of the table's byte while it is built."""
    (q,) = inputs = given((SHAPE, u8))
    other = quantized(dequantized(q, 0.1, 0), 0.2, 0, u8)
    for out in (where(to_dtype(q, boolean), q, q), where(to_dtype(q, boolean), other, other)):
        graph = Graph(inputs, [out])
        values = [np.random.default_rng().integers(0, 256, SHAPE).astype(np.uint8)]
        np.testing.assert_array_equal(run(TabulateBytes().run(graph), values)[0], run(graph, values)[0])
