"""Dispatch: selects the schedule of a task on a GPU."""

from __future__ import annotations

from taskmap.ir.construct import static_size
from taskmap.ir.errors import ScheduleError
from taskmap.ir.nodes import Kernel
from taskmap.ir.target import Target
from taskmap.ir.task import Task
from taskmap.schedules.common.access import same_count
from taskmap.schedules.common.row_domain import Rows, find_frame, find_rows, reductions_of, row_length
from taskmap.schedules.cuda.attention.template import schedule_attention
from taskmap.schedules.cuda.matmul.problem_view import Gemm, find_product
from taskmap.schedules.cuda.pointwise import schedule_pointwise
from taskmap.schedules.cuda.recurrence import schedule_recurrence
from taskmap.schedules.cuda.rows import schedule_rows
from taskmap.schedules.cuda.scatter import schedule_scatter
from taskmap.schedules.cuda.select_matmul import choose, schedule_config

_DEEP = 64
_WITH_OTHERS = ("cuda.matmul", "cuda.hopper")
"""Templates, by the prefix of their notes, that choose among configurations here."""


def schedule_cuda(task: Task, target: Target, attempt: int = 0) -> Kernel:
    """The kernel of ``task`` on the GPU ``target``. Each ``attempt`` that ran out of registers moves on to the next
    configuration that needs fewer. Raises ScheduleError if no template or rule takes the task, or no configuration is
    left."""
    kernel = _schedule(task, target, attempt)
    if attempt and not kernel.note.startswith(_WITH_OTHERS):
        raise ScheduleError(f"{kernel.note} is the only configuration of {kernel.name!r}")
    return kernel


def _schedule(task: Task, target: Target, attempt: int) -> Kernel:
    attention = schedule_attention(task, target)
    if attention is not None:
        return attention
    scatter = schedule_scatter(task, target)
    if scatter is not None:
        return scatter
    recurrence = schedule_recurrence(task, target)
    if recurrence is not None:
        return recurrence
    rows = find_rows(task)
    product = find_product(task)
    if product is not None and not (rows is not None and is_thin(product)):
        return schedule_config(product, choose(product, target, attempt), target)
    if rows is not None:
        return schedule_rows(task, rows, target)
    columns = find_frame(task)
    if columns is not None and (is_deep(columns) or not each_alone(task)):
        return schedule_rows(task, columns, target)
    return schedule_pointwise(task, target)


def is_deep(rows: Rows) -> bool:
    """True if rows are so long that a single thread for each would take too long."""
    return (static_size(row_length(rows)) or _DEEP) >= _DEEP


def each_alone(task: Task) -> bool:
    """True if every reduction is computed where it is stored, and no value of one is read by many elements."""
    shape = task.outputs[0].shape
    return all(not reductions_of(s) or same_count(s.shape, shape) for s in task.stages)


def is_thin(p: Gemm) -> bool:
    """True if a product has one row or one column: dot products along rows, which need no tiles."""
    return static_size(p.m) == 1 or static_size(p.n) == 1
