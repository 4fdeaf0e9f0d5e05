"""Configurations of the CPU's attention template: validity, the untuned default, and the search space."""

from __future__ import annotations

from dataclasses import dataclass

from taskmap.ir.construct import product, static_size
from taskmap.ir.target import CpuTarget
from taskmap.schedules.common.attention_match import Attention
from taskmap.schedules.common.config_text import ConfigText
from taskmap.schedules.common.stack_limit import STACK_BYTES
from taskmap.schedules.cpu.matmul.config import registers
from taskmap.schedules.cpu.matmul.microkernel import Tile, choose_tile, tiles

_MOST = 200
_QUERIES = 512
_UNKNOWN_QUERIES, _UNKNOWN_KEYS = 64, 128
_FEW_QUERIES = 32
_KEYS = 256
_STATE_BYTES = 512 << 10
"""Stack budget for a block's keys and sums."""
_SCORE_BYTES = 48
"""Bytes of the scores and of the weights of a key, for a tile of eight queries."""
_IDLE = 1.1
"""Split queries further only while the busiest core's work exceeds the average by this factor; each split transposes
the keys again."""


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    """``queries`` and ``keys`` of a block, and the register tile of both products."""

    queries: int
    keys: int
    tile: Tile

    def __str__(self) -> str:
        return _TEXT.write(self)


_TEXT = ConfigText(
    AttentionConfig, "queries={queries:9}, keys={keys:9}, tile={tile.rows:4}x{tile.vectors:4}v", {"tile": Tile}
)
read_config = _TEXT.read
"""The configuration with a given text, or None."""


def default(a: Attention, target: CpuTarget, group: int = 1) -> AttentionConfig:
    """The untuned configuration. group: the neighbours that each product multiplies and adds, packed in 32 bits."""
    lanes = target.lanes(4)
    queries, keys = static_size(a.queries), static_size(a.keys)
    longest = max(lanes, _longest(a, target, group) // lanes * lanes)
    even = min(_UNKNOWN_KEYS * group * group, longest) if keys is None else -(-keys // -(-keys // longest))
    rows = _UNKNOWN_QUERIES if queries is None else _queries(a, queries, target)
    tile = choose_tile(rows, -(-even // lanes) * lanes, target, lanes, grouped=group > 1)
    if queries is not None and rows < queries:
        rows = -(-rows // tile.rows) * tile.rows
    return AttentionConfig(rows, even, tile)


def _longest(a: Attention, target: CpuTarget, group: int) -> int:
    """The most keys of a block. Packed keys and values take part of the second-level cache; with longer blocks, sums
    are rescaled less often."""
    if group == 1:
        return min(_KEYS, _STATE_BYTES // (4 * (a.depth + _UNKNOWN_QUERIES)))
    return min(target.l2 // 2, _STATE_BYTES) // (4 // group * (a.depth + a.width) + _SCORE_BYTES)


def _queries(a: Attention, queries: int, target: CpuTarget) -> int:
    """Queries per block: as many as keep all cores busy."""
    heads = static_size(product(a.stage.shape[:2])) or 1
    rows = queries
    for parts in range(-(-queries // _QUERIES), -(-queries // _FEW_QUERIES) + 1):
        rows = -(-queries // parts)
        tasks = heads * -(-queries // rows)
        if -(-tasks // target.cores) * target.cores <= tasks * _IDLE:
            break
    return rows


def validity(config: AttentionConfig, a: Attention, target: CpuTarget) -> str | None:
    """The reason why ``config`` cannot compute ``a`` on ``target``, or None if it can."""
    tile = config.tile
    if min(config.queries, config.keys, tile.rows, tile.vectors) < 1:
        return "every size is at least 1"
    needed, have = registers(tile, target), target.vector_registers
    if needed > have:
        return f"a tile of {tile.rows} queries × {tile.vectors} vectors takes {needed} registers, but there are {have}"
    for name, most, asked in (("queries", a.queries, config.queries), ("keys", a.keys, config.keys)):
        known = static_size(most)
        if known is not None and asked > known:
            return f"there are {known} {name}, not {asked}"
    taken = state_bytes(config, a, target)
    if taken > STACK_BYTES:
        return f"keys, scores and sums of {taken} bytes do not fit a thread's stack"
    return None


def state_bytes(config: AttentionConfig, a: Attention, target: CpuTarget) -> int:
    """Bytes of a task's local state: the transposed keys, the scores of a tile, a sum, a maximum and a weight for each
    query, and the products of a tile in flight."""
    lanes = target.lanes(4)
    columns = -(-config.keys // lanes) * lanes
    panel = min(config.tile.vectors * lanes, columns)
    height = min(config.tile.rows, config.queries)
    kept = height if static_size(a.keys) == config.keys else config.queries
    tile = height * config.tile.vectors * lanes
    return 4 * (a.depth * -(-columns // panel) * panel + height * columns + kept * (a.width + 2) + 2 * tile)


def space(a: Attention, target: CpuTarget) -> tuple[AttentionConfig, ...]:
    """At most 200 valid configurations, the default first."""
    first = default(a, target)
    queries = _sizes(first.queries, static_size(a.queries), 16)
    keys = _sizes(first.keys, static_size(a.keys), 2 * target.lanes(4))
    found = (
        AttentionConfig(-(-q // tile.rows) * tile.rows if q != static_size(a.queries) else q, k, tile)
        for tile in dict.fromkeys((first.tile, *tiles(target)))
        for k in keys
        for q in queries
    )
    valid = dict.fromkeys(c for c in found if validity(c, a, target) is None)
    return tuple(dict.fromkeys([first, *valid]))[:_MOST]


def _sizes(first: int, most: int | None, least: int) -> list[int]:
    """The default, powers of two times the least, and the maximum."""
    found = [first]
    size = least
    while size < (most or 1024):
        found.append(size)
        size *= 2
    return list(dict.fromkeys([*found, *([most] if most else [])]))
