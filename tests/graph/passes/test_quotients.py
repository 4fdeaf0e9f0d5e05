"""Quotients rounded to small integers without a division: the same integers for every number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from taskmap.graph.build import elementwise
from taskmap.graph.nodes import Graph, InputNode
from taskmap.graph.passes.quotients import MultiplyByReciprocals, corrected_reciprocal
from taskmap.graph.reference import run
from taskmap.ir.construct import call, cast, const, maximum, minimum
from taskmap.ir.nodes import Binary, Expr
from taskmap.ir.types import f32, i32
from taskmap.ir.visit import walk_exprs


def quantized(scale: float, bound: float = 256.0) -> Graph:
    """round(x / scale), limited, as an integer."""
    x = InputNode((), (4096,), f32, 0)

    def element(e: Expr) -> Expr:
        return cast(maximum(minimum(call("round", e / const(scale, f32)), bound), -bound), i32)

    return Graph([x], [elementwise("quantize", [x], element, i32)])


def divides(graph: Graph) -> bool:
    (out,) = graph.outputs
    assert out is not None
    assert out.define is not None
    return any(isinstance(e, Binary) and e.op == "div" for e in walk_exprs(out.define.body))


def limited(values: NDArray[Any]) -> NDArray[Any]:
    """Integers as bytes see them: those beyond the bound are alike."""
    return np.asarray(np.clip(values, -256, 256))


def test_the_integers_are_those_of_the_quotients() -> None:
    """Random scales; floats around every half, of any size, infinities."""
    rng = np.random.default_rng()
    for scale in np.exp(rng.uniform(-8, 2, 20)).astype(np.float32):
        graph = quantized(float(scale))
        made = MultiplyByReciprocals().run(graph)
        assert divides(made) == (corrected_reciprocal(float(scale)) is None)
        halves = (np.arange(-300, 300) + 0.5).astype(np.float32) * scale
        spread = [np.nextafter(halves, np.float32(np.inf)), halves, np.nextafter(halves, np.float32(-np.inf))]
        more = [rng.standard_normal(2000) * 100 * scale, np.array([0.0, -0.0, np.inf, -np.inf, 1e38, -1e38, 1e-42])]
        x = np.resize(np.concatenate([*spread, *more]).astype(np.float32), 4096)
        with np.errstate(all="ignore"):
            got, want = (run(g, [x])[0] for g in (made, graph))
        np.testing.assert_array_equal(limited(got), limited(want))


def test_most_scales_have_a_reciprocal() -> None:
    scales = np.exp(np.random.default_rng().uniform(-8, 2, 200)).astype(np.float32)
    assert sum(corrected_reciprocal(float(s)) is not None for s in scales) > 100


@pytest.mark.parametrize("scale", [0.0, -0.5, 1e-30, 1e30, float("inf"), float("nan")])
def test_divisors_of_other_kinds_stay(scale: float) -> None:
    assert divides(MultiplyByReciprocals().run(quantized(scale)))


def test_wider_integers_stay() -> None:
    assert divides(MultiplyByReciprocals().run(quantized(0.1, 65536.0)))


def byte(scale: float, zero: int, low: int, high: int) -> Graph:
    """round(x / scale) + zero limited to the integers from low to high, as quantised networks write it."""
    x = InputNode((), (4096,), f32, 0)

    def element(e: Expr) -> Expr:
        near = cast(maximum(minimum(call("round", e / const(scale, f32)), 256.0), -256.0), i32)
        return minimum(maximum(maximum(near, -256) + zero, low), high)

    return Graph([x], [elementwise("quantize", [x], element, i32)])


def limits_of_integers(graph: Graph) -> int:
    (out,) = graph.outputs
    assert out is not None
    assert out.define is not None
    return sum(isinstance(e, Binary) and e.op in ("min", "max") and e.dtype == i32 for e in walk_exprs(out.define.body))


@pytest.mark.parametrize(("low", "high"), [(-128, 127), (0, 255), (-8, 7)])
def test_limits_of_bytes_are_limits_of_numbers(low: int, high: int) -> None:
    """The same integers for every number, NaN and infinities included, without any limit on integers."""
    rng = np.random.default_rng()
    for scale in np.exp(rng.uniform(-6, 2, 12)).astype(np.float32):
        zero = int(rng.integers(low, high + 1))
        graph = byte(float(scale), zero, low, high)
        made = MultiplyByReciprocals().run(graph)
        if corrected_reciprocal(float(scale)) is not None:
            assert limits_of_integers(made) == 0
        ends = (np.arange(-300, 300) + 0.5).astype(np.float32) * scale
        spread = [np.nextafter(ends, np.float32(np.inf)), ends, np.nextafter(ends, np.float32(-np.inf))]
        more = [rng.standard_normal(2000) * 100 * scale, [0.0, -0.0, np.inf, -np.inf, np.nan, 1e38, -1e38, 1e-42]]
        x = np.resize(np.concatenate([*spread, *map(np.asarray, more)]).astype(np.float32), 4096)
        with np.errstate(all="ignore"):
            got, want = (run(g, [x])[0] for g in (made, graph))
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(("zero", "low", "high"), [(200, -128, 127), (-200, 0, 255), (0, -1000, 1000)])
def test_limits_beyond_nine_bits_stay(zero: int, low: int, high: int) -> None:
    made = MultiplyByReciprocals().run(byte(0.125, zero, low, high))
    assert limits_of_integers(made) == 3
    assert not divides(made)
