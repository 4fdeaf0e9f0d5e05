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
