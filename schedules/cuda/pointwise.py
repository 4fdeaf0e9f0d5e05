"""The rule for tasks without a template: one thread for each vector of the output, neighbours side by side.

    item = block * threads + thread            of outer axes × vectors along the axis that most accesses follow
    y[item] = f(x[item])                       16 bytes at once if all accesses are aligned

Threads of a warp take neighbouring vectors, so accesses are coalesced. Inner reductions become loops of the thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from taskmap.ir.algebra.mapping import spatial
from taskmap.ir.construct import ceil_div, index, product
from taskmap.ir.nodes import Buffer, Dim, Expr, Kernel, LoopKind, Var
from taskmap.ir.printer import print_dim
from taskmap.ir.target import GpuTarget
from taskmap.ir.task import Task
from taskmap.ir.workers import THREAD
from taskmap.schedules.common.access import MemoryStep, accesses, merged_axes, require_pointwise, storage_order
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.common.positions import position_of, positions_in, store_outputs
from taskmap.schedules.common.transpose_domain import find_transpose
from taskmap.schedules.cuda.support.launch import WARP, Launch
from taskmap.schedules.cuda.support.one_thread_per_vector import one_thread_each
from taskmap.schedules.cuda.support.vectors import fills, vector_lanes
from taskmap.schedules.cuda.transpose import schedule_transpose
from taskmap.schedules.strategies.transpose import TransposedTask


def schedule_pointwise(task: Task, target: GpuTarget) -> Kernel:
    """A kernel for a task whose outputs are all computed over one iteration domain.

    Raises ScheduleError if an output has another size, or if a reduction would be recomputed for many elements.
    """
    domain = task.outputs[0]
    require_pointwise(task, domain.shape)
    axes = tuple(Var(f"i{d}") for d in range(domain.rank))
    positions = [(out, positions_in(out, domain, axes)) for out in task.outputs]
    walks = accesses(task, axes, domain.shape, positions)
    runs = merged_axes(storage_order(domain), domain.shape, walks)
    if not runs:
        return _one_element(task, domain)
    extents = [product([domain.shape[a] for a in run]) for run in runs]
    transpose = find_transpose(task, axes, runs, extents, walks)
    if transpose is not None:
        return schedule_transpose(TransposedTask(task, transpose, domain, runs, extents), walks, target)
    inner = coalesced_run(runs, walks, len(task.outputs))
    order = [r for r in range(len(runs)) if r != inner] + [inner]
    runs, extents = [runs[r] for r in order], [extents[r] for r in order]
    lanes = vector_lanes(walks, axes, runs[-1], domain.shape)
    items = [*extents[:-1], ceil_div(extents[-1], lanes)]
    with one_thread_each(task, items, target) as (launch, values, (*outer, vector)):
        b = launch.b

        def element(at: Expr, local: Inliner) -> None:
            store_outputs(b, local, domain, position_of(domain, runs, (*outer, at), local), task.outputs)

        _vector(values, vector, extents[-1], lanes, element)
    size = "x".join(map(print_dim, extents))
    return launch.kernel(f"cuda.pointwise({size}, threads={launch.threads}, lanes={lanes})", 0)


def _vector(values: Inliner, vector: Expr, extent: Dim, lanes: int, body: Callable[[Expr, Inliner], None]) -> None:
    """Calls ``body`` for ``lanes`` elements, or for the remaining ones."""
    b = values.builder
    if lanes == 1:
        body(vector, values)
        return
    first = values.simplifier(vector * lanes)
    with b.when(True if fills(extent, lanes) else first + lanes <= extent):
        inside = values.nested()
        with b.loop("v", lanes, LoopKind.VECTOR) as v:
            inside.bind(v, lanes)
            body(first + v, inside)
    if fills(extent, lanes):
        return
    with b.otherwise(), b.loop("tail", index(extent) - first) as v:
        values.bind(v, lanes)
        body(first + v, values.nested())


def _one_element(task: Task, domain: Buffer) -> Kernel:
    """A task of one element, by one warp of which one thread works."""
    launch = Launch(task, (1,), WARP)
    values, _ = launch.begin()
    with launch.b.mapped(["lane"], spatial(WARP), THREAD) as (lane,), launch.b.when(lane < 1):
        store_outputs(launch.b, values, domain, [index(0)] * domain.rank, task.outputs)
    return launch.kernel("cuda.pointwise(1)")


def coalesced_run(runs: Sequence[Sequence[int]], walks: Sequence[MemoryStep], stores: int) -> int:
    """The run of axes that neighbouring threads follow: the one along which most accesses have step one; stores, the
    first of ``walks``, count double."""

    def gain(r: int) -> tuple[int, int]:
        steps = [w.step(runs[r][-1]) for w in walks]
        return sum((2 if n < stores else 1) for n, step in enumerate(steps) if step == 1), r

    return max(range(len(runs)), key=gain)
