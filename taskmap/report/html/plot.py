"""The roofline plot: each kernel's rate, and the target's best rate, over the operations per byte."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from taskmap.report.html.text import duration, esc, scaled
from taskmap.report.records import GroupReport, ReportData
from taskmap.report.roofline import Ceiling, Peaks
from taskmap.report.text import percent

_WIDTH, _HEIGHT = 860.0, 470.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 74.0, 24.0, 18.0, 48.0
_LABELLED = 10

STYLE = (
    ".roofline{font:12px system-ui,sans-serif;color:#1b1f24;background:#fff}"
    ".roofline .grid{stroke:#8884;stroke-width:1}.roofline text{fill:currentColor}"
    ".roofline .roof{stroke:currentColor;stroke-width:1.6;fill:none}.roofline .memory{stroke-dasharray:6 3}"
    ".roofline .point{fill-opacity:.72;stroke:#fff;stroke-width:.8}"
    ".roofline .contraction{fill:#2563c9}.roofline .attention{fill:#8a3fc7}.roofline .reduce,.roofline .row"
    "{fill:#0c8071}.roofline .pointwise{fill:#b85c00}.roofline .ceiling{fill:none;stroke-width:2;stroke:#8a3fc7}"
    "@media (prefers-color-scheme:dark){.roofline{color:#e6e8eb;background:#15181c}"
    ".roofline .point{stroke:#15181c}.roofline .contraction{fill:#6ea8ff}.roofline .attention{fill:#c99bf5}"
    ".roofline .reduce,.roofline .row{fill:#4fd0bf}.roofline .pointwise{fill:#f0a35e}"
    ".roofline .ceiling{fill:none;stroke:#c99bf5}}"
)
"""The style of the plot, included in it so that it can be used alone."""


@dataclass(frozen=True, slots=True)
class _Dot:
    group: GroupReport
    intensity: float
    rate: float


@dataclass(frozen=True, slots=True)
class _Axes:
    """The powers of ten that bound both axes."""

    x0: int
    x1: int
    y0: int
    y1: int

    def at(self, intensity: float, rate: float) -> tuple[float, float]:
        """Pixels from the upper left corner."""
        x = (math.log10(intensity) - self.x0) / (self.x1 - self.x0)
        y = (math.log10(rate) - self.y0) / (self.y1 - self.y0)
        return _LEFT + x * (_WIDTH - _LEFT - _RIGHT), _HEIGHT - _BOTTOM - y * (_HEIGHT - _TOP - _BOTTOM)


def roofline_svg(report: ReportData) -> str:
    """The plot as a self-contained SVG, with a point for each kernel that computes; "" if no peak is known.

    In the simulator nothing is measured: a point is the bound by its counters, a ring the roofline's bound.
    """
    peaks = report.peaks
    if peaks is None:
        return ""
    dots = list(_dots(report))
    axes = _axes(dots, peaks)
    often = [g for g in report.groups if not g.once]
    missing = len(often) - len(dots)
    about = (
        f"{len(dots)} kernels by operations per byte of memory (across) and operations per second (up), "
        f"both on logarithmic scales, under the ceilings {', '.join(_named(c) for c in _ceilings(peaks))}"
        + (f". {missing} kernels only move data and have no point" if missing else "")
    )
    body = [*_grid(axes), *_roofs(axes, peaks), *(_point(dot, axes, report) for dot in dots), *_labels(dots, axes)]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="roofline" viewBox="0 0 {_WIDTH:.0f} {_HEIGHT:.0f}" '
        f'width="{_WIDTH:.0f}" role="img" aria-labelledby="roofline-title roofline-desc">'
        f'<title id="roofline-title">Roofline</title><desc id="roofline-desc">{esc(about)}.</desc>'
        f"<style>{STYLE}</style>{''.join(body)}</svg>"
    )


def _dots(report: ReportData) -> Iterator[_Dot]:
    """A dot for each kernel with operations, the busiest first, so that small ones are drawn on top of large ones."""
    for g in sorted(report.groups, key=lambda g: -(g.time.share or 0.0)):
        if g.once or not g.work.operations or not g.work.bytes:
            continue
        bound = report.simulated_bound(g)
        seconds = report.least(g) if report.simulated else g.time.seconds
        if bound is not None and seconds is not None:
            seconds = max(seconds, bound.seconds)
        if seconds:
            yield _Dot(g, g.work.operations / g.work.bytes, g.work.operations / seconds)


def _axes(dots: Sequence[_Dot], peaks: Peaks) -> _Axes:
    top = max(c.rate for c in peaks.arithmetic)
    ridge = top / min(m.rate for m in peaks.memories)
    xs = [dot.intensity for dot in dots] + [0.1, ridge * 2]
    ys = [dot.rate for dot in dots] + [top / 1e3]
    x0, y0 = (math.floor(math.log10(min(values))) for values in (xs, ys))
    x1, y1 = math.ceil(math.log10(max(xs))), math.ceil(math.log10(top * 1.3))
    return _Axes(x0, x1, max(y0, y1 - 7), y1)


def _grid(axes: _Axes) -> Iterator[str]:
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    for power in range(axes.x0, axes.x1 + 1):
        x, _ = axes.at(10.0**power, 10.0**axes.y0)
        yield f'<path class="grid" d="M{x:.1f} {_TOP}V{bottom}"/>'
        yield f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{10.0**power:g}</text>'
    for power in range(axes.y0, axes.y1 + 1):
        _, y = axes.at(10.0**axes.x0, 10.0**power)
        yield f'<path class="grid" d="M{_LEFT} {y:.1f}H{right}"/>'
        yield f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{scaled(10.0**power, "op/s")}</text>'
    middle = (_LEFT + right) / 2
    yield f'<text x="{middle:.0f}" y="{_HEIGHT - 10}" text-anchor="middle">operations per byte</text>'


def _ceilings(peaks: Peaks) -> tuple[Ceiling, ...]:
    return (*peaks.memories, *peaks.arithmetic)


def _named(ceiling: Ceiling) -> str:
    return f"{ceiling.name} {scaled(ceiling.rate, '/s')}"


def _roofs(axes: _Axes, peaks: Peaks) -> Iterator[str]:
    left, right = 10.0**axes.x0, 10.0**axes.x1
    top = max(c.rate for c in peaks.arithmetic)
    steepest = max(m.rate for m in peaks.memories)
    for unit in peaks.arithmetic:
        (x1, y1), (x2, y2) = axes.at(unit.rate / steepest, unit.rate), axes.at(right, unit.rate)
        text = f"{unit.name} {scaled(unit.rate, 'op/s')}"
        yield f'<path class="roof" d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"/>'
        yield f'<text x="{x2 - 4:.1f}" y="{y2 - 5:.1f}" text-anchor="end">{esc(text)}</text>'
    bottom = 10.0**axes.y0
    for place, memory in enumerate(peaks.memories):
        start = max(left, bottom / memory.rate)
        end = min(right, top / memory.rate)
        (x1, y1), (x2, y2) = axes.at(start, start * memory.rate), axes.at(end, end * memory.rate)
        angle = math.degrees(math.atan2(y2 - y1, x2 - x1))
        along = 0.5 if place % 2 else 0.06  # keep neighbouring labels apart
        x, y = x1 + along * (x2 - x1), y1 + along * (y2 - y1)
        yield f'<path class="roof memory" d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"/>'
        yield (
            f'<text transform="translate({x:.1f} {y:.1f}) rotate({angle:.1f})" y="{13 if place % 2 else -4}">'
            f"{esc(memory.name)} {scaled(memory.rate, 'B/s')}</text>"
        )


def _point(dot: _Dot, axes: _Axes, report: ReportData) -> str:
    g = dot.group
    x, y = axes.at(dot.intensity, max(dot.rate, 10.0**axes.y0))
    radius = 3.5 + 11 * math.sqrt(g.time.share or 0.0)
    reached = report.roofline(g)
    said = [f"kernel {g.number}: {g.title}", f"{dot.intensity:.3g} operations per byte"]
    bound = report.simulated_bound(g)
    if report.simulated:
        said.append(f"at most {scaled(dot.rate, 'op/s')}, in {duration((g.work.operations or 0) / dot.rate)}")
    else:
        said += [duration(g.time.seconds), scaled(dot.rate, "op/s"), f"{percent(reached)} of the roofline"]
    kind = f"{g.kind} ceiling" if report.simulated and bound is None else g.kind
    return (
        f'<a href="#g{g.number}"><circle class="point {kind}" cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}">'
        f"<title>{esc(' · '.join(said))}</title></circle></a>"
    )


def _labels(dots: Sequence[_Dot], axes: _Axes) -> Iterator[str]:
    """The numbers of the busiest kernels beside their points, if they do not overlap."""
    taken: list[tuple[float, float]] = []
    for dot in dots[:_LABELLED]:
        x, y = axes.at(dot.intensity, max(dot.rate, 10.0**axes.y0))
        if all(abs(x - a) > 26 or abs(y - b) > 12 for a, b in taken):
            taken.append((x, y))
            offset = 5 + 11 * math.sqrt(dot.group.time.share or 0.0)
            yield f'<text x="{x + offset:.1f}" y="{y + 4:.1f}">{dot.group.number}</text>'
