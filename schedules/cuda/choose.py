"""Which schedule a task gets on a GPU."""

from __future__ import annotations

from taskmap.ir.nodes import Kernel
from taskmap.ir.target import Target
from taskmap.ir.task import Task
from taskmap.schedules.cuda.pointwise import schedule_pointwise


def schedule_cuda(task: Task, target: Target) -> Kernel:
    """The kernel of ``task`` on the GPU ``target``. Raises ScheduleError when no template or rule takes the task."""
    return schedule_pointwise(task, target)
