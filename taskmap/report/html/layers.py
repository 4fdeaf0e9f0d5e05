"""A layered drawing of a directed acyclic graph: every node is below the nodes that it reads.

The method of Sugiyama, Tagawa and Toda, "Methods for visual understanding of hierarchical system structures" (1981):
layers by longest path, an order within each by barycentres, then positions. An edge across several layers passes
through a point on each layer between; all readers of a node share one chain of points.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

_SWEEPS = 6


@dataclass(frozen=True, slots=True)
class Point:
    """The place of a node or point: its middle, in pixels across, and its layer from the top."""

    x: float
    layer: int


@dataclass(frozen=True, slots=True)
class LayerDrawing:
    """The places of nodes; the legs of the edges by source, each from one point to a lower one; and the size."""

    places: Mapping[str, Point]
    legs: Mapping[str, Sequence[tuple[Point, Point]]]
    width: float
    layers: int


def lay_out(nodes: Sequence[str], edges: Sequence[tuple[str, str]], node: float, point: float) -> LayerDrawing:
    """Lay out nodes given in topological order. node, point: their widths, gaps included."""
    layer = _layers(nodes, edges)
    rows, links = _with_chains(nodes, edges, layer)
    widths = {name: node if name in layer else point for row in rows for name in row}
    up: dict[str, list[str]] = {name: [] for name in widths}
    down: dict[str, list[str]] = {name: [] for name in widths}
    for a, b in (leg for legs in links.values() for leg in legs):
        up[b].append(a)
        down[a].append(b)
    x = {name: i * node for row in rows for i, name in enumerate(row)}
    for sweep in range(_SWEEPS):
        downward = sweep % 2 == 0
        for row in rows if downward else rows[::-1]:
            _place(row, x, up if downward else down, widths)
    for row in rows:
        _place(row, x, {n: up[n] + down[n] for n in row}, widths)
    left = min((x[n] - widths[n] / 2 for n in x), default=0.0)
    right = max((x[n] + widths[n] / 2 for n in x), default=0.0)
    where = {n: Point(x[n] - left, number) for number, row in enumerate(rows) for n in row}
    legs = {source: [(where[a], where[b]) for a, b in found] for source, found in links.items()}
    return LayerDrawing({n: where[n] for n in nodes}, legs, right - left, len(rows))


def _layers(nodes: Sequence[str], edges: Sequence[tuple[str, str]]) -> dict[str, int]:
    layer = dict.fromkeys(nodes, 0)
    reads: dict[str, list[str]] = {n: [] for n in nodes}
    read_by: dict[str, list[str]] = {n: [] for n in nodes}
    for a, b in edges:
        reads[b].append(a)
        read_by[a].append(b)
    for n in nodes:
        layer[n] = max((layer[a] + 1 for a in reads[n]), default=0)
    for n in reversed(nodes):  # a node without inputs stands just above its first reader
        if not reads[n] and read_by[n]:
            layer[n] = min(layer[b] for b in read_by[n]) - 1
    return layer


def _with_chains(
    nodes: Sequence[str], edges: Sequence[tuple[str, str]], layer: Mapping[str, int]
) -> tuple[list[list[str]], dict[str, list[tuple[str, str]]]]:
    """The layers with the points of chains, and the legs by source; names of points differ from all names of nodes."""
    rows: list[list[str]] = [[] for _ in range(max(layer.values(), default=-1) + 1)]
    for n in nodes:
        rows[layer[n]].append(n)
    links: dict[str, list[tuple[str, str]]] = {}
    read_by: dict[str, dict[str, None]] = {}
    for a, b in edges:
        read_by.setdefault(a, {})[b] = None
    for source in nodes:
        targets = read_by.get(source)
        if not targets:
            continue
        legs = links.setdefault(source, [])
        at = source
        by_layer = {layer[source]: source}
        for number in range(layer[source] + 1, max(layer[t] for t in targets)):
            point = f"{source}\0{number}"
            rows[number].append(point)
            legs.append((at, point))
            at = by_layer[number] = point
        legs += [(by_layer[layer[t] - 1], t) for t in targets]
    return rows, links


def _place(
    row: list[str], x: dict[str, float], others: Mapping[str, Sequence[str]], widths: Mapping[str, float]
) -> None:
    """Order a layer by the means of its neighbours, and move each node as near to its mean as the others allow."""
    wish = {n: fmean(x[o] for o in others[n]) if others[n] else x[n] for n in row}
    row.sort(key=lambda n: wish[n])
    rightward: list[float] = []
    leftward: list[float] = []
    for i, n in enumerate(row):
        least = rightward[-1] + (widths[row[i - 1]] + widths[n]) / 2 if i else wish[n]
        rightward.append(max(wish[n], least))
    for i in range(len(row) - 1, -1, -1):
        n = row[i]
        most = leftward[-1] - (widths[row[i + 1]] + widths[n]) / 2 if leftward else wish[n]
        leftward.append(min(wish[n], most))
    # Both keep the distances, and so does every convex combination.
    for n, a, b in zip(row, rightward, reversed(leftward), strict=True):
        x[n] = (a + b) / 2
