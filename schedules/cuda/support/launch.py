"""The beginning and end of every GPU schedule: a grid of blocks, and a kernel on a task's buffers."""

from __future__ import annotations

from dataclasses import dataclass, field

from taskmap.ir.algebra.mapping import TaskMapping
from taskmap.ir.analysis.positions import unravel
from taskmap.ir.builder import Builder
from taskmap.ir.construct import cast, const, index, product, static_size
from taskmap.ir.errors import ScheduleError
from taskmap.ir.isa.table import instruction_named
from taskmap.ir.nodes import Dim, Expr, GpuLaunch, Intrinsic, Kernel, Var
from taskmap.ir.target import GpuTarget
from taskmap.ir.task import Task
from taskmap.ir.types import i32, i64
from taskmap.ir.workers import BLOCKS, THREAD
from taskmap.schedules.common.inline import Inliner

WARP = 32
"""Threads in lockstep: the lanes of a warp."""
WARPGROUP = 128
"""Threads that multiply together on Hopper."""
_THREADS = 256
_FEWEST_THREADS = 2 * WARP


def block_size(items: Dim, target: GpuTarget) -> int:
    """Threads of a block if each takes one work item: fewer if a small task would leave multiprocessors without
    work."""
    known = static_size(items)
    threads = _THREADS
    while known is not None and threads > _FEWEST_THREADS and known < threads * target.cores:
        threads //= 2
    return threads


@dataclass(slots=True)
class Launch:
    """A kernel under construction: ``grid`` numbers the blocks row by row over several extents, in one dimension.

    A grid of one dimension has no small limit, and lets a schedule order its blocks.
    """

    task: Task
    grid: tuple[Dim, ...]
    threads: int
    b: Builder = field(default_factory=Builder)

    def begin(self) -> tuple[Inliner, tuple[Expr, ...]]:
        """The first values, and the block's position along each extent of the grid."""
        values = Inliner(self.task, self.b)
        values.bind(THREAD, self.threads)
        total = product(self.grid)
        values.bind(BLOCKS[0], total)
        return values, unravel(BLOCKS[0], self.grid, values.simplifier)

    def kernel(self, note: str, min_blocks: int = 1) -> Kernel:
        """The finished kernel; ``note`` names the schedule and its configuration.

        min_blocks: the number of blocks that a multiprocessor should hold at once. If 1 is enough, the assembler does
        not spill registers to make room for another; 0 leaves it the choice.
        """
        task = self.task
        total = product(self.grid)
        grid = (static_size(total) or total,)
        buffers = (*task.inputs, *task.outputs)
        return Kernel(
            task.name,
            buffers,
            task.outputs,
            task.dims,
            self.b.body(),
            GpuLaunch(grid, self.threads, min_blocks=min_blocks),
            note,
        )


def number_of_warpgroup(b: Builder, groups: int, values: Inliner) -> Expr:
    """The number of this thread's warpgroup among ``groups``, broadcast from its warp's first lane: so the assembler
    sees that it is uniform over the lanes, and computes dependent values once for a warp."""
    own = cast(values.simplifier(THREAD // WARPGROUP), i32)
    uniform = Intrinsic(instruction_named("shuffle_idx"), (index(WARP), own, const(0, i32)), i32, 1)
    number = b.let("warpgroup", cast(uniform, i64))
    values.bind(number, groups)
    return number


def place_of(mapping: TaskMapping, worker: Expr, values: Inliner) -> tuple[Expr, ...]:
    """The single task of ``worker`` in a mapping without repeats, such as spatial(4, 32): a position that identifies a
    thread by more than one number, for collective operations, which no loop may surround."""
    loops, indices = mapping.on(worker).lower(worker, lambda extent: Var("unused"))
    if loops:
        raise ScheduleError(f"{mapping} gives a worker several tasks", hint="Loop over them with Builder.mapped.")
    return tuple(values.simplifier(index(i)) for i in indices)
