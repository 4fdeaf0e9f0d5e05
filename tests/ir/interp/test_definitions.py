"""The numpy meaning of compute definitions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from taskmap.ir.construct import call, cast, compare, const, maximum, minimum, reduce, select
from taskmap.ir.errors import GraphError, IndexOutOfRangeError, VerifyError
from taskmap.ir.interp.definitions import evaluate, round_bf16, size_of
from taskmap.ir.nodes import Expr, Var
from taskmap.ir.task import Compute, compute, formal
from taskmap.ir.types import bf16, f16, f32, f64, i8, i64, u8

RNG = np.random.default_rng(3)


def matmul(m: int, n: int, k: int) -> Compute:
    a, b = formal("a", (m, k), f32), formal("b", (k, n), f32)

    def element(i: Expr, j: Expr) -> Expr:
        r = Var("r")
        return reduce("sum", [(r, k)], a[i, r] * b[r, j])

    return compute("mm", [a, b], (m, n), element)


@given(st.integers(1, 7), st.integers(1, 7), st.integers(1, 7))
def test_matmul(m: int, n: int, k: int) -> None:
    a, b = RNG.normal(size=(m, k)).astype(np.float32), RNG.normal(size=(k, n)).astype(np.float32)
    got = evaluate(matmul(m, n, k), [a, b])
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, a.astype(np.float64) @ b, rtol=1e-6, atol=1e-6)


def test_a_sum_of_products_over_an_axis_of_one_or_neither_factor() -> None:
    a, b = formal("a", (3, 4), f64), formal("b", (3,), f64)
    x, y = RNG.normal(size=(3, 4)), RNG.normal(size=3)
    r, s = Var("r"), Var("s")
    one = compute("one", [a, b], (3,), lambda i: reduce("sum", [(r, 4)], a[i, r] * b[i]))
    np.testing.assert_allclose(evaluate(one, [x, y]), x.sum(1) * y)
    none = compute("none", [a, b], (3,), lambda i: reduce("sum", [(r, 4), (s, 5)], b[i] * b[i]))
    np.testing.assert_allclose(evaluate(none, [x, y]), 20 * y * y)


def test_indices_out_of_bounds_are_noticed() -> None:
    a = formal("a", (4,), f32)
    shifted = compute("shift", [a], (4,), lambda i: a[i + 1])
    with pytest.raises(VerifyError, match="out of bounds"):
        evaluate(shifted, [np.zeros(4, np.float32)])
    held = compute("held", [a], (4,), lambda i: a[minimum(i + 1, 3)])
    np.testing.assert_array_equal(evaluate(held, [np.arange(4, dtype=np.float32)]), [1, 2, 3, 3])
    masked = compute("masked", [a], (4,), lambda i: select(compare("lt", i, 3), a[i + 1], 0.0))
    with pytest.raises(VerifyError):
        evaluate(masked, [np.zeros(4, np.float32)])


def test_positions_from_data() -> None:
    a, i = formal("a", (5,), f32), formal("i", (2,), i64)
    gather = compute("gather", [a, i], (2,), lambda k: a[call("checked_index", i[k], const(5, i64), dtype=i64)])
    x = np.arange(5, dtype=np.float32)
    np.testing.assert_array_equal(evaluate(gather, [x, np.array([-1, 2])]), [4, 2])
    with pytest.raises(IndexOutOfRangeError):
        evaluate(gather, [x, np.array([0, 5])])


@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min", "any", "all", "argmax", "argmin"])
def test_reductions(kind: str) -> None:
    x = RNG.normal(size=(3, 5)).astype(np.float32)
    x[1, 2], x[2, 0], x[2, 3] = np.nan, 7, 7
    truth = kind in ("any", "all")
    a, r = formal("a", (3, 5), f32), Var("r")
    node = compute(kind, [a], (3,), lambda i: reduce(kind, [(r, 5)], a[i, r] > 0.5 if truth else a[i, r]))
    want = getattr(np, kind)(x > 0.5 if truth else x.astype(np.float64), axis=1)
    np.testing.assert_allclose(evaluate(node, [x]), want, rtol=1e-6)


def test_sums_of_narrow_integers_wrap_in_their_type() -> None:
    a, r = formal("a", (3,), i8), Var("r")
    node = compute("sum", [a], (), lambda: reduce("sum", [(r, 3)], a[r]))
    assert evaluate(node, [np.array([100, 100, 1], np.int8)]) == np.int8(-55)


def test_symbolic_sizes() -> None:
    n, r = Var("n"), Var("r")
    a = formal("a", (n, 2), f32)
    mean = compute("mean", [a], (2,), lambda j: reduce("sum", [(r, n)], a[r, j]) / cast(n, f32))
    x = RNG.normal(size=(7, 2)).astype(np.float32)
    np.testing.assert_allclose(evaluate(mean, [x], {n: 7}), x.mean(0), rtol=1e-5)
    assert size_of(maximum(n * 2 - 1, 3), {n: 7}) == 13
    with pytest.raises(GraphError, match="shape"):
        evaluate(mean, [x], {n: 6})
    with pytest.raises(VerifyError, match="n"):
        size_of(n, {})


def test_a_wrong_number_of_tensors_is_refused() -> None:
    with pytest.raises(GraphError, match="takes 2 tensors"):
        evaluate(matmul(2, 2, 2), [np.zeros((2, 2), np.float32)])


def test_bf16_is_rounded_as_torch_does() -> None:
    special = [np.inf, -np.inf, np.nan, 0.0, 1 + 2**-8, 1 + 3 * 2**-8]
    x = np.concatenate([RNG.normal(size=1000), special]).astype(np.float32)
    want = torch.from_numpy(x).bfloat16().float().numpy()
    np.testing.assert_array_equal(round_bf16(x), want)


def test_half_types_are_rounded_at_casts_only() -> None:
    for dtype in (f16, bf16):
        a = formal("a", (64,), dtype)
        node = compute("f", [a], (64,), lambda i, a=a: cast(a[i], f32) * 3 + 1, dtype)
        x = torch.randn(64).to(torch.float16 if dtype == f16 else torch.bfloat16)
        got = evaluate(node, [x.numpy() if dtype == f16 else x.float().numpy()])
        torch.testing.assert_close(torch.from_numpy(got).to(x.dtype), (x.float() * 3 + 1).to(x.dtype), rtol=0, atol=0)


def test_integers_wrap() -> None:
    a = formal("a", (2,), u8)
    node = compute("add", [a], (2,), lambda i: a[i] + a[i])
    np.testing.assert_array_equal(evaluate(node, [np.array([200, 3], np.uint8)]), [144, 6])
