"""Configurations of the CPU's depthwise convolution template: validity, the untuned default, and the search space."""

from __future__ import annotations

from dataclasses import dataclass

from taskmap.ir.construct import static_size
from taskmap.ir.target import CpuTarget
from taskmap.schedules.common.config_text import ConfigText
from taskmap.schedules.common.convolution_geometry import Convolution
from taskmap.schedules.common.stack_limit import STACK_BYTES
from taskmap.schedules.cpu.convolution.base import INPUT_TILE_BYTES
from taskmap.schedules.cpu.convolution.config import element_bytes
from taskmap.schedules.cpu.convolution.input_tile import InputTile

_MOST = 200
_COLUMNS = 64
_ROWS = 8
_HEIGHTS = (2, 4, 6, 8, 12)


@dataclass(frozen=True, slots=True)
class DepthwiseConfig:
    """``height``: neighbouring columns whose sums are in registers at once. ``rows``, ``columns``: output positions of
    an input tile. ``channels``: channels of an input tile."""

    height: int
    rows: int
    columns: int
    channels: int

    def __str__(self) -> str:
        return _TEXT.write(self)


_TEXT = ConfigText(DepthwiseConfig, "columns={height:4}, block={rows:6}x{columns:6}, channels={channels:9}")
read_depthwise = _TEXT.read
"""The configuration with a given text, or None."""


def depthwise_validity(config: DepthwiseConfig, c: Convolution, target: CpuTarget) -> str | None:
    """The reason why ``config`` cannot compute ``c`` on ``target``, or None if it can."""
    if min(config.height, config.rows, config.columns, config.channels) < 1:
        return "every size is at least 1"
    # Each column needs a sum, an input element and a weight; beyond the registers, sums spill to memory.
    if config.height + 2 > target.vector_registers:
        return f"{config.height} sums, an element and a weight do not fit {target.vector_registers} registers"
    if config.channels > c.groups:
        return f"there are {c.groups} channels, not {config.channels}"
    for name, most, asked in (("rows", c.steps(1), config.rows), ("columns", c.steps(2), config.columns)):
        known = static_size(most)
        if known is not None and asked > known:
            return f"there are {known} {name} of output, not {asked}"
    input_tile = InputTile(c, config.rows, config.columns, config.channels).size * element_bytes(c)
    if input_tile > STACK_BYTES:
        return f"an input tile of {input_tile} bytes does not fit a thread's stack"
    return None


def depthwise_default(c: Convolution, target: CpuTarget) -> DepthwiseConfig:
    """The untuned configuration."""
    size, cores = element_bytes(c), target.cores
    lanes = target.lanes(size)
    columns = static_size(c.steps(2)) or _COLUMNS
    known = static_size(c.steps(1))
    rows = _ROWS if known is None else input_tile_rows(c, known, columns, size, cores)
    channels = c.groups
    count = -(-(known or _COLUMNS) // rows)
    if count < cores and c.groups >= 2 * lanes * cores:
        channels = -(-c.groups // lanes // (2 * cores)) * lanes
    while columns > _COLUMNS and InputTile(c, 1, columns, lanes).size * size > 2 * INPUT_TILE_BYTES:
        columns = -(-columns // 2)
    shortest = rows if known is None else 1
    fitting = 2 * INPUT_TILE_BYTES // (InputTile(c, shortest, columns, 1).size * size)
    channels = min(channels, max(1, fitting // lanes) * lanes)
    if known is not None and (part := _channels_of_image(c, known, columns, lanes, cores)):
        rows, channels = known, part
    height = min(columns, 8 if target.vector_registers >= 32 else 4)
    return DepthwiseConfig(height, rows, columns, channels)


def _channels_of_image(c: Convolution, rows: int, columns: int, lanes: int, cores: int) -> int:
    """The number of channels of the whole image that an input tile should hold, or 0 if that is too few. No row is then
    copied twice, and the tile is still in a near cache when its columns are read."""
    fitting = INPUT_TILE_BYTES // 2 // (InputTile(c, rows, columns, 1).size * element_bytes(c))
    if fitting < 4 * lanes:
        return 0
    least = -(-c.groups // fitting)
    parts = -(-least // cores) * cores
    return min(c.groups, -(-c.groups // parts // lanes) * lanes)


def depthwise_space(c: Convolution, target: CpuTarget) -> tuple[DepthwiseConfig, ...]:
    """At most 200 valid configurations, the default first."""
    first = depthwise_default(c, target)
    lanes, most = target.lanes(element_bytes(c)), static_size(c.steps(1)) or _COLUMNS
    rows = dict.fromkeys([first.rows, *(1 << n for n in range(max(1, most.bit_length()))), most])
    vectors = -(-c.groups // lanes)
    channels = dict.fromkeys([first.channels, c.groups, *(lanes << n for n in range(1, vectors.bit_length(), 2))])
    heights = dict.fromkeys([first.height, *(h for h in _HEIGHTS if h <= first.columns)])
    found = (DepthwiseConfig(h, r, first.columns, ch) for ch in channels for h in heights for r in rows)
    valid = (x for x in found if depthwise_validity(x, c, target) is None)
    return tuple(dict.fromkeys([first, *valid]))[:_MOST]


def input_tile_rows(conv: Convolution, out: int, columns: int, element_bytes: int, cores: int) -> int:
    """The number of output rows, of ``out``, that an input tile should serve: as many as its budget of bytes allows, in
    a number of blocks that is a multiple of ``cores`` if possible."""
    best = 1
    for rows in range(1, out + 1):
        if InputTile(conv, rows, columns, conv.groups).size * element_bytes > INPUT_TILE_BYTES and rows > 1:
            break
        count = -(-out // rows)
        waste = count * rows - out
        if waste == 0 or waste < rows // 4 + 1:
            even = count % cores == 0 or count >= 4 * cores
            if even or best == 1:
                best = rows
    return best
