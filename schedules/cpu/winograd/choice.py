"""The fastest form of a convolution of 3×3 by the cost models: F(4×4), F(2×2), or direct convolution."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from taskmap.ir.construct import static_size
from taskmap.ir.nodes import Dim, Var
from taskmap.ir.target import CpuTarget
from taskmap.ir.types import f32
from taskmap.ir.util.lazy import lazily
from taskmap.ir.winograd import FORMS, TAPS, FormChoice, WinogradForm
from taskmap.schedules.common.space import likely
from taskmap.schedules.cpu.convolution.config import default as direct_default
from taskmap.schedules.cpu.convolution.cost import convolution_cycles
from taskmap.schedules.cpu.matmul.microkernel import Tile, choose_tile
from taskmap.schedules.cpu.winograd.config import BYTES, FilterSizes, WinogradConfig, candidates
from taskmap.schedules.cpu.winograd.cost import STREAM_BYTES, winograd_cycles

if TYPE_CHECKING:
    from taskmap.schedules.cpu.convolution.problem import ConvolutionProblem as _ConvolutionProblem
else:
    _ConvolutionProblem = lazily("taskmap.schedules.cpu.convolution.problem", "ConvolutionProblem")

_FEWEST_CHANNELS = 16
_GAIN = 0.85
"""The part of a direct convolution's cycles below which a form is chosen: transformed weights take up to four times the
memory."""
_ASSUMED = 56
"""The size assumed for a symbolic one without a hint."""
_ROWS = 24
"""Tiles of a block, roughly: they decide the width of panels."""


@lru_cache(maxsize=256)
def default(sizes: FilterSizes, target: CpuTarget) -> WinogradConfig | None:
    """The configuration of the fewest cycles by the cost model; None if none fits the caches."""
    return min(candidates(sizes, target), key=lambda x: winograd_cycles(x, sizes, target), default=None)


def choose_form(
    image: tuple[Dim, ...], out_channels: int, padding: tuple[int, int], hints: Mapping[Var, int], target: CpuTarget
) -> FormChoice:
    """The form of the fewest cycles by the cost models; direct if none is clearly faster. ``image``: [n, c, rows,
    columns]; ``hints``: likely values of symbolic sizes, 56 without a hint."""
    sizes = tuple(likely(n, hints) or (1 if d == 0 else _ASSUMED) for d, n in enumerate(image))
    known = tuple(static_size(n) is not None for n in image)
    return _choice(sizes, known, out_channels, padding, target)


@lru_cache(maxsize=256)
def _choice(
    image: tuple[int, ...], known: tuple[bool, ...], out_channels: int, padding: tuple[int, int], target: CpuTarget
) -> FormChoice:
    batch, channels, *spatial = image
    if min(channels, out_channels) < _FEWEST_CHANNELS or min(spatial) + 2 * min(padding) < TAPS:
        return FormChoice(None, 0, f"direct: minimal filtering needs {_FEWEST_CHANNELS} channels")
    if min(spatial) == 1:
        return FormChoice(None, 0, "direct: the image is a line")
    out = tuple(n + 2 * p - TAPS + 1 for n, p in zip(spatial, padding, strict=True))
    direct = _direct_cycles(image, out_channels, padding, target)
    found: list[tuple[float, WinogradForm, int]] = []
    for form in FORMS.values():
        tile = panel_tile(out_channels, target)
        width = tile.vectors * target.lanes(BYTES)
        free = tuple(n if there else None for n, there in zip((batch, *out), (known[0], *known[2:]), strict=True))
        sizes = FilterSizes(form, free[0], channels, out_channels, free[1], free[2], width)
        config = default(sizes, target)
        if config is not None:
            likely_sizes = FilterSizes(form, batch, channels, out_channels, out[0], out[1], width)
            found.append((winograd_cycles(config, likely_sizes, target), form, width))
    if not found:
        return FormChoice(None, 0, "direct: the transformed channels do not fit a core's cache")
    cycles, form, width = min(found, key=lambda x: x[0])
    estimates = [("direct", direct), *((str(other), estimate) for estimate, other, _ in found)]
    numbers = ", ".join(f"{name} {estimate / 1e6:.2f}" for name, estimate in estimates)
    if cycles > _GAIN * direct:
        return FormChoice(None, 0, f"direct: million cycles by the cost model: {numbers}")
    return FormChoice(form, width, f"{form}: million cycles by the cost model: {numbers}")


def panel_tile(out_channels: int, target: CpuTarget) -> Tile:
    """The register tile that decides the width of panels."""
    return choose_tile(_ROWS, out_channels, target, target.lanes(BYTES))


def _direct_cycles(image: tuple[int, ...], out_channels: int, padding: tuple[int, int], target: CpuTarget) -> float:
    """Cycles of the direct convolution in its untuned configuration."""
    lanes = target.lanes(BYTES)
    width = choose_tile(image[-1], out_channels, target, lanes, terms=image[1] * TAPS**2).vectors * lanes
    one = (1, 1)
    weight = (out_channels, image[1], TAPS, TAPS)
    problem = _ConvolutionProblem(image, weight, one, padding, one, 1, (f32, f32, f32), weights=f"packed{width}")
    conv = problem.convolution()
    streamed = math.prod(weight) * BYTES / STREAM_BYTES / target.cores
    return max(convolution_cycles(direct_default(conv, target), conv, target), streamed)
