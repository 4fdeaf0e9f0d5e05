"""Sums of narrow floats are rounded once, after their bias, and values that are limited after the limit."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from taskmap.graph.nodes import Graph, InputNode, Node
from taskmap.graph.ops.activations import hardtanh, relu
from taskmap.graph.ops.arithmetic import add, mul
from taskmap.graph.ops.convolution import add_channel_bias, convolution
from taskmap.graph.ops.matmul import mm
from taskmap.graph.ops.pointwise import pointwise
from taskmap.graph.passes.biases import AddBiases
from taskmap.graph.reference import run
from taskmap.ir.construct import static_size
from taskmap.ir.interp.definitions import convert
from taskmap.ir.types import DType, bf16, f16, f32


def given(dtype: DType, *shapes: tuple[int, ...]) -> list[InputNode]:
    return [InputNode((), shape, dtype, i) for i, shape in enumerate(shapes)]


def products(graph: Graph) -> list[Node]:
    return [n for n in graph.nodes() if n.op in ("mm", "convolution")]


@pytest.mark.parametrize("dtype", [bf16, f16])
@pytest.mark.parametrize("first", [True, False])
def test_a_product_with_a_bias(dtype: DType, first: bool) -> None:
    x, w, bias = inputs = given(dtype, (32, 40), (40, 24), (24,))
    total = mm(x, w)
    graph = Graph(inputs, [add(total, bias) if first else add(bias, total)])
    made = AddBiases().run(graph)
    (product,) = products(made)
    assert product.dtype == f32
    (out,) = made.outputs
    assert out is not None
    assert out.dtype == dtype
    rng = np.random.default_rng()
    arrays = [
        convert(rng.standard_normal([static_size(d) or 0 for d in n.shape]).astype(np.float32), dtype) for n in inputs
    ]
    wide = [a.astype(np.float64) for a in arrays]
    exact = wide[0] @ wide[1] + wide[2]
    once, twice = (np.abs(run(g, arrays)[0].astype(np.float64) - exact).sum() for g in (made, graph))
    assert once < 0.9 * twice


def test_a_convolution_with_a_bias() -> None:
    x, w, bias = inputs = given(bf16, (1, 4, 6, 6), (5, 4, 3, 3), (5,))
    graph = Graph(inputs, [add_channel_bias(convolution(x, w, [1], [0], [1]), bias)])
    assert [n.dtype for n in products(AddBiases().run(graph))] == [f32]


@pytest.mark.parametrize("limit", [relu, hardtanh])
def test_a_limit_after_other_operators(limit: Callable[[Node], Node]) -> None:
    """The sum, its normalisation, and what is added to that are each rounded once, with the same result."""
    x, w, scale, rest = inputs = given(bf16, (1, 4, 6, 6), (5, 4, 3, 3), (5, 1, 1), (1, 5, 4, 4))
    total = convolution(x, w, [1], [0], [1])
    normal = pointwise("batch_norm", (total, scale), lambda a, s: a * s)
    graph = Graph(inputs, [limit(add(normal, rest))])
    made = AddBiases().run(graph)
    assert [n.dtype for n in made.nodes() if n.op in ("convolution", "batch_norm", "add")] == [f32, bf16, f32]
    alone = Graph(inputs, [limit(normal)])
    assert {n.dtype for n in AddBiases().run(alone).nodes() if n.op in ("convolution", "batch_norm")} == {f32}
    y, z = pair = given(bf16, (64, 64), (64, 64))
    added = Graph(pair, [limit(add(y, z))])
    arrays = [convert(np.random.default_rng().standard_normal((64, 64)).astype(np.float32), bf16) for _ in pair]
    np.testing.assert_array_equal(run(AddBiases().run(added), arrays)[0], run(added, arrays)[0])


def test_a_limited_value_with_another_reader_stays_rounded() -> None:
    x, y = inputs = given(bf16, (8, 8), (8, 8))
    total = add(x, y)
    graph = Graph(inputs, [mul(relu(total), total)])
    assert AddBiases().run(graph).outputs[0] is graph.outputs[0]


def test_sums_that_are_seen_stay_rounded() -> None:
    """Sums that are results or have other readers, sums to which a matrix is added, and sums of f32."""
    x, w, bias, other = inputs = given(bf16, (3, 40), (40, 5), (5,), (3, 5))
    total = mm(x, w)
    cases: list[list[Node | None]] = [
        [add(total, bias), total],
        [add(total, bias), mul(total, 2.0)],
        [add(total, other)],
    ]
    for outputs in cases:
        assert [n.dtype for n in products(AddBiases().run(Graph(inputs, outputs)))] == [bf16]
    wide = given(f32, (3, 40), (40, 5), (5,))
    graph = Graph(wide, [add(mm(wide[0], wide[1]), wide[2])])
    assert AddBiases().run(graph).outputs[0] is graph.outputs[0]
