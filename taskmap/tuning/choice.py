"""The configuration that a compilation uses: the best one in the tuning cache, found or tuned for now.

Nothing here makes a compilation fail: without a readable cache, templates keep their defaults.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taskmap.backend.cpu.toolchain import Toolchain
from taskmap.ir.errors import TaskmapError
from taskmap.ir.nodes import Var
from taskmap.ir.target import Target
from taskmap.ir.task import Task
from taskmap.ir.util.lazy import lazily
from taskmap.options import Options
from taskmap.schedules import NO_HINTS, Config, Problem, problem
from taskmap.util.progress import Show

if TYPE_CHECKING:
    from taskmap.backend.cuda.toolchain import CudaToolchain

# Most processes have tuned nothing; they need not wait for SQLite or the benches.
if TYPE_CHECKING:
    from taskmap.tuning.cuda_bench import conditions_with as _gpu_conditions
    from taskmap.tuning.database import Database as _Database
    from taskmap.tuning.here import conditions as _conditions
    from taskmap.tuning.tune import operator_of as _operator_of
    from taskmap.tuning.tune import tune_for as _tune_for
else:
    _Database = lazily("taskmap.tuning.database", "Database")
    _conditions = lazily("taskmap.tuning.here", "conditions")
    _gpu_conditions = lazily("taskmap.tuning.cuda_bench", "conditions_with")
    _operator_of = lazily("taskmap.tuning.tune", "operator_of")
    _tune_for = lazily("taskmap.tuning.tune", "tune_for")

_log = logging.getLogger(__name__)
_OFF = ("0", "off", "no", "false")


@dataclass(slots=True, eq=False)
class Choices:
    """The configurations for the tasks of one session, from the database at ``path``.

    budget: how much to measure per operator, instead of the default.
    tuned: results of the operators that were tuned; left: the number of operators that time did not allow.
    """

    path: Path
    target: Target
    toolchain: Toolchain | CudaToolchain
    options: Options
    budget: Any = None
    tuned: list[Any] = field(default_factory=list)
    left: int = 0
    _found: dict[Problem, Config | None] = field(default_factory=dict, init=False, repr=False)
    _database: Any = field(default=None, init=False, repr=False)
    _here: Any = field(default=None, init=False, repr=False)
    _broken: bool = field(default=False, init=False, repr=False)

    def config(self, task: Task, hints: Mapping[Var, int] = NO_HINTS) -> Config | None:
        """The best known configuration for a task; None for its template's default."""
        if not self._usable():
            return None
        found = problem(task, self.target, hints)
        if found is None:
            return None
        if found not in self._found:
            self._found[found] = self._best(found)
        return self._found[found]

    def tune(self, tasks: Iterable[Task], hints: Mapping[Var, int], show: Show) -> None:
        """Measure unknown operators of ``tasks``, within the option ``tune_seconds`` for all of them together; ``show``
        receives the number of operators done, and the progress of the current one."""
        if self.options.tune_seconds is None or self._broken:
            return
        every = (problem(task, self.target, hints) for task in tasks)
        problems = list(dict.fromkeys(p for p in every if p is not None))
        problems.sort(key=lambda p: -p.operations)  # largest gain first
        deadline = time.monotonic() + self.options.tune_seconds
        for number, one in enumerate(problems):
            show(number, len(problems))
            left = deadline - time.monotonic()
            if left <= 0:
                self.left += len(problems) - number
                break
            tell = partial(_tell, show, number, len(problems), f"{one.template} {one.shapes}")
            self._guarded(partial(self._tune, one, left / (len(problems) - number), tell))
        self._found.clear()

    def close(self) -> None:
        """Close the database."""
        if self._database is not None:
            self._database.close()
            self._database = None

    def _usable(self) -> bool:
        if self._broken or not self.options.tuned:
            return False
        return self._database is not None or os.path.exists(self.path)

    def _best(self, found: Problem) -> Config | None:
        """The fastest record that the template accepts: imported records may hold anything."""

        def usable(record: Any) -> bool:
            return found.read(record.config, self.target) is not None

        record = self._guarded(lambda: self._opened().best(_operator_of(found, self.target), self._here, usable))
        return None if record is None else found.read(record.config, self.target)

    def _tune(self, found: Problem, seconds: float, tell: Callable[[Any], None]) -> None:
        isa = self.toolchain.isa if isinstance(self.toolchain, Toolchain) else None
        budget = seconds if self.budget is None else replace(self.budget, seconds=seconds)
        here, database = self._here_now(), self._opened()
        self.tuned.append(_tune_for(found, self.target, self.options, isa, here, database, budget, tell))

    def _opened(self) -> Any:
        if self._database is None:
            self._database = _Database(self.path)
        self._here_now()
        return self._database

    def _here_now(self) -> Any:
        if self._here is None:
            if isinstance(self.toolchain, Toolchain):
                self._here = _conditions(self.toolchain, self.target.cores)
            else:
                self._here = _gpu_conditions(self.toolchain)
        return self._here

    def _guarded(self, do: Callable[[], Any]) -> Any:
        """The result of ``do``; None, after one warning, when the cache cannot be used."""
        try:
            return do()
        except TaskmapError as error:
            _log.warning("templates keep their default configurations: %s", error)
            self._broken = True
            return None


def _tell(show: Show, number: int, count: int, name: str, progress: Any) -> None:
    """Show the progress of tuning one operator."""
    best = f", best {progress.seconds * 1e6:.4g} µs {progress.best}" if progress.best else ""
    show(number, count, f"{name}: {progress.done}/{progress.total}{best}")


def choices(path: Path, target: Target, toolchain: Toolchain | CudaToolchain, options: Options) -> Choices | None:
    """A session's choices; None if the environment variable TASKMAP_TUNING is "off"."""
    if os.environ.get("TASKMAP_TUNING", "").lower() in _OFF:
        return None
    return Choices(path, target, toolchain, options)
