"""The choice between one kernel for a product and the depthwise convolution behind it, and two; the blocks of one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING

from taskmap.ir.construct import static_size
from taskmap.ir.expansion import ExpansionChoice, ExpansionSizes
from taskmap.ir.nodes import Var
from taskmap.ir.target import CpuTarget
from taskmap.ir.types import f32
from taskmap.ir.util.lazy import lazily
from taskmap.schedules.common.convolution_geometry import Convolution
from taskmap.schedules.common.space import likely
from taskmap.schedules.common.stack_limit import STACK_BYTES
from taskmap.schedules.cpu.convolution.depthwise_config import DepthwiseConfig, depthwise_validity
from taskmap.schedules.cpu.convolution.expansion_cost import BYTES, apart_cycles, together_cycles
from taskmap.schedules.cpu.convolution.input_tile import InputTile
from taskmap.schedules.cpu.matmul.microkernel import tiles

if TYPE_CHECKING:
    from taskmap.schedules.cpu.convolution.problem import ConvolutionProblem as _ConvolutionProblem
else:
    _ConvolutionProblem = lazily("taskmap.schedules.cpu.convolution.problem", "ConvolutionProblem")

_PART_OF_L2 = 2
"""An input tile takes at most this fraction of the second-level cache, beside the weights and the narrow image."""
_MOST_PANELS, _ROW_BLOCKS = 4, 5
"""Panels of a chunk of channels, and sizes of blocks of rows, that the cost model compares."""


def choose_expansion(sizes: ExpansionSizes, hints: Mapping[Var, int], target: CpuTarget) -> ExpansionChoice:
    """One kernel if the cost models expect it to be faster than two. ``hints``: likely values of a symbolic batch, 1
    without a hint."""
    if any(static_size(n) is None for n in sizes.image[1:]):
        return ExpansionChoice(0, "apart: the image's size is known only when the kernel runs")
    batch = likely(sizes.image[0], hints) or 1
    return _choice(replace(sizes, image=(batch, *sizes.image[1:])), target)


@lru_cache(maxsize=256)
def _choice(sizes: ExpansionSizes, target: CpuTarget) -> ExpansionChoice:
    image = tuple(static_size(n) or 0 for n in sizes.image)
    channels, rows, columns = image[1:]
    window = zip((rows, columns), sizes.kernel, sizes.padding, sizes.dilation, strict=True)
    if any(n + 2 * p < d * (k - 1) + 1 for n, k, p, d in window):
        return ExpansionChoice(0, "apart: the window is larger than the image")
    weight = (channels, 1, *sizes.kernel)
    slide = (sizes.stride, sizes.padding, sizes.dilation)
    c = _ConvolutionProblem(image, weight, *slide, channels, (f32, f32, f32), weights="channels").convolution()
    widths = dict.fromkeys(t.vectors * target.lanes(BYTES) for t in tiles(target))
    configs = {width: expanded_default(c, sizes.terms, width, target) for width in widths}
    estimates = {w: together_cycles(x, c, sizes.terms, w, target) for w, x in configs.items() if x is not None}
    if not estimates:
        return ExpansionChoice(0, "apart: the rows under a window do not fit a core's cache")
    width = min(estimates, key=estimates.__getitem__)
    one, two = estimates[width], apart_cycles(c, sizes.terms, target)
    numbers = f"million cycles by the cost model: together {one / 1e6:.2f}, apart {two / 1e6:.2f}"
    return ExpansionChoice(width, f"together: {numbers}") if one < two else ExpansionChoice(0, f"apart: {numbers}")


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
