"""The rounding of vdpbf16ps and tdpbf16ps, bit for bit.

Source: "Intel Architecture Instruction Set Extensions Programming Reference", VDPBF16PS and TDPBF16PS, operation.
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
        total = _multiply_add(total, a[..., k], b[..., k])
    return total


def tile_bf16(c: Array, a: Array, b: Array) -> Array:
    """c + a @ b of one tdpbf16ps, for matrices of m×n, m×k and k×n, all float32.

    Products of even k and of odd k are added separately, in order and from zero on; then the two sums are added to each
    other, and their sum to c. Each addition rounds and flushes as in ``dot_bf16``.
    """
    even, odd = np.zeros_like(c, np.float32), np.zeros_like(c, np.float32)
    for k in range(0, a.shape[-1], 2):
        even = _multiply_add(even, a[:, k, None], b[k])
        odd = _multiply_add(odd, a[:, k + 1, None], b[k + 1])
    one = np.ones((), np.float32)
    return _multiply_add(_flushed(c), _multiply_add(even, odd, one), one)


def _multiply_add(total: Array, x: Array, y: Array) -> Array:
    """total + x · y, rounded once; ``total`` has no denormal values, and neither has the result."""
    # The float64 sum rounds to float32 correctly: a product has 16 significant bits (24 if y is 1) and a sum 24, so
    # that a sum inexact in 53 bits is nowhere near the middle between two neighbours of float32.
    wide = total.astype(np.float64) + _flushed(x).astype(np.float64) * _flushed(y).astype(np.float64)
    return np.where(np.abs(wide) < _FIRST_NORMAL, np.copysign(0.0, wide), wide).astype(np.float32)


def _flushed(x: Array) -> Array:
    """``x`` with zeros instead of denormal values."""
    values = np.asarray(x, np.float32)
    return np.where(np.abs(values) < _SMALLEST_NORMAL, np.copysign(np.float32(0), values), values)
