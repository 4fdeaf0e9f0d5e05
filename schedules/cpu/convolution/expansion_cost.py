"""Cost model of a product that a depthwise convolution computes for itself, against a kernel for each of the two.

Together they do not write the wide image and read it again, but multiply some of its rows twice, for neighbouring
blocks. Apart, an image that exceeds the caches costs two passes over a slower level of memory.
"""

from __future__ import annotations

from taskmap.ir.construct import static_size
from taskmap.ir.target import CpuTarget
from taskmap.ir.types import f32
from taskmap.schedules.common.convolution_geometry import Convolution, positions
from taskmap.schedules.cpu.convolution.cost import depthwise_cycles, window_cycles
from taskmap.schedules.cpu.convolution.depthwise_config import DepthwiseConfig, depthwise_default
from taskmap.schedules.cpu.convolution.expansion import tile_rows
from taskmap.schedules.cpu.convolution.input_tile import InputTile
from taskmap.schedules.cpu.matmul.config import Sizes
from taskmap.schedules.cpu.matmul.config import default as product_default
from taskmap.schedules.cpu.matmul.cost import cycles as product_cycles
from taskmap.schedules.cpu.matmul.microkernel import choose_tile
from taskmap.schedules.cpu.support.balance import blocks
from taskmap.schedules.cpu.support.rates import (
    FREE,
    L2_BYTES,
    L3_BYTES,
    MEMORY_BYTES,
    TILE,
    USABLE,
    beside,
    busiest,
    step,
)

BYTES = f32.bytes
_FINISH = 4.0
"""Cycles of a vector of a product's results in its epilogue: stored by the microkernel, loaded, stored in the tile."""
_FAR = 2.0
"""Cycles of a vector of an input tile beyond the first-level cache, for the multiply-adds that read it."""


def together_cycles(config: DepthwiseConfig, c: Convolution, terms: int, width: int, target: CpuTarget) -> float:
    """Cycles of the busiest core for ``c`` and the product of ``terms`` terms, in panels of ``width``, that makes its
    image of known size."""
    rows, columns, height = (static_size(n) or 1 for n in (c.steps(1), c.steps(2), c.image[1]))
    chunks = blocks(c.groups, config.channels)
    tile = InputTile(c, config.rows, columns, config.channels)
    across = min(tile.width, static_size(c.image[2]) or 1)
    # Each chunk of channels reads the rows of the narrow image again.
    rate = L2_BYTES if (tile.size + tile.height * across * terms) * BYTES <= target.l2 * USABLE else L3_BYTES
    multiply = {n: _row(across, n, terms, width, rate, target) for n in {*chunks}}
    costs: dict[tuple[int, int], list[float]] = {}
    work: list[float] = []
    first = c.low(1)
    for block in blocks(rows, config.rows):
        reached = InputTile(c, block, columns, 1)
        inside = max(0, min(first + reached.height, height) - max(first, 0))
        first += block * c.phases[1][0].stride
        if (block, inside) not in costs:
            whole = {n: _FAR * reached.size * -(-n // target.lanes(BYTES)) for n in {*chunks}}
            far = {n: cost if reached.size * n * BYTES > target.l1 * USABLE else 0.0 for n, cost in whole.items()}
            each = {n: inside * multiply[n] + far[n] + window_cycles(c, target, block, columns, n) for n in {*chunks}}
            costs[block, inside] = [each[n] for n in chunks]
        work += costs[block, inside]
    return busiest(work, static_size(c.batch) or 1, target)


def _row(columns: int, channels: int, terms: int, width: int, rate: float, target: CpuTarget) -> float:
    """Cycles of the products of one row of an input tile, whose operand comes at ``rate`` bytes per cycle."""
    lanes = target.lanes(BYTES)
    total = 0.0
    for panel in blocks(channels, width):
        vectors = -(-panel // lanes)
        height = tile_rows(columns, vectors, lanes, target)
        compute = sum(
            many * (terms * step(size, vectors) + size * vectors * _FINISH + TILE)
            for _, many, size in positions(columns, height)
        )
        total += beside(compute, columns * terms * BYTES / rate)
    return total


def apart_cycles(c: Convolution, terms: int, target: CpuTarget) -> float:
    """Cycles of the busiest core for the same as two kernels in their untuned configurations."""
    batch, rows, columns = (static_size(n) or 1 for n in (c.batch, c.image[1], c.image[2]))
    lanes = target.lanes(BYTES)
    width = choose_tile(batch * rows * columns, c.groups, target, lanes, terms=terms).vectors * lanes
    sizes = Sizes(batch * rows * columns, c.groups, terms, 1, BYTES, packed=width)
    product = product_cycles(product_default(sizes, target), sizes, target)
    window = depthwise_cycles(depthwise_default(c, target), c, target)
    size = batch * rows * columns * c.groups * BYTES
    return product + window + 2 * size / target.cores / _rate(size, target)


def _rate(size: int, target: CpuTarget) -> float:
    """Bytes per cycle at which one kernel reads what another has written, beyond the copies that both count."""
    if size <= target.l2 * target.cores * USABLE:
        return FREE
    return L3_BYTES if size <= target.l3 * USABLE else MEMORY_BYTES
