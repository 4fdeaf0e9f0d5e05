"""Configurations of the CPU's matmul template: validity, the untuned default, and the search space.

Sizes come from the vector width, the registers and the caches, never from the divisors of the input: a product of 2039
has the space of one of 2048.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from taskmap.ir.construct import static_size
from taskmap.ir.nodes import Dim
from taskmap.ir.target import CpuTarget
from taskmap.schedules.common.config_text import ConfigText
from taskmap.schedules.common.stack_limit import STACK_BYTES
from taskmap.schedules.cpu.matmul.microkernel import Tile, choose_tile, tiles
from taskmap.schedules.cpu.support.balance import blocks, makespan

_MOST = 200
_K_BLOCKS = (1, 2, 4)
_PANEL_LOAD_ROWS, _PANEL_COPY_ROWS = 4, 12
"""Cost of loading a panel of B, in rows of A that could be multiplied with it meanwhile: most of the latency is hidden.
The cost of copying one in groups: of 512 × 512, 1.2 ns a vector in a near cache, and 4 beside rows of A."""

_L2_MISS_PENALTY = 0.04
"""Fractional slowdown of a row of A if its block does not fit the second-level cache."""
_PANELS_FIRST_BELOW = 0.98
"""Iterate panels first only if that cuts the busiest core's load below this fraction."""
_OTHER_CORE_SLOWDOWN = 1.03
"""Slowdown of iterating panels first: the next operator needs these rows on another core."""


class Columns(Enum):
    """The columns of B in memory: those of a tensor of f32 are neighbours, or what B is computed from lies apart."""

    NEIGHBOURS = "neighbours"
    APART = "apart"


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a product as configurations need them: batch × (m×k · k×n), accumulated in elements of ``bytes``
    bytes.

    ``k`` and ``batch`` are None if they are symbolic. ``one_sum``: the sum runs along one axis, so it can be split.
    ``packed`` is the width of the panels in which B is packed, None if it is not packed. ``grouped``: elements are
    groups of narrower ones, multiplied by dot products. ``columns``: of B in memory, unless it is packed; None if
    neither is known. ``run``: of groups, the rows of A that are equally spaced in memory before others follow; None if
    all are.
    """

    m: Dim
    n: Dim
    k: int | None
    batch: int | None
    bytes: int
    one_sum: bool = True
    packed: int | None = None
    grouped: bool = False
    columns: Columns | None = None
    run: int | None = None

    @property
    def can_cut(self) -> bool:
        """True if the sum may be split into k-blocks, whose partial sums are kept for a block of rows."""
        return self.one_sum and self.k is not None and static_size(self.m) is not None


_FEWEST_TILES = 8
"""Tiles of rows that pay for a copy of a panel."""
_LINE = 64
_SHALLOWEST = 128
"""The fewest terms of a k-block of all rows: partial sums are read and written for each."""
_SYMBOLIC_TERMS = 1024
PANEL_BYTES = 200_000
"""The most bytes of a k-block of a panel, which takes at most a third of the second-level cache, too: each tile reads
all of it again, and the pages of a larger one are more than a first-level TLB holds (64 to 96, of 4 KiB)."""


@dataclass(frozen=True, slots=True)
class MatmulConfig:
    """``tile``: the register tile. ``rows``: rows of A multiplied with one panel before the next. ``k_blocks``: the
    number of blocks that the sum is split into."""

    tile: Tile
    rows: int
    k_blocks: int = 1

    def width(self, lanes: int) -> int:
        """Columns of a panel."""
        return self.tile.vectors * lanes

    def __str__(self) -> str:
        return _TEXT.write(self)


_TEXT = ConfigText(
    MatmulConfig, "tile={tile.rows:4}x{tile.vectors:4}v, rows={rows:9}, k_blocks={k_blocks:9}", {"tile": Tile}
)
read_config = _TEXT.read
"""The configuration with a given text, or None."""


def validity(config: MatmulConfig, sizes: Sizes, target: CpuTarget) -> str | None:
    """The reason why ``config`` cannot compute a product of ``sizes`` on ``target``, or None if it can."""
    tile, lanes = config.tile, target.lanes(sizes.bytes)
    needed = registers(tile, target) + sizes.grouped
    if min(tile.rows, tile.vectors, config.rows, config.k_blocks) < 1:
        return "every size is at least 1"
    if needed > target.vector_registers:
        have = target.vector_registers
        return f"a tile of {tile.rows} rows × {tile.vectors} vectors takes {needed} registers, but there are {have}"
    if config.rows % tile.rows:
        return f"blocks of {config.rows} rows are not whole tiles of {tile.rows}"
    if sizes.packed is not None and config.width(lanes) != sizes.packed:
        return f"B is packed in panels of {sizes.packed} columns, but the tile has {config.width(lanes)}"
    if config.k_blocks > 1 and not sizes.can_cut:
        return "a sum can be split only if it runs along one axis of known size and the number of rows is known"
    if config.k_blocks > 1 and config.rows * config.width(lanes) * sizes.bytes > STACK_BYTES:
        return f"sums of {config.rows} rows do not fit a thread's stack"
    if sizes.k is not None and config.k_blocks > sizes.k:
        return f"a sum of {sizes.k} terms cannot be split into {config.k_blocks} k-blocks"
    return None


def registers(tile: Tile, target: CpuTarget) -> int:
    """Vector registers of a tile: its sums, a row of B if it is used more than once, and an element of A. Compilers
    broadcast that into a register, also where AVX-512 could broadcast from memory: a tile of 7 × 4, which leaves no
    register for it, keeps a sum on the stack."""
    row = tile.vectors if tile.rows > 1 else 0
    return tile.rows * tile.vectors + row + 1


def default(sizes: Sizes, target: CpuTarget) -> MatmulConfig:
    """The untuned configuration."""
    lanes = target.lanes(sizes.bytes)
    terms = 0 if sizes.grouped else sizes.k or _SYMBOLIC_TERMS
    tile = choose_tile(sizes.m, sizes.n, target, lanes, sizes.grouped, terms, sizes.run)
    if sizes.packed is not None and tile.vectors * lanes != sizes.packed:
        tile = _fitting_tile(-(-sizes.packed // lanes), sizes, target)
    parts = 1
    if sizes.k is not None and sizes.can_cut:
        deepest = min(target.l2 // 3, PANEL_BYTES) // (tile.vectors * lanes * sizes.bytes)
        parts = -(-sizes.k // deepest)
        m = static_size(sizes.m)
        if m is not None and copies_panels(MatmulConfig(tile, m, parts), sizes, target):
            # All rows in one block, so that each panel is copied once.
            depth = target.l2 // 2 // (m * sizes.bytes)
            parts = max(parts, -(-sizes.k // depth)) if depth >= _SHALLOWEST else parts
    return MatmulConfig(tile, _balanced_rows(tile, parts, sizes, target), parts)


def copies_panels(config: MatmulConfig, sizes: Sizes, target: CpuTarget) -> bool:
    """True if each panel of B is copied before it is multiplied (``column_copies``): its columns lie apart, and several
    tiles read it; or it is one of several, read in place by enough tiles, its rows are shorter than two cache lines,
    and together are more than the first-level cache holds."""
    m, n, k = static_size(sizes.m), static_size(sizes.n), sizes.k
    if m is None or n is None or k is None or not sizes.can_cut or sizes.packed is not None:
        return False
    width = config.width(target.lanes(sizes.bytes)) * sizes.bytes
    if sizes.columns is Columns.APART:
        return min(m, config.rows) > config.tile.rows and -(-k // config.k_blocks) * width <= target.l2
    if sizes.columns is not Columns.NEIGHBOURS:
        return False
    if width >= 2 * _LINE or n * sizes.bytes < 2 * width or min(m, config.rows) < _FEWEST_TILES * config.tile.rows:
        return False
    depth = -(-k // config.k_blocks)
    return k * (width + _LINE) > target.l1 and depth * width <= target.l2


def _fitting_tile(vectors: int, sizes: Sizes, target: CpuTarget) -> Tile:
    """A tile for panels of ``vectors`` vectors, as high as the registers allow."""
    heights = range(min(static_size(sizes.m) or 24, 24), 1, -1)
    fitting = [Tile(rows, vectors) for rows in heights]
    fitting = [t for t in fitting if registers(t, target) + sizes.grouped <= target.vector_registers]
    return fitting[0] if fitting else Tile(1, vectors)


def space(sizes: Sizes, target: CpuTarget) -> tuple[MatmulConfig, ...]:
    """At most 200 valid configurations, the default first."""
    first = default(sizes, target)
    found = dict.fromkeys([first, *_candidates(first, sizes, target)])
    return tuple(c for c in found if validity(c, sizes, target) is None)[:_MOST]


def _candidates(first: MatmulConfig, sizes: Sizes, target: CpuTarget) -> Iterator[MatmulConfig]:
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


def panels_first(config: MatmulConfig, sizes: Sizes, target: CpuTarget) -> bool:
    """True if cores should divide the panels, each with all its blocks of rows, and not the blocks of rows, each with
    all panels: if that leaves no core idle at the end, and all of A stays in the second-level cache."""
    m, n = static_size(sizes.m), static_size(sizes.n)
    if m is None or n is None or sizes.batch is None or m <= config.rows:
        return False
    if m * sizes.bytes * -(-(sizes.k or 1024) // config.k_blocks) > target.l2 // 2:
        return False
    heights, widths = blocks(m, config.rows), blocks(n, config.width(target.lanes(sizes.bytes)))
    repeats = min(sizes.batch, 4 * target.cores)
    by_rows = makespan([h * w for h in heights for w in widths] * repeats, target.cores)
    by_panels = makespan([h * w for w in widths for h in heights] * repeats, target.cores)
    return by_panels < by_rows * _PANELS_FIRST_BELOW


def _balanced_rows(tile: Tile, parts: int, sizes: Sizes, target: CpuTarget) -> int:
    """Rows multiplied with a panel before the next one, in whole tiles: balanced over all cores, and as many as balance
    allows, because every block of rows reads all of B."""
    row = sizes.bytes * -(-(sizes.k or 1024) // parts)
    m, n = static_size(sizes.m), static_size(sizes.n)
    cached = max(1, target.l2 // 2 // row // tile.rows) * tile.rows
    if m is None or n is None or sizes.batch is None:
        return min(cached, 16 * tile.rows)
    whole = -(-m // tile.rows)
    width = tile.vectors * target.lanes(sizes.bytes)
    panels = [w / width for w in blocks(n, width)]
    repeats = min(sizes.batch, 4 * target.cores)
    load = _PANEL_COPY_ROWS if sizes.grouped and sizes.packed is None else _PANEL_LOAD_ROWS

    def cost(size: int) -> float:
        streamed = 1 + _L2_MISS_PENALTY * (size * tile.rows > cached)
        heights = blocks(m, size * tile.rows)
        if panels_first(MatmulConfig(tile, size * tile.rows, parts), sizes, target):
            # Only the first of a panel's blocks waits for the panel to load.
            work = [
                (rows + load * (number == 0 or load > _PANEL_LOAD_ROWS)) * p
                for p in panels
                for number, rows in enumerate(heights)
            ]
            return makespan(work * repeats, target.cores) * _OTHER_CORE_SLOWDOWN
        work = [(rows * streamed + load) * p for rows in heights for p in panels]
        return makespan(work * repeats, target.cores)

    fewest = -(-m // (4 * cached))
    counts = {-(-whole // count) for count in range(fewest, min(whole, -(-m // cached) + 4 * target.cores) + 1)}
    return min(sorted(counts, reverse=True), key=cost) * tile.rows
