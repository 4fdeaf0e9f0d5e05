"""A reduction along a row: what a thread has reduced so far, for each place in its vectors, and its group's result.

A long sum of f32 is cut into chains, whose results are added in f64: its rounding error grows with the length of a
chain alone. The best of argmax and argmin is a pair, its value and its index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from taskmap.ir.builder import Builder
from taskmap.ir.construct import cast, eq, identity, index, lane_reduce, load, ne, ramp, select
from taskmap.ir.decompose.groups.thread_group import ThreadGroup
from taskmap.ir.nodes import Buffer, Expr, LoopKind, Reduce, Scope
from taskmap.ir.task import Stage
from taskmap.ir.types import i64
from taskmap.schedules.common.inline import combine, wide_sum

_EXTREME = {"argmax": "max", "argmin": "min"}
_LANE_OP = {"sum": "sum", "prod": "prod", "max": "max", "min": "min", "any": "or", "all": "and"}


@dataclass(frozen=True, slots=True)
class PartialResult:
    """A reduction of one pass: ``cells`` hold, for each place in a vector of ``lanes``, the partial result; for a long
    sum, that of the current chain, and ``chains`` the sum of the chains before it."""

    b: Builder
    stage: Stage
    e: Reduce
    lanes: int
    cells: list[Buffer]
    chains: Buffer | None = None

    @staticmethod
    def begin(b: Builder, stage: Stage, e: Reduce, lanes: int, *, long: bool) -> PartialResult:
        """Accumulators with their initial values. long: a sum would lose precision without chains."""
        kinds = [(e.op, e.body.dtype)]
        if e.op in _EXTREME:
            kinds.append(("place", i64))
        cells = []
        for (name, dtype), start in zip(kinds, neutral(e), strict=False):
            cells.append(b.allocate(name, dtype, (lanes,), Scope.REGISTER))
            _fill(b, cells[-1], start)
        chains, wide = None, wide_sum(e.body.dtype)
        if long and is_chained(e):
            chains = b.allocate("chains", wide, (1,), Scope.REGISTER, init=identity(e.op, wide))
        return PartialResult(b, stage, e, lanes, cells, chains)

    def add(self, place: Expr, value: Expr, number: Expr) -> None:
        """Reduces an element; number: along the row."""
        found = [value, number] if self.e.op in _EXTREME else [value]
        both = self.together([cell[place] for cell in self.cells], found)
        for cell, x in zip(self.cells, [self.b.let("now", x) for x in both], strict=True):
            self.b.store(cell, place, x)

    def end_chain(self) -> None:
        """Adds the current chain to the sum of the chains, and starts a new one."""
        assert self.chains is not None
        b, cell = self.b, self.cells[0]
        b.store(self.chains, 0, combine(self.e.op, self.chains[0], cast(self._across(), self.chains.dtype)))
        _fill(b, cell, identity(self.e.op, cell.dtype))

    def total(self, team: ThreadGroup) -> list[Expr]:
        """The result, for every thread of the group: a value, and its index for argmax and argmin."""
        b, op = self.b, self.e.op
        if op in _EXTREME:
            best = [b.let("best", cell[0]) for cell in self.cells]
            for v in range(1, self.lanes):
                best = [b.let("best", x) for x in self.together(best, [cell[v] for cell in self.cells])]
        else:
            best = [
                b.let(op, self._across() if self.chains is None else cast(self.chains[0], self.cells[0].dtype)),
            ]
        return team.all_reduce(best, self.together)

    def together(self, a: Sequence[Expr], b: Sequence[Expr]) -> list[Expr]:
        """Combines two partial results; for argmax and argmin, (value, index), with the first index of the best."""
        op = self.e.op
        if op not in _EXTREME:
            return [combine(op, a[0], b[0])]
        (x, i), (y, j) = a, b
        better = y > x if op == "argmax" else y < x
        same = eq(x, y)
        if x.dtype.is_float:
            better = better | (ne(y, y) & ~ne(x, x))
            same = same | (ne(y, y) & ne(x, x))
        wins = better | (same & (j < i))
        return [select(wins, y, x), select(wins, j, i)]

    def _across(self) -> Expr:
        """Combines the places of an accumulator."""
        every = (ramp(0, 1, self.lanes) if self.lanes > 1 else index(0),)
        return lane_reduce(_LANE_OP[self.e.op], load(self.cells[0], every))


def _fill(b: Builder, cell: Buffer, value: Expr) -> None:
    """Stores ``value`` in every place of an accumulator."""
    lanes = cell.shape[0]
    with b.loop("v", lanes, LoopKind.SERIAL if lanes == 1 else LoopKind.VECTOR) as v:
        b.store(cell, v, value)


def neutral(e: Reduce) -> list[Expr]:
    """The values that change no result, for a value and its index."""
    return [identity(_EXTREME.get(e.op, e.op), e.body.dtype), identity("min", i64)]


def is_chained(e: Reduce) -> bool:
    """True if a long sum is cut into chains."""
    return e.op == "sum" and wide_sum(e.body.dtype) != e.body.dtype
