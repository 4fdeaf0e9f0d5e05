"""Configurations of convolution by minimal filtering: the sizes of its blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from taskmap.ir.construct import static_size
from taskmap.ir.nodes import Dim
from taskmap.ir.target import CpuTarget
from taskmap.ir.winograd import TAPS, WinogradForm
from taskmap.schedules.common.stack_limit import STACK_BYTES
from taskmap.schedules.cpu.matmul.config import registers
from taskmap.schedules.cpu.matmul.microkernel import Tile, tile_cost
from taskmap.schedules.cpu.support.rates import USABLE

BYTES = 4
CHAIN = 32
"""The most products added one after another. F(4×4) amplifies rounding errors of its products by about 3, and short
chains make up for it."""
UNSPLIT = 64
"""The most products of a sum that is not cut."""
_COLUMNS = 16
"""Tiles of a block along a row if their number is symbolic."""
_SLICE_BYTES = 96 << 10


@dataclass(frozen=True, slots=True)
class FilterSizes:
    """A convolution of 3×3 by ``form``: ``rows`` × ``columns`` outputs, None if symbolic, as ``batch`` may be, and
    weights in panels of ``width`` output channels."""

    form: WinogradForm
    batch: int | None
    channels: int
    out_channels: int
    rows: int | None
    columns: int | None
    width: int

    @property
    def panels(self) -> int:
        """Panels of output channels."""
        return -(-self.out_channels // self.width)

    @property
    def positions(self) -> int:
        """Products of a tile, for each pair of channels."""
        return self.form.inputs**2

    def tiles(self, outputs: int | None) -> int | None:
        """Tiles along a dimension."""
        return None if outputs is None else -(-outputs // self.form.outputs)


def sizes_of(
    form: WinogradForm, batch: Dim, channels: int, out_channels: int, out: tuple[Dim, Dim], width: int
) -> FilterSizes:
    """The sizes of a convolution, with None for symbolic ones."""
    rows, columns = (static_size(n) for n in out)
    return FilterSizes(form, static_size(batch), channels, out_channels, rows, columns, width)


@dataclass(frozen=True, slots=True)
class WinogradConfig:
    """``tile``: the register tile, tiles of the image × vectors of output channels. ``images``, ``rows``, ``columns``:
    tiles of a block. ``panels``: panels of output channels that one task computes. ``depth``: channels that are copied
    and transformed together."""

    tile: Tile
    images: int
    rows: int
    columns: int
    panels: int
    depth: int

    @property
    def tiles(self) -> int:
        """Tiles of a block."""
        return self.images * self.rows * self.columns


def transformed_bytes(tiles: int, sizes: FilterSizes) -> int:
    """Bytes of a block's transformed inputs, and of its products with a panel."""
    return sizes.positions * BYTES * ((tiles + 1) * (sizes.channels + sizes.width))


def input_bytes(config: WinogradConfig, sizes: FilterSizes) -> int:
    """Bytes of the padded input of one image of a block, over ``depth`` channels."""
    m = sizes.form.outputs
    return (config.rows * m + TAPS - 1) * (config.columns * m + TAPS - 1) * config.depth * BYTES


def candidates(sizes: FilterSizes, target: CpuTarget) -> Iterator[WinogradConfig]:
    """The configurations whose transformed inputs stay in a core's second-level cache; none if there are too many
    channels, or too few registers for a panel."""
    lanes = target.lanes(BYTES)
    vectors = -(-sizes.width // lanes)
    budget = min(int(target.l2 * USABLE), STACK_BYTES * 3 // 4)
    cores = target.cores
    if registers(Tile(1, vectors), target) > target.vector_registers:
        return
    chunks = sorted({-(-sizes.panels // parts) for parts in (1, cores, 2 * cores) if parts <= sizes.panels})
    for images, rows, columns in _blocks(sizes):
        tiles = images * rows * columns
        if transformed_bytes(tiles, sizes) > budget:
            continue
        tile = Tile(_height(tiles, vectors, sizes, target), vectors)
        for panels in chunks:
            config = WinogradConfig(tile, images, rows, columns, panels, _depth(sizes, rows, columns, lanes))
            if transformed_bytes(tiles, sizes) + input_bytes(config, sizes) <= STACK_BYTES - (128 << 10):
                yield config


def _blocks(sizes: FilterSizes) -> Iterator[tuple[int, int, int]]:
    """Images, rows and columns of tiles of a block: of a row a part, or rows, or whole images."""
    down, across = sizes.tiles(sizes.rows), sizes.tiles(sizes.columns)
    if across is None:
        yield from ((1, 1, columns) for columns in (_COLUMNS, _COLUMNS // 2))
        return
    yield from ((1, 1, columns) for columns in _parts(across))
    if down is None:
        return
    for rows in _parts(down):
        if rows > 1:
            yield 1, rows, across
    for images in range(2, (sizes.batch or 1) + 1):
        if (sizes.batch or 1) % images == 0:
            yield images, down, across


def _parts(extent: int) -> list[int]:
    """Block sizes that cut an extent into blocks as equal as possible."""
    return sorted({-(-extent // count) for count in range(1, extent + 1)})


def _height(tiles: int, vectors: int, sizes: FilterSizes, target: CpuTarget) -> int:
    """The height of the register tile that covers a block at the least cost."""
    most = [h for h in range(1, min(tiles, 24) + 1) if registers(Tile(h, vectors), target) <= target.vector_registers]
    lanes = target.lanes(BYTES)
    return min(most, key=lambda h: (tile_cost(tiles, sizes.width, Tile(h, vectors), lanes), -h))


def _depth(sizes: FilterSizes, rows: int, columns: int, lanes: int) -> int:
    """The most channels, a divisor of all, of which the padded input stays small; whole vectors if possible."""
    m = sizes.form.outputs
    pixels = (rows * m + TAPS - 1) * (columns * m + TAPS - 1)
    most = max(lanes, _SLICE_BYTES // (BYTES * pixels))
    divisors = [d for d in range(1, sizes.channels + 1) if sizes.channels % d == 0]
    whole = [d for d in divisors if d % lanes == 0] or divisors
    return max((d for d in whole if d <= most), default=whole[0])
