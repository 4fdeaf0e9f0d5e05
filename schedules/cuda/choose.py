"""Which schedule a task gets on a GPU."""

from __future__ import annotations

from taskmap.ir.construct import constant_dim
from taskmap.ir.nodes import Kernel
from taskmap.ir.target import Target
from taskmap.ir.task import Task
from taskmap.schedules.access import same_count
from taskmap.schedules.cpu.rows import find_rows
from taskmap.schedules.cuda.attention import schedule_attention
from taskmap.schedules.cuda.matmul_space import choose, schedule_config
from taskmap.schedules.cuda.pointwise import schedule_pointwise
from taskmap.schedules.cuda.product import Product, find_product
from taskmap.schedules.cuda.rows import schedule_rows
from taskmap.schedules.row_frame import Rows, find_frame, reductions_of, row_length

_DEEP = 64


def schedule_cuda(task: Task, target: Target) -> Kernel:
    """The kernel of ``task`` on the GPU ``target``. Raises ScheduleError when no template or rule takes the task."""
    attention = schedule_attention(task, target)
    if attention is not None:
        return attention
    rows = find_rows(task)
    product = find_product(task)
    if product is not None and not (rows is not None and is_thin(product)):
        return schedule_config(product, choose(product, target), target)
    if rows is not None:
        return schedule_rows(task, rows, target)
    columns = find_frame(task)
    if columns is not None and (is_deep(columns) or not each_alone(task)):
        return schedule_rows(task, columns, target)
    return schedule_pointwise(task, target)


def is_deep(rows: Rows) -> bool:
    """Whether rows are so long that a thread for each would be alone for long."""
    return (constant_dim(row_length(rows)) or _DEEP) >= _DEEP


def each_alone(task: Task) -> bool:
    """Whether every reduction is made where it is stored, and never read by many."""
    shape = task.outputs[0].shape
    return all(not reductions_of(s) or same_count(s.shape, shape) for s in task.stages)


def is_thin(p: Product) -> bool:
    """Whether a product has one row or one column: dot products along rows, which need no tiles."""
    return constant_dim(p.m) == 1 or constant_dim(p.n) == 1
