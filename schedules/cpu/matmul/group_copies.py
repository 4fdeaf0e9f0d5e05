"""Copies of columns of B in groups of neighbours along the sum, as dot products read them: by the product itself.

    for group p, column j:   copy[p, j] = b[2 p, j], b[2 p + 1, j]      of bf16; zeros beyond the last term and column

B differs for each product of a batch, so a pass that packs it writes and reads as much memory as it reads already. The
copy of a panel stays in the cache of the core that multiplies with it. Terms that are neighbours in memory, as in A·Bᵀ,
move as whole groups, some groups of each column in turn, so that the lines of the copy are near while they are filled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from taskmap.ir.analysis.contraction import Contraction
from taskmap.ir.builder import Builder
from taskmap.ir.construct import cast, ceil_div, const, index, minimum, static_size
from taskmap.ir.loops import column_groups
from taskmap.ir.nodes import Buffer, Dim, Expr, LoopKind
from taskmap.ir.task import Task
from taskmap.ir.types import DType
from taskmap.schedules.common.access import accesses
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.common.loops import each_column
from taskmap.schedules.cpu.matmul.column_copies import SIDE
from taskmap.schedules.cpu.matmul.summed_loops import Element

Put = Callable[[Expr, Expr, Expr, Inliner], None]
"""Copies one element: put(group, place in the group, column, values)."""
_GROUPS = 32
"""Groups of a column that are copied before those of the next: two lines of memory."""


def lies_by_terms(task: Task, c: Contraction) -> bool:
    """True if neighbours of B along the one summed axis are adjacent in memory."""
    axes = (*c.k, *c.n, *c.batch)

    def b(values: Inliner) -> None:
        values.builder.let("b", values.expand(c.b, {}))

    read = accesses(task, [v for v, _ in axes], [d for _, d in axes], (), b)
    return bool(read) and all(r.step(0) in (0, 1) for r in read) and any(r.step(0) == 1 for r in read)


def copy_groups(
    b: Builder,
    values: Inliner,
    right: Element,
    columns: tuple[int, Sequence[tuple[int, int]]],
    terms: tuple[Dim, Dim, int, int],
    most: int,
    dtype: DType,
    by_terms: bool,
    into: tuple[Buffer, tuple[Expr, ...]] | None = None,
) -> Element:
    """Copies the columns of B that ``right`` reads, and returns what reads the copy at the same indices.

    columns: the width of the copy, and the columns that exist, as groups of vectors. terms: the first group, the number
    of whole groups, the terms of one more group that zeros fill (0: there is none), and the size of a group. most: the
    most groups. by_terms: neighbours along the sum are adjacent in memory. into: a buffer that holds several copies of
    that shape, and the indices of this one; by default it is allocated.
    """
    (width, groups), (first, whole, rest, size) = columns, terms
    copy, number = into or (b.allocate("columns", dtype, (most, width, size)), ())

    def put(group: Expr, place: Expr, column: Expr, inside: Inliner) -> None:
        term = (index(first) + group) * size + place
        b.store(copy, (*number, group, column, place), cast(right((term,), column, inside), dtype))

    if static_size(whole) != 0 and not by_terms:
        with b.loop("group", index(whole)) as group:
            values.bind(group, most)
            for column, inside in each_column(b, values.nested(), groups):
                for place in range(size):
                    put(group, index(place), column, inside)
    elif static_size(whole) != 0:
        _copy_by_terms(b, values, groups, (whole, most, size), put)
    if rest:
        last = values.simplifier(index(whole))
        for column, inside in each_column(b, values, groups):
            for place in range(size):
                if place < rest:
                    put(last, index(place), column, inside)
                else:
                    b.store(copy, (*number, last, column, index(place)), const(0, dtype))
    used = sum(count * lanes for count, lanes in groups)
    if used < width:
        with b.loop("group", values.simplifier(index(whole) + (rest > 0))) as group:
            values.bind(group, most)
            for lane, _ in each_column(b, values, column_groups((width - used) * size, SIDE)):
                b.store(copy, (*number, group, used + lane // size, lane % size), const(0, dtype))

    def element(where: Sequence[Expr], column: Expr, inside: Inliner) -> Expr:
        (term,) = where
        group = inside.simplifier(term // size) - first
        place = (*number, inside.simplifier(group), column, inside.simplifier(term % size))
        return copy[place]

    return element


def _copy_by_terms(
    b: Builder, values: Inliner, groups: Sequence[tuple[int, int]], terms: tuple[Dim, int, int], put: Put
) -> None:
    """Whole groups that are words of memory: squares of them, exchanged among registers, and the rest one by one."""
    whole, most, size = terms
    start = 0
    for count, lanes in groups:
        end, squares = start + count * lanes, values.simplifier(index(whole) // SIDE)
        if lanes != SIDE or most < SIDE:
            _copy_words(b, values, (start, end), (index(0), whole), terms, put)
        else:
            with b.loop("vector", count) as v, b.loop("square", squares) as square:
                values.bind(v, count)
                values.bind(square, most // SIDE)
                with b.loop("lane", lanes, LoopKind.VECTOR) as lane:
                    inside = values.nested()
                    inside.bind(lane, lanes)
                    for group in range(SIDE):
                        for place in range(size):
                            put(square * SIDE + group, index(place), v * lanes + lane + start, inside)
            if static_size(whole) is None or (static_size(whole) or 0) % SIDE:
                first = values.simplifier(squares * SIDE)
                _copy_words(b, values, (start, end), (first, index(whole) - first), (whole, most, size), put)
        start = end


def _copy_words(
    b: Builder,
    values: Inliner,
    columns: tuple[int, int],
    groups: tuple[Expr, Dim],
    terms: tuple[Dim, int, int],
    put: Put,
) -> None:
    """``groups`` (the first, and their number) of columns from the first to before the last of ``columns``."""
    (start, end), (first, count), (_, most, size) = columns, groups, terms
    with b.loop("part", ceil_div(count, _GROUPS)) as part, b.loop("column", end - start) as column:
        values.bind(part, -(-most // _GROUPS))
        values.bind(column, end - start)
        here = values.simplifier(minimum(index(count) - part * _GROUPS, _GROUPS))
        with b.loop("group", here) as g:
            values.bind(g, min(_GROUPS, most))
            with b.loop("term", size, LoopKind.VECTOR) as place:
                inside = values.nested()
                inside.bind(place, size)
                put(first + part * _GROUPS + g, place, column + start, inside)
