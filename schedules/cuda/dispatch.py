"""Dispatch: selects the schedule of a task on a GPU."""

from __future__ import annotations

from collections.abc import Callable

from taskmap.ir.construct import static_size
from taskmap.ir.nodes import Kernel
from taskmap.ir.target import GpuTarget
from taskmap.ir.task import Task
from taskmap.schedules.common.access import same_count
from taskmap.schedules.common.row_domain import Rows, find_contiguous_rows, find_rows, reductions_of, row_length
from taskmap.schedules.common.scheduled import ScheduledKernel
from taskmap.schedules.cuda.matmul.problem_view import Gemm, find_product
from taskmap.schedules.cuda.pointwise import schedule_pointwise
from taskmap.schedules.cuda.recurrence import schedule_recurrence
from taskmap.schedules.cuda.rows.template import schedule_rows
from taskmap.schedules.cuda.scatter import schedule_scatter
from taskmap.schedules.cuda.select_attention import schedule_attention
from taskmap.schedules.cuda.select_matmul import choose, schedule_config

_DEEP = 64
_TEMPLATES: tuple[tuple[str, Callable[[Task, GpuTarget], Kernel | None]], ...] = (
    ("cuda.attention", schedule_attention),
    ("cuda.scatter", schedule_scatter),
    ("cuda.recurrence", schedule_recurrence),
)
"""The templates of one configuration, in the order in which they are asked."""


def schedule_cuda(task: Task, target: GpuTarget, attempt: int = 0) -> ScheduledKernel:
    """The kernel of ``task`` on the GPU ``target``. Each ``attempt`` that ran out of registers moves on to the next
    configuration that needs fewer. Raises ScheduleError if no template or rule takes the task, or no configuration is
    left."""
    return _schedule(task, target, attempt).for_attempt(attempt)


def _schedule(task: Task, target: GpuTarget, attempt: int) -> ScheduledKernel:
    for name, template in _TEMPLATES:
        kernel = template(task, target)
        if kernel is not None:
            return ScheduledKernel(kernel, name)
    rows = find_contiguous_rows(task)
    product = find_product(task)
    if product is not None and not (rows is not None and is_thin(product)):
        config = choose(product, target, attempt)
        return ScheduledKernel(schedule_config(product, config, target), "cuda.matmul", config, attempt + 1)
    columns = find_rows(task) if rows is None else rows
    if columns is not None and (rows is not None or is_deep(columns) or not each_alone(task)):
        return ScheduledKernel(schedule_rows(task, columns, target), "cuda.rows")
    return ScheduledKernel(schedule_pointwise(task, target), "cuda.pointwise")


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
