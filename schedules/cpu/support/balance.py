"""How evenly a parallel loop shares out its work: the time of the busiest core, for choosing block sizes."""

from __future__ import annotations

from collections.abc import Sequence


def makespan(weights: Sequence[float], cores: int) -> float:
    """The work of the busiest of ``cores`` when consecutive iterations of these weights are shared out as OpenMP's
    static schedule does: equal counts, the first cores one more."""
    count, extra = divmod(len(weights), cores)
    longest = 0.0
    start = 0
    for core in range(cores):
        end = start + count + (core < extra)
        longest = max(longest, sum(weights[start:end]))
        start = end
    return longest


def blocks(total: int, size: int) -> list[int]:
    """``total`` cut into blocks of ``size``, the last one smaller."""
    whole, rest = divmod(total, size)
    return [size] * whole + ([rest] if rest else [])
