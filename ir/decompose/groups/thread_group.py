"""Thread groups: threads that reduce together, so that each of them ends with the same result.

    repeat(1, 8) * spatial(4, 32)        elements of 4 rows: 4 groups of 32 neighbours
    spatial(4, 32, order=(1, 0))         the same with neighbours in different groups, as for the columns of a matrix

Partners exchange values across all distances that are powers of two (a butterfly): lanes of a warp by shuffles, warps
through shared memory. A result depends neither on the thread nor on timing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from taskmap.ir.algebra.digits import Digit, DigitMap
from taskmap.ir.algebra.mapping import TaskMapping
from taskmap.ir.builder import Builder
from taskmap.ir.construct import const, eq, index
from taskmap.ir.decompose.levels import Level
from taskmap.ir.isa.table import instruction_named
from taskmap.ir.nodes import Expr, Intrinsic, Scope
from taskmap.ir.types import i32
from taskmap.ir.workers import THREAD

_WARP = Level.WARP.threads
Combine = Callable[[Sequence[Expr], Sequence[Expr]], Sequence[Expr]]
"""(mine, other) -> both combined, for a tuple of values that are reduced as one."""


@dataclass(frozen=True, slots=True)
class ThreadGroup:
    """``size`` threads, a power of two, of which this is the one numbered ``lane``; ``number`` is the group's.

    across: neighbouring threads belong to neighbouring groups.
    """

    b: Builder
    teams: int
    size: int
    number: Expr
    lane: Expr
    across: bool = False

    @staticmethod
    def of(b: Builder, mapping: TaskMapping, dim: int) -> ThreadGroup:
        """The threads whose tasks differ along dimension ``dim`` alone: they reduce together."""
        workers = digits_of(mapping).workers
        mine, others = ([d for d in workers if (d.dim == dim) is own] for own in (True, False))
        size, teams = (prod(d.extent for d in digits) for digits in (mine, others))
        lane, number = (_number(workers, digits) for digits in (mine, others))
        return ThreadGroup(b, teams, size, number, lane, across=workers[len(others) :] != tuple(mine))

    def all_reduce(self, values: Sequence[Expr], combine: Combine) -> list[Expr]:
        """The reduction of the values of all threads of the group. Every thread of the block must call this."""
        if self.across:
            return self._through_memory(list(values), combine)
        b, within = self.b, min(self.size, _WARP)
        found = self.in_warp(list(values), combine, within)
        warps = self.size // _WARP
        if warps < 2:
            return found
        cells = [b.allocate("exchange", v.dtype, (self.teams, warps), Scope.SHARED) for v in found]
        with b.when(eq(self.lane % _WARP, 0)):
            for cell, v in zip(cells, found, strict=True):
                b.store(cell, (self.number, self.lane // _WARP), v)
        b.barrier()
        parts = [b.let("part", cell[self.number, self.lane % warps]) for cell in cells]
        return self.in_warp(parts, combine, warps)

    def _through_memory(self, values: list[Expr], combine: Combine) -> list[Expr]:
        """For groups whose threads are not neighbours: every thread reduces the values of its group, in order."""
        if self.size == 1:
            return values
        b = self.b
        cells = [b.allocate("exchange", v.dtype, (self.size, self.teams), Scope.SHARED) for v in values]
        for cell, v in zip(cells, values, strict=True):
            b.store(cell, (self.lane, self.number), v)
        b.barrier()
        sums = [b.allocate("both", v.dtype, (1,), Scope.REGISTER) for v in values]
        for total, cell in zip(sums, cells, strict=True):
            b.store(total, 0, cell[0, self.number])
        with b.loop("other", self.size - 1) as other:
            both = combine([total[0] for total in sums], [cell[other + 1, self.number] for cell in cells])
            for total, v in zip(sums, [b.let("now", v) for v in both], strict=True):
                b.store(total, 0, v)
        return [b.let("all", total[0]) for total in sums]

    def in_warp(self, values: list[Expr], combine: Combine, size: int) -> list[Expr]:
        """The same among ``size`` neighbouring lanes of a warp, by shuffles."""
        b, shuffle = self.b, instruction_named("shuffle_xor")
        distance = size // 2
        while distance:
            by = const(distance, i32)
            others = [b.let("other", Intrinsic(shuffle, (index(_WARP), v, by), v.dtype, 1)) for v in values]
            values = [b.let("both", v) for v in combine(values, others)]
            distance //= 2
        return values


def digits_of(mapping: TaskMapping) -> DigitMap:
    """The digits of a mapping of repeat and spatial."""
    (part,) = mapping.parts
    assert isinstance(part, DigitMap)
    return part


def _number(workers: Sequence[Digit], chosen: Sequence[Digit]) -> Expr:
    """The number that some digits of the running thread's number make up."""
    steps = {id(d): prod(x.extent for x in chosen[n + 1 :]) for n, d in enumerate(chosen)}
    digits = tuple(Digit(d.extent, 0, steps.get(id(d), 0)) for d in workers)
    return index(DigitMap((1,), digits, ()).indices(THREAD, ())[0])
