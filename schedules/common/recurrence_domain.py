"""Dependences between the phases of a recurrence's step, for any target.

A phase that sums over the units of a tensor of the same step must wait until that tensor is complete. So a step is cut
into passes: within a pass, a unit needs from the other units only values of earlier passes, or of the step before.
"""

from __future__ import annotations

from dataclasses import dataclass

from taskmap.ir.errors import ScheduleError
from taskmap.ir.nodes import Binary, Buffer, Expr, Load, Reduce
from taskmap.ir.recurrence import Recurrence
from taskmap.ir.task import Stage, Task
from taskmap.ir.visit import walk_exprs


@dataclass(frozen=True, slots=True)
class RecurrencePass:
    """Phases by number, the products that they need, and the one tensor whose units these sum over, if any."""

    phases: tuple[int, ...]
    products: tuple[Reduce, ...]
    left: Buffer | None

    def weight(self, product: Reduce) -> Expr:
        """The operand of a product that is not an element of ``left``."""
        assert isinstance(product.body, Binary)
        return product.body.b


@dataclass(frozen=True, slots=True)
class RecurrenceDomain:
    """``stage`` is the recurrence ``e``, cut into ``passes``."""

    task: Task
    stage: Stage
    e: Recurrence
    passes: tuple[RecurrencePass, ...]

    @property
    def panel(self) -> int:
        """The number of units whose weights lie together in a panel; beyond the last unit a panel is padded."""
        value = dict(self.stage.attrs).get("panel", 1)
        return value if isinstance(value, int) else 1

    def is_summed(self, buffer: Buffer) -> bool:
        """True if products sum over the units of a tensor."""
        return any(p.left is buffer for p in self.passes)

    def state_of(self, phase: int) -> int | None:
        """The state that a phase becomes, or None."""
        return next((k for k, made in enumerate(self.e.after) if made == phase), None)

    def is_kept(self, phase: int) -> bool:
        """True if a later pass reads a phase."""
        buffer = self.e.phases[phase]
        own = next(n for n, p in enumerate(self.passes) if phase in p.phases)
        later = [self.e.values[i] for p in self.passes[own + 1 :] for i in p.phases]
        return any(isinstance(x, Load) and x.buffer is buffer for value in later for x in walk_exprs(value))


def find_recurrence(task: Task) -> RecurrenceDomain | None:
    """The recurrence of a task, or None. Raises ScheduleError if it is not the task's only output, or if a product does
    not multiply a tensor of the loop by weights."""
    stage = next((s for s in task.stages if isinstance(s.body, Recurrence)), None)
    if stage is None or not isinstance(stage.body, Recurrence):
        return None
    if task.outputs != (stage.out,):
        raise ScheduleError(f"the recurrence {stage.label!r} of {task.name!r} is not its only output")
    return RecurrenceDomain(task, stage, stage.body, _passes(stage.body))


def _passes(e: Recurrence) -> tuple[RecurrencePass, ...]:
    passes: list[RecurrencePass] = []
    for phase, value in enumerate(e.values):
        products = tuple(dict.fromkeys(x for x in walk_exprs(value) if isinstance(x, Reduce)))
        lefts = dict.fromkeys(_left(e, p) for p in products)
        if len(lefts) > 1:
            raise ScheduleError("a phase of a recurrence sums over the units of several tensors")
        left = next(iter(lefts), None)
        last = passes[-1] if passes else None
        waits = last is not None and any(left is e.phases[i] for i in last.phases)
        if last is None or waits or (left is not None and last.left is not None and left is not last.left):
            passes.append(RecurrencePass((phase,), products, left))
        else:
            both = tuple(dict.fromkeys((*last.products, *products)))
            passes[-1] = RecurrencePass((*last.phases, phase), both, left or last.left)
    return tuple(passes)


def _left(e: Recurrence, product: Reduce) -> Buffer:
    body = product.body
    if product.op == "sum" and len(product.axes) == 1 and isinstance(body, Binary) and body.op == "mul":
        ((k, _),) = product.axes
        if isinstance(body.a, Load) and body.a.buffer in e.own and body.a.indices[-1] is k:
            return body.a.buffer
    raise ScheduleError("a sum of a recurrence is not a product of one of its tensors with weights")
