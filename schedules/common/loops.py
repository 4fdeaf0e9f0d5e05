"""Loops over vectors of elements, each with a scope for the names of its values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from taskmap.ir.builder import Builder
from taskmap.ir.loops import Shared, vectors
from taskmap.ir.nodes import Dim, Expr, LoopKind
from taskmap.schedules.common.inline import Inliner

Element = Callable[[Expr, Inliner, int, Expr], None]
"""The body of a vector loop: body(index, values, width, lane)."""


def vector_loop(
    b: Builder, name: str, extent: Dim, lanes: int, values: Inliner, body: Element, shared: Shared = False
) -> None:
    """Calls body(i, values, width, lane) for i in [0, extent), inside the loops of ``vectors``."""
    for i, width, lane in vectors(b, name, extent, lanes, values.simplifier, shared):
        body(i, values.nested(), width, lane)


def each_column(b: Builder, values: Inliner, groups: Sequence[tuple[int, int]]) -> Iterator[tuple[Expr, Inliner]]:
    """Yields (column, values) inside the loops over vectors and lanes of each of ``groups`` (as from ``column_groups``)
    in turn: the body of a ``for`` over this iterator emits into those loops."""
    start = 0
    for count, width in groups:
        with b.loop("vector", count) as v, b.loop("lane", width, lane_kind(width)) as lane:
            values.bind(v, count)
            inside = values.nested()
            inside.bind(lane, width)
            yield v * width + lane + start, inside
        start += count * width


def lane_kind(width: int) -> LoopKind:
    """The kind of a loop over the lanes of a vector of ``width``: a single lane runs serially."""
    return LoopKind.VECTOR if width > 1 else LoopKind.SERIAL
