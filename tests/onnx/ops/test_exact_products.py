"""Products of eight-bit integers are exact for any length, even at the ends of their range."""

from __future__ import annotations

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
