"""The rule for tasks without a template: one thread for each vector of the output, neighbours side by side.

    y[i0, i1] = elements()                             i1: the run of axes that most accesses follow
    Compute(y).tile(1, 4).to(THREAD).group(256)        a vector is up to 16 bytes, if all accesses are aligned
        .done().vectorize(4)

Threads of a warp take neighbouring vectors, so accesses are coalesced. A run of the length of a vector belongs to one
thread, and neighbours follow the next run: they read planes of channels, and write whole pixels. Inner reductions
become loops of the thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from taskmap.ir.construct import ceil_div, product
from taskmap.ir.decompose.levels import Level
from taskmap.ir.decompose.stages import Compute
from taskmap.ir.nodes import Kernel, Var
from taskmap.ir.target import GpuTarget
from taskmap.ir.task import Task
from taskmap.schedules.common.access import MemoryStep, accesses, merged_axes, require_pointwise, storage_order
from taskmap.schedules.common.positions import positions_in
from taskmap.schedules.common.transpose_domain import find_transpose
from taskmap.schedules.cuda.support.launch import WARP, block_size
from taskmap.schedules.cuda.support.vectors import vector_lanes
from taskmap.schedules.cuda.transpose import schedule_transpose
from taskmap.schedules.strategies.merged import MergedTask
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
        return _flat(MergedTask(task, domain, [[]], [1]), 1, WARP, target).launched(min_blocks=1)
    extents = [product([domain.shape[a] for a in run]) for run in runs]
    transpose = find_transpose(task, axes, runs, extents, walks)
    if transpose is not None:
        return schedule_transpose(TransposedTask(MergedTask(task, domain, runs, extents), transpose), walks, target)
    widths = [vector_lanes(walks, axes, run, domain.shape) for run in runs]
    vectors = [r for r, lanes in enumerate(widths) if lanes == extents[r] and walks[0].step(runs[r][-1]) == 1]
    inner = vectors[0] if vectors else coalesced_run(runs, walks, len(task.outputs))
    order = [r for r in range(len(runs)) if r != inner] + [inner]
    runs, extents = [runs[r] for r in order], [extents[r] for r in order]
    lanes = widths[inner]
    threads = block_size(product([*extents[:-1], ceil_div(extents[-1], lanes)]), target)
    return _flat(MergedTask(task, domain, runs, extents), lanes, threads, target)


def _flat(merged: MergedTask, lanes: int, threads: int, target: GpuTarget) -> Kernel:
    """The kernel of a task on merged axes, of which a thread takes ``lanes`` neighbours along the last one."""
    anchor = merged.elements
    tree = Compute(anchor).tile(*[1] * (len(merged.extents) - 1), lanes).to(Level.THREAD).group(threads).done()
    tree = tree.vectorize(lanes) if lanes > 1 else tree
    kernel = merged.kernel(tree, anchor, target, {}, merged.store, zeros=False)
    note = f"cuda.pointwise({merged.size}, threads={threads}, lanes={lanes})"
    return replace(kernel.launched(min_blocks=0), note=note)


def coalesced_run(runs: Sequence[Sequence[int]], walks: Sequence[MemoryStep], stores: int) -> int:
    """The run of axes that neighbouring threads follow: the one along which most accesses have step one; stores, the
    first of ``walks``, count double."""

    def gain(r: int) -> tuple[int, int]:
        steps = [w.step(runs[r][-1]) for w in walks]
        return sum((2 if n < stores else 1) for n, step in enumerate(steps) if step == 1), r

    return max(range(len(runs)), key=gain)
