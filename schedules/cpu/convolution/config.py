"""Configurations of the CPU's convolution template: validity, the untuned default, and the search space.

Heights of tiles come from the registers, blocks of rows and of channels from powers of two and the number of cores: an
image of 57 columns has the space of one of 56.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from taskmap.ir.construct import constant_value, product, static_size
from taskmap.ir.loops import column_groups
from taskmap.ir.nodes import Binary, Cast, Dim, Load
from taskmap.ir.target import CpuTarget
from taskmap.ir.types import compute_type
from taskmap.schedules.common.config_text import ConfigText
from taskmap.schedules.common.convolution_geometry import Convolution, is_matrix_product
from taskmap.schedules.common.stack_limit import STACK_BYTES
from taskmap.schedules.cpu.convolution.base import INPUT_TILE_BYTES
from taskmap.schedules.cpu.convolution.dot_tile import dot_registers, dot_rows, suits_dots
from taskmap.schedules.cpu.convolution.input_tile import InputTile
from taskmap.schedules.cpu.matmul.config import registers
from taskmap.schedules.cpu.matmul.microkernel import Tile, choose_tile, load_cost, tile_cost, tiles
from taskmap.schedules.cpu.matmul.summed_loops import WRITTEN_OUT
from taskmap.schedules.cpu.support.balance import blocks, makespan

_MOST = 200
_HEIGHTS = 4
"""Number of tile heights tried for each width."""
_FEWEST_SUMS = 8
_SUMS_WRITTEN_OUT = 16
"""The most sums of a tile for which the loop over channels is unrolled; with more, registers would spill."""
_SAMPLES = (8, 28, 100)
"""Extents assumed for a symbolic one when block sizes are chosen; for a batch, 1 and the number of cores."""
_LONGEST_ROW = 64


@dataclass(frozen=True, slots=True)
class ConvolutionConfig:
    """``tile``: the register tile, neighbouring columns × vectors of output channels. ``rows``, ``columns``: output
    positions of an input tile. ``panels``: panels of output channels (each as wide as the tile) that one task computes.
    ``neighbours``: what consecutive tasks share, the image or the weights."""

    tile: Tile
    rows: int
    columns: int
    panels: int
    neighbours: str = "image"

    def width(self, lanes: int) -> int:
        """Channels of a panel."""
        return self.tile.vectors * lanes

    def __str__(self) -> str:
        return _TEXT.write(self)


_TEXT = ConfigText(
    ConvolutionConfig,
    "tile={tile.rows:4}x{tile.vectors:4}v, block={rows:6}x{columns:6}, panels={panels:6}, "
    "neighbours={neighbours:image|weights}",
    {"tile": Tile},
)
read_config = _TEXT.read
"""The configuration with a given text, or None."""


def element_bytes(c: Convolution) -> int:
    """Bytes of an element in the accumulation type."""
    return compute_type(c.reduce.dtype).bytes


def depth(c: Convolution) -> int:
    """Input channels of an input tile; 0 if the image is read in place."""
    return 0 if is_matrix_product(c) else c.channels


def packed_width(c: Convolution) -> int | None:
    """The width of the panels in which the weights are packed, or None if they are not packed."""
    w = c.w
    while isinstance(w, Cast):
        w = w.a
    if not isinstance(w, Load):
        return None
    if len(w.indices) > len(c.order) + 2 and constant_value(w.indices[-1]) == 0:
        return 1  # a panel more than the weights of the model have
    if not isinstance(w.indices[-1], Binary) or w.indices[-1].op != "mod":
        return None
    return static_size(w.buffer.shape[-1])


def edge_columns(c: Convolution, rest: int, width: int, lanes: int) -> list[tuple[int, int]]:
    """The columns that are computed for the last ``rest`` of a panel of ``width``, as (vectors, lanes) groups: whole
    vectors where zeros fill a packed panel. Panels of several groups of channels are taken as they are: columns beyond
    a group belong to the next."""
    if c.groups == 1 and packed_width(c) == width:
        return [(-(-rest // lanes), lanes)]
    return column_groups(rest, lanes)


def by_dots(c: Convolution, target: CpuTarget) -> bool:
    """True if the weights are packed for a tile of dot products (``dot_tile``)."""
    return packed_width(c) == 1 and suits_dots(c.out_channels, c.channels, target.lanes(element_bytes(c)))


def _registers(tile: Tile, c: Convolution, target: CpuTarget) -> int:
    return dot_registers(tile.rows, c.out_channels) if by_dots(c, target) else registers(tile, target)


def validity(config: ConvolutionConfig, c: Convolution, target: CpuTarget) -> str | None:
    """The reason why ``config`` cannot compute ``c`` on ``target``, or None if it can; the default always can."""
    tile, size = config.tile, element_bytes(c)
    width = config.width(target.lanes(size))
    if min(tile.rows, tile.vectors, config.rows, config.columns, config.panels) < 1:
        return "every size is at least 1"
    needed, have = _registers(tile, c, target), target.vector_registers
    if needed > have:
        return f"a tile of {tile.rows} columns × {tile.vectors} vectors takes {needed} registers, but there are {have}"
    packed = packed_width(c)
    if by_dots(c, target):
        if tile.vectors != 1:
            return f"dot products have no tile of {tile.vectors} vectors"
    elif packed is not None and packed != width and config != default(c, target):
        return f"the weights are packed in panels of {packed} channels, but the tile has {width}"
    panels = -(-c.out_channels // width)
    if config.panels > panels:
        return f"a group has {panels} panels of {width} channels, not {config.panels}"
    for name, most, asked in (("rows", c.steps(1), config.rows), ("columns", c.steps(2), config.columns)):
        known = static_size(most)
        if known is not None and asked > known:
            return f"there are {known} {name} of output, not {asked}"
    if config.columns % tile.rows and config.columns != static_size(c.steps(2)):
        return f"blocks of {config.columns} columns are not whole tiles of {tile.rows}"
    input_tile = InputTile(c, config.rows, config.columns, depth(c)).size * size
    if input_tile > STACK_BYTES:
        return f"an input tile of {input_tile} bytes does not fit a thread's stack"
    return None


def default(c: Convolution, target: CpuTarget) -> ConvolutionConfig:
    """The untuned configuration: the one that gives the busiest core the least work, counting vector multiply-adds,
    copies into input tiles, and weights that miss the second-level cache.

    Columns are split only if an input tile of one row is too large, or if their number is symbolic.
    """
    size, cores = element_bytes(c), target.cores
    lanes = target.lanes(size)
    extent: Dim = product([c.batch, *c.out]) if is_matrix_product(c) else c.steps(2)
    tile = choose_tile(extent, c.out_channels, target, lanes, terms=c.channels * math.prod(c.kernel))
    dots = by_dots(c, target)
    if dots:
        tile = Tile(dot_rows(static_size(extent), c.out_channels, target), 1)
    elif 0 < depth(c) <= WRITTEN_OUT:
        tile = Tile(min(tile.rows, _SUMS_WRITTEN_OUT // tile.vectors), tile.vectors)
    width = tile.vectors * lanes
    panels = -(-c.out_channels // width)
    k = c.channels * math.prod(c.kernel)
    batch = static_size(c.batch)
    images = [
        min(min(n, 4 * cores) * min(c.groups, 4 * cores) * (static_size(c.steps(0)) or 1), 16 * cores)
        for n in ((1, cores) if batch is None else (batch,))
    ]
    streamed = k * width * size / 16 if k * c.out_channels * 4 > target.l2 else 0.0
    budget = 2 * INPUT_TILE_BYTES // size
    columns = block_columns(c, tile, budget)
    steps = static_size(c.steps(1))
    samples = _SAMPLES if steps is None else (steps,)

    def cost(rows: int, chunk: int, extent: int, images: int) -> float:
        fill = InputTile(c, rows, columns, depth(c)).size / 8
        per_panel = columns * k * (c.out_channels if dots else width) / lanes
        parts = blocks(panels, chunk)
        work = [fill + p * (r * per_panel + streamed) for r in blocks(extent, rows) for p in parts]
        return makespan(work * images, cores) / extent

    most = min(steps or 16, 512)
    fitting = [r for r in range(1, most + 1) if r == 1 or InputTile(c, r, columns, depth(c)).size <= budget]
    chunks = sorted({panels, -(-panels // cores), -(-panels // (2 * cores)), 1}, reverse=True)
    choices = ((r, p) for p in chunks for r in reversed(fitting))

    def in_all(choice: tuple[int, int]) -> float:
        return sum(cost(*choice, extent, n) for extent in samples for n in images)

    rows, chunk = min(choices, key=in_all)
    return ConvolutionConfig(tile, rows, columns, chunk)


def block_columns(c: Convolution, tile: Tile, budget: int) -> int:
    """Columns of an input tile of ``budget`` elements: all of them, or as many whole tiles as fit."""
    known = static_size(c.steps(2))
    one = InputTile(c, 1, 1, c.channels)
    if known is not None and InputTile(c, 1, known, c.channels).size <= 2 * budget:
        return known
    most = max(1, _LONGEST_ROW // tile.rows) if known is None else known // tile.rows + 1
    step = max(1, c.phases[2][0].stride * one.planes * one.height * c.channels)
    fitting = (2 * budget - one.size) // step // tile.rows
    return max(1, min(most, fitting)) * tile.rows


def space(c: Convolution, target: CpuTarget) -> tuple[ConvolutionConfig, ...]:
    """At most 200 valid configurations, the default first."""
    first = default(c, target)
    found = dict.fromkeys(x for x in _candidates(first, c, target) if validity(x, c, target) is None)
    return tuple(dict.fromkeys([first, *found]))[:_MOST]


def _candidates(first: ConvolutionConfig, c: Convolution, target: CpuTarget) -> Iterator[ConvolutionConfig]:
    """Tiles × rows, those with the default's chunks first, so that truncation drops the least promising."""
    size = element_bytes(c)
    lanes, budget = target.lanes(size), 2 * INPUT_TILE_BYTES // size
    found = [(tile, block_columns(c, tile, budget)) for tile in _tiles(first, c, target)]
    for neighbours in ("image", "weights"):
        for tile, columns in found:
            panels = -(-c.out_channels // (tile.vectors * lanes))
            chunks = (panels, -(-panels // target.cores), -(-panels // (2 * target.cores)), 1)
            for rows in _row_blocks(first, c):
                for chunk in dict.fromkeys(chunks):
                    if neighbours == "image" or chunk < panels:
                        yield ConvolutionConfig(tile, rows, columns, chunk, neighbours)


def _tiles(first: ConvolutionConfig, c: Convolution, target: CpuTarget) -> list[Tile]:
    """For each width that the weights allow, the heights that cover a row of output with the least work."""
    lanes = target.lanes(element_bytes(c))
    packed = packed_width(c)
    widths = {t.vectors for t in tiles(target)} if packed is None else {-(-packed // lanes)}
    extent = static_size(c.steps(2)) or _LONGEST_ROW
    if by_dots(c, target):
        most = dot_rows(None, c.out_channels, target)
        return [first.tile, *(Tile(h, 1) for h in range(min(most, extent), 0, -1) if h != first.tile.rows)][:_HEIGHTS]
    found = [first.tile]
    for vectors in sorted(widths):
        heights = [
            Tile(h, vectors)
            for h in range(1, min(24, extent) + 1)
            if registers(Tile(h, vectors), target) <= target.vector_registers
            and (h * vectors >= _FEWEST_SUMS or h == extent)
        ]
        load = load_cost(target, c.channels * math.prod(c.kernel))
        heights.sort(key=lambda t: (tile_cost(extent, c.out_channels, t, lanes, load), -t.rows))
        found += heights[:_HEIGHTS]
    return list(dict.fromkeys(found))


def _row_blocks(first: ConvolutionConfig, c: Convolution) -> list[int]:
    """Row blocks: the default's, 1, 2, 4, ... rows, and all rows."""
    most = static_size(c.steps(1)) or 64
    found = [first.rows]
    size = 1
    while size < most:
        found.append(size)
        size *= 2
    return list(dict.fromkeys([*found, most]))
