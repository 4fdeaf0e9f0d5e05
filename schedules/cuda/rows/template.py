"""The rule for reductions along rows and element-wise work on the rows: softmax, norms, sums, extrema, losses.

A thread group takes a row. A task mapping distributes its elements over the group's registers, so a row is read once,
however many reductions follow each other:

    item in (repeat(slots) * spatial(team)).on(lane)       an item is a vector of up to 16 bytes
    pass 0   m = max(x)          pass 1   s = sum(exp(x - m))          pass 2   y = exp(x - m) / s

A warp or a part of one takes a short row, so a block takes several. Rows too long for registers, or of symbolic length,
are walked again in every pass. If there are too few rows to fill the GPU, and one walk is enough, several blocks share
a row, and the last of them to arrive combines the parts (``support/last_block.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from taskmap.ir.algebra.mapping import spatial
from taskmap.ir.construct import ceil_div, index, minimum, product
from taskmap.ir.decompose.blocks.thread_group import ThreadGroup
from taskmap.ir.errors import ScheduleError
from taskmap.ir.nodes import Expr, Kernel
from taskmap.ir.printer import print_dim
from taskmap.ir.target import GpuTarget
from taskmap.ir.task import Stage, Task
from taskmap.ir.workers import THREAD
from taskmap.schedules.common.access import MemoryStep, require_count
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.common.positions import positions_in, unravel
from taskmap.schedules.common.row_domain import RowDomain, Rows, reductions_of
from taskmap.schedules.cuda.row_reciprocal import with_reciprocals
from taskmap.schedules.cuda.rows.config import RowConfig, RowProblem, one_walk
from taskmap.schedules.cuda.rows.kept import KeptValues
from taskmap.schedules.cuda.rows.partial import PartialResult, neutral
from taskmap.schedules.cuda.rows.walk import RowElement, RowSteps
from taskmap.schedules.cuda.support.last_block import CrossBlockReduction
from taskmap.schedules.cuda.support.launch import Launch, place_of
from taskmap.schedules.cuda.support.vectors import fills


def schedule_rows(task: Task, rows: Rows, target: GpuTarget, config: RowConfig | None = None) -> Kernel:
    """A kernel for a row task, as the module's docstring describes. Raises ScheduleError if a value is read across
    rows."""
    task = with_reciprocals(task)
    full, frame = rows.full, RowDomain(task, rows)
    for out in task.outputs:
        if not frame.is_full(out):
            require_count(task, [out], [full.shape[d] for d in rows.kept])
    axes = frame.axes()
    walks = frame.walks(axes)
    runs = frame.runs(walks)
    extents = [product([full.shape[a] for a in run]) for run in runs]
    kept = frame.kept()
    count = product([full.shape[d] for d in kept])
    c = config or RowProblem(frame, axes, walks, runs, extents, count).choose(target)
    if c.parts > 1 and not one_walk(frame):
        raise ScheduleError(
            f"{task.name!r} cannot be shared by {c.parts} blocks",
            why="a second walk along the row needs the result of the first, which only the last block has.",
        )
    launch = Launch(task, (ceil_div(count, c.teams), c.parts), c.threads)
    values, (block, part) = launch.begin()
    b, order = launch.b, (c.team, c.teams) if c.columns else (c.teams, c.team)
    place = place_of(spatial(*order), THREAD, values)
    lane, number = place if c.columns else place[::-1]
    team = ThreadGroup(b, c.teams, c.team, number, lane, across=c.columns > 0)
    mine = values.simplifier(block * c.teams + number)
    whole = fills(count, c.teams)
    live = True if whole else b.let("live", mine < count)
    row = b.let("row", mine if whole else minimum(mine, index(count) - 1))
    values.bind(row, count)
    at = [index(0)] * full.rank
    for d, i in zip(kept, unravel(row, [full.shape[d] for d in kept], values.simplifier), strict=True):
        at[d] = i
    walk = RowSteps(b, c, lane, full, runs, [*extents[:-1], ceil_div(extents[-1], c.lanes)], at, part)
    passes = _Passes(launch, frame, team, walk, KeptValues(b, c, frame, axes, frame.depths()), live)
    for n in range(passes.count):
        passes.run(n, values)
    size = "x".join(print_dim(full.shape[d]) for d in rows.reduced)
    held = "registers" if c.slots else "memory" if c.parts == 1 else f"parts={c.parts}"
    made = launch.kernel(
        f"cuda.rows(row={size}, passes={passes.count}, team={c.team}, lanes={c.lanes}, slots={c.slots}, {held})"
    )
    return made if passes.shared is None else passes.shared.kernel(made)


@dataclass(slots=True)
class _Passes:
    """The passes along a row. live: true in threads whose row exists, and that store its results."""

    launch: Launch
    frame: RowDomain
    team: ThreadGroup
    walk: RowSteps
    kept: KeptValues
    live: Expr | bool
    inputs: list[MemoryStep] = field(default_factory=list)
    shared: CrossBlockReduction | None = None

    @property
    def count(self) -> int:
        """The number of passes."""
        return max(self.kept.level.values()) + 1

    def run(self, number: int, values: Inliner) -> None:
        """One pass: its reductions and full outputs in one walk along the row, then its per-row values."""
        b, c, task, kept = self.launch.b, self.walk.config, self.frame.task, self.kept
        stages = [s for s in task.stages if kept.level[s.out] == number]
        outputs = [s for s in stages if s.out in task.outputs and not reductions_of(s) and self.frame.is_full(s.out)]
        saved, long = kept.stages(number, outputs), self.walk.is_long
        partials = [PartialResult.begin(b, s, e, c.lanes, long=long) for s in stages for e in reductions_of(s)]
        if partials or outputs:
            if number == 0:
                self.inputs = kept.first_inputs(values)
            elif number == 1:
                kept.later_inputs(self.inputs, values)
            for s in saved:
                kept.hold(s.out, s.label)

            def visit(local: Inliner, here: RowElement) -> None:
                kept.here = here
                self.element(local, here, partials, outputs, saved)
                kept.here = None

            self.walk.along(values, visit, [f.end_chain for f in partials if f.chains is not None])
            for s in saved:
                values.readers[s.out] = kept.reader(s, values)
        results = [f.total(self.team) for f in partials]
        if c.parts > 1 and partials:
            results = self.across_blocks(partials, results)
        for f, result in zip(partials, results, strict=True):
            values.reduced = {**values.reduced, id(f.e): result[-1]}
        for s in stages:
            if reductions_of(s):
                self.finish(s, values)
        for s in stages:
            if s.out in task.outputs and s not in outputs:
                where = tuple(self.frame.at_row(s, self.walk.row).values())
                value, first = values.element(s.out, where), self.team.lane < 1
                with b.when(first if self.live is True else first & self.live):
                    b.store(s.out, where, value)

    def element(
        self,
        local: Inliner,
        here: RowElement,
        partials: Sequence[PartialResult],
        outputs: Sequence[Stage],
        saved: Sequence[Stage],
    ) -> None:
        """One element of a pass: keeps, stores and reduces its values."""
        b = self.launch.b
        for s in (*saved, *(s for s in outputs if s not in saved)):
            where = tuple(local.simplifier(i) for i in positions_in(s.out, self.walk.full, here.at))
            value = local.element(s.out, where)
            if s in saved:
                self.kept.store(s.out, value)
            if s in outputs:
                with b.when(self.live):
                    b.store(s.out, where, value)
        for f in partials:
            fixed = {**self.frame.at_row(f.stage, self.walk.row), **self.frame.in_reduction(f.e, here.at)}
            f.add(here.place, b.let("value", local.expand(f.e.body, fixed)), fixed[f.e.axes[0][0]])

    def across_blocks(self, partials: Sequence[PartialResult], results: Sequence[Sequence[Expr]]) -> list[list[Expr]]:
        """The results of all blocks that share a row, in the last of them to arrive: it alone stores."""
        b, c = self.launch.b, self.walk.config
        self.shared = CrossBlockReduction(b, c.parts, self.team, self.launch.grid[0])
        found = self.shared.all_reduce(
            self.walk.part,
            [list(zip(r, f.dtypes, strict=True)) for f, r in zip(partials, results, strict=True)],
            [f.together for f in partials],
            [neutral(f.e) for f in partials],
        )
        last = self.shared.is_last
        self.live = last if self.live is True else self.live & last
        return found

    def finish(self, stage: Stage, values: Inliner) -> None:
        """Evaluates a reducing stage from its reduced sums, and makes every later use read the result."""
        at = self.frame.at_row(stage, self.walk.row)
        value = self.launch.b.let(stage.label or "row", values.expand(stage.body, at))

        def read(where: tuple[Expr, ...]) -> Expr:
            self.frame.require_row(stage, where, tuple(at.values()), stage.shape, values)
            return value

        values.readers[stage.out] = read
