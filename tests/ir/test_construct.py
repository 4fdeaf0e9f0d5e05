"""Constructors fold what changes no value, and only that."""

from __future__ import annotations

import numpy as np
import pytest

from taskmap.ir.construct import cast
from taskmap.ir.interp.definitions import convert
from taskmap.ir.nodes import Cast, Var
from taskmap.ir.types import DType, bf16, e4m3, f16, f32, f64, i8, i16, i32, u8

BYTES = {i8: np.arange(-128, 128).astype(np.int8), u8: np.arange(256).astype(np.uint8)}


@pytest.mark.parametrize("wide", [f32, f64], ids=str)
@pytest.mark.parametrize("middle", [bf16, f16], ids=str)
@pytest.mark.parametrize("byte", BYTES, ids=str)
def test_a_byte_becomes_a_wide_float_in_one_conversion(byte: DType, middle: DType, wide: DType) -> None:
    x = Var("x", byte)
    assert cast(cast(x, middle), wide) == Cast(x, wide, 1)
    values = BYTES[byte]
    np.testing.assert_array_equal(convert(convert(values, middle), wide), convert(values, wide))


@pytest.mark.parametrize(
    ("of", "middle", "to"),
    [(i16, bf16, f32), (i32, f16, f32), (f32, bf16, f32), (i8, bf16, i32), (i8, bf16, f16), (i32, f32, f64)],
)
def test_conversions_that_may_round_stay(of: DType, middle: DType, to: DType) -> None:
    x = Var("x", of)
    assert cast(cast(x, middle), to) == Cast(Cast(x, middle, 1), to, 1)


def test_a_byte_as_a_float_of_eight_bits_is_rounded() -> None:
    x = Var("x", i8)
    assert cast(cast(x, e4m3), f32) == Cast(cast(x, e4m3), f32, 1)
