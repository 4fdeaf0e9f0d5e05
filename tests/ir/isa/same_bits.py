"""Equality of the results of instructions, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def assert_same_bits(got: Array, want: Array) -> None:
    """Equal bit for bit; a NaN equals every NaN, because payloads are not part of the meaning."""
    if want.dtype == np.float32:
        both = np.isnan(got) & np.isnan(want)
        got, want = (np.where(both, np.float32(0), x).view(np.uint32) for x in (got, want))
    np.testing.assert_array_equal(got, want)
