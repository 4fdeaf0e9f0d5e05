"""A recurrence's states between its steps, and the step of a single unit, for any target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from taskmap.ir.builder import Builder
from taskmap.ir.construct import cast, index, static_size
from taskmap.ir.nodes import Buffer, Expr, Scope, Var
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.common.recurrence_domain import RecurrenceDomain, RecurrencePass

At = tuple[Expr, ...]


@dataclass(slots=True)
class RecurrenceMemory:
    """The states, [copies, *lead, width] each: a state that is read while its successor is computed has two copies.
    ``kept``: the phases that a later pass reads, [*lead, width]. ``now`` and ``next`` number the copies that a step
    reads and writes."""

    frame: RecurrenceDomain
    b: Builder
    scope: Scope
    lead: tuple[int, ...]
    width: int
    states: list[Buffer] = field(default_factory=list)
    kept: dict[int, Buffer] = field(default_factory=dict)
    now: Expr = field(default_factory=lambda: index(0))
    next: Expr = field(default_factory=lambda: index(0))

    def __post_init__(self) -> None:
        frame, place = self.frame, (*self.lead, self.width)
        final = frame.passes[-1].phases
        for k, state in enumerate(frame.e.states):
            copies = 1 if frame.e.after[k] in final and not frame.is_summed(state) else 2
            self.states.append(self.b.allocate("state", state.dtype, (copies, *place), self.scope))
        for phase, buffer in enumerate(frame.e.phases):
            if frame.state_of(phase) is None and frame.is_kept(phase):
                self.kept[phase] = self.b.allocate("phase", buffer.dtype, place, self.scope)

    def turn(self, values: Inliner, step: Expr) -> None:
        """Selects the copies that a step reads and writes."""
        self.now = self.b.let("now", values.simplifier(step % 2))
        values.bind_value(self.now, 1)
        self.next = self.b.let("next", values.simplifier(1 - self.now))
        values.bind_value(self.next, 1)

    def read(self, buffer: Buffer, at: At) -> Expr:
        """An element of a state before the step, or of a phase of an earlier pass."""
        e = self.frame.e
        if buffer in e.states:
            k = e.states.index(buffer)
            return self._state(k, self.now, at)
        phase = e.phases.index(buffer)
        if phase in self.kept:
            return self.kept[phase][at]
        k = e.after.index(phase)
        return self._state(k, self.next, at)

    def begin(self, values: Inliner, at: At, known: Mapping[Var, Expr]) -> None:
        """Stores the initial states of one unit; ``known``: its position on the recurrence's axes."""
        for state, initial in zip(self.states, self.frame.e.initial, strict=True):
            self.b.store(state, (0, *at), values.expand(initial, dict(known)))

    def clear(self, at: At) -> None:
        """Stores zero states for a unit that pads the last panel."""
        for state in self.states:
            self.b.store(state, (0, *at), cast(0.0, state.dtype))

    def step(
        self, values: Inliner, part: RecurrencePass, at: At, known: Mapping[Var, Expr], result: bool = True
    ) -> None:
        """Evaluates all phases of a pass at one unit, then stores them, and with ``result`` the result too. ``known``
        includes the step."""
        e, made = self.frame.e, dict[int, Expr]()

        def element(buffer: Buffer, position: At) -> Expr:
            phase = e.phases.index(buffer) if buffer in e.phases else -1
            return made[phase] if phase in made else self.read(buffer, (*at[:-1], position[-1]))

        for buffer in e.own:
            values.readers[buffer] = lambda position, buffer=buffer: element(buffer, position)  # type: ignore[misc]
        for phase in part.phases:
            made[phase] = self.b.let(e.phases[phase].name, values.expand(e.values[phase], dict(known)))
        for phase, value in made.items():
            if phase in self.kept:
                self.b.store(self.kept[phase], at, value)
            for k in (k for k, after in enumerate(e.after) if after == phase):
                self.b.store(self.states[k], (self._copy(k, self.next), *at), value)
            if result and phase == e.after[0]:
                self._put(values.simplifier(values.expand(e.row, dict(known))), known, value)

    def put(self, values: Inliner, at: At, known: Mapping[Var, Expr]) -> None:
        """Stores the result's element of one unit after a step."""
        row = values.simplifier(values.expand(self.frame.e.row, dict(known)))
        self._put(row, known, self._state(0, self.next, at))

    def end(self, values: Inliner, at: At, known: Mapping[Var, Expr]) -> None:
        """Stores the final states of one unit."""
        for k in range(len(self.states)):
            self._put(values.simplifier(index(self.frame.e.steps) + k), known, self._state(k, self.now, at))

    def _state(self, k: int, turn: Expr, at: At) -> Expr:
        position = (self._copy(k, turn), *at)
        return self.states[k][position]

    def _copy(self, k: int, turn: Expr) -> Expr:
        return turn if static_size(self.states[k].shape[0]) == 2 else index(0)

    def _put(self, row: Expr, known: Mapping[Var, Expr], value: Expr) -> None:
        out = self.frame.stage.out
        self.b.store(out, (row, *(known[v] for v, _ in self.frame.e.axes)), cast(value, out.dtype))
