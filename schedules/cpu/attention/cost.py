"""Cost model of the CPU's attention template: cycles of a configuration, from the target's parameters alone.

A task transposes each block of keys once, or packs it and its values in groups, and each tile of queries passes over
it: a product, exponentials, another product. The transposed keys, the scores of a tile and the values are reread from
the nearest cache that holds them.
"""

from __future__ import annotations

from dataclasses import dataclass

from taskmap.ir.construct import product, static_size
from taskmap.ir.loops import column_groups
from taskmap.ir.target import CpuTarget
from taskmap.schedules.common.attention_match import Attention
from taskmap.schedules.cpu.attention.config import AttentionConfig
from taskmap.schedules.cpu.support.balance import blocks
from taskmap.schedules.cpu.support.rates import FREE, L2_BYTES, L3_BYTES, TASK, TILE, USABLE, beside, busiest, step

_EXP = 14.0
"""Cycles of the exponentials of one vector, with the loads and stores around them."""
_SCORE = 2.0
"""Cycles of computing scores from one vector of products."""
_ROW = 40.0
"""Cycles around the softmax of one query: reducing vectors, rescaling."""
_TURN = 1.2
"""Cycles of transposing one element of a key."""
_LANES = 6.0
"""Cycles of the sum over the lanes of a vector."""
_PACK = 4.0
"""Cycles of packing one vector of groups: of values, or of keys in squares that are transposed."""
_WORD = 1.6
"""Cycles of packing one group of a key that is in no such square."""
_ROUND = 5.0
"""Cycles of rounding one vector of weights, and of storing it."""
_TASKS, _KEYS = 16, 512
"""Sizes assumed for those that are known only when the kernel runs; queries are as many as keys."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """The sizes of an attention as numbers: ``tasks`` is batch × heads."""

    tasks: int
    queries: int
    keys: int
    depth: int
    width: int
    causal: bool

    @staticmethod
    def of(a: Attention) -> Lengths:
        """The sizes of ``a``, with likely ones for those that are symbolic."""
        tasks, keys = static_size(product(a.stage.shape[:2])) or _TASKS, static_size(a.keys) or _KEYS
        return Lengths(tasks, static_size(a.queries) or keys, keys, a.depth, a.width, a.causal)


def reads_rows(a: Lengths, target: CpuTarget) -> bool:
    """True if keys are better read in place (``few_queries``): there are few queries, and a key is whole vectors."""
    lanes = target.lanes(4)
    if lanes == 1 or a.depth % lanes:
        return False
    return a.queries * (a.depth // lanes + _LANES) < a.depth * _TURN


def cycles(config: AttentionConfig, a: Lengths, target: CpuTarget, group: int = 1) -> float:
    """Cycles of the busiest core. group: the neighbours that an instruction multiplies and adds, which are packed."""
    first = 0
    work = []
    for rows in blocks(a.queries, config.queries):
        work.append(_task(config, a, target, first, rows, group))
        first += rows
    return busiest(work, a.tasks, target)


def _task(config: AttentionConfig, a: Lengths, target: CpuTarget, first: int, rows: int, group: int) -> float:
    """One block of queries, from ``first`` on."""
    lanes = target.lanes(4)
    tiles = blocks(rows, min(config.tile.rows, config.queries))
    total = TASK
    for begin in range(0, a.keys, config.keys):
        if a.causal and begin >= first + rows:
            break
        count = min(config.keys, a.keys - begin)
        rows = group == 1 and reads_rows(a, target)
        total += (0 if rows else _copies(a, lanes, count, group)) + TASK
        resident = 4 // group * (a.depth * config.keys + config.keys * a.width)
        again = FREE if resident <= target.l1 * USABLE else L2_BYTES if resident <= target.l2 * USABLE else L3_BYTES
        top = first
        for height in tiles:
            seen = min(max(top + height - begin, 0), config.keys) if a.causal else config.keys
            top += height
            if seen:
                total += _tile(config, a, lanes, height, seen, again, group) + rows * height * seen * _LANES
    return total


def _copies(a: Lengths, lanes: int, keys: int, group: int) -> float:
    """Transposing a block of keys, or packing one of keys and values in groups."""
    if group == 1:
        return a.depth * keys * _TURN
    groups, vectors = -(-a.depth // group), -(-keys // lanes)
    whole = a.depth // group // lanes * lanes
    values = -(-keys // group) * -(-a.width // lanes)
    return (whole * vectors + values) * _PACK + (groups - whole) * keys * _WORD


def _tile(config: AttentionConfig, a: Lengths, lanes: int, height: int, seen: int, again: float, group: int) -> float:
    """One tile of queries against ``seen`` keys."""
    width = config.tile.vectors * lanes
    vectors = -(-seen // lanes)
    scores = -(-a.depth // group) * _steps(seen, width, lanes, height)
    values = -(-seen // group) * _steps(a.width, width, lanes, height)
    moved = 4 // group * seen * (a.depth + a.width) / again
    rounding = 0.0 if group == 1 else _ROUND
    softmax = height * (vectors * (_EXP + _SCORE + rounding) + _ROW)
    single = config.keys >= a.keys
    rescale = 0 if single else height * a.width / lanes * 2
    return beside(scores + values, moved) + softmax + rescale + 2 * TILE


def _steps(columns: int, width: int, lanes: int, height: int) -> float:
    """Multiply-adds of one term of all sums of a tile."""
    whole, rest = divmod(columns, width)
    return whole * step(height, width // lanes) + sum(step(height, v) for v, _ in column_groups(rest, lanes))
