"""The rounding of vdpbf16ps, bit for bit.

Source: "Intel Architecture Instruction Set Extensions Programming Reference", VDPBF16PS, operation.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_SMALLEST_NORMAL = np.float32(2.0**-126)
_FIRST_NORMAL = 2.0**-126 - 2.0**-151
"""The first sum that rounds to the smallest normal number with 24 significant bits, whatever its exponent."""


def dot_bf16(c: Array, a: Array, b: Array) -> Array:
    """c + the sum of a · b along their last axis, of size 2, all float32; the other axes broadcast.

    The second product is added first; each addition is one fused multiply-add, rounded to nearest even. Denormal
    operands and results are zeros of the same sign. A result is denormal if it is so after it was rounded to 24 bits
    with an unbounded exponent.
    """
    total = _flushed(c)
    for k in (1, 0):
        # The float64 sum rounds to float32 correctly: a product has 16 significant bits and a sum 24, so that a sum
        # inexact in 53 bits is nowhere near the middle between two neighbours of float32.
        product = _flushed(a[..., k]).astype(np.float64) * _flushed(b[..., k]).astype(np.float64)
        wide = total.astype(np.float64) + product
        total = np.where(np.abs(wide) < _FIRST_NORMAL, np.copysign(0.0, wide), wide).astype(np.float32)
    return total


def _flushed(x: Array) -> Array:
    """``x`` with zeros instead of denormal values."""
    values = np.asarray(x, np.float32)
    return np.where(np.abs(values) < _SMALLEST_NORMAL, np.copysign(np.float32(0), values), values)
