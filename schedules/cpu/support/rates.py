"""What the cost models of CPU templates know of processors beyond ``Target``: rates in cycles, the same for all."""

from __future__ import annotations

from collections.abc import Sequence

from taskmap.ir.target import Target
from taskmap.schedules.cpu.support.balance import makespan

FEWEST = 10
"""Multiply-adds that are in flight at once: with fewer sums, each waits for its own last value."""
LOAD = 0.1
"""A load of a vector beside multiply-adds, in multiply-adds."""
BESIDE = 0.05
"""What of the shorter of multiplying and moving is not hidden behind the longer."""
L2_BYTES, L3_BYTES, MEMORY_BYTES = 32.0, 12.0, 5.0
"""What arrives in a cycle from each level, for one core."""
USABLE = 0.7
"""The share of a cache that a working set can count on; the rest is what passes through."""
TILE, TASK = 25.0, 15.0
"""Cycles around the sum of a tile, and around a block of the parallel loop."""
FREE = 1e9
"""Bytes per cycle of what costs nothing beside the loads that are counted as instructions."""
_MOST_TASKS = 2048
"""Beyond this many blocks all cores are as good as equally busy."""


def step(rows: int, vectors: int) -> float:
    """The time of one step of a tile's sum, in multiply-adds: its own and what its loads cost beside them, but
    FEWEST where so many are not in flight."""
    return max(rows * vectors + LOAD * (rows + 2 * vectors), FEWEST)


def beside(one: float, other: float) -> float:
    """The cycles of two things done at once."""
    return max(one, other) + BESIDE * min(one, other)


def busiest(work: Sequence[float], repeats: int, target: Target) -> float:
    """The cycles of the busiest core, for ``work`` done ``repeats`` times as consecutive iterations."""
    if len(work) * repeats > _MOST_TASKS:
        return sum(work) * repeats / target.cores
    return makespan([*work] * repeats, target.cores)
