"""How to compute it: from a task to a kernel, by template or by rule."""

from __future__ import annotations

from taskmap.ir.nodes import Kernel
from taskmap.ir.target import Target
from taskmap.ir.task import Task
from taskmap.schedules.cpu.pointwise import schedule_pointwise


def schedule(task: Task, target: Target) -> Kernel:
    """The kernel of ``task`` on ``target``, its buffers the task's inputs and then its outputs.

    Raises ScheduleError when no template or rule takes the task.
    """
    return schedule_pointwise(task, target)


__all__ = ["schedule"]
