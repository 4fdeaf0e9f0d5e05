"""Cost model of convolution by minimal filtering, in cycles as ``schedules.cpu.convolution.cost`` counts them.

A task copies and transforms its part of the image, multiplies it by each panel of transformed weights, and transforms
the products. Weights stay in the second-level cache, or stream from memory for each block, whose own data stays there.
"""

from __future__ import annotations

from taskmap.ir.target import CpuTarget
from taskmap.ir.winograd import TAPS
from taskmap.schedules.common.convolution_geometry import positions
from taskmap.schedules.cpu.support.balance import blocks
from taskmap.schedules.cpu.support.rates import (
    FREE,
    L2_BYTES,
    TASK,
    TILE,
    USABLE,
    beside,
    busiest,
    step,
)
from taskmap.schedules.cpu.winograd.config import BYTES, CHAIN, UNSPLIT, FilterSizes, WinogradConfig

_UNKNOWN = 56
"""The extent assumed for a size that is known only when the kernel runs."""
_COPY, _RUN = 2.0, 6.0
"""Cycles of copying a vector of the padded input, and around each run."""
_INPUT = {2: 80.0, 4: 330.0}
_OUTPUT = {2: 60.0, 4: 230.0}
"""Cycles of transforming a vector of channels of one tile, by the outputs of the form."""
_FINISH = 2.5
"""Cycles of a vector of results in the epilogue."""
_ADD = 2.0
"""Cycles of adding a vector of partial sums to the others."""


STREAM_BYTES = 3.0
"""Bytes per cycle of weights that come from beyond the private caches: those of the other layers displace them between
two calls. A core that shares its memory with others reaches no more."""


def winograd_cycles(config: WinogradConfig, sizes: FilterSizes, target: CpuTarget) -> float:
    """Cycles of the busiest core; symbolic sizes count as 56, a symbolic batch as 1."""
    down, across = (sizes.tiles(n or _UNKNOWN) or 1 for n in (sizes.rows, sizes.columns))
    count = (sizes.batch or 1) // config.images or 1
    count *= -(-down // config.rows) * -(-across // config.columns)
    work = [_task(config, sizes, panels, target) for panels in blocks(sizes.panels, config.panels)]
    return busiest(work, count, target)


def _task(config: WinogradConfig, sizes: FilterSizes, panels: int, target: CpuTarget) -> float:
    lanes, form = target.lanes(BYTES), sizes.form
    vectors = -(-sizes.channels // lanes)
    m = form.outputs
    runs = (config.rows * m + TAPS - 1) * (config.columns * m + TAPS - 1) * -(-sizes.channels // config.depth)
    copied = config.images * runs * (-(-config.depth // lanes) * _COPY + _RUN)
    return TASK + copied + config.tiles * vectors * _INPUT[m] + panels * _panel(config, sizes, target)


def _panel(config: WinogradConfig, sizes: FilterSizes, target: CpuTarget) -> float:
    """One panel of output channels: the products and their transformation."""
    channels, m = sizes.channels, sizes.form.outputs
    vectors = config.tile.vectors
    panel = channels * sizes.width * BYTES
    weights = sizes.positions * sizes.panels * panel
    block = sizes.positions * config.tiles * channels * BYTES
    first = STREAM_BYTES if weights + block > target.l2 * USABLE else L2_BYTES
    again = FREE if panel + config.tile.rows * channels * BYTES <= target.l1 * USABLE else L2_BYTES
    sums = -(-channels // CHAIN) * vectors * _ADD if channels > UNSPLIT else 0.0
    time, begun = 0.0, False
    for _, many, height in positions(config.tiles, config.tile.rows):
        multiply = channels * step(height, vectors) + height * sums + TILE
        time += (many - (not begun)) * beside(multiply, panel / again)
        time += 0.0 if begun else beside(multiply, panel / first)
        begun = True
    outputs = config.tiles * vectors * (_OUTPUT[m] + m * m * _FINISH)
    return time * sizes.positions + outputs
