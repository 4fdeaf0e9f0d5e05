"""The finished CPU kernel of a schedule."""

from __future__ import annotations

from taskmap.ir.builder import Builder
from taskmap.ir.nodes import Kernel
from taskmap.ir.task import Task


def kernel_of(task: Task, b: Builder, note: str) -> Kernel:
    """The kernel of ``task`` with the body that ``b`` holds; ``note`` names the schedule."""
    buffers = (*task.inputs, *task.outputs)
    return Kernel(task.name, buffers, task.outputs, task.dims, b.body(), note=note)
