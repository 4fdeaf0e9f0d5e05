"""Copies of columns of B that are not packed: many tiles of rows read a panel, and each reads the copy in sequence.

    for each k-block of a panel:   copy its columns;   for each tile t of rows:   multiply with the copy

In place, neighbouring rows of a panel lie a row of B apart. A panel of less than two cache lines fetches parts of lines
that the next panel reads, and strides that are multiples of a large power of two leave most of the sets of a cache
unused, so that each tile waits for the panel anew.

Columns that lie apart, as in A·Bᵀ with B in memory by rows, are collected element by element: once for the copy, and
not by each tile. A vector of columns is copied for all terms before the next, so its cache lines are read but once.
Sixteen terms of sixteen columns of a tensor are a square that is transposed among registers
(``backend/cpu/transposed_copies.py``).
"""

from __future__ import annotations

from collections.abc import Sequence

from taskmap.ir.analysis.contraction import Contraction
from taskmap.ir.builder import Builder
from taskmap.ir.construct import index
from taskmap.ir.nodes import Buffer, Dim, Expr, Load, Reduce
from taskmap.ir.task import Task
from taskmap.ir.types import f32
from taskmap.ir.visit import walk_exprs
from taskmap.schedules.common.access import accesses
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.common.loops import each_column
from taskmap.schedules.cpu.matmul.config import Columns
from taskmap.schedules.cpu.matmul.summed_loops import Element

SIDE = 16
"""Words along each side of a square that is copied at once."""


def columns_of(task: Task, c: Contraction) -> Columns | None:
    """The place of the columns of B in memory; None if it is neither."""
    if len(c.n) != 1 or c.b.dtype != f32:
        return None
    column = c.n[0][0]
    if isinstance(c.b, Load) and c.b.buffer not in task.producers:
        buffer = c.b.buffer
        neighbours = buffer.strides is None or buffer.strides[-1] == 1
        if neighbours and c.b.indices[-1] == column and column not in c.b.indices[:-1]:
            return Columns.NEIGHBOURS
    if contains_sum(task, c.b):
        return None
    axes = (c.n[0], *c.batch, *c.k)

    def b(values: Inliner) -> None:
        values.builder.let("b", values.expand(c.b, {}))

    read = accesses(task, [v for v, _ in axes], [d for _, d in axes], (), b)
    return Columns.APART if any(r.step(0) not in (0, 1) for r in read) else None


def contains_sum(task: Task, e: Expr) -> bool:
    """True if a reduction is part of what ``e`` computes."""
    parts = list(walk_exprs(e))
    stages = [task.producers[p.buffer] for p in parts if isinstance(p, Load) and p.buffer in task.producers]
    return any(isinstance(p, Reduce) for p in parts) or any(contains_sum(task, stage.body) for stage in stages)


def is_moved(task: Task, e: Expr) -> bool:
    """True if an element is one of a tensor in memory, through views at most."""
    while isinstance(e, Load) and e.buffer in task.producers:
        e = task.producers[e.buffer].body
    return isinstance(e, Load)


def copy_columns(
    b: Builder,
    values: Inliner,
    right: Element,
    groups: Sequence[tuple[int, int]],
    k: Sequence[Dim],
    most: Sequence[int],
    lie: Columns | None,
    *,
    moved: bool = False,
) -> Element:
    """Copies the columns of B that ``right`` reads, for summed indices below ``k``, and returns what reads the copy.

    groups: the columns as groups of vectors. most: extents of the copy, at least those of ``k``, of which one is not 1.
    lie: how the columns of B lie in memory. moved: the copy has the elements of a tensor, not computed ones.
    """
    (position,) = (d for d, n in enumerate(most) if n != 1) if max(most) > 1 else (0,)
    columns = sum(count * width for count, width in groups)
    copy: Buffer = b.allocate("columns", f32, (most[position], columns))

    def put(term: Expr, column: Expr, inside: Inliner) -> None:
        at = [term if d == position else index(0) for d in range(len(most))]
        b.store(copy, (term, column), right(at, column, inside))

    if lie is Columns.APART:
        first = 0
        for count, width in groups:
            squares = values.simplifier(index(k[position]) // SIDE if moved and width == SIDE else index(0))
            done = values.simplifier(squares * SIDE)
            for column, inside in each_column(b, values, [(count, width)]):
                with b.loop("square", squares) as square:
                    inside.bind(square, max(most[position] // SIDE, 1))
                    here = inside.nested()
                    for place in range(SIDE):
                        put(square * SIDE + place, column + first, here)
                with b.loop("term", values.simplifier(index(k[position]) - done)) as term:
                    inside.bind(term, most[position])
                    put(done + term, column + first, inside.nested())
            first += count * width
    else:
        with b.loop("term", index(k[position])) as term:
            values.bind(term, most[position])
            for column, inside in each_column(b, values, groups):
                put(term, column, inside)

    def element(where: Sequence[Expr], column: Expr, inside: Inliner) -> Expr:
        return copy[where[position], column]

    return element
