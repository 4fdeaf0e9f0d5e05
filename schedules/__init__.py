"""How to compute it: from a task to a kernel, by template or by rule."""

from __future__ import annotations

from collections.abc import Callable

from taskmap.ir.lazy import lazily
from taskmap.ir.nodes import Dim, Kernel
from taskmap.ir.target import Target
from taskmap.ir.task import Task
from taskmap.ir.types import DType
from taskmap.schedules.cpu.attention import schedule_attention
from taskmap.schedules.cpu.contraction import panel_width, schedule_matmul
from taskmap.schedules.cpu.convolution import schedule_convolution
from taskmap.schedules.cpu.correlation import schedule_correlation
from taskmap.schedules.cpu.pointwise import schedule_pointwise
from taskmap.schedules.cpu.rows import find_rows, schedule_rows
from taskmap.schedules.cpu.scan import schedule_scan
from taskmap.schedules.stack import STACK_BYTES, local_bytes

_schedule_cuda: Callable[[Task, Target], Kernel] = lazily("taskmap.schedules.cuda.choose", "schedule_cuda")


def schedule(task: Task, target: Target) -> Kernel:
    """The kernel of ``task`` on ``target``, its buffers the task's inputs and then its outputs.

    Raises ScheduleError when no template or rule takes the task.
    """
    if target.kind == "cuda":
        return _schedule_cuda(task, target)
    for template in (schedule_attention, schedule_convolution, schedule_correlation, schedule_matmul, schedule_scan):
        kernel = template(task, target)
        if kernel is not None and local_bytes(kernel) <= STACK_BYTES:
            return kernel
    rows = find_rows(task)
    if rows is not None:
        return schedule_rows(task, rows, target)
    return schedule_pointwise(task, target)


def packed_width(m: Dim, n: Dim, dtype: DType, target: Target) -> int:
    """How many columns of an m × n product the templates of ``target`` read together, for packing its second factor."""
    return panel_width(m, n, target, dtype)


__all__ = ["packed_width", "schedule"]
