"""Loop shapes of a CPU's kernels: vector loops with their tails, and grids with enough parallel iterations."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from taskmap.ir.analysis.simplify import Simplifier
from taskmap.ir.builder import Builder
from taskmap.ir.construct import compare, index, product, static_size
from taskmap.ir.nodes import Dim, Expr, ExprLike, LoopKind, Var

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


@contextmanager
def parallel_grid(
    b: Builder, names: Sequence[str], extents: Sequence[Dim], ranges: Simplifier, shared: Shared, enough: int
) -> Iterator[tuple[Expr, ...]]:
    """Nested loops, the outer ones collapsed into one that threads may share until it has ``enough`` iterations; a
    symbolic extent is assumed to be 1. ``ranges`` learns those of the variables."""
    if not extents:
        yield ()
        return
    fused = 1
    while fused < len(extents) and math.prod(static_size(n) or 1 for n in extents[:fused]) < enough:
        fused += 1
    total = product(extents[:fused])
    with shared_loop(b, "task", total, shared) as t:
        _bind(ranges, t, total)
        outer: list[Expr] = []
        for d in range(fused):
            inner = product(extents[d + 1 : fused])
            position = index(t) // inner if d + 1 < fused else index(t)
            where = ranges(position % extents[d] if d else position)
            if static_size(total) is None:  # divide by a symbolic size only once
                where = b.let(names[d], where)
                _bind(ranges, where, extents[d])
            outer.append(where)
        with b.grid(list(names[fused:]), [index(e) for e in extents[fused:]]) as rest:
            for v, e in zip(rest, extents[fused:], strict=True):
                _bind(ranges, v, e)
            yield (*outer, *rest)


def vectors(
    b: Builder, name: str, extent: Dim, lanes: int, ranges: Simplifier, shared: Shared = False
) -> Iterator[tuple[Expr, int, Expr]]:
    """Yields (i, width, lane) for i in [0, extent), ``lanes`` at a time: the body of a ``for`` over this iterator emits
    into a vector loop of ``width`` over ``lane``; for a scalar they are 1 and 0. The rest runs in halving widths, or
    one by one if the extent is symbolic."""
    size = static_size(extent)
    if size is not None:
        start = 0
        for count, width in column_groups(size, lanes):
            yield from _vectors(b, name, start, count, width, ranges, shared if start == 0 else False)
            start += count * width
        return
    whole = index(extent) // lanes
    if lanes > 1:
        yield from _vectors(b, name, 0, whole, lanes, ranges, shared)
    rest = index(extent) - whole * lanes if lanes > 1 else index(extent)
    with b.loop(f"{name}_tail", rest) as i:
        _bind(ranges, i, lanes if lanes > 1 else extent)
        yield i + whole * lanes if lanes > 1 else i, 1, index(0)


def _vectors(
    b: Builder, name: str, start: int, count: Dim, width: int, ranges: Simplifier, shared: Shared
) -> Iterator[tuple[Expr, int, Expr]]:
    """``count`` vectors of ``width`` lanes from ``start`` on."""
    if width == 1:
        with b.loop(f"{name}_tail", count) as i:
            _bind(ranges, i, count)
            yield i + start, 1, index(0)
        return
    with shared_loop(b, name, count, shared) as i:
        _bind(ranges, i, count)
        with b.loop(f"{name}_lane", width, LoopKind.VECTOR) as lane:
            _bind(ranges, lane, width)
            yield i * width + lane + start, width, lane


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


def _bind(ranges: Simplifier, var: ExprLike, extent: Dim) -> None:
    """Declares a loop variable in [0, extent); constants (elided loops) need no declaration."""
    if isinstance(var, Var):
        ranges.bind(var, extent)
