"""The hardware's approximations of functions, in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskmap.ir.functions import function_named
from taskmap.ir.isa.specs import ApproximationSpec

Array = NDArray[Any]


def approximated(spec: ApproximationSpec, x: Array) -> Array:
    """The f32 nearest to the function of ``x``, which is f32; subnormal numbers become 0 with their sign."""
    with np.errstate(all="ignore"):
        return _normal(function_named(spec.function).reference(_normal(np.asarray(x, np.float32))))


def _normal(x: Array) -> Array:
    small = np.abs(x) < np.finfo(np.float32).tiny
    return np.asarray(np.where(small, np.copysign(np.float32(0), x), x), np.float32)
