"""The passes along a row: each is one walk, which computes several sums and outputs together.

pass 0   m = max(x)          pass 1   s = sum(exp(x - m))          pass 2   y = exp(x - m) / s
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from taskmap.ir.analysis.positions import unravel
from taskmap.ir.analysis.simplify import Simplifier
from taskmap.ir.builder import Builder
from taskmap.ir.construct import ceil_div, eq, index, minimum, product, static_size
from taskmap.ir.decompose.groups.fold import Fold
from taskmap.ir.decompose.groups.thread_group import ThreadGroup
from taskmap.ir.nodes import Buffer, Dim, Expr, LoopKind, Reduce
from taskmap.ir.task import Stage
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.common.positions import position_of, positions_in
from taskmap.schedules.common.row_domain import reductions_of
from taskmap.schedules.cuda.rows.config import RowConfig, RowProblem
from taskmap.schedules.cuda.rows.kept import KeptValues, RowElement
from taskmap.schedules.cuda.rows.partial import PartialResult, is_chained, neutral
from taskmap.schedules.cuda.support.cluster_reduction import ClusterReduction
from taskmap.schedules.cuda.support.last_block import CrossBlockReduction
from taskmap.schedules.cuda.support.vectors import fills


@dataclass(slots=True)
class RowState:
    """The passes' common state. level: for each stage, the pass that computes it. at: the position of the thread's row.
    part: of it, the number of the one that the block takes. live: true in threads whose row exists, and that store its
    results."""

    problem: RowProblem
    config: RowConfig
    level: Mapping[Buffer, int]
    values: Inliner = field(init=False)
    team: ThreadGroup = field(init=False)
    kept: KeptValues = field(init=False)
    at: list[Expr] = field(init=False)
    part: Expr = field(init=False)
    live: Expr | bool = True
    shared: CrossBlockReduction | None = None
    cluster: ClusterReduction | None = None

    def enter(self, b: Builder, ranges: Simplifier, team: ThreadGroup, block: Expr, number: Expr, part: Expr) -> None:
        """Begins with row ``number`` of a block."""
        c, count, frame = self.config, self.problem.rows, self.problem.frame
        self.values, self.team, self.part = Inliner(frame.task, b, ranges), team, part
        mine, whole = ranges(block * c.teams + number), fills(count, c.teams)
        self.live = True if whole else b.let("live", mine < count)
        row = b.let("row", mine if whole else minimum(mine, index(count) - 1))
        self.values.bind(row, count)
        self.at, kept = [index(0)] * frame.rows.full.rank, frame.kept()
        for d, i in zip(kept, unravel(row, [frame.rows.full.shape[d] for d in kept], ranges), strict=True):
            self.at[d] = i
        self.kept = KeptValues(b, c, frame, self.problem.axes, self.level)

    def across_blocks(self, partials: Sequence[PartialResult], results: Sequence[Sequence[Expr]]) -> list[list[Expr]]:
        """The results of all blocks that share a row: in each of a cluster, else in the last of them to arrive, which
        alone stores."""
        c = self.config
        if c.cluster:
            self.cluster = ClusterReduction(self.values.builder, c.parts, self.team)
            return self.cluster.all_reduce(results, [f.together for f in partials])
        self.shared = CrossBlockReduction(self.values.builder, c.parts, self.team, ceil_div(self.problem.rows, c.teams))
        combines, neutrals = [f.together for f in partials], [neutral(f.e) for f in partials]
        found = self.shared.all_reduce(self.part, results, combines, neutrals)
        last = self.shared.is_last
        self.live = last if self.live is True else self.live & last
        return found


@dataclass(slots=True, eq=False)
class RowPass(Fold):
    """A walk along the row: ``sums`` and ``outputs`` together, then the values of the row among ``stages``.

    is_last: no pass comes after it.
    """

    number: int
    state: RowState
    sums: Sequence[tuple[Stage, Reduce]]
    outputs: Sequence[Stage]
    stages: list[Stage] = field(default_factory=list)
    is_last: bool = False
    saved: list[Stage] = field(default_factory=list)
    partials: list[PartialResult] = field(default_factory=list)

    @property
    def is_chained(self) -> bool:
        """True if a sum is one of shorter ones."""
        return self.state.problem.is_long(self.state.config) and any(is_chained(e) for _, e in self.sums)

    def __str__(self) -> str:
        return f"pass {self.number}"

    def begin(self, b: Builder, ranges: Simplifier, group: ThreadGroup, at: Sequence[Expr]) -> None:
        """Accumulators, and registers for what later passes need."""
        state = self.state
        if self.number == 0:
            state.enter(b, ranges, group, *at)
        kept, c = state.kept, state.config
        self.saved, chained = kept.stages(self.number, self.outputs), self.is_chained
        self.partials = [PartialResult.begin(b, s, e, c.lanes, long=chained) for s, e in self.sums]
        if self.number == 0:
            kept.keep_inputs(state.values)
        for s in self.saved:
            kept.hold(s.out, s.label)

    def element(self, at: Expr) -> None:
        """The elements of one vector."""
        state, c, problem = self.state, self.state.config, self.state.problem
        values, b, sizes = state.values.nested(), state.values.builder, problem.units(c.lanes)
        length = product(sizes)
        slot = b.let("slot", at) if c.parts > 1 and c.slots else None
        unit, exists = self.in_row(at, length)
        with b.when(exists):
            values.bind(unit, length)
            *outer, v = unravel(unit, sizes, values.simplifier)
            with b.loop("v", c.lanes, LoopKind.VECTOR if c.lanes > 1 else LoopKind.SERIAL) as place:
                inside, rows = values.nested(), problem.frame.rows
                inside.bind(place, c.lanes)
                where = position_of(rows.full, problem.runs, [*outer, v * c.lanes + place], inside)
                here = tuple(i if d in rows.reduced else state.at[d] for d, i in enumerate(where))
                state.kept.here = RowElement(unit if slot is None else slot, place, here)
                self.single(inside, state.kept.here)
                state.kept.here = None

    def in_row(self, at: Expr, length: Dim) -> tuple[Expr, Expr | bool]:
        """The number of the vector ``at`` of a block's part among the ``length`` of the row, and whether it exists."""
        state, c, problem = self.state, self.state.config, self.state.problem
        b, simplifier = state.values.builder, state.values.simplifier
        if c.parts == 1:
            return b.let("unit", at), True
        share = problem.share(c)
        unit = b.let("unit", simplifier(state.part * share + at))
        size, each = static_size(length), static_size(share)
        inside: Expr | bool = True if each is not None and size == each * c.parts else unit < length
        if c.cluster and (each is None or each != static_size(problem.length(c))):
            mine = at < share
            inside = mine if inside is True else mine & inside
        return unit, inside

    def single(self, local: Inliner, here: RowElement) -> None:
        """One element: keeps, stores and reduces its values."""
        b, state, frame = local.builder, self.state, self.state.problem.frame
        for s in (*self.saved, *(s for s in self.outputs if s not in self.saved)):
            where = tuple(local.simplifier(i) for i in positions_in(s.out, frame.rows.full, here.at))
            value = local.element(s.out, where)
            if s in self.saved:
                state.kept.store(s.out, value)
            if s in self.outputs:
                with b.when(state.live):
                    b.store(s.out, where, value)
        for f in self.partials:
            fixed = {**frame.at_row(f.stage, state.at), **frame.in_reduction(f.e, here.at)}
            f.add(here.place, b.let("value", local.expand(f.e.body, fixed)), fixed[f.e.axes[0][0]])

    def end_part(self) -> None:
        """Long sums go on with a new chain."""
        for f in self.partials:
            if f.chains is not None:
                f.end_chain()

    def end(self) -> None:
        """The results of the group, the values of the row that they give, and those among the outputs."""
        state, values, frame = self.state, self.state.values, self.state.problem.frame
        state.kept.in_later_pass = True
        for s in self.saved:
            values.readers[s.out] = state.kept.reader(s, values)
        results = [f.total(state.team) for f in self.partials]
        if state.config.parts > 1 and self.partials:
            results = state.across_blocks(self.partials, results)
        for f, result in zip(self.partials, results, strict=True):
            values.reduced = {**values.reduced, id(f.e): result[-1]}
        for s in self.stages:
            if reductions_of(s):
                at = frame.at_row(s, state.at)
                value = values.builder.let(s.label or "row", values.expand(s.body, at))
                values.readers[s.out] = partial(self.of_row, s, value, tuple(at.values()))
        for s in self.stages:
            if s.out in frame.task.outputs and s not in self.outputs:
                where = tuple(frame.at_row(s, state.at).values())
                value, first = values.element(s.out, where), state.team.lane < 1
                first = first if state.cluster is None else first & eq(state.part, 0)
                with values.builder.when(first if state.live is True else first & state.live):
                    values.builder.store(s.out, where, value)
        if state.cluster is not None and self.is_last:
            state.cluster.leave()

    def of_row(self, stage: Stage, value: Expr, at: Sequence[Expr], where: tuple[Expr, ...]) -> Expr:
        """A value of the row, computed ``at`` its place and read at another."""
        self.state.problem.frame.require_row(stage, where, at, stage.shape, self.state.values)
        return value


def passes_of(state: RowState) -> list[RowPass]:
    """The passes of a task. Stages that wait for one and need no walk of their own belong to its end."""
    found: list[RowPass] = []
    frame = state.problem.frame
    for n in range(max(state.level.values()) + 1):
        stages = [s for s in frame.task.stages if state.level[s.out] == n]
        sums = [(s, e) for s in stages for e in reductions_of(s)]
        outputs = [s for s in stages if s.out in frame.task.outputs and not reductions_of(s) and frame.is_full(s.out)]
        if sums or outputs or not found:
            found.append(RowPass(n, state, sums, outputs))
        found[-1].stages += stages
    found[-1].is_last = True
    return found
