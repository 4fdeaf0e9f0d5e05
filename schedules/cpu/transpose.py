"""Element-wise work on a CPU that reads along one axis of memory and writes along another, in square tiles.

    y[j, i] = x[i, j]
    Compute(y).tile(32, 32).to(CORE).layout("column")       each side of a tile is two cache lines
        .move("x", LOCAL, vectors along j)                  whole lines of x
        .done().vectorize(16)                               whole lines of y, vectors along i

Without tiles, each vector of y would touch as many lines of x as it has lanes, and the cache would have evicted them
before the next vector needs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from taskmap.ir.construct import static_size
from taskmap.ir.decompose.levels import Level
from taskmap.ir.decompose.stages import Compute
from taskmap.ir.nodes import Buffer, Dim, Kernel, Scope
from taskmap.ir.target import CpuTarget
from taskmap.ir.task import Task
from taskmap.schedules.common.transpose_domain import Transpose
from taskmap.schedules.strategies.merged import MergedTask
from taskmap.schedules.strategies.transpose import TransposedTask

_LINE_BYTES = 128
"""The side of a tile: two cache lines."""
_TASKS_PER_CORE = 8


def schedule_transpose(
    task: Task,
    t: Transpose,
    domain: Buffer,
    runs: Sequence[Sequence[int]],
    extents: Sequence[Dim],
    lanes: int,
    least: int,
    target: CpuTarget,
) -> Kernel:
    """The kernel of a task that transposes, over the runs of axes of its domain. lanes: of its vectors; least: elements
    from which on cores share it."""
    side = max(16, _LINE_BYTES // max(b.dtype.bytes for b in (*task.outputs, *(w.buffer for w in t.staged))))
    rows, columns = (_side(extents[r], side) for r in (t.along, t.across))
    whole = TransposedTask(MergedTask(task, domain, runs, extents), t)
    anchor = whole.turned
    tree = Compute(anchor).tile(columns, rows).to(Level.CORE).layout("column")
    tree = tree.parallel(least, tasks=_TASKS_PER_CORE * target.cores)
    for x in anchor.inputs:
        tree = tree.move(x.name, Scope.LOCAL, lambda copy: copy.done().vectorize(lanes))
    note = f"cpu.transpose({whole.whole.size}, tile={rows}x{columns}, lanes={lanes})"
    return replace(whole.kernel(tree.done().vectorize(lanes), anchor, target), note=note)


def _side(extent: Dim, side: int) -> int:
    return min(static_size(extent) or side, side)
