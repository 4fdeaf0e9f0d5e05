"""What the zoo holds: a model's file, inputs for it, and how near to ONNX Runtime its results must be."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
ROUNDING = 1e-3
"""An error of f32 arithmetic, relative to the largest element, above which a result is wrong."""
INTEGERS = 0.05
"""The same where values are rounded to integers of eight bits between operators: some round the other way."""
HALVES = 2e-2
"""The same for arithmetic of sixteen bits."""


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """A model of the zoo.

    ``other`` are inputs of another size where sizes are free; ``exact`` is the result in f64 where it is known.
    """

    name: str
    kind: str
    path: Path
    feeds: dict[str, Array]
    other: dict[str, Array] | None = None
    exact: list[Array] | None = None
    allowed: float = ROUNDING

    @property
    def is_f32(self) -> bool:
        """Whether it computes in f32, as it was trained."""
        return self.allowed == ROUNDING


LEAST = 1e-3
"""Differences are taken over no less than this: a score that is nearly 0 everywhere is rounding noise."""


def distance(results: list[Any], expected: list[Any]) -> float:
    """The largest difference of elements over the largest element (or LEAST), of the worst result.

    Infinite where shapes or types differ, or one has a NaN where the other has none.
    """
    worst = 0.0
    if len(results) != len(expected):
        return float("inf")
    for mine, other in zip(results, expected, strict=True):
        a, b = np.asarray(mine), np.asarray(other)
        if a.shape != b.shape or (a.dtype.kind != b.dtype.kind):
            return float("inf")
        if not a.size:
            continue
        a, b = a.astype(np.float64), b.astype(np.float64)
        if not np.array_equal(np.isfinite(a), np.isfinite(b)):
            return float("inf")
        a, b = np.nan_to_num(a), np.nan_to_num(b)
        worst = max(worst, float(np.abs(a - b).max() / max(np.abs(b).max(), LEAST)))
    return worst
