"""Loop shapes of the CPU schedules: vector loops with their tails, and grids with enough parallel iterations."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from taskmap.ir.builder import Builder
from taskmap.ir.construct import compare, index, product, static_size
from taskmap.ir.nodes import Dim, Expr, LoopKind
from taskmap.schedules.common.inline import Inliner

Element = Callable[[Expr, Inliner, int, Expr], None]
"""The body of a vector loop: body(index, values, width, lane)."""
Shared = bool | Expr
"""Decides if threads share a loop; a condition on symbolic sizes is evaluated when the kernel runs."""


def worth_sharing(work: Dim, least: int) -> Shared:
    """True if a loop of ``work`` operations is long enough for several threads: at least ``least``."""
    known = static_size(work)
    return known >= least if known is not None else compare("ge", index(work), index(least))


def shared_loop(b: Builder, name: str, extent: Dim, shared: Shared) -> AbstractContextManager[Expr]:
    """A loop whose iterations threads share if ``shared`` is true."""
    if isinstance(shared, bool):
        return b.loop(name, extent, LoopKind.PARALLEL if shared else LoopKind.SERIAL)
    return b.loop(name, extent, LoopKind.PARALLEL, shared=shared)


def vector_loop(
    b: Builder, name: str, extent: Dim, lanes: int, values: Inliner, body: Element, shared: Shared = False
) -> None:
    """Calls body(i, values, width, lane) for i in [0, extent), ``lanes`` at a time. The rest runs in halving widths, or
    one by one if the extent is symbolic. The body stands inside a vector loop of ``width`` over ``lane``; for a scalar
    they are 1 and 0."""
    size = static_size(extent)
    if size is not None:
        start = 0
        for count, width in column_groups(size, lanes):
            _vectors(b, name, start, count, width, values, body, shared if start == 0 else False)
            start += count * width
        return
    whole = index(extent) // lanes
    if lanes > 1:
        _vectors(b, name, 0, whole, lanes, values, body, shared)
    rest = index(extent) - whole * lanes if lanes > 1 else index(extent)
    with b.loop(f"{name}_tail", rest) as i:
        values.bind(i, lanes if lanes > 1 else extent)
        body(i + whole * lanes if lanes > 1 else i, values.nested(), 1, index(0))


def _vectors(
    b: Builder, name: str, start: int, count: Dim, width: int, values: Inliner, body: Element, shared: Shared
) -> None:
    """``count`` vectors of ``width`` lanes from ``start`` on."""
    if width == 1:
        with b.loop(f"{name}_tail", count) as i:
            values.bind(i, count)
            body(i + start, values.nested(), 1, index(0))
        return
    with shared_loop(b, name, count, shared) as i:
        values.bind(i, count)
        inner = values.nested()
        with b.loop(f"{name}_lane", width, LoopKind.VECTOR) as lane:
            inner.bind(lane, width)
            body(i * width + lane + start, inner, width, lane)


def each_column(b: Builder, values: Inliner, groups: Sequence[tuple[int, int]]) -> Iterator[tuple[Expr, Inliner]]:
    """Yields (column, values) inside the loops over vectors and lanes of each of ``groups`` (as from ``column_groups``)
    in turn: the body of a ``for`` over this iterator emits into those loops."""
    start = 0
    for vectors, width in groups:
        with b.loop("vector", vectors) as v, b.loop("lane", width, lane_kind(width)) as lane:
            values.bind(v, vectors)
            inside = values.nested()
            inside.bind(lane, width)
            yield v * width + lane + start, inside
        start += vectors * width


def lane_kind(width: int) -> LoopKind:
    """The kind of a loop over the lanes of a vector of ``width``: a single lane runs serially."""
    return LoopKind.VECTOR if width > 1 else LoopKind.SERIAL


def column_groups(columns: int, lanes: int) -> list[tuple[int, int]]:
    """Columns as (number of vectors, lanes) groups of falling width: 40 columns are two vectors of 16 and one of 8."""
    groups: list[tuple[int, int]] = []
    width = lanes
    while columns:
        count, columns = divmod(columns, width)
        if count:
            groups.append((count, width))
        width //= 2
    return groups


@contextmanager
def parallel_grid(
    b: Builder, names: Sequence[str], extents: Sequence[Dim], values: Inliner, shared: Shared, enough: int
) -> Iterator[tuple[Expr, ...]]:
    """Nested loops, the outer ones collapsed into one that threads may share until it has ``enough`` iterations; a
    symbolic extent is assumed to be 1."""
    if not extents:
        yield ()
        return
    fused = 1
    while fused < len(extents) and math.prod(static_size(n) or 1 for n in extents[:fused]) < enough:
        fused += 1
    total = product(extents[:fused])
    with shared_loop(b, "task", total, shared) as t:
        values.bind(t, total)
        outer: list[Expr] = []
        for d in range(fused):
            inner = product(extents[d + 1 : fused])
            position = index(t) // inner if d + 1 < fused else index(t)
            where = values.simplifier(position % extents[d] if d else position)
            if static_size(total) is None:  # divide by a symbolic size only once
                where = b.let(names[d], where)
                values.bind(where, extents[d])
            outer.append(where)
        with b.grid(list(names[fused:]), [index(e) for e in extents[fused:]]) as rest:
            for v, e in zip(rest, extents[fused:], strict=True):
                values.bind(v, e)
            yield (*outer, *rest)
