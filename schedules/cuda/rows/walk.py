"""The elements of a row that a thread owns: vectors of the row, side by side with its neighbours'.

item in (repeat(slots) * spatial(team)).on(lane)       if registers hold the row
for chain: for step: item = step * team + lane         else, in chains whose sums are added in a wider type
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from taskmap.ir.algebra.mapping import repeat, spatial
from taskmap.ir.builder import Builder
from taskmap.ir.construct import ceil_div, index, minimum, product, static_size
from taskmap.ir.nodes import Buffer, Dim, Expr, LoopKind
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.common.positions import unravel
from taskmap.schedules.cuda.rows.config import RowConfig
from taskmap.schedules.cuda.support.vectors import fills

_IN_FLIGHT = 4
"""Vectors that a thread requests from memory before it uses the first."""
_CHAIN = 512
"""Vectors of a sum of floats that a thread adds one after another."""


@dataclass(frozen=True, slots=True)
class RowElement:
    """The current element: its item, its position in the item's vector, and its position in the full tensor."""

    unit: Expr
    place: Expr
    at: tuple[Expr, ...]


Visit = Callable[[Inliner, RowElement], None]


@dataclass(frozen=True, slots=True)
class RowSteps:
    """Walks along the row of thread ``lane`` of a group. full: the tensor over all rows; runs: its merged axes along
    the row, of ``units`` vectors; row: the position of the row; part: the number of this block's part of it."""

    b: Builder
    config: RowConfig
    lane: Expr
    full: Buffer
    runs: Sequence[Sequence[int]]
    units: Sequence[Dim]
    row: Sequence[Expr]
    part: Expr

    @property
    def steps(self) -> Dim:
        """The number of vectors of the row that a thread owns."""
        c = self.config
        return ceil_div(ceil_div(product(self.units), c.team), c.parts)

    @property
    def is_long(self) -> bool:
        """True if a thread walks, or may walk, more than a chain."""
        steps = static_size(self.steps)
        return not self.config.slots and (steps is None or steps > _CHAIN)

    def along(self, values: Inliner, body: Visit, ends: Sequence[Callable[[], None]]) -> None:
        """``body`` at every element of the row that this thread owns. ends: of what is added in chains, called after
        each of them."""
        b, c = self.b, self.config
        units = product(self.units)
        if c.slots:
            with b.mapped(["unit"], repeat(c.slots) * spatial(c.team), self.lane) as (unit,):
                inside = values.nested()
                with b.when(True if fills(units, c.slots * c.team) else unit < units):
                    inside.bind(unit, units)
                    self._vector(inside, unit, body)
            return
        steps = self.steps
        if not ends:
            self._chain(values, index(0), steps, body)
            return
        chains = ceil_div(steps, _CHAIN)
        with b.loop("chain", chains) as number:
            inside = values.nested()
            inside.bind(number, chains)
            start = inside.simplifier(number * _CHAIN)
            length = index(_CHAIN) if fills(steps, _CHAIN) else minimum(index(_CHAIN), index(steps) - start)
            self._chain(inside, start, inside.simplifier(length), body)
            for end in ends:
                end()

    def _chain(self, values: Inliner, start: Expr, length: Dim, body: Visit) -> None:
        """``body`` at the elements of ``length`` of the thread's vectors, from number ``start`` on."""
        b, c = self.b, self.config
        units, known = product(self.units), static_size(length)
        with b.loop("step", length if known is None else known, unroll=_IN_FLIGHT) as step:
            inside = values.nested()
            inside.bind(step, length if static_size(start) == 0 else _CHAIN)
            first = start if c.parts == 1 else self.part * self.steps + start
            at = b.let("unit", inside.simplifier((first + step) * c.team + self.lane))
            with b.when(True if fills(units, c.team * c.parts) else at < units):
                inside.bind(at, units)
                self._vector(inside, at, body)

    def _vector(self, values: Inliner, unit: Expr, body: Visit) -> None:
        """``body`` at the elements of one item."""
        b, lanes = self.b, self.config.lanes
        *outer, v = unravel(unit, self.units, values.simplifier)
        with b.loop("v", lanes, LoopKind.VECTOR if lanes > 1 else LoopKind.SERIAL) as place:
            inside = values.nested()
            inside.bind(place, lanes)
            at = list(self.row)
            for run, number in zip(self.runs, [*outer, v * lanes + place], strict=True):
                shape = [self.full.shape[a] for a in run]
                for a, i in zip(run, unravel(inside.simplifier(number), shape, inside.simplifier), strict=True):
                    at[a] = i
            body(inside, RowElement(unit, place, tuple(at)))
