"""Which schedule a task gets on a GPU."""

from __future__ import annotations

from taskmap.ir.nodes import Kernel
from taskmap.ir.target import Target
from taskmap.ir.task import Task
from taskmap.schedules.cpu.rows import find_rows
from taskmap.schedules.cuda.pointwise import schedule_pointwise
from taskmap.schedules.cuda.rows import schedule_rows


def schedule_cuda(task: Task, target: Target) -> Kernel:
    """The kernel of ``task`` on the GPU ``target``. Raises ScheduleError when no template or rule takes the task."""
    rows = find_rows(task)
    if rows is not None:
        return schedule_rows(task, rows, target)
    return schedule_pointwise(task, target)
