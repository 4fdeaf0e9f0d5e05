"""Unroll and jam: copies of the same code for neighbouring elements, their loops run together.

A reduction over rows that lie far apart visits a whole page for the elements of one vector. Several vectors side by
side, in the same loop over rows, read the page's neighbouring lines at one visit.

Method: Allen and Cocke, "A Catalogue of Optimizing Transformations" (1972), loop unrolling and fusion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from taskmap.ir.builder import Builder
from taskmap.ir.construct import static_size
from taskmap.ir.loops import Shared, column_groups, shared_loop, vectors
from taskmap.ir.nodes import Body, Dim, For, LoopKind, Stmt
from taskmap.ir.visit import substitute
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.common.loops import Element, vector_loop


def jammed(copies: Sequence[Body]) -> Body:
    """The statements of independent copies, in an order that keeps that of each copy. Where all have a loop of one
    extent, it becomes one loop; copies that do not correspond run one after another."""
    first = copies[0]
    if any(list(map(_shape, copy)) != list(map(_shape, first)) for copy in copies):
        return tuple(s for copy in copies for s in copy)
    result: list[Stmt] = []
    for same in zip(*copies, strict=True):
        loop = same[0]
        if isinstance(loop, For):
            bodies = [substitute(s.body, {s.var: loop.var}) for s in same if isinstance(s, For)]
            result.append(replace(loop, body=jammed(bodies)))
        else:
            result += same
    return tuple(result)


def _shape(s: Stmt) -> object:
    """Equal for statements that may stand together."""
    return (type(s), s.extent, s.kind, s.unroll, s.shared) if isinstance(s, For) else type(s)


def jammed_vectors(
    b: Builder, name: str, extent: Dim, lanes: int, copies: int, values: Inliner, body: Element, shared: Shared = False
) -> None:
    """Calls body(i, values, width, lane) for i in [0, extent), as ``vector_loop`` does, but for ``copies`` vectors
    together, a power of two; for those left over half of them, and so on."""
    size = static_size(extent)
    if size is None or copies == 1:
        vector_loop(b, name, extent, lanes, values, body, shared)
        return
    start = 0
    while copies > 1:
        groups = (size - start) // (lanes * copies)
        _together(b, name, start, groups, lanes, copies, values, body, shared if start == 0 else False)
        start += groups * lanes * copies
        copies //= 2
    for i, width, lane in vectors(b, name, size - start, lanes, values.simplifier, shared if start == 0 else False):
        body(i + start, values.nested(), width, lane)


def _together(
    b: Builder,
    name: str,
    start: int,
    groups: int,
    lanes: int,
    copies: int,
    values: Inliner,
    body: Element,
    shared: Shared,
) -> None:
    if not groups:
        return
    with shared_loop(b, name, groups, shared) as group:
        values.bind(group, groups)
        with b.loop(f"{name}_lane", lanes, LoopKind.VECTOR) as lane:
            values.bind(lane, lanes)
            bodies: list[Body] = []
            for copy in range(copies):
                with b.aside() as statements:
                    body((group * copies + copy) * lanes + lane + start, values.nested(), lanes, lane)
                bodies.append(tuple(statements))
            b.emit(*jammed(bodies))


_TIME = {1: 1.0, 2: 0.75, 4: 0.35, 8: 0.27}
"""The time for a vector of rows that lie pages apart, by the number of vectors together; measured on a Zen 4."""


def best_copies(extent: int, lanes: int, most: int, cores: int) -> int:
    """The number of vectors to compute together, a power of two and at most ``most``, that takes the least time if
    ``cores`` share the groups of that many."""

    def time(copies: int) -> float:
        groups, left = divmod(extent // lanes, copies)
        rest = sum(count * each * _TIME[each] for count, each in column_groups(left, copies))
        return -(-groups // cores) * copies * _TIME[copies] + rest

    return min((copies for copies in _TIME if copies <= most), key=lambda copies: (time(copies), copies))
