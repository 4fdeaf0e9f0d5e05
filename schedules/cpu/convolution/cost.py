"""Cost model of the CPU's convolution templates: cycles of a configuration, from the target's parameters alone.

A tile takes the longer of two times: that of its multiply-adds, or that of loading weights and image from the caches
that hold them. Copies into input tiles and the edges of blocks are added. The busiest core decides, so the order in
which a core computes its tasks matters: neighbours that share the image find the input tile's lines nearby, those that
share weights find these. Working sets as in "Automatic Scheduling of Image Processing Pipelines", chapter 4.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from taskmap.ir.construct import static_size
from taskmap.ir.loops import column_groups
from taskmap.ir.nodes import Dim
from taskmap.ir.target import CpuTarget
from taskmap.schedules.common.convolution_geometry import Convolution, StridePhase, is_planar, positions
from taskmap.schedules.cpu.convolution.config import ConvolutionConfig, by_dots, depth, edge_columns, element_bytes
from taskmap.schedules.cpu.convolution.depthwise_config import DepthwiseConfig, is_paired, tap_pairs
from taskmap.schedules.cpu.convolution.input_tile import InputTile
from taskmap.schedules.cpu.matmul.config import registers
from taskmap.schedules.cpu.support.balance import blocks
from taskmap.schedules.cpu.support.rates import (
    FREE,
    L2_BYTES,
    L3_BYTES,
    MEMORY_BYTES,
    TASK,
    TILE,
    USABLE,
    beside,
    busiest,
    step,
)

_UNKNOWN = 56
"""The extent assumed for a size that is known only when the kernel runs."""
_COPY = 2.0
"""Cycles of loading and storing one vector of an input tile."""
_RUN = 6.0
"""Cycles around each contiguous run that is copied into an input tile."""
_FINISH = 1.5
"""Cycles of a vector of results in the epilogue."""
_FEW_CHANNELS = 8
_UNSPILLED_REGISTERS, _SPILL_PENALTY = 24, 0.025
"""With fewer than ``_FEW_CHANNELS`` input channels the compiler unrolls the innermost sum. Each register of the tile
beyond ``_UNSPILLED_REGISTERS`` then slows the multiply-adds by this fraction, because values spill to memory."""
_COPY_NEAR, _COPY_FAR = 4.0, 6.0
"""Cycles of copying a vector into the input tile of a depthwise convolution and reading it for the multiply-adds, if
the tile is in the first-level cache, or beyond it."""
_OUTPUT, _CHANNELS = 5.0, 95.0
"""Cycles of a vector of a depthwise convolution's results, and around all results of a vector of channels."""
_DEPTHWISE_TASK = 400.0


def convolution_cycles(config: ConvolutionConfig, c: Convolution, target: CpuTarget) -> float:
    """Cycles of the busiest core for ``c`` with ``config``; symbolic sizes count as 56."""
    rows, columns = blocks(_size(c.steps(1)), config.rows), blocks(_size(c.steps(2)), config.columns)
    places = [(r, q) for r in rows for q in columns]
    of_chunk = [
        {at: _Dense(config, c, target, at[0], at[1], last).cycles() for at in dict.fromkeys(places)}
        for last in (False, True)
    ]
    chunks = -(-_panels(config, c, target) // config.panels)
    costs = [of_chunk[n + 1 == chunks] for n in range(chunks)]
    repeats = _size(c.batch, 1) * c.groups * _size(c.steps(0))
    if config.neighbours == "image":
        return busiest([cost[at] for at in places for cost in costs], repeats, target)
    return busiest([cost[at] for cost in costs for _ in range(repeats) for at in places], 1, target)


def _panels(config: ConvolutionConfig, c: Convolution, target: CpuTarget) -> int:
    return -(-c.out_channels // config.width(target.lanes(element_bytes(c))))


def _size(d: Dim, otherwise: int = _UNKNOWN) -> int:
    return static_size(d) or otherwise


@dataclass(frozen=True, slots=True)
class _Dense:
    """One task: a block of positions and the panels of one chunk; ``last`` marks the chunk with the partial panel."""

    config: ConvolutionConfig
    c: Convolution
    target: CpuTarget
    rows: int
    columns: int
    last: bool

    @property
    def bytes(self) -> int:
        return element_bytes(self.c)

    @property
    def lanes(self) -> int:
        return self.target.lanes(self.bytes)

    @property
    def planar(self) -> bool:
        return is_planar(self.c) and not by_dots(self.c, self.target)

    @property
    def input_tile(self) -> InputTile:
        return InputTile(self.c, self.config.rows, self.config.columns, depth(self.c), self.planar)

    def cycles(self) -> float:
        c, width = self.c, self.config.width(self.lanes)
        panels = _panels(self.config, c, self.target)
        count = panels - (panels - 1) // self.config.panels * self.config.panels if self.last else self.config.panels
        rest = c.out_channels - (panels - 1) * width
        whole = [(self.config.tile.vectors, self.lanes)]
        total = TASK + self.fill()
        for n in range(count):
            edge = self.last and n + 1 == count and rest < width
            total += self.panel(edge_columns(c, rest, width, self.lanes) if edge else whole, panels)
        return total

    def fill(self) -> float:
        return fill(self.input_tile, self.lanes, self.bytes, self.far()) if depth(self.c) else 0.0

    def far(self) -> float:
        """Bytes per cycle of data that no core's private cache holds."""
        c = self.c
        image = _size(c.batch, 1) * c.groups * c.channels * math.prod(_size(d) for d in c.image)
        out = _size(c.batch, 1) * c.groups * c.out_channels * math.prod(_size(d) for d in c.out)
        return L3_BYTES if (image + out + self.weights) * self.bytes <= self.target.l3 * USABLE else MEMORY_BYTES

    @property
    def weights(self) -> int:
        return self.c.groups * self.c.out_channels * self.c.channels * math.prod(self.c.kernel)

    def panel(self, groups: list[tuple[int, int]], panels: int) -> float:
        """All positions of the block for one panel of output channels."""
        c, tile = self.c, self.config.tile
        width = sum(v * w for v, w in groups)
        l2 = self.target.l2 * USABLE
        input_tile = self.input_tile.size * self.bytes if depth(c) else 0
        time = 0.0
        for phase in _all_phases(c):
            k = math.prod(p.taps for p in phase) * c.channels
            weights = k * width * self.bytes
            used = weights * (self.config.panels if self.config.neighbours == "weights" else panels)
            first = L2_BYTES if used + input_tile <= l2 else self.far()
            slower = 1.0
            if c.channels < _FEW_CHANNELS:
                slower += _SPILL_PENALTY * max(0, registers(tile, self.target) - _UNSPILLED_REGISTERS)
            if by_dots(c, self.target):
                multiply = [k / self.lanes * step(height, width) for height in range(tile.rows + 1)]
            else:
                multiply = [slower * k * sum(step(height, v) for v, _ in groups) for height in range(tile.rows + 1)]
            row = 0.0
            for _, many, height in positions(self.columns, tile.rows):
                seen = phase[0].taps * phase[1].taps * ((height - 1) * phase[2].stride + phase[2].taps)
                image = seen * c.channels * self.bytes
                again = FREE if weights + image <= self.target.l1 * USABLE else L2_BYTES
                again = again if weights + input_tile <= l2 else self.far()
                read = image * len(groups) / (L2_BYTES if input_tile > self.target.l1 * USABLE else FREE)
                end = TILE + height * sum(v for v, _ in groups) * _FINISH
                row += many * (beside(multiply[height], weights / again + read) + end)
            height = min(tile.rows, self.columns)
            time += self.rows * row + max(0.0, weights / first - multiply[height])
        return time


def _all_phases(c: Convolution) -> list[tuple[StridePhase, ...]]:
    return list(itertools.product(*c.phases))


def fill(input_tile: InputTile, lanes: int, size: int, far: float) -> float:
    """Cycles of copying an input tile from the image, with vectors along the axis that is contiguous in both."""
    runs = input_tile.planes * input_tile.height * (input_tile.channels if input_tile.planar else input_tile.width)
    run = input_tile.width if input_tile.planar else input_tile.channels
    vectors = sum(count for count, _ in column_groups(run, lanes))
    return runs * (max(vectors * _COPY, run * size / far) + _RUN)


def depthwise_cycles(config: DepthwiseConfig, c: Convolution, target: CpuTarget) -> float:
    """Cycles of the busiest core for a depthwise ``c`` with ``config``; symbolic sizes count as 56."""
    size = element_bytes(c)
    parts = blocks(c.groups, config.channels)
    places = [
        (rows, columns)
        for rows in blocks(_size(c.steps(1)), config.rows)
        for columns in blocks(_size(c.steps(2)), config.columns)
    ]
    input_tiles = {part: InputTile(c, config.rows, config.columns, part) for part in {*parts}}
    costs = {
        (at, part): _depthwise_block(c, target, *at, part, input_tile, size)
        for at in {*places}
        for part, input_tile in input_tiles.items()
    }
    work = [costs[at, part] for at in places for part in parts]
    return busiest(work, _size(c.batch, 1) * _size(c.steps(0)), target)


def _depthwise_block(
    c: Convolution, target: CpuTarget, rows: int, columns: int, channels: int, input_tile: InputTile, size: int
) -> float:
    """One task. Tiles of any height hide each other's latency, so the height alone has no cost."""
    vectors = sum(count for count, _ in column_groups(channels, target.lanes(size)))
    near = input_tile.size * size <= target.l1 * USABLE
    copied = input_tile.planes * input_tile.height * input_tile.width * vectors * (_COPY_NEAR if near else _COPY_FAR)
    return copied + window_cycles(c, target, rows, columns, channels)


def window_cycles(c: Convolution, target: CpuTarget, rows: int, columns: int, channels: int) -> float:
    """Cycles of one task of a depthwise ``c`` whose input tile is filled: ``rows`` × ``columns`` positions of
    ``channels`` channels."""
    vectors = sum(count for count, _ in column_groups(channels, target.lanes(element_bytes(c))))
    outputs = vectors * rows * columns
    paired = len(tap_pairs(c, 0)) * c.kernel[2] if is_paired(c, target) else None
    work = sum((paired or math.prod(p.taps for p in phase)) * outputs + outputs * _OUTPUT for phase in _all_phases(c))
    return work + vectors * _CHANNELS + _DEPTHWISE_TASK
