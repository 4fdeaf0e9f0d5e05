"""Recurrences: a loop over steps with products as small as the state, and weights that stay in cache.

    parallel over blocks of sequences × directions:
        state = initial
        for step:
            for each panel of units:
                tile = state @ weights of the panel, all gates            microkernel
                state', out[row] = the definition's phases, from the tile and the step's input

A block's states are local to a core, so cores never wait for each other; a single sequence runs on one core.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from taskmap.ir.analysis.simplify import Simplifier
from taskmap.ir.builder import Builder
from taskmap.ir.construct import eq, index, select, static_size
from taskmap.ir.errors import ScheduleError
from taskmap.ir.loops import column_groups, parallel_grid
from taskmap.ir.nodes import Buffer, Dim, Expr, Kernel, Scope, Var
from taskmap.ir.printer import print_dim
from taskmap.ir.target import CpuTarget
from taskmap.ir.task import Task
from taskmap.ir.types import DType
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.common.loops import each_column
from taskmap.schedules.common.recurrence_domain import RecurrenceDomain, RecurrencePass, find_recurrence
from taskmap.schedules.common.recurrence_memory import RecurrenceMemory
from taskmap.schedules.cpu.matmul.microkernel import emit_tile
from taskmap.schedules.cpu.support.kernels import kernel_of

_CHAINS = 8
"""Accumulators that hide the latency of a multiply-add."""
_ANY_BATCH = 4
"""Sequences per block if their number is symbolic; the rest run one by one."""


def schedule_recurrence(task: Task, target: CpuTarget) -> Kernel | None:
    """The kernel of a task that is a recurrence, or None for any other task."""
    frame = find_recurrence(task)
    return None if frame is None else _Plan(frame, target).kernel()


@dataclass(slots=True)
class _Plan:
    frame: RecurrenceDomain
    target: CpuTarget
    b: Builder = field(default_factory=Builder)

    @property
    def wide(self) -> DType:
        return self.frame.e.states[0].dtype

    @property
    def lanes(self) -> int:
        return self.target.lanes(self.wide.bytes)

    @property
    def hidden(self) -> int:
        known = static_size(self.frame.e.axes[2][1])
        if known is None:
            raise ScheduleError("a recurrence of a symbolic number of units")
        return known

    @property
    def width(self) -> int:
        """The number of units, rounded up to whole panels."""
        return -(-self.hidden // self.frame.panel) * self.frame.panel

    @property
    def budget(self) -> int:
        """Accumulators that stay in registers."""
        return 24 if self.target.vector_registers >= 32 else 10

    def kernel(self) -> Kernel:
        (_, batch), (_, directions), _ = self.frame.e.axes
        height, last = self.heights(batch, static_size(directions) or 1)
        whole = self.dim(index(batch) // height)
        count = self.dim(index(whole) + (index(batch) - whole * height + (last - 1)) // last)
        values = Inliner(self.frame.task, self.b)
        with parallel_grid(self.b, ["block", "d"], [count, directions], values.simplifier, True, 1 << 62) as (block, d):
            inside = values.nested()
            if whole != 0:
                with self.b.when(inside.simplifier(block < whole)):
                    self.block(inside.nested(), d, inside.simplifier(block * height), height)
            if count != whole:
                with self.b.when(inside.simplifier(block >= whole)):
                    first = index(whole) * height + (block - whole) * last
                    self.block(inside.nested(), d, inside.simplifier(first), last)
        sizes = "x".join(print_dim(n) for n in (self.frame.e.steps, batch, directions, self.hidden))
        note = f"cpu.recurrence({sizes}, {self.frame.stage.label}, rows={height}, lanes={self.lanes})"
        return kernel_of(self.frame.task, self.b, note)

    def dim(self, size: Expr) -> Dim:
        """A size, as a number if it is static."""
        return Simplifier().dim(size)

    def heights(self, batch: Dim, directions: int) -> tuple[int, int]:
        """Sequences of a block, and of a block of the remaining ones: few enough that their accumulators stay in
        registers, and that there are blocks for all cores."""
        vectors = max(len(p.products) for p in self.frame.passes) * max(1, self.frame.panel // self.lanes)
        most = max(1, self.budget // vectors)
        known = static_size(batch)
        if known is None:
            return min(most, _ANY_BATCH), 1
        height = max(1, min(most, -(-known // -(-self.target.cores // directions))))
        return height, known % height or 1

    def block(self, values: Inliner, d: Expr, first: Expr, rows: int) -> None:
        """All steps of ``rows`` sequences from ``first`` on, in direction ``d``."""
        e = self.frame.e
        if static_size(first) is None:
            first = self.b.let("first", first)
            values.bind(first, e.axes[0][1])
        block = _Block(self, d, first, rows, RecurrenceMemory(self.frame, self.b, Scope.LOCAL, (rows,), self.width))
        for i, j, inside in block.units(values.nested()):
            block.memory.begin(inside, (i, j), block.position(i, j))
        for i, j, _ in block.units(values.nested(), self.hidden, self.width):
            block.memory.clear((i, j))
        with self.b.loop("step", index(e.steps)) as step:
            inside = values.nested()
            inside.bind(step, e.steps)
            block.step(inside, step)
        block.memory.turn(values, index(e.steps))
        for i, j, inside in block.units(values.nested()):
            block.memory.end(inside, (i, j), block.position(i, j))


@dataclass(frozen=True, slots=True)
class _Block:
    """``rows`` sequences from ``first`` on, in direction ``d``; ``memory`` is local to a core."""

    plan: _Plan
    d: Expr
    first: Expr
    rows: int
    memory: RecurrenceMemory

    @property
    def b(self) -> Builder:
        return self.plan.b

    def units(self, values: Inliner, begin: int = 0, end: int | None = None) -> Iterator[tuple[Expr, Expr, Inliner]]:
        """(sequence, unit, values) inside loops over both; units from ``begin`` to ``end``, by default all."""
        count = (self.plan.hidden if end is None else end) - begin
        with self.b.loop("row", self.rows) as i:
            values.bind(i, self.rows)
            for j, inside in each_column(self.b, values, column_groups(count, self.plan.lanes)):
                yield i, j + begin, inside

    def position(self, i: Expr, j: Expr) -> dict[Var, Expr]:
        """The axes of the recurrence at sequence ``i`` of the block and unit ``j``."""
        (b, _), (d, _), (unit, _) = self.plan.frame.e.axes
        return {b: self.first + i, d: self.d, unit: j}

    def step(self, values: Inliner, step: Expr) -> None:
        """One step: every pass, panel by panel. Units that pad the last panel are computed, but have no result."""
        self.memory.turn(values, step)
        for part in self.plan.frame.passes:
            for begin, many, size in self.panels(part):
                with self.b.loop("panel", many) as p:
                    inside = values.nested()
                    inside.bind(p, many)
                    self.panel(inside, part, step, inside.simplifier(self.alternate(p, many) * size + begin), size)
        if self.plan.width > self.plan.hidden:
            for i, j, inside in self.units(values.nested()):
                self.memory.put(inside, (i, j), {**self.position(i, j), self.plan.frame.e.step: step})

    def alternate(self, i: Expr, count: int) -> Expr:
        """Position ``i`` below ``count``, counted from the end in every second step: the weights that a step read last
        are still in cache when the next step begins."""
        return i if count == 1 else select(eq(self.memory.now, 0), i, count - 1 - i)

    def panels(self, part: RecurrencePass) -> list[tuple[int, int, int]]:
        """(first unit, panels, units of each): panels in groups of about equal size, with enough accumulators to hide
        the latency of a multiply-add, and no more than fit the registers."""
        plan = self.plan
        panel = plan.frame.panel
        count = plan.width // panel
        each = self.rows * len(part.products) * max(1, panel // plan.lanes) or _CHAINS
        groups = min(count, max(1, count * each // _CHAINS, -(-count * each // plan.budget)))
        least, larger = divmod(count, groups)
        parts = [(0, larger, least + 1), (larger * (least + 1), groups - larger, least)]
        return [(begin * panel, many, size * panel) for begin, many, size in parts if many]

    def panel(self, values: Inliner, part: RecurrencePass, step: Expr, first: Expr, size: int) -> None:
        """The phases of a pass for ``size`` units from ``first`` on."""
        tile = self.products(values.nested(), part, first, size) if part.products else None
        result = self.plan.width == self.plan.hidden
        with self.b.loop("row", self.rows) as i:
            values.bind(i, self.rows)
            for j, inside in each_column(self.b, values, column_groups(size, self.plan.lanes)):
                if tile is not None:
                    sums = {id(p): tile[i, j + g * size] for g, p in enumerate(part.products)}
                    inside.reduced = {**inside.reduced, **sums}
                known = {**self.position(i, first + j), self.plan.frame.e.step: step}
                self.memory.step(inside, part, (i, first + j), known, result)

    def products(self, values: Inliner, part: RecurrencePass, first: Expr, size: int) -> Buffer:
        """The products of a panel: [rows, products * size]."""
        plan, left = self.plan, part.left
        assert left is not None
        columns = len(part.products) * size
        tile = self.b.allocate("tile", plan.wide, (self.rows, columns))

        def of_state(at: Sequence[Expr], i: Expr, local: Inliner) -> Expr:
            return self.memory.read(left, (i, at[0]))

        def weight(at: Sequence[Expr], column: Expr, local: Inliner) -> Expr:
            number = static_size(local.simplifier(column // size))
            assert number is not None
            chosen = part.products[number]
            known = self.position(index(0), first + (column - number * size))
            return local.expand(part.weight(chosen), {**known, chosen.axes[0][0]: at[0]})

        width = min(plan.lanes, size)
        groups = [(columns // width, width)]
        emit_tile(self.b, values, self.rows, groups, [plan.hidden], of_state, weight, tile, plan.wide)
        return tile
