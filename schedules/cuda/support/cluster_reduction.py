"""Reductions across the blocks of a cluster: each block reduces a part of a row, and every block gets the row's result.

    shared[0] = the block's result                      in shared memory
    barrier of the cluster
    result = block 0's shared[0] op block 1's ...       each block reads the others' shared memory

Unlike with the last of several blocks (``last_block.py``), all blocks go on, with their parts of the row. A result has
the same bits in all blocks and in every run. Source: NVIDIA, "CUDA C++ Programming Guide", "Distributed Shared Memory".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from taskmap.ir.builder import Builder
from taskmap.ir.construct import cast, eq, load
from taskmap.ir.decompose.groups.thread_group import Combine, ThreadGroup
from taskmap.ir.errors import ScheduleError
from taskmap.ir.isa.table import instruction_named
from taskmap.ir.nodes import Expr, Intrinsic, Scope
from taskmap.ir.types import i32
from taskmap.schedules.cuda.support.launch import WARP


@dataclass(frozen=True, slots=True)
class ClusterReduction:
    """``parts`` blocks, a power of two, share the row of ``team``, the only thread group of each."""

    b: Builder
    parts: int
    team: ThreadGroup

    def __post_init__(self) -> None:
        if self.team.teams > 1 or self.team.size < WARP or self.parts & (self.parts - 1):
            raise ScheduleError(
                f"{self.parts} blocks of {self.team.teams} x {self.team.size} threads cannot share a row in a cluster",
                why="a power of two of them exchange results by the lanes of whole warps, for one row at a time.",
            )

    def all_reduce(self, results: Sequence[Sequence[Expr]], combines: Sequence[Combine]) -> list[list[Expr]]:
        """The results of all blocks, in every thread of each. Each is a tuple of values that are reduced as one.

        Every thread of the cluster must call this, and ``leave`` at the end.
        """
        b, team, read = self.b, self.team, instruction_named("cluster_load")
        values = list(chain(*results))
        cells = [b.allocate("of_block", v.dtype, (1,), Scope.SHARED) for v in values]
        with b.when(eq(team.lane, 0)):
            for cell, v in zip(cells, values, strict=True):
                b.store(cell, 0, v)
        b.invoke(instruction_named("cluster_arrive"))
        b.invoke(instruction_named("cluster_wait"))
        block = cast(team.lane % self.parts, i32)
        every = iter([b.let("of_block", Intrinsic(read, (load(c, (0,)), block), c.dtype, 1)) for c in cells])
        return [
            team.in_warp([next(every) for _ in result], combine, self.parts)
            for result, combine in zip(results, combines, strict=True)
        ]

    def leave(self) -> None:
        """Waits until all threads of the cluster have used what they read: a block must not end before. No memory needs
        to be ordered."""
        self.b.invoke(instruction_named("cluster_arrive_relaxed"))
        self.b.invoke(instruction_named("cluster_wait"))
