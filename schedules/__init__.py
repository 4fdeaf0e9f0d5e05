"""From a task to a kernel, by template or by rule: how to compute it.

A *task* is one fused group of operators. ``schedule`` asks the templates of the target in turn; if none takes the task,
a rule does (rows, else pointwise). ``space`` lists the configurations of a task's anchor for tuning.

    common/    what both devices share: inlining, memory access, row and scatter domains, problems and spaces
    strategies/    trees of ``ir.decompose`` in groups: anchors, prologues, epilogues
    cpu/       C kernels: rules, and a folder for each template family
    cuda/      kernels for NVIDIA GPUs: rules, and a folder for each template family

Imports ``ir`` only; ``common`` and ``strategies`` import neither device, and the devices never import each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from taskmap.ir.construct import static_size
from taskmap.ir.errors import ScheduleError
from taskmap.ir.nodes import Dim, Kernel, Var
from taskmap.ir.target import CpuTarget, Target
from taskmap.ir.task import Task
from taskmap.ir.types import DType, compute_type
from taskmap.ir.util.lazy import lazily
from taskmap.schedules.common.row_domain import find_contiguous_rows
from taskmap.schedules.common.scheduled import Choice, ScheduledKernel
from taskmap.schedules.common.space import Config, Problem, Space, Template, space_of, unreadable
from taskmap.schedules.common.stack_limit import STACK_BYTES, local_bytes
from taskmap.schedules.cpu.attention.template import schedule_attention
from taskmap.schedules.cpu.convolution.dot_tile import suits_dots
from taskmap.schedules.cpu.convolution.expansion_choice import choose_expansion
from taskmap.schedules.cpu.convolution.template import schedule_convolution
from taskmap.schedules.cpu.convolution.weight_gradient import schedule_correlation
from taskmap.schedules.cpu.matmul.amx_operands import FEWEST_ROWS
from taskmap.schedules.cpu.matmul.amx_template import schedule_tiles
from taskmap.schedules.cpu.matmul.amx_tile import tile_unit
from taskmap.schedules.cpu.matmul.dot_tile import copies_pairs, group_size, pairs_of_bf16
from taskmap.schedules.cpu.matmul.template import panel_width, schedule_matmul
from taskmap.schedules.cpu.pointwise import schedule_pointwise
from taskmap.schedules.cpu.recurrence import schedule_recurrence
from taskmap.schedules.cpu.rows import schedule_rows
from taskmap.schedules.cpu.scan import schedule_scan
from taskmap.schedules.cpu.scatter import schedule_scatter
from taskmap.schedules.cpu.support.balance import even_width
from taskmap.schedules.cpu.winograd.choice import choose_form
from taskmap.schedules.cpu.winograd.template import schedule_winograd
from taskmap.schedules.cpu.winograd.weights import schedule_weights

# Most processes tune nothing, and schedule for one device.
if TYPE_CHECKING:
    from taskmap.schedules.cpu.tunable import tunable as _tunable_on_cpu
    from taskmap.schedules.cuda.dispatch import schedule_cuda as _schedule_cuda
    from taskmap.schedules.cuda.tunable_matmul import tunable as _tunable_on_cuda
else:
    _tunable_on_cpu = lazily("taskmap.schedules.cpu.tunable", "tunable")
    _schedule_cuda = lazily("taskmap.schedules.cuda.dispatch", "schedule_cuda")
    _tunable_on_cuda = lazily("taskmap.schedules.cuda.tunable_matmul", "tunable")


_TEMPLATES: tuple[tuple[str, Callable[[Task, CpuTarget], Kernel | None]], ...] = (
    ("cpu.attention", schedule_attention),
    ("cpu.winograd", schedule_winograd),
    ("cpu.matmul", schedule_tiles),
    ("cpu.convolution", schedule_convolution),
    ("cpu.correlation", schedule_correlation),
    ("cpu.matmul", schedule_matmul),
    ("cpu.recurrence", schedule_recurrence),
    ("cpu.scan", schedule_scan),
    ("cpu.scatter", schedule_scatter),
    ("cpu.winograd_weights", schedule_weights),
)
"""The CPU's templates, in the order in which they are asked."""
_TUNABLE: Mapping[str, Callable[[], tuple[Template, ...]]] = {"cpu": _tunable_on_cpu, "cuda": _tunable_on_cuda}
"""Templates with tunable configurations, by kind of target."""
NO_HINTS: Mapping[Var, int] = MappingProxyType({})
_ANY_SIZE = 64
"""The size assumed for a symbolic dimension when only the choice of template matters."""


def schedule(task: Task, target: Target, config: Config | None = None, attempt: int = 0) -> Kernel:
    """The kernel of ``scheduled``, without the choices that led to it."""
    return scheduled(task, target, config, attempt).kernel


def scheduled(task: Task, target: Target, config: Config | None = None, attempt: int = 0) -> ScheduledKernel:
    """The kernel of ``task`` on ``target``; its buffers are the task's inputs, then its outputs. A ``config`` comes
    from the space of the task's problem. ``attempt``: how many earlier kernels of this task spilled registers on a GPU.

    Raises ScheduleError if no template or rule takes the task, if ``config`` does not fit it, or if no configuration is
    left after that many attempts.
    """
    found = None if config is None else problem(task, target, dict.fromkeys(task.dims, _ANY_SIZE))
    if found is not None and config is not None:
        kernel = found.kernel(task, config, target)
        if local_bytes(kernel) > STACK_BYTES:
            raise ScheduleError(f"{task.name!r} with {config} does not fit a thread's stack")
        return ScheduledKernel(kernel, found.template, config)
    if target.kind == "cuda":
        return _schedule_cuda(task, target, attempt)
    for name, template in _TEMPLATES:
        made = template(task, target)
        if made is not None and local_bytes(made) <= STACK_BYTES:
            return ScheduledKernel(made, name)
    rows = find_contiguous_rows(task)
    if rows is not None:
        return ScheduledKernel(schedule_rows(task, rows, target), "cpu.rows")
    return ScheduledKernel(schedule_pointwise(task, target), "cpu.pointwise")


def problem(task: Task, target: Target, hints: Mapping[Var, int] = NO_HINTS) -> Problem | None:
    """The tunable part of a task: its anchor in canonical form, with the values of ``hints`` for symbolic sizes. None
    if no template of the task has a choice of configurations."""
    templates = _TUNABLE[target.kind]()
    return next((p for t in templates if (p := t.find(task, target, hints)) is not None), None)


def read_problem(template: str, shapes: str, dtypes: str, layout: str) -> Problem:
    """The problem that these texts describe. Raises ScheduleError if they describe none."""
    for t in (t for templates in _TUNABLE.values() for t in templates()):
        if t.name == template:
            return t.read(shapes, dtypes, layout)
    raise unreadable(template, f"{shapes} {dtypes} {layout}")


def space(task: Task, target: Target) -> Space | None:
    """The configurations of a task's anchor, the most promising first; None if there is nothing to choose."""
    found = problem(task, target)
    return None if found is None else space_of(found, target)


def packed_width(
    m: Dim,
    n: Dim,
    dtype: DType,
    target: CpuTarget,
    channels: Dim = 0,
    factors: tuple[DType, DType] | None = None,
    terms: Dim = 0,
    run: int | None = None,
) -> int:
    """Columns of an m × n product of sums of ``terms`` that the templates of ``target`` read together: the panel width
    for packing B. ``channels``: input channels of a convolution whose window covers more than one pixel. ``factors``:
    their types, if neighbours along the sum are stored together. ``run``: rows that are equally spaced in memory before
    others follow; None if all are."""
    if factors is not None and (unit := tile_unit(*factors, target)) is not None:
        return unit.width
    if suits_dots(n, channels, target.lanes(compute_type(dtype).bytes)):
        return 1
    return panel_width(m, n, target, dtype, terms, grouped=factors is not None, run=run)


def widened_width(m: Dim, n: Dim, dtype: DType, target: CpuTarget) -> int:
    """The panel width for a product of few rows, as long as reading B, which is packed for it alone."""
    width, lanes, columns = packed_width(m, n, dtype, target), target.lanes(compute_type(dtype).bytes), static_size(n)
    return width if columns is None or width < lanes else even_width(width, columns, lanes, target.cores)


def multiplies_pairs(target: CpuTarget) -> bool:
    """True if the templates of ``target`` multiply pairs of bf16, and look up codes of four bits."""
    return pairs_of_bf16(target) is not None


def packed_together(a: DType, b: DType, target: CpuTarget) -> int:
    """Neighbours along the sum of a product of a and b that the templates of ``target`` read together: B is packed in
    groups of as many."""
    unit = tile_unit(a, b, target)
    return group_size(a, b, target) if unit is None else unit.tiles.group


def packed_filled(a: DType, b: DType, target: CpuTarget) -> int:
    """Terms of a sum of products of a and b that the templates of ``target`` add in one step: zeros fill packed B up to
    a multiple of them."""
    unit = tile_unit(a, b, target)
    return packed_together(a, b, target) if unit is None else unit.depth


def packed_with_signs(a: DType, b: DType, target: CpuTarget) -> bool:
    """True if the templates of ``target`` multiply bytes of these types as they are, and not only unsigned by signed
    ones."""
    return has_tiles(a, b, target)


def copies_columns(rows: int, terms: int, a: DType, b: DType, target: CpuTarget, *, contiguous: bool) -> bool:
    """True if the templates of ``target`` pack the columns of b themselves while they multiply a, of ``rows`` ×
    ``terms``: contiguous ones for tiles, each once while all rows of a stay in the second-level cache; pairs of bf16
    for at most two blocks of rows."""
    bytes_of_a = 2 * rows * terms * a.bytes
    if has_tiles(a, b, target):
        return contiguous and rows >= FEWEST_ROWS and bytes_of_a <= target.l2
    return copies_pairs(rows, a, b, target, contiguous=contiguous) and bytes_of_a <= 2 * target.l2


def has_tiles(a: DType, b: DType, target: CpuTarget) -> bool:
    """True if the templates of ``target`` multiply a and b by tiles."""
    return tile_unit(a, b, target) is not None


__all__ = [
    "NO_HINTS", "Choice", "Config", "Problem", "ScheduledKernel", "Space", "choose_expansion", "choose_form",
    "copies_columns", "has_tiles", "multiplies_pairs", "packed_filled", "packed_together", "packed_width",
    "packed_with_signs", "problem", "read_problem", "schedule", "scheduled", "space", "space_of", "widened_width",
]  # fmt: skip
