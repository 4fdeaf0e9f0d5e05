"""Entries of the zoo: a model's file, inputs for it, and the tolerance of its results against ONNX Runtime's."""

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
class Ranking:
    """All boxes [n, 4] and scores [n] that a detector may choose from, in f64."""

    boxes: Array
    scores: Array

    def error(self, results: list[Any]) -> float:
        """The distance of boxes [1, k, 4] and scores [1, k] from k distinct ones of the best, over the largest element.

        Where scores are equal in few bits either may come first, or be left out: one that was chosen counts with what
        its exact score is below the k-th best.
        """
        boxes, scores = (np.asarray(r, np.float64)[0] for r in results)
        if boxes.shape != (len(scores), 4) or (np.diff(scores) > 0).any() or not np.isfinite(boxes).all():
            return float("inf")
        least = np.sort(self.scores)[-len(scores)]
        free, worst = np.ones(len(self.scores), bool), 0.0
        for box, score in zip(boxes, scores, strict=True):
            away = np.maximum(
                np.abs(self.boxes - box).max(1) / np.abs(self.boxes).max(),
                np.maximum(np.abs(self.scores - score), least - self.scores) / self.scores.max(),
            )
            at = int(np.argmin(np.where(free, away, np.inf)))
            free[at] = False
            worst = max(worst, float(away[at]))
        return worst


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """A model of the zoo.

    ``other`` are inputs of another size where sizes are free; ``exact`` is the result in f64 where it is known;
    ``ranking``: what a detector chooses from, where rounding decides the order of what it chose.
    """

    name: str
    kind: str
    path: Path
    feeds: dict[str, Array]
    other: dict[str, Array] | None = None
    exact: list[Array] | None = None
    allowed: float = ROUNDING
    ranking: Ranking | None = None

    @property
    def is_f32(self) -> bool:
        """True if it computes in f32, as it was trained."""
        return self.allowed == ROUNDING


def distance(results: list[Any], expected: list[Any]) -> float:
    """The largest difference of elements over the largest element, of the worst result.

    Infinite where shapes or types differ, or one has a NaN where the other has none, or something where the other is 0.
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
        away, largest = float(np.abs(a - b).max()), float(np.abs(b).max())
        worst = max(worst, away / largest if largest else float("inf") if away else 0.0)
    return worst
