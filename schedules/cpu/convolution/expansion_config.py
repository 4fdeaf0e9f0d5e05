"""Configurations of a depthwise convolution that computes its image: validity, and the one of the fewest cycles."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from taskmap.ir.construct import static_size
from taskmap.ir.target import CpuTarget
from taskmap.schedules.common.convolution_geometry import Convolution
from taskmap.schedules.common.stack_limit import STACK_BYTES
from taskmap.schedules.cpu.convolution.depthwise_config import DepthwiseConfig, depthwise_validity
from taskmap.schedules.cpu.convolution.expansion_cost import BYTES, together_cycles
from taskmap.schedules.cpu.convolution.input_tile import InputTile

_PART_OF_L2 = 2
"""An input tile takes at most this fraction of the second-level cache, beside the weights and the narrow image."""
_MOST_PANELS, _ROW_BLOCKS = 4, 5
"""Panels of a chunk of channels, and sizes of blocks of rows, that the cost model compares."""


def expanded_default(c: Convolution, terms: int, width: int, target: CpuTarget) -> DepthwiseConfig | None:
    """The configuration of the fewest cycles by the cost model, for a product of ``terms`` terms in panels of
    ``width``; None if no input tile fits a core's cache."""
    found = _candidates(c, width, target)
    return min(found, key=lambda x: together_cycles(x, c, terms, width, target), default=None)


def expanded_validity(config: DepthwiseConfig, c: Convolution, width: int, target: CpuTarget) -> str | None:
    """The reason why ``config`` cannot compute ``c`` on an image of its own, or None if it can."""
    if config.columns != static_size(c.steps(2)):
        return "an image that is computed has all columns in one block"
    if config.channels % width and config.channels != c.groups:
        return f"{config.channels} channels are not whole panels of {width}"
    return depthwise_validity(config, c, target)


def _candidates(c: Convolution, width: int, target: CpuTarget) -> Iterator[DepthwiseConfig]:
    """All columns, the channels of some panels, and about as many rows as fit a core's cache: fewer blocks multiply
    fewer rows twice, and some numbers of blocks divide better over the cores."""
    rows, columns = static_size(c.steps(1)) or 1, static_size(c.steps(2)) or 1
    height = min(columns, 8 if target.vector_registers >= 32 else 4)
    for panels in range(1, _MOST_PANELS + 1):
        channels = min(c.groups, panels * width)
        sizes = dict.fromkeys(-(-rows // parts) for parts in range(1, rows + 1))
        fitting = (n for n in sizes if InputTile(c, n, columns, channels).size * BYTES <= _most_bytes(target))
        for part in islice(fitting, _ROW_BLOCKS):
            yield DepthwiseConfig(height, part, columns, channels)
        if channels == c.groups:
            return


def _most_bytes(target: CpuTarget) -> int:
    return min(target.l2 // _PART_OF_L2, STACK_BYTES // 2)
