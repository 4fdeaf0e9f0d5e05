"""Cycle rates of current processors for the CPU's cost models, beyond what ``CpuTarget`` holds; the same for all."""

from __future__ import annotations

from collections.abc import Sequence

from taskmap.ir.target import CpuTarget
from taskmap.schedules.cpu.support.balance import makespan

FEWEST = 10
"""Multiply-adds in flight at once: with fewer sums, each waits for its own previous value."""
LOAD = 0.1
"""The cost of a vector load beside multiply-adds, in multiply-adds."""
BESIDE = 0.05
"""The fraction of the shorter of computing and moving that the longer does not hide."""
L2_BYTES, L3_BYTES, MEMORY_BYTES = 32.0, 12.0, 5.0
"""Bytes per cycle from each level, for one core."""
USABLE = 0.7
"""The fraction of a cache that a working set can rely on; the rest holds passing data."""
TILE, TASK = 25.0, 15.0
"""Cycles around the sum of a tile, and around a block of the parallel loop."""
FREE = 1e9
"""Bytes per cycle of data whose loads are already counted as instructions."""
_MOST_TASKS = 2048
"""Beyond this many blocks, all cores count as equally busy."""


def step(rows: int, vectors: int) -> float:
    """The time of one step of a tile's sum, in multiply-adds: its own and the cost of its loads, but at least
    FEWEST."""
    return max(rows * vectors + LOAD * (rows + 2 * vectors), FEWEST)


def beside(one: float, other: float) -> float:
    """The cycles of two activities that overlap."""
    return max(one, other) + BESIDE * min(one, other)


def busiest(work: Sequence[float], repeats: int, target: CpuTarget) -> float:
    """The cycles of the busiest core for ``work`` done ``repeats`` times as consecutive iterations."""
    if len(work) * repeats > _MOST_TASKS:
        return sum(work) * repeats / target.cores
    return makespan([*work] * repeats, target.cores)
