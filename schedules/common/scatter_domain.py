"""Dependence of a scatter's positions on its source, for any target.

    out = initial; for n, e: out[index[n], e] += source[n, e]

A dimension of the result that is an axis of the source (here e) is *followed*: updates that differ along it never hit
the same element, so it can be divided among workers. The other dimensions are *data*. Updates of the same element
happen in the order of the source's remaining axes (here n), whatever the order along the followed ones.
"""

from __future__ import annotations

from dataclasses import dataclass

from taskmap.ir.construct import product, static_size
from taskmap.ir.errors import ScheduleError
from taskmap.ir.nodes import Dim, Expr, Scatter, Var
from taskmap.ir.task import Stage, Task
from taskmap.ir.visit import walk_exprs
from taskmap.schedules.common.inline import combine


@dataclass(frozen=True, slots=True)
class ScatterDomain:
    """``stage`` is the scatter ``e``; ``followed`` maps a dimension of the result to the number of a source axis."""

    task: Task
    stage: Stage
    e: Scatter
    followed: dict[int, int]

    @property
    def data(self) -> list[int]:
        """The dimensions of the result whose positions are data."""
        return [d for d in range(len(self.stage.shape)) if d not in self.followed]

    @property
    def walked(self) -> list[int]:
        """The axes of the source that no dimension of the result follows, in their order."""
        return [k for k in range(len(self.e.axes)) if k not in self.followed.values()]

    def extent(self, d: int) -> Dim:
        """The extent of the source along a followed dimension of the result; at most the dimension's own."""
        return self.e.axes[self.followed[d]][1]

    def covers(self, d: int) -> bool:
        """True if the source is known to cover all of a followed dimension."""
        mine, whole = self.extent(d), self.stage.shape[d]
        known = static_size(mine)
        return mine is whole or mine == whole or (known is not None and known == static_size(whole))

    def is_decided_by(self, d: int) -> bool:
        """True if the position along a data dimension depends on this followed one."""
        var = self.e.axes[self.followed[d]][0]
        return any(x is var for k in self.data for x in walk_exprs(self.e.at[k]))

    def step(self, old: Expr, new: Expr) -> Expr:
        """The new value of a result's element after one more update."""
        return new if self.e.op == "last" else combine(self.e.op, old, new)

    def reads(self) -> Dim:
        """The number of source elements for each position of the followed dimensions."""
        return product([self.e.axes[k][1] for k in self.walked])


def find_scatter(task: Task) -> ScatterDomain | None:
    """The scatter of a task, or None. Raises ScheduleError if it is not the task's only output."""
    stage = next((s for s in task.stages if isinstance(s.body, Scatter)), None)
    if stage is None or not isinstance(stage.body, Scatter):
        return None
    if task.outputs != (stage.out,):
        raise ScheduleError(f"the scatter {stage.label!r} of {task.name!r} is not its only output")
    e = stage.body
    numbers: dict[Var, int] = {var: k for k, (var, _) in enumerate(e.axes)}
    followed: dict[int, int] = {}
    for d, at in enumerate(e.at):
        if isinstance(at, Var) and at in numbers and numbers[at] not in followed.values():
            followed[d] = numbers[at]
    return ScatterDomain(task, stage, e, followed)
