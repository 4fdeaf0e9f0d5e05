"""Load balance of a parallel loop: the time of the busiest core, for choosing block sizes."""

from __future__ import annotations

from collections.abc import Sequence


def makespan(weights: Sequence[float], cores: int) -> float:
    """The work of the busiest of ``cores`` if consecutive iterations of these weights are divided as by OpenMP's static
    schedule: equal counts, one more for the first cores."""
    count, extra = divmod(len(weights), cores)
    longest = 0.0
    start = 0
    for core in range(cores):
        end = start + count + (core < extra)
        longest = max(longest, sum(weights[start:end]))
        start = end
    return longest


def blocks(total: int, size: int) -> list[int]:
    """``total`` split into blocks of ``size``, the last one smaller."""
    whole, rest = divmod(total, size)
    return [size] * whole + ([rest] if rest else [])


def even_width(widest: int, columns: int, lanes: int, cores: int) -> int:
    """The columns of a panel, up to ``widest``, with which the panels of a product divide most evenly over the cores.

    A panel takes as long as reading it, but no less than two vectors, whose sums wait for one another.
    """
    return min(
        range(widest, 0, -lanes),
        key=lambda width: makespan([max(part, 2 * lanes) for part in blocks(columns, width)], cores),
    )
