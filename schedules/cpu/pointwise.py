"""The rule for tasks without a template: one loop nest over the output, vectorised and parallel.

Axes are walked in the storage order of the first output, merged if every access allows it, the best axis for vectors
innermost. Inner reductions (windows, leading axes) become loops inside the vector loop, each lane with its own element.
"""

from __future__ import annotations

from collections.abc import Sequence

from taskmap.ir.builder import Builder
from taskmap.ir.construct import product, static_size
from taskmap.ir.errors import ScheduleError
from taskmap.ir.nodes import Buffer, Call, Dim, Expr, Kernel, LoopKind, Reduce, Var
from taskmap.ir.printer import print_dim
from taskmap.ir.target import Target
from taskmap.ir.task import Task
from taskmap.ir.visit import walk_exprs
from taskmap.schedules.common.access import MemoryStep, accesses, merged_axes, require_count, same_count, storage_order
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.common.loops import parallel_grid, vector_loop
from taskmap.schedules.common.positions import position_of, positions_in, store_outputs
from taskmap.schedules.common.transpose_domain import find_transpose
from taskmap.schedules.cpu.support.kernels import kernel_of
from taskmap.schedules.cpu.transpose import emit_transpose

_PARALLEL_ABOVE = 20_000
_TASKS_PER_CORE = 8


def schedule_pointwise(task: Task, target: Target) -> Kernel:
    """A kernel for a task whose outputs are all computed over one iteration domain.

    Raises ScheduleError if an output has another size, or if a reduction would be recomputed for many elements.
    """
    domain = task.outputs[0]
    require_count(task, task.outputs, domain.shape)
    _require_own_reductions(task, domain.shape)
    axes = tuple(Var(f"i{d}") for d in range(domain.rank))
    positions = [(out, positions_in(out, domain, axes)) for out in task.outputs]
    walks = accesses(task, axes, domain.shape, positions)
    runs = merged_axes(storage_order(domain), domain.shape, walks)
    extents = [product([domain.shape[a] for a in run]) for run in runs]
    lanes = target.lanes(vector_bytes(task))
    b = Builder()
    values = Inliner(task, b)
    parallel = (work(task, domain.shape) or _PARALLEL_ABOVE) >= _PARALLEL_ABOVE
    transpose = find_transpose(task, axes, runs, extents, walks)
    if transpose is not None:
        tile = emit_transpose(b, values, transpose, domain, runs, extents, lanes, parallel, target, task.outputs)
        return kernel_of(task, b, f"cpu.transpose({_product(extents)}, tile={tile}, lanes={lanes})")
    best = best_vector_run(runs, extents, walks, lanes)
    order = [r for r in range(len(runs)) if r != best] + ([best] if runs else [])
    runs, extents = [runs[r] for r in order], [extents[r] for r in order]
    _nest(b, values, domain, runs, extents, lanes, parallel, target, task.outputs)
    return kernel_of(task, b, f"cpu.pointwise({_product(extents)}, lanes={lanes})")


def _product(extents: Sequence[Dim]) -> str:
    return "x".join(map(print_dim, extents)) or "1"


def _require_own_reductions(task: Task, shape: Sequence[Dim]) -> None:
    for stage in task.stages:
        if any(isinstance(e, Reduce) for e in walk_exprs(stage.body)) and not same_count(stage.shape, shape):
            raise ScheduleError(
                f"the reduction {stage.label!r} of {task.name!r} would be recomputed at each of its reads",
                hint="Put it into a kernel of its own.",
            )


def _nest(
    b: Builder,
    values: Inliner,
    domain: Buffer,
    runs: Sequence[Sequence[int]],
    extents: Sequence[Dim],
    lanes: int,
    parallel: bool,
    target: Target,
    outputs: Sequence[Buffer],
) -> None:
    def element(outer: Sequence[Expr], inner: Sequence[Expr], local: Inliner) -> None:
        store_outputs(b, local, domain, position_of(domain, runs, (*outer, *inner), local), outputs)

    if not runs:
        element((), (), values)
        return
    if len(runs) == 1:
        kind = LoopKind.PARALLEL if parallel else LoopKind.SERIAL
        vector_loop(b, "v", extents[0], lanes, values, lambda i, local, *_: element((), (i,), local), kind)
        return
    names = [f"o{r}" for r in range(len(runs) - 1)]
    enough = _TASKS_PER_CORE * target.cores
    with parallel_grid(b, names, extents[:-1], values, parallel, enough) as outer:
        inside = values.nested()
        vector_loop(b, "v", extents[-1], lanes, inside, lambda i, local, *_: element(outer, (i,), local))


def best_vector_run(
    runs: Sequence[Sequence[int]], extents: Sequence[Dim], walks: Sequence[MemoryStep], lanes: int
) -> int:
    """The run of axes whose vectors cost least: contiguous and constant accesses are cheap, strided ones are not."""

    def cost(r: int) -> tuple[float, int]:
        total = 0.0
        for w in walks:
            step = w.step(runs[r][-1])
            total += 0.25 if step == 0 else 1 if step == 1 else lanes / 2
        size = static_size(extents[r])
        filled = 1.0 if size is None or size >= lanes else size / lanes
        return total / filled, -r

    return min(range(len(runs)), key=cost, default=-1)


def vector_bytes(task: Task) -> int:
    """The element width in bytes that sets the vector length: that of the widest float computed, or of the widest
    output."""
    floats = [s.out.dtype.bits for s in task.stages if s.out.dtype.is_float]
    if floats:
        return max(4, max(floats) // 8)
    return max((s.out.dtype.bytes for s in task.stages), default=4)


def work(task: Task, shape: Sequence[Dim]) -> int | None:
    """A rough count of a task's scalar operations, None if a size is symbolic; a function call counts as ten."""
    size = static_size(product(shape))
    if size is None:
        return None
    total = 0
    for stage in task.stages:
        here = static_size(product(stage.shape))
        if here is None:
            return None
        reduced = 1
        calls = 1
        for e in walk_exprs(stage.body):
            if isinstance(e, Reduce):
                reduced *= static_size(product([d for _, d in e.axes])) or 1024
            calls += 10 * isinstance(e, Call)
        total += min(here, size) * reduced * calls
    return max(total, size)
