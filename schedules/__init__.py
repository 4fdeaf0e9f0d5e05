"""How to compute it: from a task to a kernel, by template or by rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from taskmap.ir.errors import ScheduleError
from taskmap.ir.nodes import Dim, Kernel, Var
from taskmap.ir.target import Target
from taskmap.ir.task import Task
from taskmap.ir.types import DType
from taskmap.ir.util.lazy import lazily
from taskmap.schedules.common.row_domain import find_rows
from taskmap.schedules.common.space import Config, Problem, Space, Template, space_of, unreadable
from taskmap.schedules.common.stack_limit import STACK_BYTES, local_bytes
from taskmap.schedules.cpu.attention.template import schedule_attention
from taskmap.schedules.cpu.convolution.template import schedule_convolution
from taskmap.schedules.cpu.convolution.weight_gradient import schedule_correlation
from taskmap.schedules.cpu.matmul.template import panel_width, schedule_matmul
from taskmap.schedules.cpu.pointwise import schedule_pointwise
from taskmap.schedules.cpu.recurrence import schedule_recurrence
from taskmap.schedules.cpu.rows import schedule_rows
from taskmap.schedules.cpu.scan import schedule_scan
from taskmap.schedules.cpu.scatter import schedule_scatter

_find_matmul: Callable[..., Problem | None] = lazily("taskmap.schedules.cpu.matmul.problem", "find_matmul")
_read_matmul: Callable[[str, str, str], Problem] = lazily("taskmap.schedules.cpu.matmul.problem", "read_matmul")
_find_convolution: Callable[..., Problem | None] = lazily(
    "taskmap.schedules.cpu.convolution.problem", "find_convolution_problem"
)
_read_convolution: Callable[[str, str, str], Problem] = lazily(
    "taskmap.schedules.cpu.convolution.problem", "read_convolution"
)
_find_attention: Callable[..., Problem | None] = lazily(
    "taskmap.schedules.cpu.attention.problem", "find_attention_problem"
)
_read_attention: Callable[[str, str, str], Problem] = lazily(
    "taskmap.schedules.cpu.attention.problem", "read_attention"
)
_find_cuda_matmul: Callable[..., Problem | None] = lazily("taskmap.schedules.cuda.tunable_matmul", "find_cuda_matmul")
_read_cuda_matmul: Callable[[str, str, str], Problem] = lazily(
    "taskmap.schedules.cuda.tunable_matmul", "read_cuda_matmul"
)
_schedule_cuda: Callable[[Task, Target, int], Kernel] = lazily("taskmap.schedules.cuda.dispatch", "schedule_cuda")


_TEMPLATES = (
    schedule_attention,
    schedule_convolution,
    schedule_correlation,
    schedule_matmul,
    schedule_recurrence,
    schedule_scan,
    schedule_scatter,
)
"""Of the CPU, in the order in which they are asked."""
_TUNABLE = {
    "cpu": (
        Template("cpu.attention", _find_attention, _read_attention),
        Template("cpu.convolution", _find_convolution, _read_convolution),
        Template("cpu.matmul", _find_matmul, _read_matmul),
    ),
    "cuda": (Template("cuda.matmul", _find_cuda_matmul, _read_cuda_matmul),),
}
"""By kind of target, the templates whose configurations can be chosen."""
_NO_HINTS: Mapping[Var, int] = MappingProxyType({})
_ANY_SIZE = 64
"""What stands for a symbolic size where only the template matters."""


def schedule(task: Task, target: Target, config: Config | None = None, attempt: int = 0) -> Kernel:
    """The kernel of ``task`` on ``target``, its buffers the task's inputs and then its outputs; with ``config``, of its
    problem's space, where one is given. ``attempt``: how many kernels of the task had not registers enough on a GPU.

    Raises ScheduleError when no template or rule takes the task, not with ``config``, or not after so many attempts.
    """
    found = None if config is None else problem(task, target, dict.fromkeys(task.dims, _ANY_SIZE))
    if found is not None and config is not None:
        kernel = found.kernel(task, config, target)
        if local_bytes(kernel) > STACK_BYTES:
            raise ScheduleError(f"{task.name!r} with {config} does not fit a thread's stack")
        return kernel
    if target.kind == "cuda":
        return _schedule_cuda(task, target, attempt)
    for template in _TEMPLATES:
        made = template(task, target)
        if made is not None and local_bytes(made) <= STACK_BYTES:
            return made
    rows = find_rows(task)
    if rows is not None:
        return schedule_rows(task, rows, target)
    return schedule_pointwise(task, target)


def problem(task: Task, target: Target, hints: Mapping[Var, int] = _NO_HINTS) -> Problem | None:
    """What of a task can be tuned: its anchor, in a canonical form, at the likely values of symbolic sizes that
    ``hints`` give; None where no template's configuration is free."""
    return next((p for t in _TUNABLE.get(target.kind, ()) if (p := t.find(task, target, hints)) is not None), None)


def read_problem(template: str, shapes: str, dtypes: str, layout: str) -> Problem:
    """The problem that these texts say. Raises ScheduleError where they say none."""
    for t in (t for templates in _TUNABLE.values() for t in templates):
        if t.name == template:
            return t.read(shapes, dtypes, layout)
    raise unreadable(template, f"{shapes} {dtypes} {layout}")


def space(task: Task, target: Target) -> Space | None:
    """The configurations of a task's anchor, the most promising first; None where there is nothing to choose."""
    found = problem(task, target)
    return None if found is None else space_of(found, target)


def packed_width(m: Dim, n: Dim, dtype: DType, target: Target) -> int:
    """How many columns of an m × n product the templates of ``target`` read together, for packing its second factor."""
    return panel_width(m, n, target, dtype)


__all__ = ["Config", "Problem", "Space", "packed_width", "problem", "read_problem", "schedule", "space", "space_of"]
