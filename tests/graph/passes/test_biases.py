"""Sums of narrow floats are rounded once, after their bias."""

from __future__ import annotations

import numpy as np
import pytest

from taskmap.graph.nodes import Graph, InputNode, Node
from taskmap.graph.ops.arithmetic import add, mul
from taskmap.graph.ops.convolution import add_channel_bias, convolution
from taskmap.graph.ops.matmul import mm
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
