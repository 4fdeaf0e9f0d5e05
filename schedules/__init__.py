"""How to compute it: from a task to a kernel, by template or by rule."""

from __future__ import annotations

from taskmap.ir.nodes import Kernel
from taskmap.ir.target import Target
from taskmap.ir.task import Task
from taskmap.schedules.cpu.contraction import schedule_matmul
from taskmap.schedules.cpu.convolution import schedule_convolution
from taskmap.schedules.cpu.pointwise import schedule_pointwise
from taskmap.schedules.cpu.rows import find_rows, schedule_rows


def schedule(task: Task, target: Target) -> Kernel:
    """The kernel of ``task`` on ``target``, its buffers the task's inputs and then its outputs.

    Raises ScheduleError when no template or rule takes the task.
    """
    for template in (schedule_convolution, schedule_matmul):
        kernel = template(task, target)
        if kernel is not None:
            return kernel
    rows = find_rows(task)
    if rows is not None:
        return schedule_rows(task, rows, target)
    return schedule_pointwise(task, target)


__all__ = ["schedule"]
