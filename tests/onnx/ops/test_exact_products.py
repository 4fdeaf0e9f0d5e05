"""Products of eight-bit integers are exact for any length, even at the ends of their range."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from taskmap.onnx.model import load_model
from tests.onnx.rival import Case


@pytest.mark.parametrize("length", [3, 256, 257, 700, 3000])
def test_the_ends_of_the_range(length: int) -> None:
    draw = np.random.default_rng(length)
    a = np.where(draw.random((3, length)) < 0.9, 255, 254).astype(np.uint8)
    b = np.where(draw.random((length, 5)) < 0.9, 0, 1).astype(np.uint8)
    zeros = {"az": np.array(0, np.uint8), "bz": np.array(255, np.uint8)}
    case = Case("MatMulInteger", {"a": a, "b": b, **zeros}, stored=["b", "bz"], domain="")
    (made,) = load_model(case.model())(case.feeds())
    assert made.dtype == np.int32
    np.testing.assert_array_equal(made, a.astype(np.int64) @ (b.astype(np.int64) - 255))


ROWS, COLUMNS = np.array([3, 250, 0], np.uint8), np.array([-128, 0, 5, 127, 1], np.int8)


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize(("az", "bz"), [(None, None), (7, 0), (0, 128), (ROWS, COLUMNS), (200, COLUMNS)])
@pytest.mark.parametrize("signs", ["uu", "ui", "iu", "ii"])
def test_zero_points(signs: str, az: Any, bz: Any, stored: bool) -> None:
    draw = np.random.default_rng()
    a, b = (
        draw.integers(0, 256, shape).astype(np.uint8).view(np.uint8 if sign == "u" else np.int8)
        for sign, shape in zip(signs, ((3, 1100), (1100, 5)), strict=True)
    )
    points = {
        name: None if z is None else np.asarray(z).astype(np.uint8).view(x.dtype)
        for name, z, x in (("az", az, a), ("bz", bz, b))
    }
    case = Case("MatMulInteger", {"a": a, "b": b, **points}, stored=["b", "az", "bz"] if stored else [], domain="")
    (made,) = load_model(case.model())(case.feeds())
    p, q = (0 if z is None else z.astype(np.int64) for z in points.values())
    p = p[:, None] if isinstance(p, np.ndarray) and p.ndim else p
    np.testing.assert_array_equal(made, (a.astype(np.int64) - p) @ (b.astype(np.int64) - q))


SHAPES = [((2, 3, 70), (70, 40)), ((2, 3, 70), (2, 70, 40)), ((70,), (70, 6)), ((4, 70), (70,))]


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_ranks(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    draw = np.random.default_rng()
    a, b = (draw.integers(0, 256, shape).astype(np.uint8) for shape in shapes)
    zeros = {"az": np.array(9, np.uint8), "bz": np.array(140, np.uint8)}
    case = Case("MatMulInteger", {"a": a, "b": b, **zeros}, stored=["b", "az", "bz"], domain="")
    (made,) = load_model(case.model())(case.feeds())
    np.testing.assert_array_equal(made, (a.astype(np.int64) - 9) @ (b.astype(np.int64) - 140))


def test_a_long_sum_that_is_scaled_does_not_overflow() -> None:
    """The sum leaves i32; the scaled result fits a byte."""
    length = 40_000
    a, b = np.full((2, length), 255, np.uint8), np.full((length, 3), 255, np.uint8)
    scale = np.float32(200.0 / (255.0 * 255.0 * length))
    stored = {
        "as": np.float32(1), "az": np.uint8(0), "b": b, "bs": np.float32(1), "bz": np.uint8(0),
        "ys": np.float32(1 / scale), "yz": np.uint8(0),
    }  # fmt: skip
    stored = {name: np.asarray(value) for name, value in stored.items()}
    case = Case("QLinearMatMul", {"a": a, **stored}, stored=list(stored), domain="")
    (made,) = load_model(case.model())(case.feeds())
    np.testing.assert_array_equal(made, np.full((2, 3), 200, np.uint8))
