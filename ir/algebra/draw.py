"""The picture of a task mapping that the literature draws: a grid of tasks with the worker in each cell."""

from __future__ import annotations

from taskmap.ir.algebra.assignment import Assignment
from taskmap.ir.algebra.digits import Task
from taskmap.ir.algebra.grid_picture import Cell, Drawing, picture
from taskmap.ir.algebra.inverse import holders_of


def draw(mapping: Assignment, *, slots: bool, limit: int) -> Drawing:
    """One cell per task: its worker, or ``worker:slot``. "4+3": worker 4 and three more. "·": no worker.

    A mapping of more than two dimensions is drawn as one grid per index of the leading ones. At most `limit` cells per
    axis, and about as many grids, are drawn; only those are computed.
    """
    lookup = holders_of(mapping)

    def cell(task: Task) -> Cell:
        holders = lookup.all(*task)
        if not holders:
            return Cell("·")
        worker, slot = holders[0]
        label = f"{worker}:{slot}" if slots else str(worker)
        return Cell(label if len(holders) == 1 else f"{label}+{len(holders) - 1}", worker)

    return picture(repr(mapping), mapping.task_shape, cell, limit)
