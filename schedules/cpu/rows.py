"""The rule for reductions along rows and all that is done with the rows: softmax, layer norm, means, losses.

A row is the set of elements that a reduction folds; its elements lie together in memory. One parallel loop runs over
the rows. Inside, each *pass* walks the row once, in vectors, and does all that can be done then: reductions whose
operands are known, and stores of outputs. Softmax is three passes:

    pass 0   m = max(x)                     pass 1   e = exp(x - m), kept in a row buffer;  s = sum(e)
    pass 2   y = e / s

A value needed in a later pass is recomputed when it is cheap, else kept in a row buffer.
Method: Hidet's rule-based schedule generalised to several dependent reductions, vectorised along the row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from taskmap.ir.builder import Builder
from taskmap.ir.construct import constant_dim, eq, index, ne, product, select
from taskmap.ir.errors import ScheduleError
from taskmap.ir.nodes import Binary, Buffer, Call, Dim, Expr, Kernel, Load, Reduce, Var
from taskmap.ir.printer import print_dim
from taskmap.ir.target import Target
from taskmap.ir.task import Stage, Task
from taskmap.ir.types import i64
from taskmap.ir.visit import walk_exprs
from taskmap.schedules.access import accesses, memory_order, merged_axes, require_count, same_count
from taskmap.schedules.cpu.fold import Fold, Walk
from taskmap.schedules.cpu.loops import parallel_grid
from taskmap.schedules.cpu.pointwise import vector_bytes, work
from taskmap.schedules.cpu.positions import flatten, positions_in, unflatten
from taskmap.schedules.sampling import agree
from taskmap.schedules.values import Reader, Values, identity

_PARALLEL_ABOVE = 20_000
_ROW_BUFFER_BYTES = 128 << 10
_LONG_ROW = 1 << 16


@dataclass(frozen=True, slots=True)
class Rows:
    """The iteration domain of a row task: ``wide`` is a tensor over all of it, ``folded`` the axes that make a row."""

    wide: Buffer
    folded: tuple[int, ...]

    @property
    def kept(self) -> tuple[int, ...]:
        """The axes that number the rows."""
        return tuple(d for d in range(self.wide.rank) if d not in self.folded)


def find_rows(task: Task) -> Rows | None:
    """The rows of a task whose reductions all fold the same axes of tensors of one shape; None when it has none
    such.
    """
    found: Rows | None = None
    for stage in task.stages:
        for e in walk_exprs(stage.body):
            if not isinstance(e, Reduce):
                continue
            rows = _rows_of(stage, e)
            if rows is None or (found and (rows.folded != found.folded or not _same(rows.wide, found.wide))):
                return None
            found = found or rows
    if found is None:
        return None
    steps = memory_order(task, found.wide)
    inner = [d for d in steps if constant_dim(found.wide.shape[d]) != 1][-1:]
    return found if inner and inner[0] in found.folded else None


def _same(a: Buffer, b: Buffer) -> bool:
    return len(a.shape) == len(b.shape) and all(x is y or x == y for x, y in zip(a.shape, b.shape, strict=True))


def _rows_of(stage: Stage, e: Reduce) -> Rows | None:
    """The rows that one reduction folds: a load that has every summed axis, and every axis of the output, as an
    index.
    """
    summed = dict(e.axes)
    kept = {v: size for v, size in zip(stage.axes, stage.shape, strict=True) if constant_dim(size) != 1}
    for x in walk_exprs(e.body):
        if not isinstance(x, Load):
            continue
        places = [(i, size) for i, size in zip(x.indices, x.buffer.shape, strict=True) if constant_dim(size) != 1]
        wanted = [(v, n) for v, n in summed.items() if constant_dim(n) != 1]
        folded = [(i, n) for i, n in places if i in summed]
        others = [(i, n) for i, n in places if i not in summed]
        if _same_axes(folded, wanted) and _same_axes(others, list(kept.items())):
            return Rows(x.buffer, tuple(d for d, i in enumerate(x.indices) if i in summed))
    return None


def _same_axes(a: Sequence[tuple[Expr, Dim]], b: Sequence[tuple[Expr, Dim]]) -> bool:
    """Whether both walk the same variables, in the same order, to the same ends."""
    return len(a) == len(b) and all(i is j and (m is n or m == n) for (i, m), (j, n) in zip(a, b, strict=True))


def schedule_rows(task: Task, rows: Rows, target: Target) -> Kernel:
    """A kernel for a row task: see the top of the file. Raises ScheduleError when a value is read across rows."""
    plan = _Plan(task, rows, target)
    return plan.kernel()


@dataclass(slots=True)
class _Plan:
    task: Task
    rows: Rows
    target: Target
    b: Builder = field(default_factory=Builder)
    lanes: int = 1
    row: tuple[Expr, ...] = ()
    saved: dict[Buffer, Buffer] = field(default_factory=dict)
    runs: list[list[int]] = field(default_factory=list)
    alone: bool = False

    def kernel(self) -> Kernel:
        wide = self.rows.wide
        for out in self.task.outputs:
            if not self.is_wide(out):
                require_count(self.task, [out], [wide.shape[d] for d in self.rows.kept])
        self.lanes = self.target.lanes(vector_bytes(self.task))
        self.runs = self.row_runs()
        level = self.levels()
        values = Values(self.task, self.b)
        kept = [d for d in memory_order(self.task, wide) if d in self.rows.kept]
        parallel = (work(self.task, wide.shape) or _PARALLEL_ABOVE) >= _PARALLEL_ABOVE
        count = constant_dim(product([wide.shape[d] for d in self.rows.kept]))
        length = constant_dim(product([wide.shape[d] for d in self.rows.folded]))
        self.alone = count is not None and count < 2 * self.target.cores and (length or 0) >= _LONG_ROW
        extents = [wide.shape[d] for d in kept]
        names = [f"r{d}" for d in kept]
        with parallel_grid(self.b, names, extents, values, parallel and not self.alone, 8 * self.target.cores) as at:
            position: list[Expr] = [index(0)] * wide.rank
            for d, i in zip(kept, at, strict=True):
                position[d] = i
            self.row = tuple(position)
            inside = values.nested()
            for number in range(max(level.values()) + 1):
                self.run_pass(number, level, inside)
        size = "x".join(print_dim(wide.shape[d]) for d in self.rows.folded)
        note = f"cpu.rows(row={size}, passes={max(level.values()) + 1}, lanes={self.lanes})"
        buffers = (*self.task.inputs, *self.task.outputs)
        return Kernel(self.task.name, buffers, self.task.outputs, self.task.dims, self.b.body(), note=note)

    def levels(self) -> dict[Buffer, int]:
        """The pass in which each stage can be computed: one after the last reduction that it needs."""
        level: dict[Buffer, int] = {}
        reducing = {s.out: _reduces(s) for s in self.task.stages}
        for stage in self.task.stages:
            needs = [e.buffer for e in walk_exprs(stage.body) if isinstance(e, Load) and e.buffer in level]
            level[stage.out] = max((level[n] + reducing[n] for n in needs), default=0)
        return level

    def is_wide(self, buffer: Buffer) -> bool:
        """Whether a tensor has an element for every element of the row."""
        return same_count(buffer.shape, self.rows.wide.shape)

    def row_runs(self) -> list[list[int]]:
        """The folded axes in storage order, merged where every access to the row allows it."""
        wide = self.rows.wide
        axes = tuple(Var(f"i{d}") for d in range(wide.rank))
        outs = [(o, positions_in(o, wide, axes)) for o in self.task.outputs if self.is_wide(o)]

        def bodies(values: Values) -> None:
            for stage in self.task.stages:
                for e in walk_exprs(stage.body):
                    if isinstance(e, Reduce):
                        values.expand(e.body, {**self.at_row(stage, axes), **self.in_fold(e, axes)})

        walks = accesses(self.task, axes, wide.shape, outs, bodies)
        order = [d for d in memory_order(self.task, wide) if d in self.rows.folded]
        return merged_axes(order, wide.shape, walks) or [[order[-1]]]

    def at_row(self, stage: Stage, position: Sequence[Expr]) -> dict[Var, Expr]:
        """The axes of a narrow stage at a row: its element that has the row's number."""
        wide = self.rows.wide.shape
        kept = [(position[d], wide[d]) for d in self.rows.kept if constant_dim(wide[d]) != 1]
        own = [d for d, size in enumerate(stage.shape) if constant_dim(size) != 1]
        found: list[Expr] = [index(0)] * len(stage.axes)
        sizes = [([stage.shape[d]], [n]) for d, (_, n) in zip(own, kept, strict=False)]
        if len(own) == len(kept) and all(same_count(a, n) for a, n in sizes):
            for d, (at, _) in zip(own, kept, strict=True):
                found[d] = at
            return dict(zip(stage.axes, found, strict=True))
        require_count(self.task, [stage.out], [n for _, n in kept])
        return dict(zip(stage.axes, unflatten(flatten(kept), stage.shape), strict=True))

    def in_fold(self, e: Reduce, position: Sequence[Expr]) -> dict[Var, Expr]:
        """The summed axes of a reduction at a position in the row."""
        wide = self.rows.wide.shape
        places = iter(position[d] for d in self.rows.folded if constant_dim(wide[d]) != 1)
        return {v: index(0) if constant_dim(n) == 1 else next(places) for v, n in e.axes}

    def run_pass(self, number: int, level: dict[Buffer, int], values: Values) -> None:
        """Everything of one pass: its reductions and wide outputs in one walk along the row, then its narrow values."""
        stages = [s for s in self.task.stages if level[s.out] == number]
        folding = [(s, e) for s in stages for e in _reductions(s)]
        outputs = [s for s in stages if s.out in self.task.outputs and not _reduces(s) and self.is_wide(s.out)]
        kept: list[Stage] = []
        for s in stages:
            if s not in outputs and self.worth_keeping(s, level):
                shape = [product([self.rows.wide.shape[a] for a in self.rows.folded])]
                self.saved[s.out] = self.b.allocate(f"row_{s.label}", s.out.dtype, shape)
                kept.append(s)
        plain = [(s, e) for s, e in folding if e.op not in _EXTREME]
        winners = [(s, e) for s, e in folding if e.op in _EXTREME and _is_exact(e.body, self.task)]
        if plain or winners or outputs or kept:
            self.walk(plain, [*kept, *outputs], winners, values)
        for s in stages:
            if _reduces(s):
                self.finish(s, values)
        for s in stages:
            if s.out in self.task.outputs and s not in outputs:
                where = tuple(self.at_row(s, self.row).values())
                self.b.store(s.out, where, values.at(s.out, where))

    def worth_keeping(self, stage: Stage, level: dict[Buffer, int]) -> bool:
        """Whether a wide value costs enough, and is needed in a later pass, to be kept in a row buffer."""
        if _reduces(stage) or not self.is_wide(stage.out) or stage.out in self.task.outputs:
            return False
        if not _same(stage.out, self.rows.wide):
            return False
        if not any(isinstance(e, Call) for e in walk_exprs(stage.body)):
            return False
        size = constant_dim(product([self.rows.wide.shape[a] for a in self.rows.folded]))
        if size is None or size * sum(out.dtype.bytes for out in (stage.out, *self.saved)) > _ROW_BUFFER_BYTES:
            return False
        return any(level[s.out] > level[stage.out] and self.depends(s, stage) for s in self.task.stages)

    def depends(self, later: Stage, on: Stage) -> bool:
        """Whether evaluating ``later`` evaluates ``on``, through stages that are computed again and not kept."""
        for e in walk_exprs(later.body):
            if not isinstance(e, Load) or e.buffer not in self.task.producers:
                continue
            source = self.task.producers[e.buffer]
            if source is on or (e.buffer not in self.saved and not _reduces(source) and self.depends(source, on)):
                return True
        return False

    def walk(
        self,
        folding: list[tuple[Stage, Reduce]],
        stores: list[Stage],
        winners: list[tuple[Stage, Reduce]],
        values: Values,
    ) -> None:
        """One walk along the row for sums, extrema and stores; another for the places of ``winners``."""
        extents = [product([self.rows.wide.shape[a] for a in run]) for run in self.runs]
        cheap = not any(isinstance(e, Call) for s in self.task.stages for e in walk_exprs(s.body))

        def store(local: Values, at: tuple[Expr, ...]) -> None:
            position = self.position(at)
            for s in stores:
                self.keep(s, position, local)

        folds = [Fold(_EXTREME.get(e.op, e.op), e.body.dtype, self.value_of(s, e)) for s, e in (*folding, *winners)]
        totals = Walk(self.b, extents, self.lanes, folds, store, cheap).run(values, self.alone)
        for s in stores:
            values.readers[s.out] = self.reader(s, values)
        values.folded.update({id(e): t for (_, e), t in zip(folding, totals, strict=False)})
        if not winners:
            return
        places = [
            Fold("min", i64, self.place_of(s, e, best))
            for (s, e), best in zip(winners, totals[len(folding) :], strict=True)
        ]
        found = Walk(self.b, extents, self.lanes, places, lambda local, at: None, cheap).run(
            values.nested(), self.alone
        )
        values.folded.update({id(e): place for (_, e), place in zip(winners, found, strict=True)})

    def value_of(self, stage: Stage, e: Reduce) -> Callable[[Values, tuple[Expr, ...]], Expr]:
        """What a reduction folds, at a position along the row."""
        here = self.at_row(stage, self.row)
        return lambda local, at: local.expand(e.body, {**here, **self.in_fold(e, self.position(at))})

    def place_of(self, stage: Stage, e: Reduce, best: Expr) -> Callable[[Values, tuple[Expr, ...]], Expr]:
        """The number of an element where it is the best (a NaN is better than all), else a larger one than any."""
        value = self.value_of(stage, e)
        ((axis, _),) = e.axes

        def place(local: Values, at: tuple[Expr, ...]) -> Expr:
            x = value(local, at)
            wins = eq(x, best) | ne(x, x) if x.dtype.is_float else eq(x, best)
            return select(wins, self.in_fold(e, self.position(at))[axis], identity("min", i64))

        return place

    def position(self, at: Sequence[Expr]) -> tuple[Expr, ...]:
        """The full position of an element of the row."""
        where = list(self.row)
        shape = self.rows.wide.shape
        for run, i in zip(self.runs, at, strict=True):
            for d, axis in enumerate(run):
                below = product([shape[a] for a in run[d + 1 :]])
                step = i // below
                where[axis] = step % shape[axis] if d else step
        return tuple(where)

    def keep(self, stage: Stage, position: tuple[Expr, ...], local: Values) -> None:
        """Compute a wide stage at ``position`` and put it into its output or its row buffer, where later passes find
        it.
        """
        out = stage.out
        where = tuple(local.simplifier(i) for i in positions_in(out, self.rows.wide, position))
        value = local.at(out, where)
        row_buffer = self.saved.get(out)
        if row_buffer is None:
            self.b.store(out, where, value)
            return
        self.b.store(row_buffer, (local.simplifier(self.in_row(position)),), value)

    def in_row(self, position: Sequence[Expr]) -> Expr:
        """The number of an element within its row, folded axes in their logical order."""
        flat: Expr = index(0)
        for a in self.rows.folded:
            flat = flat * self.rows.wide.shape[a] + position[a]
        return flat

    def reader(self, stage: Stage, values: Values) -> Reader:
        """How later passes read a wide stage that was kept."""
        row_buffer, wide = self.saved.get(stage.out), self.rows.wide

        def read(where: tuple[Expr, ...]) -> Expr:
            at = where
            if not _same(stage.out, wide):
                at = unflatten(flatten(list(zip(where, stage.out.shape, strict=True))), wide.shape)
            kept = self.rows.kept
            shape = [wide.shape[d] for d in kept]
            self.require_row(stage, [at[d] for d in kept], [self.row[d] for d in kept], shape, values)
            return self.b.let(stage.label, stage.out[where] if row_buffer is None else row_buffer[self.in_row(where)])

        return read

    def require_row(
        self, stage: Stage, where: Sequence[Expr], here: Sequence[Expr], shape: Sequence[Dim], values: Values
    ) -> None:
        """Raises ScheduleError when a stage is read in another row than the one at hand."""
        found, expected = (tuple(values.simplifier(i) for i in at) for at in (where, here))
        if found != expected and not agree(found, expected, values.simplifier, shape):
            raise ScheduleError(f"{stage.label!r} in {self.task.name!r} is read in another row than it is computed in")

    def finish(self, stage: Stage, values: Values) -> None:
        """Evaluate a reducing stage from its folded sums, and let every later use read that."""
        at = self.at_row(stage, self.row)
        value = self.b.let(stage.label or "row", values.expand(stage.body, at))

        def read(where: tuple[Expr, ...]) -> Expr:
            self.require_row(stage, where, tuple(at.values()), stage.shape, values)
            return value

        values.readers[stage.out] = read


_EXTREME = {"argmax": "max", "argmin": "min"}


def _reductions(stage: Stage) -> list[Reduce]:
    return [e for e in walk_exprs(stage.body) if isinstance(e, Reduce)]


def _reduces(stage: Stage) -> bool:
    return any(isinstance(e, Reduce) for e in walk_exprs(stage.body))


def _is_exact(e: Expr, task: Task) -> bool:
    """Whether evaluating ``e`` twice gives the same bits, however a compiler rounds: nothing in it is rounded."""
    for x in walk_exprs(e):
        if isinstance(x, Load) and x.buffer in task.producers and not _is_exact(task.producers[x.buffer].body, task):
            return False
        if isinstance(x, (Call, Reduce)) or (isinstance(x, Binary) and x.dtype.is_float and x.op not in ("min", "max")):
            return False
    return True
