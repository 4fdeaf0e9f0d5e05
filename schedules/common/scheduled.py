"""The result of scheduling: a kernel with the choices that led to it."""

from __future__ import annotations

from dataclasses import dataclass

from taskmap.ir.errors import ScheduleError
from taskmap.ir.nodes import Kernel
from taskmap.schedules.common.space import Config


@dataclass(frozen=True, slots=True)
class Choice:
    """The choices that led to a kernel, as texts that are kept between processes. One task has one kernel for each.

    template: the template or rule, or "strategy". config: its configuration, if it was chosen among several, or the
    name of the strategy.
    """

    template: str
    config: str = ""


@dataclass(frozen=True, slots=True)
class ScheduledKernel:
    """``kernel`` as ``template`` made it, a template or a rule. ``config``: the configuration, if it was chosen among
    several. ``next_attempt``: the attempt that asks for a configuration with fewer registers, or None if this template
    has no other.
    """

    kernel: Kernel
    template: str
    config: Config | None = None
    next_attempt: int | None = None

    @property
    def choice(self) -> Choice:
        """The choices that led to the kernel."""
        return Choice(self.template, "" if self.config is None else str(self.config))

    def for_attempt(self, attempt: int) -> ScheduledKernel:
        """This result, if it answers ``attempt``. Raises ScheduleError if the template has no other configuration than
        the one of attempt 0."""
        if attempt and self.next_attempt is None:
            raise ScheduleError(f"{self.kernel.note} is the only configuration of {self.kernel.name!r}")
        return self
