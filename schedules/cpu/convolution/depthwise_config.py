"""Configurations of the CPU's depthwise convolution template: validity, the untuned default, and the search space."""

from __future__ import annotations

import math
from dataclasses import dataclass

from taskmap.ir.construct import static_size
from taskmap.ir.isa.dots import LANE_DOTS
from taskmap.ir.nodes import Cast, Load
from taskmap.ir.target import CpuTarget
from taskmap.ir.types import bf16
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
_FEWEST_SUMS, _MOST_SUMS = 4, 8
"""Sums that hide the latency of a multiply-add where one starts in each cycle, and where two do."""
_REGISTERS, _LEAST_LANES, _MOST_WEIGHTS = 32, 4, 16
"""Of pairs of rows: registers that hold the weights of 3×3 beside sums, the lanes of the narrowest instruction, and the
vectors of weights that stay in registers."""


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


@dataclass(frozen=True, slots=True)
class PairedTap:
    """Two neighbouring rows of a window, as one instruction multiplies them. ``offset``: of the row of output among
    those computed together. ``row``: the pair of rows of input, from the first one of that output on. ``taps``: of the
    even and of the odd row of input; None beyond the window."""

    offset: int
    row: int
    taps: tuple[int | None, int | None]

    @property
    def alone(self) -> int | None:
        """The half of the pair with the only tap, None if there are two."""
        return None if None not in self.taps else int(self.taps[0] is None)


def is_paired(c: Convolution, target: CpuTarget) -> bool:
    """True if an instruction of ``target`` multiplies the window of ``c`` by pairs of rows: of bf16 in two dimensions,
    with rows at distances that put a row of output at the same half of a pair in all blocks."""
    weight = c.w
    while isinstance(weight, Cast):
        weight = weight.a
    narrow = c.x.dtype == bf16 and isinstance(weight, Load) and weight.buffer.dtype == bf16
    known = narrow and any(entry.targets(target) for entry in LANE_DOTS) and target.vector_registers >= _REGISTERS
    if not known or len(c.order) != 2 or any(len(phases) != 1 for phases in c.phases) or c.groups % _LEAST_LANES:
        return False
    rows = c.phases[1][0]
    return rows.every == 1 and rows.dilation == 1 and rows.stride in (1, 2) and c.kernel[1] > 1


def rows_together(c: Convolution) -> int:
    """Rows of output that a pair of rows of input begins."""
    return 2 // c.phases[1][0].stride


def rows_at_once(c: Convolution) -> int:
    """Rows of output whose sums are in registers at once: all that a pair begins, if their weights fit, too."""
    together = rows_together(c)
    weights = sum(len(tap_pairs(c, offset)) for offset in range(together)) * c.kernel[2]
    return together if weights <= _MOST_WEIGHTS else 1


def tap_pairs(c: Convolution, offset: int) -> list[PairedTap]:
    """The taps of the row of output ``offset`` after one at an even row of input."""
    taps = c.kernel[1]
    pairs = range(-(-(taps + offset) // 2))
    return [PairedTap(offset, row, (_tap(2 * row - offset, taps), _tap(2 * row + 1 - offset, taps))) for row in pairs]


def _tap(at: int, taps: int) -> int | None:
    return at if 0 <= at < taps else None


def depthwise_validity(config: DepthwiseConfig, c: Convolution, target: CpuTarget) -> str | None:
    """The reason why ``config`` cannot compute ``c`` on ``target``, or None if it can."""
    if min(config.height, config.rows, config.columns, config.channels) < 1:
        return "every size is at least 1"
    # Each column needs a sum, an input element and a weight; beyond the registers, sums spill to memory.
    if config.height + 2 > target.vector_registers:
        return f"{config.height} sums, an element and a weight do not fit {target.vector_registers} registers"
    if config.channels > c.groups:
        return f"there are {c.groups} channels, not {config.channels}"
    if config.channels % _LEAST_LANES and is_paired(c, target):
        return f"{config.channels} channels are not whole vectors of pairs"
    for name, most, asked in (("rows", c.steps(1), config.rows), ("columns", c.steps(2), config.columns)):
        known = static_size(most)
        if known is not None and asked > known:
            return f"there are {known} {name} of output, not {asked}"
    input_tile = InputTile(c, config.rows, config.columns, config.channels).size * element_bytes(c)
    if input_tile > STACK_BYTES:
        return f"an input tile of {input_tile} bytes does not fit a thread's stack"
    return None


def depthwise_default(c: Convolution, target: CpuTarget) -> DepthwiseConfig:
    """The untuned configuration: a narrow chunk of channels over as many rows as an input tile holds, so that few rows
    are copied twice and a tile is in a near cache when its columns are read."""
    size = element_bytes(c)
    lanes = target.lanes(size)
    channels = _chunk(c.groups, lanes)
    columns = static_size(c.steps(2)) or _COLUMNS
    while columns > _COLUMNS and InputTile(c, 1, columns, channels).size * size > INPUT_TILE_BYTES:
        columns = -(-columns // 2)
    known = static_size(c.steps(1))
    rows = _ROWS if known is None else _rows(c, known, columns, channels, target.cores)
    if not is_paired(c, target):
        return DepthwiseConfig(_height(c, columns, target), rows, columns, channels)
    together = rows_together(c)
    most = _MOST_SUMS // rows_at_once(c)
    whole = -(-rows // together) * together
    return DepthwiseConfig(-(-columns // -(-columns // most)), min(known or whole, whole), columns, channels)


def _chunk(groups: int, lanes: int) -> int:
    """Channels of an input tile: two vectors, or three or four that divide the channels; else even parts."""
    even = next((n for n in (2, 3, 4) if groups % (n * lanes) == 0), None)
    if even is not None:
        return even * lanes
    parts = -(-groups // (4 * lanes))
    return min(groups, -(-groups // (parts * lanes)) * lanes)


def _rows(c: Convolution, rows: int, columns: int, channels: int, cores: int) -> int:
    """Rows of output of an input tile: all in even blocks that fit, one for each core if there are no more tasks."""
    one, two = (InputTile(c, n, columns, channels).size * element_bytes(c) for n in (1, 2))
    most = 1 + max(0, INPUT_TILE_BYTES - one) // max(1, two - one)
    blocks = -(-rows // min(rows, most))
    tasks = (static_size(c.batch) or 1) * -(-c.groups // channels)
    while blocks * tasks % cores and blocks * tasks < 4 * cores and blocks < rows:
        blocks += 1
    return -(-rows // blocks)


def _height(c: Convolution, columns: int, target: CpuTarget) -> int:
    """Columns with sums in registers: as many as there are registers for, beside the weights, and in even parts."""
    taps = math.prod(c.kernel)
    most = max(_FEWEST_SUMS, min(_MOST_SUMS, target.vector_registers - taps - 1))
    return -(-columns // -(-columns // most))


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
