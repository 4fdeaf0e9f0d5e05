"""Products of bytes become products of unsigned by signed bytes, and corrections, with the same results."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from taskmap.graph.analysis.classify import definition
from taskmap.graph.nodes import Graph, InputNode
from taskmap.graph.ops.matmul import bmm, mm
from taskmap.graph.passes.byte_products import multiply_unsigned_by_signed, with_terms
from taskmap.graph.passes.weight_packing import PackWeights
from taskmap.graph.reference import run
from taskmap.ir.analysis.contraction import byte_factor, find_contraction
from taskmap.ir.construct import static_size
from taskmap.ir.target import cpu_target
from taskmap.ir.types import DType, i8, i32, u8
from taskmap.schedules import packed_together

Array = NDArray[Any]


def given(*tensors: tuple[tuple[int, ...], DType]) -> list[InputNode]:
    return [InputNode((), shape, dtype, i) for i, (shape, dtype) in enumerate(tensors)]


def some(dtype: DType, *shape: int) -> Array:
    """Bytes of the whole range, the ends of it more often."""
    rng = np.random.default_rng()
    drawn = rng.choice([0, 255, *rng.integers(0, 256, 4)], shape).astype(np.uint8)
    return drawn if dtype == u8 else drawn.view(np.int8)


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("a", [u8, i8], ids=str)
@pytest.mark.parametrize("b", [u8, i8], ids=str)
def test_the_results_are_the_same(a: DType, b: DType, batch: bool) -> None:
    outer = (3,) if batch else ()
    inputs = given(((*outer, 5, 300), a), ((*outer, 300, 7), b))
    node = (bmm if batch else mm)(inputs[0], inputs[1], i32)
    made = multiply_unsigned_by_signed(node)
    assert made is not None
    product, terms = made
    assert len(terms) == (a == i8) + (b == u8)
    c = find_contraction(definition(product).axes, product.shape, definition(product).body)
    assert c is not None
    assert (byte_factor(c.a), byte_factor(c.b)) == (u8, i8)
    arrays = [some(n.dtype, *(static_size(d) or 0 for d in n.shape)) for n in inputs]
    (got,) = run(Graph(inputs, [with_terms(node, product, terms)]), arrays)
    np.testing.assert_array_equal(got, arrays[0].astype(np.int64) @ arrays[1].astype(np.int64))


@pytest.mark.parametrize(("a", "b", "rows", "corrects"), [
    (i8, i8, 16, 1),
    (u8, u8, 16, 1),
    (i8, u8, 16, 1),
    (u8, i8, 16, 0),  # as instructions take them
    (i8, i8, 15, 0),  # too few rows for sums of columns on every call
])  # fmt: skip
def test_a_batch_that_is_not_packed_has_these_signs(a: DType, b: DType, rows: int, corrects: int) -> None:
    target = cpu_target("avx512", 2, features=["avx512_vnni"])
    inputs = given(((3, rows, 37), a), ((3, 37, 24), b))
    pack = PackWeights(lambda *sizes, **more: 16, together=partial(packed_together, target=target))
    made = pack.run(Graph(inputs, [bmm(inputs[0], inputs[1], i32)]))
    assert [n.op for n in made.nodes()].count("correct") == corrects
    assert not any(n.op == "pack_groups" for n in made.nodes())
    arrays = [some(n.dtype, *(static_size(d) or 0 for d in n.shape)) for n in inputs]
    (got,) = run(made, arrays)
    np.testing.assert_array_equal(got, arrays[0].astype(np.int64) @ arrays[1].astype(np.int64))


def test_a_tensor_times_itself() -> None:
    (x,) = given(((6, 6), i8))
    node = mm(x, x, i32)
    made = multiply_unsigned_by_signed(node)
    assert made is not None
    values = some(i8, 6, 6)
    (got,) = run(Graph([x], [with_terms(node, *made)]), [values])
    np.testing.assert_array_equal(got, values.astype(np.int64) @ values.astype(np.int64))
