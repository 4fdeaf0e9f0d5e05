"""The strategies that a user offers for one session: which kernels they make, and why the others do not fit."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from taskmap.ir.analysis.key import task_key
from taskmap.ir.errors import ScheduleError, StrategyMisfitError, TaskmapError
from taskmap.ir.target import Target
from taskmap.ir.task import Task
from taskmap.kernels.instructions import check_target

if TYPE_CHECKING:  # most compilations are given no strategies, and their language takes a while to load
    from taskmap.schedules import ScheduledKernel
    from taskmap.schedules.strategies.offer import OfferedStrategy

_MOST = 3
"""The most reasons of a warning."""


@dataclass(slots=True, eq=False)
class Strategies:
    """The kernels of tasks by the first strategy that fits each."""

    offers: tuple[OfferedStrategy, ...]
    target: Target
    _kernels: dict[str, tuple[ScheduledKernel, OfferedStrategy] | None] = field(default_factory=dict)
    _used: set[OfferedStrategy] = field(default_factory=set)
    _reasons: dict[OfferedStrategy, dict[str, None]] = field(default_factory=dict)

    def kernel(self, task: Task) -> ScheduledKernel | None:
        """The kernel of a task by the first strategy that fits; None for the templates."""
        if not self.offers:
            return None
        key = task_key(task)
        if key not in self._kernels:
            self._kernels[key] = self._made(task)
        found = self._kernels[key]
        return None if found is None else found[0]

    def _made(self, task: Task) -> tuple[ScheduledKernel, OfferedStrategy] | None:
        for offer in self.offers:
            try:
                made = offer.scheduled(task, self.target)
                check_target(made.kernel, self.target)
            except ScheduleError as error:
                if offer.concerns(task):
                    self._note(offer, task, error)
                continue
            self._used.add(offer)
            return made, offer
        return None

    def refuse(self, task: Task, error: TaskmapError) -> None:
        """The kernel of a task cannot be lowered, or needs more than the GPU has: the templates take the task."""
        found = self._kernels[task_key(task)]
        self._kernels[task_key(task)] = None
        if found is not None:
            self._note(found[1], task, error)
            if not any(kernel is not None and kernel[1] is found[1] for kernel in self._kernels.values()):
                self._used.discard(found[1])  # it made no other

    def _note(self, offer: OfferedStrategy, task: Task, error: TaskmapError) -> None:
        why = error.why or "" if isinstance(error, StrategyMisfitError) else f"{error.what}: {error.why or ''}"
        self._reasons.setdefault(offer, {})[f"{task.name}: {' '.join(why.split())}"] = None

    def warn(self, graph: str) -> None:
        """Warns of strategies that made no kernel so far."""
        for offer in self.offers:
            if offer in self._used:
                continue
            self._used.add(offer)  # said once
            reasons = list(self._reasons.get(offer, ()))
            more = f"\n  and {len(reasons) - _MOST} more" if len(reasons) > _MOST else ""
            taken = any(kernel is not None for kernel in self._kernels.values())
            kind = "matrix product" if offer.stage_spec is None else "stage like the strategy's"
            nothing = "the strategies before it take its products." if taken else f"it has no {kind}."
            said = "\n  ".join(reasons[:_MOST]) or nothing
            warnings.warn(
                f"taskmap: the strategy {offer.name} makes no kernel of the {graph} graph\n  {said}{more}",
                UserWarning, stacklevel=2,
            )  # fmt: skip
