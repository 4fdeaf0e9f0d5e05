"""The choice between one kernel for a product and the depthwise convolution behind it, and two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from taskmap.ir.construct import static_size
from taskmap.ir.expansion import ExpansionChoice, ExpansionSizes
from taskmap.ir.nodes import Var
from taskmap.ir.target import CpuTarget
from taskmap.ir.types import f32
from taskmap.ir.util.lazy import lazily
from taskmap.schedules.common.space import likely
from taskmap.schedules.cpu.convolution.expansion_config import expanded_default
from taskmap.schedules.cpu.convolution.expansion_cost import BYTES, apart_cycles, together_cycles
from taskmap.schedules.cpu.matmul.microkernel import tiles

if TYPE_CHECKING:
    from taskmap.schedules.cpu.convolution.problem import ConvolutionProblem as _ConvolutionProblem
else:
    _ConvolutionProblem = lazily("taskmap.schedules.cpu.convolution.problem", "ConvolutionProblem")


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
