"""Rounding to the float types of tensor instructions; the values are kept as float32.

tf32: f32 with 10 bits of mantissa, ties away from 0, as cvt.rna.tf32.f32. e4m3 and e5m2: 8-bit floats with subnormals,
ties to even; magnitudes that are too large (infinity included) become the largest finite one, as cvt.rn.satfinite (PTX
ISA, "cvt"; Micikevicius et al., "FP8 formats for deep learning"). PyTorch's conversion (``convert_float8``) differs for
e5m2, which has infinities: there such a value becomes infinite.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskmap.ir.errors import TypeMismatchError
from taskmap.ir.types import DType, e4m3, e5m2, tf32

Array = NDArray[Any]

# Bits of mantissa, the exponent of the smallest normal number, the largest magnitude.
_FP8 = {e4m3: (3, -6, 448.0), e5m2: (2, -14, 57344.0)}


def round_operand(x: Array, dtype: DType) -> Array:
    """``x`` rounded to tf32, e4m3 or e5m2, as float32. Raises TypeMismatchError for other types."""
    values = np.asarray(x, dtype=np.float32)
    if dtype == tf32:
        return _round_tf32(values)
    if dtype in _FP8:
        return _round_fp8(values, *_FP8[dtype])
    raise TypeMismatchError(f"{dtype} is not a type that only tensor instructions have")


def convert_float8(x: Array, dtype: DType) -> Array:
    """``x`` rounded as Tensor.to(float8) does it, as float32."""
    values = np.asarray(x, dtype=np.float32)
    rounded = round_operand(values, dtype)
    if dtype != e5m2:
        return rounded
    beyond = np.abs(values) >= 61440.0  # halfway between the largest value, with an odd last digit, and the next step
    return np.asarray(np.where(beyond, np.copysign(np.float32(np.inf), values), rounded), np.float32)


def _round_tf32(x: Array) -> Array:
    bits = np.ascontiguousarray(x).view(np.uint32)
    # Adds half of the last place to the magnitude; a carry into the exponent is correct.
    rounded = ((bits + np.uint32(1 << 12)) & np.uint32(0xFFFFE000)).view(np.float32).reshape(x.shape)
    return np.asarray(np.where(np.isfinite(x), rounded, x), np.float32)


def _round_fp8(x: Array, mantissa: int, smallest: int, largest: float) -> Array:
    wide = x.astype(np.float64)
    finite = np.where(np.isfinite(wide), wide, 0.0)
    exponent = np.maximum(np.frexp(finite)[1] - 1, smallest)
    step = np.ldexp(1.0, exponent - mantissa)
    rounded = np.clip(np.round(finite / step) * step, -largest, largest)
    special = np.where(np.isnan(wide), wide, np.copysign(largest, wide))
    return np.asarray(np.where(np.isfinite(wide), np.copysign(rounded, wide), special), np.float32)
