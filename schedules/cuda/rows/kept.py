"""Values of a row that stay in registers from pass to pass, each with the threads that compute it.

inputs     which the first pass and a later one read, each at one position
stages     that are expensive, or stored, and that a later pass needs
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from taskmap.ir.algebra.mapping import TaskMapping, repeat, replicate, spatial
from taskmap.ir.builder import Builder
from taskmap.ir.construct import static_size
from taskmap.ir.errors import ScheduleError
from taskmap.ir.nodes import Buffer, Call, Expr, Load, Scope, Var
from taskmap.ir.task import Stage, Task
from taskmap.ir.visit import substitute, walk_exprs
from taskmap.schedules.common.access import MemoryStep
from taskmap.schedules.common.inline import Inliner, Reader
from taskmap.schedules.common.positions import positions_in
from taskmap.schedules.common.row_domain import RowDomain, reductions_of
from taskmap.schedules.cuda.rows.config import RowConfig


@dataclass(frozen=True, slots=True)
class RowElement:
    """The current element: its vector among those of the thread group, its position in that, and its position in the
    full tensor."""

    unit: Expr
    place: Expr
    at: tuple[Expr, ...]


@dataclass(slots=True)
class KeptValues:
    """The values that the threads of a group hold of their row. level: for each stage, the pass that computes it. here:
    the element that they are at. in_later_pass: the first one has filled the registers of inputs."""

    b: Builder
    config: RowConfig
    frame: RowDomain
    axes: tuple[Var, ...]
    level: Mapping[Buffer, int]
    held: dict[Buffer, Buffer] = field(default_factory=dict)
    here: RowElement | None = None
    in_later_pass: bool = False

    @property
    def task(self) -> Task:
        """The task of the rows."""
        return self.frame.task

    def owner(self) -> TaskMapping:
        """Ownership of a row's elements by the lanes of a thread group, and the slot of each."""
        c = self.config
        shared = replicate(c.teams if c.columns else 1, rank=2)
        return repeat(c.slots, 1) * spatial(c.team, 1) * shared * repeat(1, c.lanes)

    def hold(self, buffer: Buffer, name: str) -> None:
        """Registers for the row of a full tensor."""
        c = self.config
        shape = (c.slots * c.team, c.lanes)
        self.held[buffer] = self.b.allocate(f"row_{name}", buffer.dtype, shape, Scope.REGISTER, owner=self.owner())

    def store(self, buffer: Buffer, value: Expr) -> None:
        """The current element."""
        assert self.here is not None
        self.b.store(self.held[buffer], (self.here.unit, self.here.place), value)

    # Stages.

    def stages(self, number: int, outputs: Sequence[Stage]) -> list[Stage]:
        """The stages of a pass that later ones read from registers."""
        if not self.config.slots:
            return []
        others = [s for s in self.task.stages if self.level[s.out] == number and s not in outputs]
        costly = [s for s in others if any(isinstance(e, Call) for e in walk_exprs(s.body))]
        return [s for s in (*costly, *outputs) if self._is_needed_later(s)]

    def _is_needed_later(self, stage: Stage) -> bool:
        full = self.frame.rows.full
        if reductions_of(stage) or not self.frame.is_full(stage.out) or len(stage.shape) != full.rank:
            return False
        later = [s for s in self.task.stages if self.level[s.out] > self.level[stage.out] or reductions_of(s)]
        return any(s is not stage and self._depends(s, stage) for s in later)

    def _depends(self, later: Stage, on: Stage) -> bool:
        """True if evaluating ``later`` evaluates ``on``, through stages that are recomputed."""
        for e in walk_exprs(later.body):
            if isinstance(e, Load) and e.buffer in self.task.producers:
                source = self.task.producers[e.buffer]
                if source is on or (not reductions_of(source) and self._depends(source, on)):
                    return True
        return False

    def reader(self, stage: Stage, values: Inliner) -> Reader:
        """The reader through which later passes read a full stage that is in registers."""

        def read(where: tuple[Expr, ...]) -> Expr:
            if self.here is None:
                raise ScheduleError(f"{stage.label!r} of {self.task.name!r} is read outside of its row")
            now = positions_in(stage.out, self.frame.rows.full, self.here.at)
            self.frame.require_row(stage, where, now, stage.shape, values)
            return self.b.let(stage.label, self.held[stage.out][self.here.unit, self.here.place])

        return read

    # Inputs.

    def keep_inputs(self, values: Inliner) -> None:
        """Registers for inputs that the first pass and a later one read, each at one position; the first pass fills
        them where it reads."""
        frame, task = self.frame, self.task
        if not self.config.slots or not any(self.level.values()):
            return
        first = frame.walks(self.axes, [s for s in task.stages if self.level[s.out] == 0])
        later = {w.buffer for w in frame.walks(self.axes, [s for s in task.stages if self.level[s.out] > 0])}
        long = [d for d in frame.rows.reduced if static_size(frame.rows.full.shape[d]) != 1]
        for w in first:
            uses = {a for i in w.indices for a in walk_exprs(i)}
            alone = all(x.indices == w.indices for x in first if x.buffer is w.buffer)
            follows = all(self.axes[d] in uses for d in long)
            if w.buffer in task.inputs and w.buffer in later and alone and follows and w.buffer not in self.held:
                self.hold(w.buffer, w.buffer.name)
                values.readers[w.buffer] = self._input_reader(w, values)

    def _input_reader(self, w: MemoryStep, values: Inliner) -> Reader:
        def read(where: tuple[Expr, ...]) -> Expr:
            here = self.here if self._is_here(w, where, values) else None
            if here is not None and self.in_later_pass:
                return self.b.let(w.buffer.name, self.held[w.buffer][here.unit, here.place])
            value = self.b.let(w.buffer.name, w.buffer[where])
            if here is not None:
                self.store(w.buffer, value)
            return value

        return read

    def _is_here(self, w: MemoryStep, where: tuple[Expr, ...], values: Inliner) -> bool:
        """True if ``where`` is the access ``w`` at the current element."""
        if self.here is None:
            return False
        now = dict(zip(self.axes, self.here.at, strict=True))
        return where == tuple(values.simplifier(substitute(i, now)) for i in w.indices)
