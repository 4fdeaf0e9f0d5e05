"""Copies of columns of B that are not packed: many tiles of rows read a panel, and each reads the copy in sequence.

    for each k-block of a panel:   copy its columns;   for each tile t of rows:   multiply with the copy

In place, neighbouring rows of a panel lie a row of B apart. A panel of less than two cache lines fetches parts of lines
that the next panel reads, and strides that are multiples of a large power of two leave most of the sets of a cache
unused, so that each tile waits for the panel anew.
"""

from __future__ import annotations

from collections.abc import Sequence

from taskmap.ir.analysis.contraction import Contraction
from taskmap.ir.builder import Builder
from taskmap.ir.construct import index
from taskmap.ir.nodes import Buffer, Dim, Expr, Load
from taskmap.ir.task import Task
from taskmap.ir.types import f32
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.common.loops import each_column
from taskmap.schedules.cpu.matmul.summed_loops import Element


def has_rows(task: Task, c: Contraction) -> bool:
    """True if B is a tensor of f32 in memory, whose columns are neighbours."""
    if not isinstance(c.b, Load) or c.b.buffer.dtype != f32 or c.b.buffer in task.producers or len(c.n) != 1:
        return False
    buffer, column = c.b.buffer, c.n[0][0]
    neighbours = buffer.strides is None or buffer.strides[-1] == 1
    return neighbours and c.b.indices[-1] == column and column not in c.b.indices[:-1]


def copy_columns(
    b: Builder,
    values: Inliner,
    right: Element,
    groups: Sequence[tuple[int, int]],
    k: Sequence[Dim],
    most: Sequence[int],
) -> Element:
    """Copies the columns of B that ``right`` reads, for summed indices below ``k``, and returns what reads the copy.

    groups: the columns as groups of vectors. most: extents of the copy, at least those of ``k``, of which one is not 1.
    """
    (position,) = (d for d, n in enumerate(most) if n != 1) if max(most) > 1 else (0,)
    columns = sum(count * width for count, width in groups)
    copy: Buffer = b.allocate("columns", f32, (most[position], columns))
    with b.loop("term", index(k[position])) as term:
        values.bind(term, most[position])
        at = [term if d == position else index(0) for d in range(len(most))]
        for column, inside in each_column(b, values, groups):
            b.store(copy, (term, column), right(at, column, inside))

    def element(where: Sequence[Expr], column: Expr, inside: Inliner) -> Expr:
        return copy[where[position], column]

    return element
