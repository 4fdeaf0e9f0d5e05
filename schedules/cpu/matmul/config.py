"""Configurations of the CPU's matrix-multiplication template: what is free, what fits, and what is chosen untuned.

Sizes come from the vector width, the registers and the caches, never from the divisors of the input: the space of a
product of 2039 is that of one of 2048.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from taskmap.ir.construct import static_size
from taskmap.ir.nodes import Dim
from taskmap.ir.target import Target
from taskmap.schedules.common.stack_limit import STACK_BYTES
from taskmap.schedules.cpu.matmul.microkernel import Tile, choose_tile, tiles
from taskmap.schedules.cpu.support.balance import blocks, makespan

_MOST = 200
_K_BLOCKS = (1, 2, 4)
_PANEL_LOAD = 4
"""What fetching a panel costs, in rows that could be multiplied with it meanwhile: most of it is hidden."""

_STREAMING = 0.04
"""How much longer a row takes that comes from beyond the second-level cache."""
_EVENER = 0.98
"""How much of the busiest core's work is left by an order that is worth it."""
_ELSEWHERE = 1.03
"""How much longer a product takes whose rows are not where their neighbours in the next operator are wanted."""
_TEXT = re.compile(r"tile=(\d{1,4})x(\d{1,4})v, rows=(\d{1,9}), k_blocks=(\d{1,9})")


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a configuration has to suit: batch × (m×k · k×n), elements of ``bytes`` bytes as they are accumulated.

    ``k`` and ``batch`` are None where they are symbolic. ``one_sum``: the sum runs along one axis, and can be cut.
    ``packed`` is the width of the panels in which B lies, None where it lies otherwise.
    """

    m: Dim
    n: Dim
    k: int | None
    batch: int | None
    bytes: int
    one_sum: bool = True
    packed: int | None = None

    @property
    def can_cut(self) -> bool:
        """Whether the sum may be computed in parts, which are kept in a block of rows."""
        return self.one_sum and self.k is not None and static_size(self.m) is not None


@dataclass(frozen=True, slots=True)
class MatmulConfig:
    """``tile``: the register tile. ``rows``: rows of A that meet one panel before the next. ``k_blocks``: parts of the
    sum."""

    tile: Tile
    rows: int
    k_blocks: int = 1

    def width(self, lanes: int) -> int:
        """Columns of a panel."""
        return self.tile.vectors * lanes

    def __str__(self) -> str:
        return f"tile={self.tile.rows}x{self.tile.vectors}v, rows={self.rows}, k_blocks={self.k_blocks}"


def read_config(text: str) -> MatmulConfig | None:
    """The configuration whose ``str`` is ``text``; None when there is none."""
    found = _TEXT.fullmatch(text)
    if found is None:
        return None
    height, vectors, rows, parts = (int(digits) for digits in found.groups())
    return MatmulConfig(Tile(height, vectors), rows, parts)


def validity(config: MatmulConfig, sizes: Sizes, target: Target) -> str | None:
    """Why ``config`` cannot compute a product of ``sizes`` on ``target``; None when it can."""
    tile, lanes = config.tile, target.lanes(sizes.bytes)
    needed = registers(tile, target)
    if min(tile.rows, tile.vectors, config.rows, config.k_blocks) < 1:
        return "every size is at least 1"
    if needed > target.vector_registers:
        have = target.vector_registers
        return f"a tile of {tile.rows} rows × {tile.vectors} vectors takes {needed} registers, and there are {have}"
    if config.rows % tile.rows:
        return f"blocks of {config.rows} rows are not whole tiles of {tile.rows}"
    if sizes.packed is not None and config.width(lanes) != sizes.packed:
        return f"B lies in panels of {sizes.packed} columns, and the tile has {config.width(lanes)}"
    if config.k_blocks > 1 and not sizes.can_cut:
        return "a sum is cut only where it runs along one axis, and that and the number of rows are known"
    if config.k_blocks > 1 and config.rows * config.width(lanes) * sizes.bytes > STACK_BYTES:
        return f"sums of {config.rows} rows do not fit a thread's stack"
    if sizes.k is not None and config.k_blocks > sizes.k:
        return f"a sum of {sizes.k} terms cannot be cut into {config.k_blocks} parts"
    return None


def registers(tile: Tile, target: Target) -> int:
    """Vector registers of a tile: its sums, a row of B where it is used more than once, and an element of A where the
    instruction set cannot broadcast from memory."""
    row = tile.vectors if tile.rows > 1 else 0
    return tile.rows * tile.vectors + row + (target.vector_bytes < 64)


def default(sizes: Sizes, target: Target) -> MatmulConfig:
    """The configuration that is used untuned."""
    lanes = target.lanes(sizes.bytes)
    tile = choose_tile(sizes.m, sizes.n, target, lanes)
    if sizes.packed is not None and tile.vectors * lanes != sizes.packed:
        tile = _fitting_tile(-(-sizes.packed // lanes), sizes, target)
    parts = 1
    if sizes.k is not None and sizes.can_cut:
        # A panel's part takes a third of the second-level cache at most.
        deepest = target.l2 // 3 // (tile.vectors * lanes * sizes.bytes)
        parts = -(-sizes.k // deepest)
    return MatmulConfig(tile, _balanced_rows(tile, parts, sizes, target), parts)


def _fitting_tile(vectors: int, sizes: Sizes, target: Target) -> Tile:
    """A tile for panels of ``vectors`` vectors, as high as the registers allow."""
    heights = range(min(static_size(sizes.m) or 24, 24), 1, -1)
    fitting = (Tile(rows, vectors) for rows in heights)
    return next((t for t in fitting if registers(t, target) <= target.vector_registers), Tile(1, vectors))


def space(sizes: Sizes, target: Target) -> tuple[MatmulConfig, ...]:
    """At most 200 valid configurations, the default first."""
    first = default(sizes, target)
    found = dict.fromkeys([first, *_candidates(first, sizes, target)])
    return tuple(c for c in found if validity(c, sizes, target) is None)[:_MOST]


def _candidates(first: MatmulConfig, sizes: Sizes, target: Target) -> Iterator[MatmulConfig]:
    for parts in dict.fromkeys((first.k_blocks, *_K_BLOCKS)):
        for tile in dict.fromkeys((first.tile, *tiles(target))):
            for rows in dict.fromkeys((_balanced_rows(tile, parts, sizes, target), *_row_blocks(tile, sizes))):
                yield MatmulConfig(tile, rows, parts)


def _row_blocks(tile: Tile, sizes: Sizes) -> Iterator[int]:
    """Blocks of 1, 4, 16, ... tiles, and all rows."""
    most = static_size(sizes.m) or 1024
    size = tile.rows
    while size < most:
        yield size
        size *= 4
    yield -(-most // tile.rows) * tile.rows


def panels_first(config: MatmulConfig, sizes: Sizes, target: Target) -> bool:
    """Whether cores share out the panels, each with all its blocks of rows, rather than the blocks of rows, each with
    all panels: where that leaves no core idle at the end, and all of A stays in the second-level cache."""
    m, n = static_size(sizes.m), static_size(sizes.n)
    if m is None or n is None or sizes.batch is None or m <= config.rows:
        return False
    if m * sizes.bytes * -(-(sizes.k or 1024) // config.k_blocks) > target.l2 // 2:
        return False
    heights, widths = blocks(m, config.rows), blocks(n, config.width(target.lanes(sizes.bytes)))
    repeats = min(sizes.batch, 4 * target.cores)
    by_rows = makespan([h * w for h in heights for w in widths] * repeats, target.cores)
    by_panels = makespan([h * w for w in widths for h in heights] * repeats, target.cores)
    return by_panels < by_rows * _EVENER


def _balanced_rows(tile: Tile, parts: int, sizes: Sizes, target: Target) -> int:
    """Rows that are multiplied with a panel before the next one, in whole tiles: so that all cores have equal work, and
    as many as that allows, because every block of rows reads all of B."""
    row = sizes.bytes * -(-(sizes.k or 1024) // parts)
    m, n = static_size(sizes.m), static_size(sizes.n)
    cached = max(1, target.l2 // 2 // row // tile.rows) * tile.rows
    if m is None or n is None or sizes.batch is None:
        return min(cached, 16 * tile.rows)
    whole = -(-m // tile.rows)
    width = tile.vectors * target.lanes(sizes.bytes)
    panels = [w / width for w in blocks(n, width)]
    repeats = min(sizes.batch, 4 * target.cores)

    def cost(size: int) -> float:
        streamed = 1 + _STREAMING * (size * tile.rows > cached)
        heights = blocks(m, size * tile.rows)
        if panels_first(MatmulConfig(tile, size * tile.rows, parts), sizes, target):
            # Only the first of a panel's blocks waits for it.
            work = [(rows + _PANEL_LOAD * (number == 0)) * p for p in panels for number, rows in enumerate(heights)]
            return makespan(work * repeats, target.cores) * _ELSEWHERE
        work = [(rows * streamed + _PANEL_LOAD) * p for rows in heights for p in panels]
        return makespan(work * repeats, target.cores)

    fewest = -(-m // (4 * cached))
    counts = {-(-whole // count) for count in range(fewest, min(whole, -(-m // cached) + 4 * target.cores) + 1)}
    return min(sorted(counts, reverse=True), key=cost) * tile.rows
