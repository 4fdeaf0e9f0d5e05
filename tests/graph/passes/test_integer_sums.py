"""Products of dequantised tensors are computed with integers: the sums are exact, and only the scales round."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from taskmap.graph.analysis.classify import definition
from taskmap.graph.build import elementwise
from taskmap.graph.nodes import Graph, InputNode, Node
from taskmap.graph.ops.arithmetic import mul
from taskmap.graph.ops.convolution import convolution
from taskmap.graph.ops.gather import index_select
from taskmap.graph.ops.matmul import mm
from taskmap.graph.ops.pointwise import pointwise, to_dtype
from taskmap.graph.ops.views import permute, reshape
from taskmap.graph.passes.integer_sums import IntegerSums
from taskmap.graph.reference import run
from taskmap.ir.analysis.contraction import multiplies_bytes
from taskmap.ir.nodes import Binary
from taskmap.ir.types import DType, f32, i8, i32, i64, u8
from taskmap.ir.visit import walk_exprs

Array = NDArray[Any]


def given(*tensors: tuple[tuple[int, ...], DType]) -> list[InputNode]:
    return [InputNode((), shape, dtype, i) for i, (shape, dtype) in enumerate(tensors)]


def dequantised(q: Node, zero: Node | int | None, scale: Node | float, wide: DType = i32) -> Node:
    """(q - zero) * scale, the difference taken in ``wide``."""
    whole = to_dtype(q, wide)
    if zero is not None:
        whole = pointwise("shift", (whole, zero), lambda a, z: a - z, wide, wide)
    return mul(to_dtype(whole, f32), scale)


def rewritten(graph: Graph) -> tuple[Graph, bool]:
    """The graph after the pass, and whether it has a product of integers."""
    made = IntegerSums().run(graph)
    return made, any(n.is_compute and multiplies_bytes(definition(n).body) for n in made.nodes())


def check(graph: Graph, arrays: list[Array], want: Array, expected: bool = True) -> None:
    """The pass applies as ``expected``, and the results are ``want`` to a few roundings."""
    made, integers = rewritten(graph)
    assert integers == expected
    (got,) = run(made, arrays)
    np.testing.assert_allclose(got, want, rtol=4e-7 if expected else 1e-4, atol=1e-6 * np.abs(want).max())


def some(rng: np.random.Generator, dtype: DType, *shape: int) -> Array:
    low = 0 if dtype == u8 else -128
    return rng.integers(low, low + 256, shape).astype(np.uint8 if dtype == u8 else np.int8)


@pytest.mark.parametrize("wide", [i32, i64, f32], ids=str)
@pytest.mark.parametrize("turned", [True, False])
@pytest.mark.parametrize("m", [1, 5])
@pytest.mark.parametrize("signs", [(u8, i8), (i8, i8), (u8, u8)], ids=str)
def test_a_matrix_product(signs: tuple[DType, DType], m: int, turned: bool, wide: DType) -> None:
    rng = np.random.default_rng()
    x, w, step = given(((m, 30), signs[0]), ((7, 30) if turned else (30, 7), signs[1]), ((7,), f32))
    scale = reshape(step, (7, 1)) if turned else step
    weight = dequantised(w, None if signs[1] == i8 else 128, scale, wide)
    out = mm(dequantised(x, 3, 0.25, wide), permute(weight, (1, 0)) if turned else weight)
    a, b = some(rng, signs[0], m, 30), some(rng, signs[1], *((7, 30) if turned else (30, 7)))
    s = rng.random(7, np.float32)
    whole = (b.T if turned else b).astype(np.float64) - (128 if signs[1] == u8 else 0)
    check(Graph([x, w, step], [out]), [a, b, s], (a.astype(np.float64) - 3) * 0.25 @ (whole * s))


@pytest.mark.parametrize("wide", [i32, i64], ids=str)
def test_zero_points_that_are_tensors(wide: DType) -> None:
    """One per row and one per column, of bytes or of integers whose range is not known."""
    rng = np.random.default_rng()
    held = (u8, i8) if wide == i32 else (i64, i64)
    x, w, p, q, s = given(((5, 30), u8), ((30, 7), i8), ((5, 1), held[0]), ((7,), held[1]), ((5, 1), f32))
    out = mm(dequantised(x, p, s, wide), dequantised(w, q, 0.5, wide))
    arrays = [some(rng, u8, 5, 30), some(rng, i8, 30, 7), some(rng, u8, 5, 1), some(rng, i8, 7)]
    a, b, c, d = (array.astype(np.float64) for array in arrays)
    arrays[2:] = [z.astype(np.int64) if wide == i64 else z for z in arrays[2:]]
    arrays.append(rng.random((5, 1), np.float32))
    check(Graph([x, w, p, q, s], [out]), arrays, (a - c) * arrays[4] @ ((b - d) * 0.5))


def test_an_operand_flattened_between_scaling_and_product() -> None:
    rng = np.random.default_rng()
    x, w = given(((2, 3, 20), u8), ((20, 4), i8))
    out = mm(reshape(dequantised(x, 9, 0.125), (6, 20)), dequantised(w, None, 2.0))
    a, b = some(rng, u8, 2, 3, 20), some(rng, i8, 20, 4)
    check(Graph([x, w], [out]), [a, b], (a.reshape(6, 20).astype(np.float64) - 9) * 0.125 @ (b * 2.0))


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("zero", [None, 7, 255])
@pytest.mark.parametrize(("batch", "window"), [(2, 3), (1, 3), (1, 1)], ids=str)
def test_a_convolution(batch: int, window: int, zero: int | None, shifted: bool) -> None:
    """Also with axes of size 1, at which tensors are read at 0, whatever the index."""
    rng, border = np.random.default_rng(), window // 2
    x, w, step, points = given(((batch, 6, 7, 5), u8), ((4, 6, window, window), i8), ((4,), f32), ((4,), i64))
    weight = dequantised(w, reshape(points, (4, 1, 1, 1)) if shifted else None, reshape(step, (4, 1, 1, 1)), i64)
    out = convolution(dequantised(x, zero, 0.5), weight, (2, 1), (border, border), (1, 1))
    a, b, s = some(rng, u8, batch, 6, 7, 5), some(rng, i8, 4, 6, window, window), rng.random(4, np.float32)
    image = np.pad((a.astype(np.float64) - (zero or 0)) * 0.5, ((0, 0), (0, 0), (border, border), (border, border)))
    windows = np.lib.stride_tricks.sliding_window_view(image, (window, window), axis=(2, 3))[:, :, ::2]
    q = np.array([0, 3, -128, 127]) * shifted
    filters = (b - q.reshape(4, 1, 1, 1)) * s.reshape(4, 1, 1, 1).astype(np.float64)
    check(Graph([x, w, step, points], [out]), [a, b, s, q], np.einsum("nchwij,ocij->nohw", windows, filters))


def test_products_that_stay_floats() -> None:
    rng = np.random.default_rng()
    x, w, s = given(((3, 20), u8), ((20, 4), i8), ((20, 1), f32))
    a, b, t = some(rng, u8, 3, 20), some(rng, i8, 20, 4), rng.random((20, 1), np.float32)
    by_term = mm(dequantised(x, None, 1.0), dequantised(w, None, s))  # the scale differs from term to term
    check(Graph([x, w, s], [by_term]), [a, b, t], a @ (b * t.astype(np.float64)), expected=False)
    curved = elementwise("square", [dequantised(x, None, 1.0)], lambda e: e * e, f32)
    product = mm(curved, dequantised(w, None, 1.0))
    check(Graph([x, w], [product]), [a, b], np.square(a * 1.0) @ (b * 1.0), expected=False)


def test_rows_picked_by_a_table() -> None:
    """The indices of a gather are loads as well, of no operand of the element that they lead to."""
    rng = np.random.default_rng()
    x, rows = given(((3, 20), i8), ((5,), i64))
    taken = index_select(x, 0, rows)
    value = dequantised(taken, None, 1.0)
    made, _ = rewritten(Graph([x, rows], [mm(value, permute(value, (1, 0)))]))
    a, picked = some(rng, i8, 3, 20), np.array([0, 2, 1, 1, 0])
    wanted = a[picked].astype(np.float64)
    np.testing.assert_array_equal(run(made, [a, picked])[0], wanted @ wanted.T)


def test_sums_that_i32_may_not_hold_stay_floats() -> None:
    x, w = given(((1, 33_026), u8), ((33_026, 1), i8))
    assert not rewritten(Graph([x, w], [mm(dequantised(x, 1, 1.0), dequantised(w, 1, 1.0))]))[1]


def test_integers_that_were_bytes_are_multiplied_as_bytes() -> None:
    """Sums of i32 wrap, so any number of terms may be added."""
    rng = np.random.default_rng()
    x, w = given(((3, 40_000), u8), ((40_000, 2), i8))
    shifted = pointwise("shift", (to_dtype(x, i32), 17), lambda a, z: a - z, i32, i32)
    made, integers = rewritten(Graph([x, w], [mm(shifted, to_dtype(w, i32))]))
    assert integers
    a, b = some(rng, u8, 3, 40_000), some(rng, i8, 40_000, 2)
    np.testing.assert_array_equal(run(made, [a, b])[0], (a.astype(np.int64) - 17) @ b.astype(np.int64))


def test_a_graph_without_bytes_is_not_searched() -> None:
    x, w = given(((4, 8), f32), ((8, 4), f32))
    graph = Graph([x, w], [mm(x, w)])
    assert IntegerSums().run(graph) is graph


def test_corrections_and_scales_of_constants_are_computed_once() -> None:
    """The operator that ends a product multiplies once, by a scale of the column; what its sums lose is one tensor."""
    x, w, scales = inputs = given(((6, 20), u8), ((20, 9), i8), ((9,), f32))
    product = mm(dequantised(x, 3, 0.5), dequantised(w, None, scales))
    graph = Graph([*inputs], [product], constant_inputs=frozenset([1, 2]))
    made, integers = rewritten(graph)
    assert integers
    (out,) = made.outputs
    assert out is not None
    once = made.computed_once()
    assert sum(n.op == "constant_part" for n in made.nodes()) == 2
    assert {n.op for n in out.inputs} == {"integer_product", "constant_part"}
    assert all(n in once for n in out.inputs if n.op == "constant_part")
    assert [e.op for e in walk_exprs(definition(out).body) if isinstance(e, Binary)].count("mul") == 1
    rng = np.random.default_rng()
    arrays = [some(rng, u8, 6, 20), some(rng, i8, 20, 9), rng.uniform(0.1, 1, 9).astype(np.float32)]
    want = (arrays[0].astype(np.float64) - 3) * 0.5 @ (arrays[1].astype(np.float64) * arrays[2])
    check(graph, arrays, want)


def test_scales_that_are_inputs_stay_where_they_are() -> None:
    """Computed on every call, in the operator that ends the product."""
    x, w, scales = inputs = given(((6, 20), u8), ((20, 9), i8), ((9,), f32))
    made, integers = rewritten(Graph([*inputs], [mm(dequantised(x, 3, 0.5), dequantised(w, None, scales))]))
    assert integers
    assert not any(n.op == "constant_part" for n in made.nodes())
