"""Weights computed from constant bytes move into products of few rows, which read fewer bytes and round no weight."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from taskmap.graph.analysis.classify import definition
from taskmap.graph.build import elementwise
from taskmap.graph.nodes import Graph, InputNode, Node
from taskmap.graph.ops.arithmetic import mul, sub
from taskmap.graph.ops.join import stack
from taskmap.graph.ops.matmul import mm
from taskmap.graph.ops.pointwise import to_dtype
from taskmap.graph.ops.views import permute, reshape
from taskmap.graph.passes.narrow_weights import NarrowWeights
from taskmap.graph.reference import run
from taskmap.ir.construct import binary, const, static_size
from taskmap.ir.interp.definitions import convert
from taskmap.ir.nodes import Call, Dim, Reduce
from taskmap.ir.types import DType, bf16, f16, f32, i8, i16, i32, u8
from taskmap.ir.visit import walk_exprs

Array = NDArray[Any]
N, K = 96, 128


def given(*tensors: tuple[tuple[int, ...], DType]) -> list[InputNode]:
    return [InputNode((), shape, dtype, i) for i, (shape, dtype) in enumerate(tensors)]


def width(m: Dim, n: Dim, dtype: DType, **more: object) -> int:
    return 64


def narrowed(inputs: list[InputNode], out: Node, fused: bool = False, pairs: bool = False) -> tuple[Graph, Graph, int]:
    """The graph before and after, and the bytes of constants that the product reads afterwards."""
    graph = Graph(inputs, [out], {}, frozenset(range(1, len(inputs))))
    made = NarrowWeights(width, fused, pairs).run(graph)
    product = made.outputs[0]
    assert product is not None
    return graph, made, sum(size(n) * n.dtype.bytes for n in product.inputs[1:])


def size(node: Node) -> int:
    return int(np.prod([static_size(n) or 0 for n in node.shape]))


def by_channel(dtype: DType) -> tuple[list[InputNode], Node]:
    """Bytes with a scale for each column."""
    x, q, s = inputs = given(((2, K), dtype), ((N, K), i8), ((N, 1), dtype))
    return inputs, mm(x, permute(mul(to_dtype(q, dtype), s), (1, 0)))


def by_group(dtype: DType) -> tuple[list[InputNode], Node]:
    """Two numbers in a byte, with a scale and a zero point for each 32 of a column."""
    x, q, s, z = inputs = given(((2, K), dtype), ((N, K // 2), u8), ((N, K // 32, 1), dtype), ((N, K // 32, 1), dtype))
    low = elementwise("and", [q], lambda e: binary("and", e, const(15, u8)), u8)
    high = elementwise("shr", [q], lambda e: binary("shr", e, const(4, u8)), u8)
    parts = reshape(stack([low, high], 2), (N, K // 32, 32))
    return inputs, mm(x, permute(reshape(mul(sub(to_dtype(parts, dtype), z), s), (N, K)), (1, 0)))


def arrays_for(inputs: list[Node]) -> list[Array]:
    rng = np.random.default_rng()
    made = []
    for node in inputs:
        shape = tuple(static_size(n) or 0 for n in node.shape)
        if node.dtype.is_float:
            made.append(rng.integers(-64, 64, shape).astype(np.float32) / 16)
        else:
            made.append(rng.integers(0, 256, shape).astype(np.uint8).view(np.uint8 if node.dtype == u8 else np.int8))
    return made


def outputs(graph: Graph, arrays: list[Array]) -> Array:
    found: Array = run(graph, arrays)[0]
    return found


@pytest.mark.parametrize(("build", "most"), [(by_channel, 1.3), (by_group, 0.9)])
def test_values_are_the_same(build: Any, most: float) -> None:
    inputs, out = build(f32)
    graph, made, read = narrowed(inputs, out)
    assert read <= most * N * K * 4 / 3
    arrays = arrays_for(inputs)
    np.testing.assert_array_equal(outputs(made, arrays), outputs(graph, arrays))


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("dtype", [bf16, f16], ids=str)
@pytest.mark.parametrize("build", [by_channel, by_group])
def test_of_narrow_floats_only_the_sum_is_rounded(build: Any, dtype: DType, fused: bool) -> None:
    inputs, out = build(dtype)
    graph, made, _ = narrowed(inputs, out, fused)
    wide_inputs, wide = build(f32)
    arrays = arrays_for(inputs)  # of few digits: sums are exact if no term is rounded
    exact = outputs(Graph(wide_inputs, [wide], {}, frozenset()), arrays)
    found = outputs(made, arrays)
    np.testing.assert_array_equal(found, convert(exact, dtype))
    assert (outputs(graph, arrays) != found).any() or dtype == f16


@pytest.mark.parametrize(("build", "extents"), [(by_channel, [K]), (by_group, [2, K // 32, 16])])
def test_terms_that_share_elements_have_a_loop_of_their_own(build: Any, extents: list[int]) -> None:
    product = narrowed(*build(bf16))[1].outputs[0]
    assert product is not None
    (total,) = (e for e in walk_exprs(definition(product).body) if isinstance(e, Reduce))
    assert [n for _, n in total.axes] == extents


@pytest.mark.parametrize(
    ("dtype", "fused", "found"), [(bf16, True, 1), (f16, True, 1), (bf16, False, 0), (f32, True, 0)]
)
def test_a_scaled_difference_is_a_multiply_add_where_that_rounds_no_more(dtype: DType, fused: bool, found: int) -> None:
    product = narrowed(*by_group(dtype), fused)[1].outputs[0]
    assert product is not None
    assert sum(isinstance(e, Call) for e in walk_exprs(definition(product).body)) == found


def signed_by_group(dtype: DType) -> tuple[list[InputNode], Node]:
    """Numbers from -8 to 7, with a scale for each 32 of a column."""
    x, q, s = inputs = given(((2, K), dtype), ((N, K // 2), u8), ((N, K // 32, 1), dtype))
    low = elementwise("and", [q], lambda e: binary("and", e, const(15, u8)), u8)
    high = elementwise("shr", [q], lambda e: binary("shr", e, const(4, u8)), u8)
    parts = reshape(sub(to_dtype(stack([low, high], 2), i32), 8), (N, K // 32, 32))
    return inputs, mm(x, permute(reshape(mul(to_dtype(parts, dtype), s), (N, K)), (1, 0)))


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("build", [by_group, signed_by_group])
def test_four_bits_become_codes_where_pairs_are_multiplied(build: Any, fused: bool) -> None:
    """The same bytes, in words; groups of terms and their places have the only loops; sums are as exact."""
    inputs, out = build(bf16)
    _, made, read = narrowed(inputs, out, fused, pairs=True)
    plain_inputs, plain = build(bf16)
    assert read == narrowed(plain_inputs, plain, fused)[2]
    product = made.outputs[0]
    assert product is not None
    assert [n.dtype for n in product.inputs].count(i16) == 1
    (total,) = (e for e in walk_exprs(definition(product).body) if isinstance(e, Reduce))
    assert [n for _, n in total.axes] == [32, K // 32]
    wide_inputs, wide = build(f32)
    arrays = arrays_for(inputs)
    exact = outputs(Graph(wide_inputs, [wide], {}, frozenset()), arrays)
    np.testing.assert_array_equal(outputs(made, arrays), convert(exact, bf16))


@pytest.mark.parametrize("dtype", [f16, f32], ids=str)
def test_other_types_have_no_codes(dtype: DType) -> None:
    product = narrowed(*by_group(dtype), pairs=True)[1].outputs[0]
    assert product is not None
    assert i16 not in {n.dtype for n in product.inputs}


def test_bytes_are_not_codes() -> None:
    product = narrowed(*by_channel(bf16), pairs=True)[1].outputs[0]
    assert product is not None
    assert i16 not in {n.dtype for n in product.inputs}


def test_products_of_many_rows_keep_their_weights() -> None:
    x, q = given(((64, K), f32), ((K, N), i8))
    graph, made, _ = narrowed([x, q], mm(x, to_dtype(q, f32)))
    assert made.outputs == graph.outputs


def test_weights_that_are_no_narrower_stay() -> None:
    x, w = given(((1, K), f32), ((K, N), f32))
    graph, made, _ = narrowed([x, w], mm(x, mul(w, 2.0)))
    assert made.outputs == graph.outputs
