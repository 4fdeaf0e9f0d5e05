"""Reductions across blocks: each block reduces a part of a row, and the last to arrive reduces the parts.

    partials[row, part] = the block's result          in memory private to the launch
    arrived = counters[rows]++                        after a fence: a block that sees the number sees the partials
    the last:  result = partials[row, 0] op partials[row, 1] op ...        in an order that is always the same
               counters[rows] = 0                     for the next launch

So a result has the same bits whichever block comes last. Method: the sample "threadFenceReduction" of CUDA.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, islice

from taskmap.ir.builder import Builder
from taskmap.ir.construct import ceil_div, eq, load, static_size
from taskmap.ir.decompose.groups.thread_group import Combine, ThreadGroup
from taskmap.ir.errors import ScheduleError
from taskmap.ir.last_block import arrive, reset
from taskmap.ir.nodes import Buffer, Dim, Expr, Kernel, Scope
from taskmap.ir.types import i32
from taskmap.ir.workers import BLOCKS, THREAD


@dataclass(slots=True)
class CrossBlockReduction:
    """``parts`` blocks share each row of ``team``; ``groups`` is the number of sets of rows, one for a block.

    is_last: true in a block that has seen all the others of its rows; defined after ``all_reduce``.
    """

    b: Builder
    parts: int
    team: ThreadGroup
    groups: Dim
    is_last: Expr = field(init=False)
    partials: list[Buffer] = field(init=False)
    counters: Buffer = field(init=False)

    def kernel(self, kernel: Kernel) -> Kernel:
        """``kernel`` with the global memory that the reduction needs."""
        return kernel.launched(workspace=tuple(self.partials), counters=(self.counters,))

    def all_reduce(
        self,
        part: Expr,
        results: Sequence[Sequence[Expr]],
        combines: Sequence[Combine],
        neutral: Sequence[Sequence[Expr]],
    ) -> list[list[Expr]]:
        """The results of all parts, in every thread of the last block; in other blocks they are undefined. Each is a
        tuple of values that are reduced as one.

        Every thread of the block must call this.
        """
        b, team, groups = self.b, self.team, static_size(self.groups)
        if groups is None:
            raise ScheduleError("blocks can share rows only if the number of rows is static")
        group, values = b.let("group", BLOCKS[0] // self.parts), list(chain(*results))
        shape = (self.parts, groups, team.teams)
        self.partials = [Buffer(f"partials{n}", v.dtype, shape) for n, v in enumerate(values)]
        self.counters = Buffer("counters", i32, (groups,))
        with b.when(eq(team.lane, 0)):
            for buffer, value in zip(self.partials, values, strict=True):
                b.store(buffer, (part, group, team.number), value)
        alone = team.teams == 1  # thread 0 has stored the partials itself
        self.is_last = b.let("last", arrive(b, self.counters, group, self.parts, eq(THREAD, 0), b.barrier, alone))
        with b.when(self.is_last & eq(THREAD, 0)):
            reset(b, self.counters, group)
        rest, found = iter(self.partials), []
        for result, combine, start in zip(results, combines, neutral, strict=True):
            found.append(team.all_reduce(self._mine(list(islice(rest, len(result))), combine, start, group), combine))
        return found

    def _mine(self, buffers: Sequence[Buffer], combine: Combine, start: Sequence[Expr], group: Expr) -> list[Expr]:
        """The partial results that this thread reduces: every ``team.size``-th, in order."""
        b, team = self.b, self.team
        totals = [b.allocate("both", buffer.dtype, (1,), Scope.REGISTER) for buffer in buffers]
        for total, value in zip(totals, start, strict=False):
            b.store(total, 0, value)
        turns = ceil_div(self.parts, team.size)
        with b.when(self.is_last), b.loop("turn", turns) as turn:
            at = b.let("part", turn * team.size + team.lane)
            with b.when(at < self.parts):
                others = [b.let("other", load(buffer, (at, group, team.number))) for buffer in buffers]
                both = combine([total[0] for total in totals], others)
                for total, value in zip(totals, [b.let("now", v) for v in both], strict=True):
                    b.store(total, 0, value)
        return [b.let("mine", total[0]) for total in totals]
