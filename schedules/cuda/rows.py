"""The rule for reductions along rows and element-wise work on the rows: softmax, norms, sums, extrema, losses.

A thread group takes a row. A task mapping distributes its elements over the group's registers, so a row is read once,
however many reductions follow each other:

    item in (repeat(slots) * spatial(team)).on(lane)       an item is a vector of up to 16 bytes
    pass 0   m = max(x)          pass 1   s = sum(exp(x - m))          pass 2   y = exp(x - m) / s

A warp or a part of one takes a short row, so a block takes several. Rows too long for registers, or of symbolic length,
are walked again in every pass, and a thread's share of their f32 sums is split into chains whose results are added in
f64, so that its rounding error grows with the length of a chain alone. If there are too few rows to fill the GPU, and
one walk is enough, several blocks share a row, and the last of them to arrive combines the parts
(``support/last_block.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from taskmap.ir.algebra.mapping import TaskMapping, repeat, replicate, spatial
from taskmap.ir.construct import (
    cast,
    ceil_div,
    eq,
    identity,
    index,
    lane_reduce,
    load,
    minimum,
    ne,
    product,
    ramp,
    select,
    static_size,
)
from taskmap.ir.errors import ScheduleError
from taskmap.ir.nodes import Buffer, Call, Dim, Expr, Kernel, Load, LoopKind, Reduce, Scope, Var
from taskmap.ir.printer import print_dim
from taskmap.ir.target import GpuTarget
from taskmap.ir.task import Stage, Task
from taskmap.ir.types import i64
from taskmap.ir.visit import substitute, walk_exprs
from taskmap.ir.workers import THREAD
from taskmap.schedules.common.access import MemoryStep, memory_order, require_count
from taskmap.schedules.common.inline import Inliner, Reader, combine, wide_sum
from taskmap.schedules.common.positions import positions_in, unravel
from taskmap.schedules.common.row_domain import RowDomain, Rows, reductions_of
from taskmap.schedules.cuda.row_reciprocal import with_reciprocals
from taskmap.schedules.cuda.support.last_block import CrossBlockReduction
from taskmap.schedules.cuda.support.launch import WARP, Launch, place_of
from taskmap.schedules.cuda.support.thread_group import ThreadGroup
from taskmap.schedules.cuda.support.vectors import fills, vector_lanes

_THREADS = 128
_LARGEST_TEAM = 1024
_SLOTS_OF_WARP = 8
_MOST_SLOTS = 16
_LOOP_TEAM = 256
_FEWEST_PARTS = 4
_COMPUTED_BYTES = 4
"""Bytes of an element that is computed from one of the row and kept, too."""
_OTHER_REGISTERS = 32
_IN_FLIGHT = 4
"""Vectors that a thread requests from memory before it uses the first."""
_WALKING_THREADS = 512
"""Threads of a block that walks its rows again in every pass: each has enough registers for an unrolled walk."""
_BLOCKS_PER_SM = 2
"""Blocks per multiprocessor if several share a row because there are few rows."""
_LEAST_STEPS = 4
"""Vectors for each thread of a block that shares a row."""
_CHAIN = 512
"""Vectors of a sum of floats that a thread adds one after another."""
_EXTREME = {"argmax": "max", "argmin": "min"}
_LANE_OP = {"sum": "sum", "prod": "prod", "max": "max", "min": "min", "any": "or", "all": "and"}


@dataclass(frozen=True, slots=True)
class RowConfig:
    """The distribution of rows: ``team`` threads take a row, ``lanes`` elements each at a time, ``slots`` times.

    slots 0: as often as needed, walking the row again in each pass. columns: for rows that are interleaved in memory,
    like the columns of a matrix, the number of them that neighbouring threads take; 0 for contiguous rows. parts: the
    number of blocks that share a row; slots are 0 then.
    """

    team: int
    lanes: int
    slots: int
    columns: int = 0
    parts: int = 1

    @property
    def teams(self) -> int:
        """Rows that a block takes at once."""
        return self.columns or (1 if self.parts > 1 else max(1, _THREADS // self.team))

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.team * self.teams


def row_config(rows: Dim, units: Dim, lanes: int, target: GpuTarget) -> RowConfig:
    """The configuration for ``rows`` rows of ``units`` vectors: a warp if eight vectors for each of its threads hold
    the row, else as many threads as it takes; more if there are too few rows to fill the GPU."""
    size = static_size(units)
    if size is None:
        return RowConfig(_LOOP_TEAM, lanes, 0)
    most = min(_LARGEST_TEAM, _power(size))
    team = min(WARP, most)
    while team < most and size > team * _SLOTS_OF_WARP:
        team *= 2
    count = static_size(rows)
    while count is not None and team < most and count * team < target.cores * target.threads_per_sm // 4:
        team *= 2
    slots = -(-size // team)
    return RowConfig(team, lanes, slots if slots <= _MOST_SLOTS else 0)


def column_config(rows: Dim, length: Dim, target: GpuTarget) -> RowConfig:
    """The configuration for interleaved rows: a warp of columns, and as many threads to each as it takes to fill the
    GPU."""
    size, count = static_size(length), static_size(rows)
    team = _FEWEST_PARTS
    while (
        team < WARP and (size is None or size > 2 * team) and (count or 0) * team < target.cores * target.threads_per_sm
    ):
        team *= 2
    slots = 0 if size is None else -(-size // team)
    return RowConfig(team, 1, slots if slots <= _MOST_SLOTS else 0, WARP)


def _power(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()


def schedule_rows(task: Task, rows: Rows, target: GpuTarget, config: RowConfig | None = None) -> Kernel:
    """A kernel for a row task, as the module's docstring describes. Raises ScheduleError if a value is read across
    rows."""
    task = with_reciprocals(task)
    return _Plan(task, RowDomain(task, rows), target, config).kernel()


@dataclass(slots=True)
class _Here:
    """The current element: its item, its position in the item's vector, and its position in the full tensor."""

    unit: Expr
    place: Expr
    at: tuple[Expr, ...]


@dataclass(slots=True)
class _Reduction:
    """A reduction of one pass: ``cells`` hold, for each place in a vector, the partial result; for a long sum, that of
    the current chain, and ``total`` the sum of the chains before it."""

    stage: Stage
    e: Reduce
    cells: list[Buffer]
    total: Buffer | None = None


@dataclass(slots=True)
class _Plan:
    task: Task
    frame: RowDomain
    target: GpuTarget
    given: RowConfig | None
    config: RowConfig = RowConfig(1, 1, 1)
    launch: Launch = field(init=False)
    axes: tuple[Var, ...] = ()
    walks: list[MemoryStep] = field(default_factory=list)
    runs: list[list[int]] = field(default_factory=list)
    units: list[Dim] = field(default_factory=list)
    row: list[Expr] = field(default_factory=list)
    live: Expr | bool = True
    here: _Here | None = None
    held: dict[Buffer, Buffer] = field(default_factory=dict)
    kept_inputs: list[MemoryStep] = field(default_factory=list)
    passes: int = 1
    part: Expr = field(default_factory=lambda: index(0))
    shared: CrossBlockReduction | None = None

    @property
    def full(self) -> Buffer:
        return self.frame.rows.full

    def kernel(self) -> Kernel:
        full, frame = self.full, self.frame
        for out in self.task.outputs:
            if not frame.is_full(out):
                require_count(self.task, [out], [full.shape[d] for d in frame.rows.kept])
        self.axes = frame.axes()
        self.walks = frame.walks(self.axes)
        self.runs = frame.runs(self.walks)
        extents = [product([full.shape[a] for a in run]) for run in self.runs]
        kept = frame.kept()
        rows = product([full.shape[d] for d in kept])
        level = frame.depths()
        self.passes = max(level.values()) + 1
        self.config = self.given or self.choose(rows, extents)
        c = self.config
        if c.parts > 1 and not self.one_walk():
            raise ScheduleError(
                f"{self.task.name!r} cannot be shared by {c.parts} blocks",
                why="a second walk along the row needs the result of the first, which only the last block has.",
            )
        self.units = [*extents[:-1], ceil_div(extents[-1], c.lanes)]
        self.launch = Launch(self.task, (ceil_div(rows, c.teams), c.parts), c.threads)
        values, (block, self.part) = self.launch.begin()
        b = self.launch.b
        if c.columns:
            lane, number = place_of(spatial(c.team, c.teams), THREAD, values)
        else:
            number, lane = place_of(spatial(c.teams, c.team), THREAD, values)
        team = ThreadGroup(b, c.teams, c.team, number, lane, across=c.columns > 0)
        mine = values.simplifier(block * c.teams + number)
        whole = fills(rows, c.teams)
        self.live = True if whole else b.let("live", mine < rows)
        row = b.let("row", mine if whole else minimum(mine, index(rows) - 1))
        values.bind(row, rows)
        self.row = [index(0)] * full.rank
        for d, i in zip(kept, unravel(row, [full.shape[d] for d in kept], values.simplifier), strict=True):
            self.row[d] = i
        for n in range(self.passes):
            self.run_pass(n, level, team, values)
        size = "x".join(print_dim(full.shape[d]) for d in frame.rows.reduced)
        held = "registers" if c.slots else "memory" if c.parts == 1 else f"parts={c.parts}"
        made = self.launch.kernel(
            f"cuda.rows(row={size}, passes={self.passes}, team={c.team}, lanes={c.lanes}, slots={c.slots}, {held})"
        )
        return made if self.shared is None else self.shared.kernel(made)

    def choose(self, rows: Dim, extents: Sequence[Dim]) -> RowConfig:
        """The default configuration; it holds the row in registers only if they suffice."""
        order = [d for d in memory_order(self.task, self.full) if static_size(self.full.shape[d]) != 1]
        if order and order[-1] not in self.frame.rows.reduced:
            found = column_config(rows, product(extents), self.target)
        else:
            lanes = vector_lanes(self.walks, self.axes, self.runs[-1], self.full.shape)
            while not fills(extents[-1], lanes) and lanes > 1:
                lanes //= 2
            found = row_config(rows, product([*extents[:-1], ceil_div(extents[-1], lanes)]), lanes, self.target)
        parts = self.parts(rows, found, extents)
        if parts > 1:
            team = min(_WALKING_THREADS // (found.columns or 1), max(found.team, _LOOP_TEAM // (found.columns or 1)))
            return replace(found, slots=0, team=team, parts=parts)
        held = found.slots * found.lanes * (self.full.dtype.bytes + _COMPUTED_BYTES) // 4
        available = (
            min(self.target.registers_per_thread, self.target.registers_per_sm // found.threads) - _OTHER_REGISTERS
        )
        if found.slots and held <= available:
            return found
        largest = _WALKING_THREADS // (found.columns or 1)
        return replace(found, slots=0, team=min(found.team, largest))

    def parts(self, rows: Dim, c: RowConfig, extents: Sequence[Dim]) -> int:
        """The number of blocks that share a row: as many as fill the GPU, each with enough to do; 1 if a size is
        symbolic."""
        count = static_size(rows)
        if count is None or not self.one_walk():
            return 1
        blocks = -(-count // (c.columns or 1))
        wanted = _BLOCKS_PER_SM * self.target.cores // blocks
        size = static_size(product(extents))
        if size is None:
            return wanted if count == 1 else 1
        return min(wanted, size // (c.lanes * _WALKING_THREADS // (c.columns or 1) * _LEAST_STEPS))

    def one_walk(self) -> bool:
        """True if the first walk along the row computes all reductions and full outputs."""
        level = self.frame.depths()
        walked = [s for s in self.task.stages if reductions_of(s) or (s.out in self.task.outputs and self.is_full(s))]
        return all(level[s.out] == 0 for s in walked)

    def run_pass(self, number: int, level: dict[Buffer, int], team: ThreadGroup, values: Inliner) -> None:
        """One pass: its reductions and full outputs in one walk along the row, then its per-row values."""
        stages = [s for s in self.task.stages if level[s.out] == number]
        outputs = [s for s in stages if s.out in self.task.outputs and not reductions_of(s) and self.is_full(s)]
        saved = [s for s in stages if s not in outputs and self.config.slots and self.worth_keeping(s, level)]
        saved += [s for s in outputs if self.config.slots and self.is_needed_later(s, level)]
        reductions = [self.reduction(s, e) for s in stages for e in reductions_of(s)]
        if reductions or outputs:
            self.open_inputs(number, level, values)
            for s in saved:
                self.hold(s.out, s.label)
            self.walk(values, team, reductions, lambda local: self.element(local, reductions, outputs, saved))
            for s in saved:
                values.readers[s.out] = self.held_reader(s, values)
        results = [self.total(f, team) for f in reductions]
        if self.config.parts > 1 and reductions:
            self.shared = CrossBlockReduction(self.launch.b, self.config.parts, team, self.launch.grid[0])
            reduced = [
                list(zip(r, (c.dtype for c in f.cells), strict=True)) for f, r in zip(reductions, results, strict=True)
            ]
            together = [lambda x, y, op=f.e.op: _together(op, x, y) for f in reductions]
            neutral = [
                [identity(_EXTREME.get(f.e.op, f.e.op), f.cells[0].dtype), identity("min", i64)] for f in reductions
            ]
            results = self.shared.all_reduce(self.part, reduced, together, neutral)
            last = self.shared.is_last
            self.live = last if self.live is True else self.live & last
        for f, result in zip(reductions, results, strict=True):
            values.reduced = {**values.reduced, id(f.e): result[-1]}
        for s in stages:
            if reductions_of(s):
                self.finish(s, values)
        b = self.launch.b
        for s in stages:
            if s.out in self.task.outputs and s not in outputs:
                where = tuple(self.frame.at_row(s, self.row).values())
                value = values.element(s.out, where)
                with b.when(team.lane < 1 if self.live is True else (team.lane < 1) & self.live):
                    b.store(s.out, where, value)

    def is_full(self, stage: Stage) -> bool:
        return self.frame.is_full(stage.out)

    # Values kept in registers between passes.

    def worth_keeping(self, stage: Stage, level: dict[Buffer, int]) -> bool:
        """True if a full value is expensive enough, and needed in a later pass, to be kept."""
        costly = any(isinstance(e, Call) for e in walk_exprs(stage.body))
        return costly and self.is_needed_later(stage, level)

    def is_needed_later(self, stage: Stage, level: dict[Buffer, int]) -> bool:
        if reductions_of(stage) or not self.is_full(stage) or len(stage.shape) != self.full.rank:
            return False
        later = [s for s in self.task.stages if level[s.out] > level[stage.out] or reductions_of(s)]
        return any(s is not stage and self.depends(s, stage) for s in later)

    def depends(self, later: Stage, on: Stage) -> bool:
        """True if evaluating ``later`` evaluates ``on``, through stages that are recomputed."""
        for e in walk_exprs(later.body):
            if isinstance(e, Load) and e.buffer in self.task.producers:
                source = self.task.producers[e.buffer]
                if source is on or (not reductions_of(source) and self.depends(source, on)):
                    return True
        return False

    def owner(self) -> TaskMapping:
        """Ownership of a row's elements by the lanes of a thread group, and the slot of each."""
        c = self.config
        shared = replicate(c.teams if c.columns else 1, rank=2)
        return repeat(c.slots, 1) * spatial(c.team, 1) * shared * repeat(1, c.lanes)

    def hold(self, buffer: Buffer, name: str) -> Buffer:
        """Registers for the row of a full tensor."""
        c = self.config
        shape = (c.slots * c.team, c.lanes)
        self.held[buffer] = self.launch.b.allocate(
            f"row_{name}", buffer.dtype, shape, Scope.REGISTER, owner=self.owner()
        )
        return self.held[buffer]

    def open_inputs(self, number: int, level: dict[Buffer, int], values: Inliner) -> None:
        """Keeps inputs that the first pass and a later one read, each at one position."""
        if not self.config.slots or self.passes == 1 or number > 1:
            return
        if number == 1:
            for w in self.kept_inputs:
                values.readers[w.buffer] = self.later_reader(w, values)
            return
        first = self.frame.walks(self.axes, [s for s in self.task.stages if level[s.out] == 0])
        later = {w.buffer for w in self.frame.walks(self.axes, [s for s in self.task.stages if level[s.out] > 0])}
        for w in first:
            uses = {a for i in w.indices for a in walk_exprs(i)}
            alone = all(x.indices == w.indices for x in first if x.buffer is w.buffer)
            follows = all(self.axes[d] in uses for d in self.frame.rows.reduced if self.is_long(d))
            if w.buffer in self.task.inputs and w.buffer in later and alone and follows and w.buffer not in self.held:
                self.hold(w.buffer, w.buffer.name)
                self.kept_inputs.append(w)
                values.readers[w.buffer] = self.first_reader(w, values)

    def is_long(self, d: int) -> bool:
        return static_size(self.full.shape[d]) != 1

    def is_here(self, w: MemoryStep, where: tuple[Expr, ...], values: Inliner) -> bool:
        """True if ``where`` is the access ``w`` at the current element."""
        if self.here is None:
            return False
        now = dict(zip(self.axes, self.here.at, strict=True))
        return where == tuple(values.simplifier(substitute(i, now)) for i in w.indices)

    def first_reader(self, w: MemoryStep, values: Inliner) -> Reader:
        b = self.launch.b

        def read(where: tuple[Expr, ...]) -> Expr:
            value = b.let(w.buffer.name, w.buffer[where])
            if self.here is not None and self.is_here(w, where, values):
                b.store(self.held[w.buffer], (self.here.unit, self.here.place), value)
            return value

        return read

    def later_reader(self, w: MemoryStep, values: Inliner) -> Reader:
        b = self.launch.b

        def read(where: tuple[Expr, ...]) -> Expr:
            if self.here is not None and self.is_here(w, where, values):
                return b.let(w.buffer.name, self.held[w.buffer][self.here.unit, self.here.place])
            return b.let(w.buffer.name, w.buffer[where])

        return read

    def held_reader(self, stage: Stage, values: Inliner) -> Reader:
        """The reader through which later passes read a full stage that is in registers."""

        def read(where: tuple[Expr, ...]) -> Expr:
            if self.here is None:
                raise ScheduleError(f"{stage.label!r} of {self.task.name!r} is read outside of its row")
            now = positions_in(stage.out, self.full, self.here.at)
            self.frame.require_row(stage, where, now, stage.shape, values)
            return self.launch.b.let(stage.label, self.held[stage.out][self.here.unit, self.here.place])

        return read

    # One walk along the row.

    def walk(
        self, values: Inliner, team: ThreadGroup, reductions: Sequence[_Reduction], body: Callable[[Inliner], None]
    ) -> None:
        """Calls ``body`` at every element of the row that this thread owns; long sums in chains."""
        b, c = self.launch.b, self.config
        units = product(self.units)
        if c.slots:
            with b.mapped(["unit"], repeat(c.slots) * spatial(c.team), team.lane) as (unit,):
                inside = values.nested()
                with b.when(True if fills(units, c.slots * c.team) else unit < units):
                    inside.bind(unit, units)
                    self.vector(inside, unit, body)
            return
        steps = self.steps()
        sums = [f for f in reductions if f.total is not None]
        if not sums:
            self.chain(values, team, index(0), steps, body)
            return
        chains = ceil_div(steps, _CHAIN)
        with b.loop("chain", chains) as number:
            inside = values.nested()
            inside.bind(number, chains)
            start = inside.simplifier(number * _CHAIN)
            length = index(_CHAIN) if fills(steps, _CHAIN) else minimum(index(_CHAIN), index(steps) - start)
            self.chain(inside, team, start, inside.simplifier(length), body)
            for f in sums:
                self.end_chain(f)

    def steps(self) -> Dim:
        """The number of vectors of the row that a thread owns."""
        c = self.config
        return ceil_div(ceil_div(product(self.units), c.team), c.parts)

    def chain(
        self, values: Inliner, team: ThreadGroup, start: Expr, length: Dim, body: Callable[[Inliner], None]
    ) -> None:
        """Calls ``body`` at the elements of ``length`` of the thread's vectors, from number ``start`` on."""
        b, c = self.launch.b, self.config
        units, steps = product(self.units), self.steps()
        known = static_size(length)
        with b.loop("step", length if known is None else known, unroll=_IN_FLIGHT) as step:
            inside = values.nested()
            inside.bind(step, length if static_size(start) == 0 else _CHAIN)
            first = start if c.parts == 1 else self.part * steps + start
            at = b.let("unit", inside.simplifier((first + step) * c.team + team.lane))
            with b.when(True if fills(units, c.team * c.parts) else at < units):
                inside.bind(at, units)
                self.vector(inside, at, body)

    def vector(self, values: Inliner, unit: Expr, body: Callable[[Inliner], None]) -> None:
        """Calls ``body`` at the elements of one item."""
        b, c = self.launch.b, self.config
        *outer, v = unravel(unit, self.units, values.simplifier)
        kind = LoopKind.VECTOR if c.lanes > 1 else LoopKind.SERIAL
        with b.loop("v", c.lanes, kind) as place:
            inside = values.nested()
            inside.bind(place, c.lanes)
            at = list(self.row)
            for run, number in zip(self.runs, [*outer, v * c.lanes + place], strict=True):
                shape = [self.full.shape[a] for a in run]
                for a, i in zip(run, unravel(inside.simplifier(number), shape, inside.simplifier), strict=True):
                    at[a] = i
            self.here = _Here(unit, place, tuple(at))
            body(inside)
            self.here = None

    def element(self, local: Inliner, reductions: list[_Reduction], outputs: list[Stage], saved: list[Stage]) -> None:
        """One element of a pass: keeps, stores and reduces its values."""
        b, here = self.launch.b, self.here
        assert here is not None
        for s in (*saved, *(s for s in outputs if s not in saved)):
            where = tuple(local.simplifier(i) for i in positions_in(s.out, self.full, here.at))
            value = local.element(s.out, where)
            if s in saved:
                b.store(self.held[s.out], (here.unit, here.place), value)
            if s in outputs:
                with b.when(self.live):
                    b.store(s.out, where, value)
        for f in reductions:
            fixed = {**self.frame.at_row(f.stage, self.row), **self.frame.in_reduction(f.e, here.at)}
            value = b.let("value", local.expand(f.e.body, fixed))
            found = [value]
            if f.e.op in _EXTREME:
                found.append(fixed[f.e.axes[0][0]])
            now = [cell[here.place] for cell in f.cells]
            for cell, x in zip(f.cells, [b.let("now", x) for x in _together(f.e.op, now, found)], strict=True):
                b.store(cell, here.place, x)

    # Reduction.

    def reduction(self, stage: Stage, e: Reduce) -> _Reduction:
        """Accumulators with their initial values."""
        b = self.launch.b
        kinds = [(e.op, e.body.dtype, identity(e.op, e.body.dtype))]
        if e.op in _EXTREME:
            kinds.append(("place", i64, identity("min", i64)))
        cells = []
        for name, dtype, start in kinds:
            cells.append(b.allocate(name, dtype, (self.config.lanes,), Scope.REGISTER))
            self.start(cells[-1], start)
        total = None
        if self.in_chains(e):
            full = wide_sum(e.body.dtype)
            total = b.allocate("chains", full, (1,), Scope.REGISTER, init=identity(e.op, full))
        return _Reduction(stage, e, cells, total)

    def start(self, cell: Buffer, value: Expr) -> None:
        """Stores ``value`` in every place of an accumulator."""
        b, lanes = self.launch.b, self.config.lanes
        with b.loop("v", lanes, LoopKind.VECTOR if lanes > 1 else LoopKind.SERIAL) as v:
            b.store(cell, v, value)

    def in_chains(self, e: Reduce) -> bool:
        """True if a sum is, or may be, so long that its rounding error would grow with its length."""
        if e.op != "sum" or wide_sum(e.body.dtype) == e.body.dtype or self.config.slots:
            return False
        steps = static_size(self.steps())
        return steps is None or steps > _CHAIN

    def end_chain(self, f: _Reduction) -> None:
        """Adds the current chain to the sum of the chains, and starts a new one."""
        assert f.total is not None
        b, cell = self.launch.b, f.cells[0]
        b.store(f.total, 0, combine(f.e.op, f.total[0], cast(self.across(f), f.total.dtype)))
        self.start(cell, identity(f.e.op, cell.dtype))

    def across(self, f: _Reduction) -> Expr:
        """Combines the places of an accumulator."""
        lanes = self.config.lanes
        every = (ramp(0, 1, lanes) if lanes > 1 else index(0),)
        return lane_reduce(_LANE_OP[f.e.op], load(f.cells[0], every))

    def total(self, f: _Reduction, team: ThreadGroup) -> list[Expr]:
        """The result of a reduction, for every thread of the group: a value, and its index for argmax and argmin."""
        b, lanes = self.launch.b, self.config.lanes
        if f.e.op not in _EXTREME:
            mine = b.let(f.e.op, self.across(f) if f.total is None else cast(f.total[0], f.cells[0].dtype))
            return team.all_reduce([mine], lambda x, y: _together(f.e.op, x, y))
        best = [b.let("best", cell[0]) for cell in f.cells]
        for v in range(1, lanes):
            best = [b.let("best", x) for x in _together(f.e.op, best, [cell[v] for cell in f.cells])]
        return team.all_reduce(best, lambda x, y: _together(f.e.op, x, y))

    def finish(self, stage: Stage, values: Inliner) -> None:
        """Evaluates a reducing stage from its reduced sums, and makes every later use read the result."""
        at = self.frame.at_row(stage, self.row)
        value = self.launch.b.let(stage.label or "row", values.expand(stage.body, at))

        def read(where: tuple[Expr, ...]) -> Expr:
            self.frame.require_row(stage, where, tuple(at.values()), stage.shape, values)
            return value

        values.readers[stage.out] = read


def _together(op: str, a: Sequence[Expr], b: Sequence[Expr]) -> list[Expr]:
    """Combines two partial results of a reduction; for argmax and argmin, (value, index), with the first index of the
    best."""
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


__all__ = ["RowConfig", "row_config", "schedule_rows"]
