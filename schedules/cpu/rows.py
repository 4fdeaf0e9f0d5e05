"""The rule for reductions along rows and element-wise work on the rows: softmax, layer norm, means, losses.

A row is the set of elements that a reduction reduces; its elements lie together in memory. One parallel loop runs over
the rows. Inside, each *pass* walks the row once, in vectors, and does all that is possible by then: reductions whose
operands are known, and stores of outputs. Softmax is three passes:

    pass 0   m = max(x)                     pass 1   e = exp(x - m), kept in a row buffer;  s = sum(e)
    pass 2   y = e / s

A value needed in a later pass is recomputed when it is cheap, else kept in a row buffer. Method: Hidet's rule-based
schedule generalised to several dependent reductions, vectorised along the row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from taskmap.ir.builder import Builder
from taskmap.ir.construct import eq, identity, index, ne, product, select, static_size
from taskmap.ir.loops import parallel_grid, worth_sharing
from taskmap.ir.nodes import Buffer, Call, Expr, Kernel, Load, Reduce
from taskmap.ir.printer import print_dim
from taskmap.ir.target import CpuTarget
from taskmap.ir.task import Stage, Task
from taskmap.ir.types import i64
from taskmap.ir.visit import walk_exprs
from taskmap.schedules.common.access import require_count
from taskmap.schedules.common.inline import Inliner, Reader
from taskmap.schedules.common.positions import positions_in
from taskmap.schedules.common.row_domain import RowDomain, Rows, is_exact, reductions_of, row_length, same_shape
from taskmap.schedules.cpu.pointwise import vector_bytes, work
from taskmap.schedules.cpu.reduce import Reduction, RowLoop
from taskmap.schedules.cpu.support.kernels import kernel_of

_SHARED_FROM = 20_000
_ROW_BUFFER_BYTES = 128 << 10
_LONG_ROW = 1 << 16


def schedule_rows(task: Task, rows: Rows, target: CpuTarget) -> Kernel:
    """A kernel for a row task, as the module's docstring describes. Raises ScheduleError if a value is read across
    rows."""
    plan = _Plan(task, rows, target, RowDomain(task, rows))
    return plan.kernel()


@dataclass(slots=True)
class _Plan:
    task: Task
    rows: Rows
    target: CpuTarget
    frame: RowDomain
    b: Builder = field(default_factory=Builder)
    lanes: int = 1
    row: tuple[Expr, ...] = ()
    saved: dict[Buffer, Buffer] = field(default_factory=dict)
    runs: list[list[int]] = field(default_factory=list)
    alone: bool = False

    def kernel(self) -> Kernel:
        full = self.rows.full
        for out in self.task.outputs:
            if not self.frame.is_full(out):
                require_count(self.task, [out], [full.shape[d] for d in self.rows.kept])
        self.lanes = self.target.lanes(vector_bytes(self.task))
        self.runs = self.frame.runs(self.frame.walks(self.frame.axes()))
        level = self.frame.depths()
        values = Inliner(self.task, self.b)
        kept = self.frame.kept()
        count = static_size(product([full.shape[d] for d in self.rows.kept]))
        length = static_size(row_length(self.rows))
        self.alone = count is not None and count < 2 * self.target.cores and (length or 0) >= _LONG_ROW
        shared = False if self.alone else worth_sharing(work(self.task, full.shape), _SHARED_FROM)
        extents = [full.shape[d] for d in kept]
        names = [f"r{d}" for d in kept]
        with parallel_grid(self.b, names, extents, values.simplifier, shared, 8 * self.target.cores) as at:
            position: list[Expr] = [index(0)] * full.rank
            for d, i in zip(kept, at, strict=True):
                position[d] = i
            self.row = tuple(position)
            inside = values.nested()
            for number in range(max(level.values()) + 1):
                self.run_pass(number, level, inside)
        size = "x".join(print_dim(full.shape[d]) for d in self.rows.reduced)
        note = f"cpu.rows(row={size}, passes={max(level.values()) + 1}, lanes={self.lanes})"
        return kernel_of(self.task, self.b, note)

    def run_pass(self, number: int, level: dict[Buffer, int], values: Inliner) -> None:
        """One pass: its reductions and full outputs in one walk along the row, then its per-row values."""
        stages = [s for s in self.task.stages if level[s.out] == number]
        folding = [(s, e) for s in stages for e in reductions_of(s)]
        full = [s for s in stages if s.out in self.task.outputs and self.frame.is_full(s.out)]
        outputs = [s for s in full if not reductions_of(s)]
        kept: list[Stage] = []
        for s in stages:
            if s not in outputs and self.worth_keeping(s, level):
                self.saved[s.out] = self.b.allocate(f"row_{s.label}", s.out.dtype, [row_length(self.rows)])
                kept.append(s)
        plain = [(s, e) for s, e in folding if e.op not in _EXTREME]
        winners = [(s, e) for s, e in folding if e.op in _EXTREME and is_exact(e.body, self.task)]
        if plain or winners or outputs or kept:
            self.walk(plain, [*kept, *outputs], winners, values)
        for s in stages:
            if reductions_of(s):
                self.finish(s, values)
        for s in stages:
            if s.out in self.task.outputs and s not in outputs:
                where = tuple(self.frame.at_row(s, self.row).values())
                self.b.store(s.out, where, values.element(s.out, where))

    def worth_keeping(self, stage: Stage, level: dict[Buffer, int]) -> bool:
        """True if a full value is expensive enough, and needed in a later pass, to be kept in a row buffer."""
        if reductions_of(stage) or not self.frame.is_full(stage.out) or stage.out in self.task.outputs:
            return False
        if not same_shape(stage.out, self.rows.full):
            return False
        if not any(isinstance(e, Call) for e in walk_exprs(stage.body)):
            return False
        size = static_size(row_length(self.rows))
        if size is None or size * sum(out.dtype.bytes for out in (stage.out, *self.saved)) > _ROW_BUFFER_BYTES:
            return False
        return any(level[s.out] > level[stage.out] and self.depends(s, stage) for s in self.task.stages)

    def depends(self, later: Stage, on: Stage) -> bool:
        """True if evaluating ``later`` evaluates ``on``, through stages that are recomputed and not kept."""
        for e in walk_exprs(later.body):
            if not isinstance(e, Load) or e.buffer not in self.task.producers:
                continue
            source = self.task.producers[e.buffer]
            if source is on or (e.buffer not in self.saved and not reductions_of(source) and self.depends(source, on)):
                return True
        return False

    def walk(
        self,
        folding: list[tuple[Stage, Reduce]],
        stores: list[Stage],
        winners: list[tuple[Stage, Reduce]],
        values: Inliner,
    ) -> None:
        """One walk along the row for sums, extrema and stores; another for the positions of ``winners``."""
        extents = [product([self.rows.full.shape[a] for a in run]) for run in self.runs]
        cheap = not any(isinstance(e, Call) for s in self.task.stages for e in walk_exprs(s.body))

        def store(local: Inliner, at: tuple[Expr, ...]) -> None:
            position = self.position(at)
            for s in stores:
                self.keep(s, position, local)

        reductions = [
            Reduction(_EXTREME.get(e.op, e.op), e.body.dtype, self.value_of(s, e)) for s, e in (*folding, *winners)
        ]
        totals = RowLoop(self.b, extents, self.lanes, reductions, store, cheap).run(values, self.alone)
        for s in stores:
            values.readers[s.out] = self.reader(s, values)
        values.reduced.update({id(e): t for (_, e), t in zip(folding, totals, strict=False)})
        if not winners:
            return
        places = [
            Reduction("min", i64, self.place_of(s, e, best))
            for (s, e), best in zip(winners, totals[len(folding) :], strict=True)
        ]
        found = RowLoop(self.b, extents, self.lanes, places, lambda local, at: None, cheap).run(
            values.nested(), self.alone
        )
        values.reduced.update({id(e): place for (_, e), place in zip(winners, found, strict=True)})

    def value_of(self, stage: Stage, e: Reduce) -> Callable[[Inliner, tuple[Expr, ...]], Expr]:
        """The operand of a reduction, at a position along the row."""
        here = self.frame.at_row(stage, self.row)
        return lambda local, at: local.expand(e.body, {**here, **self.frame.in_reduction(e, self.position(at))})

    def place_of(self, stage: Stage, e: Reduce, best: Expr) -> Callable[[Inliner, tuple[Expr, ...]], Expr]:
        """The number of an element if it equals the best (a NaN beats all), else a number larger than any."""
        value = self.value_of(stage, e)
        ((axis, _),) = e.axes

        def place(local: Inliner, at: tuple[Expr, ...]) -> Expr:
            x = value(local, at)
            wins = eq(x, best) | ne(x, x) if x.dtype.is_float else eq(x, best)
            return select(wins, self.frame.in_reduction(e, self.position(at))[axis], identity("min", i64))

        return place

    def position(self, at: Sequence[Expr]) -> tuple[Expr, ...]:
        """The full position of an element of the row."""
        where = list(self.row)
        shape = self.rows.full.shape
        for run, i in zip(self.runs, at, strict=True):
            for d, axis in enumerate(run):
                below = product([shape[a] for a in run[d + 1 :]])
                step = i // below
                where[axis] = step % shape[axis] if d else step
        return tuple(where)

    def keep(self, stage: Stage, position: tuple[Expr, ...], local: Inliner) -> None:
        """Computes a full stage at ``position`` and stores it in its output or its row buffer, for later passes."""
        out = stage.out
        where = tuple(local.simplifier(i) for i in positions_in(out, self.rows.full, position))
        value = local.element(out, where)
        row_buffer = self.saved.get(out)
        if row_buffer is None:
            self.b.store(out, where, value)
            return
        self.b.store(row_buffer, (local.simplifier(self.in_row(position)),), value)

    def in_row(self, position: Sequence[Expr]) -> Expr:
        """The number of an element within its row, reduced axes in their logical order."""
        flat: Expr = index(0)
        for a in self.rows.reduced:
            flat = flat * self.rows.full.shape[a] + position[a]
        return flat

    def reader(self, stage: Stage, values: Inliner) -> Reader:
        """The reader through which later passes read a full stage that was kept."""
        row_buffer, full = self.saved.get(stage.out), self.rows.full

        def read(where: tuple[Expr, ...]) -> Expr:
            at = self.frame.in_full(stage.out, where)
            kept = self.rows.kept
            shape = [full.shape[d] for d in kept]
            self.frame.require_row(stage, [at[d] for d in kept], [self.row[d] for d in kept], shape, values)
            return self.b.let(stage.label, stage.out[where] if row_buffer is None else row_buffer[self.in_row(where)])

        return read

    def finish(self, stage: Stage, values: Inliner) -> None:
        """Evaluates a reducing stage from its reduced sums, and makes every later use read the result."""
        at = self.frame.at_row(stage, self.row)
        value = self.b.let(stage.label or "row", values.expand(stage.body, at))

        def read(where: tuple[Expr, ...]) -> Expr:
            self.frame.require_row(stage, where, tuple(at.values()), stage.shape, values)
            return value

        values.readers[stage.out] = read


_EXTREME = {"argmax": "max", "argmin": "min"}
