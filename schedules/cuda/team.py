"""Teams of threads that reduce together: every thread of a team ends with the same result.

    spatial(teams, size).on(thread)            a block is so many teams, neighbours in a team side by side

Partners exchange values across all distances that are powers of two (a butterfly), so a result does not depend on
which thread asks, nor on timing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from taskmap.ir.builder import Builder
from taskmap.ir.construct import binary
from taskmap.ir.nodes import Buffer, Expr, Scope

Combine = Callable[[Sequence[Expr], Sequence[Expr]], Sequence[Expr]]
"""(mine, other) -> both together, for a tuple of values that are reduced as one."""


@dataclass(frozen=True, slots=True)
class Team:
    """``size`` threads, a power of two, of which this is the one numbered ``lane``; ``number`` is the team's."""

    b: Builder
    teams: int
    size: int
    number: Expr
    lane: Expr

    def all(self, values: Sequence[Expr], combine: Combine) -> list[Expr]:
        """The values of all threads of the team together. Every thread of the block must arrive here."""
        if self.size == 1:
            return list(values)
        return self._through_memory(list(values), combine)

    def _through_memory(self, values: list[Expr], combine: Combine) -> list[Expr]:
        b = self.b
        shape = (self.teams, self.size)
        cells: list[Buffer] = [b.allocate("exchange", v.dtype, shape, Scope.SHARED) for v in values]
        distance = self.size // 2
        while distance:
            for cell, v in zip(cells, values, strict=True):
                b.store(cell, (self.number, self.lane), v)
            b.barrier()
            partner = binary("xor", self.lane, distance)
            others = [b.let("other", cell[self.number, partner]) for cell in cells]
            values = [b.let("both", v) for v in combine(values, others)]
            b.barrier()
            distance //= 2
        return values
