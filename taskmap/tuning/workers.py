"""Runs build and measurement jobs: in this machine's own child processes, or in any executor."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from taskmap.tuning.isolation import Attempts, attempt
from taskmap.tuning.job import Job, JobOutcome

_log = logging.getLogger(__name__)
_LIVES = 3
"""The number of times that a job is resubmitted after its worker died."""


@dataclass(slots=True, eq=False)
class Workers:
    """Runs jobs. Without an executor: two pools of threads that wait for child processes, one for builds, and one
    of a single thread for measurements, which would disturb each other.
    """

    executor: Executor | None = None
    _attempts: Attempts = field(default_factory=Attempts, init=False)
    _builds: Executor = field(init=False)
    _measurements: Executor = field(init=False)
    _do: Callable[[Job], JobOutcome] = field(init=False)

    def __post_init__(self) -> None:
        if self.executor is not None:
            self._builds = self._measurements = self.executor
            self._do = attempt
            return
        self._do = self._attempts
        self._builds = ThreadPoolExecutor(max(1, (os.cpu_count() or 2) // 2), "taskmap-build")
        self._measurements = ThreadPoolExecutor(1, "taskmap-measure")

    def submit(self, job: Job) -> Future[JobOutcome]:
        """Submit a job; an executor's refusal is raised with the result."""
        try:
            return (self._measurements if job.samples else self._builds).submit(self._do, job)
        except RuntimeError as error:
            refused: Future[JobOutcome] = Future()
            refused.set_exception(error)
            return refused

    def outcome(self, job: Job, future: Future[JobOutcome]) -> JobOutcome:
        """The result of a job. If its worker died, it is resubmitted; if every worker dies of it, this
        machine's own children find the configuration at fault."""
        for life in range(_LIVES):
            try:
                return future.result()
            except Exception as error:
                _log.warning("a worker was lost while tuning %s: %s: %s", job.operator, type(error).__name__, error)
                if life + 1 < _LIVES:
                    future = self.submit(job)
        return self._attempts(job)

    def close(self) -> None:
        """End work in progress here; a given executor is left running."""
        self._attempts.cancel()
        if self.executor is None:
            self._builds.shutdown(wait=True, cancel_futures=True)
            self._measurements.shutdown(wait=True, cancel_futures=True)
