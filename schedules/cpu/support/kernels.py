"""Kernels of the CPU from what a schedule has built."""

from __future__ import annotations

from taskmap.ir.builder import Builder
from taskmap.ir.nodes import Kernel
from taskmap.ir.task import Task


def kernel_of(task: Task, b: Builder, note: str) -> Kernel:
    """The kernel of ``task`` whose body is what ``b`` holds; ``note`` says how it was made."""
    buffers = (*task.inputs, *task.outputs)
    return Kernel(task.name, buffers, task.outputs, task.dims, b.body(), note=note)
