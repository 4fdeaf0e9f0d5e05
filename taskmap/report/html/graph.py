"""The picture of a graph: its kernels from top to bottom, and the values between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from graphlib import TopologicalSorter

from taskmap.report.html.layers import Point, lay_out
from taskmap.report.html.text import clipped, duration, esc
from taskmap.report.records import ExternReport, GroupReport, ReportData
from taskmap.report.text import percent

_WIDTH, _HEIGHT, _GAP, _DROP, _POINT, _MARGIN = 262, 44, 20, 26, 18, 10
_LETTERS = 34

_Ends = set[tuple[float, int]]
"""Places of nodes, as opposed to points of chains."""


def graph_svg(report: ReportData, number: int) -> str:
    """The graph ``number`` of a report as SVG: kernels that run at every call, externs, inputs and results."""
    groups = {f"group {g.number}": g for g in report.groups if g.graph == number and not g.once}
    externs = {f"extern {number}.{e.node}": e for e in report.externs if e.graph == number}
    flows = [f for f in report.flows if _shown(f.source, number, groups) and _shown(f.target, number, groups)]
    inner: dict[str, GroupReport | ExternReport] = {**groups, **externs}
    outer = dict.fromkeys(end for f in flows for end in (f.source, f.target) if end not in inner)
    inputs = [end for end in outer if end.startswith("input")]
    results = [end for end in outer if end.startswith("results")]
    edges = list(dict.fromkeys((f.source, f.target) for f in flows))
    reads: dict[str, list[str]] = {n: [] for n in (*inputs, *inner, *results)}
    for a, b in edges:
        reads[b].append(a)
    nodes = list(TopologicalSorter(reads).static_order())
    drawing = lay_out(nodes, edges, _WIDTH + _GAP, _POINT)
    values: dict[str, list[str]] = {}
    for f in flows:
        if f.value not in values.setdefault(f.source, []):
            values[f.source].append(f.value)
    ends = {(p.x, p.layer) for p in drawing.places.values()}
    body = [_edges(legs, ends, values[source], number) for source, legs in drawing.legs.items()]
    body += [_node(name, drawing.places[name], inner.get(name), values) for name in nodes]
    width, height = drawing.width + 2 * _MARGIN, drawing.layers * (_HEIGHT + _DROP) - _DROP + 2 * _MARGIN
    what = f"{len(inner)} kernels and operators from {len(inputs)} inputs to the results, each below its inputs"
    return (
        f'<svg class="graph" viewBox="0 0 {width:.0f} {max(height, 1):.0f}" width="{width:.0f}" role="img" '
        f'aria-labelledby="graph{number}-title graph{number}-desc">'
        f'<title id="graph{number}-title">Graph {number}</title><desc id="graph{number}-desc">{what}.</desc>'
        f'<defs><marker id="arrow{number}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        f'orient="auto"><path d="M0 0 L8 4 L0 8 z" class="arrow"/></marker></defs>'
        f"{''.join(body)}</svg>"
    )


def _shown(end: str, graph: int, groups: dict[str, GroupReport]) -> bool:
    kind, _, rest = end.partition(" ")
    return end in groups if kind == "group" else rest.split(".")[0] == str(graph)


def _node(name: str, at: Point, step: GroupReport | ExternReport | None, values: Mapping[str, Sequence[str]]) -> str:
    x, y = at.x - _WIDTH / 2 + _MARGIN, _top(at.layer)
    if step is None:
        kind, _, rest = name.partition(" ")
        text = f"input {rest.split('.')[1]}" if kind == "input" else "results"
        text = " ".join(filter(None, (text, ", ".join(values.get(name, ())))))
        return (
            f'<g class="end"><title>{esc(text)}</title><rect x="{x:.1f}" y="{y + 8:.1f}" '
            f'width="{_WIDTH}" height="{_HEIGHT - 16}" rx="14"/><text x="{x + _WIDTH / 2:.1f}" y="{y + 26:.1f}" '
            f'text-anchor="middle">{esc(clipped(text, _LETTERS))}</text></g>'
        )
    if isinstance(step, ExternReport):
        kind, what, place, number = "extern", step.target, str(step), f"e{step.graph}-{step.node}"
    else:
        kind, what, place, number = step.kind, step.title, ", ".join(step.roles.computed), f"g{step.number}"
    heat = 0.0 if step.time.share is None else min(1.0, step.time.share * 4)
    label = f"{number.lstrip('g')}  " if isinstance(step, GroupReport) else ""
    times = " · ".join(t for t in (duration(step.time.seconds), percent(step.time.share)) if t)
    return (
        f'<a href="#{number}" class="node {kind}"><title>{esc(f"{what}: {place}. {times}")}</title>'
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{_WIDTH}" height="{_HEIGHT}" rx="5"/>'
        f'<rect class="heat" x="{x:.1f}" y="{y:.1f}" width="{_WIDTH}" height="{_HEIGHT}" rx="5" '
        f'fill-opacity="{heat * 0.45:.2f}"/>'
        f'<rect class="kind" x="{x:.1f}" y="{y:.1f}" width="5" height="{_HEIGHT}" rx="2"/>'
        f'<text x="{x + 12:.1f}" y="{y + 18:.1f}">{esc(clipped(label + what, _LETTERS))}</text>'
        f'<text class="small" x="{x + 12:.1f}" y="{y + 35:.1f}">{esc(clipped(times or "not run", _LETTERS))}</text></a>'
    )


def _edges(legs: Sequence[tuple[Point, Point]], ends: _Ends, values: Sequence[str], number: int) -> str:
    through = "".join(_leg(a, b, ends) for a, b in legs if (b.x, b.layer) not in ends)
    into = [_leg(a, b, ends) for a, b in legs if (b.x, b.layer) in ends]
    title = f"<title>{esc(', '.join(values))}</title>"
    paths = [f'<path d="{through}"/>'] if through else []
    paths += [f'<path d="{leg}" marker-end="url(#arrow{number})"/>' for leg in into]
    return f'<g class="edge">{title}{"".join(paths)}</g>'


def _leg(a: Point, b: Point, ends: _Ends) -> str:
    """From the lower side of a node, or the middle of a chain's point, to the upper side of the next one below."""
    x1, x2 = a.x + _MARGIN, b.x + _MARGIN
    y1 = _top(a.layer) + (_HEIGHT if (a.x, a.layer) in ends else _HEIGHT / 2)
    y2 = _top(b.layer) + (0 if (b.x, b.layer) in ends else _HEIGHT / 2)
    middle = (y1 + y2) / 2
    return f"M{x1:.1f} {y1:.1f}C{x1:.1f} {middle:.1f} {x2:.1f} {middle:.1f} {x2:.1f} {y2:.1f}"


def _top(layer: int) -> float:
    return layer * (_HEIGHT + _DROP) + _MARGIN
