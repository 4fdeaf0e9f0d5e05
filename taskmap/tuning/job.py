"""The data exchanged with a measuring process: plain values, which travel as JSON between machines."""

from __future__ import annotations

import json
import signal
from dataclasses import asdict, dataclass, field
from typing import Any

from taskmap.tuning.record import Conditions, Operator, Verdict

__all__ = ["Failure", "Job", "JobOutcome", "Setting"]


@dataclass(frozen=True, slots=True)
class Setting:
    """The way to build and run kernels; None takes the measuring machine's. ``cache_dir``: of its kernel store. gpu:
    the GPU that kernels are built for, if the operator is a GPU's."""

    threads: int
    isa: str | None = None
    fast_math: bool = False
    cache_dir: str | None = None
    gpu: str | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """Configurations of one operator to build, and to measure in ``samples`` rounds unless that is 0.

    Each sample takes about ``seconds``; a process without output for ``patience`` seconds hangs. The first
    configuration is the baseline: every job measures it, so that jobs can be compared. ``built`` has the names
    of kernels in the store. command: of the measuring process; if empty, this process's Python.
    """

    operator: Operator
    setting: Setting
    configs: tuple[str, ...]
    samples: int = 0
    seconds: float = 0.01
    patience: float = 60.0
    built: dict[str, tuple[str, str]] = field(default_factory=dict)
    command: tuple[str, ...] = ()

    def to_text(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, line: str) -> Job:
        """Parses the output of ``to_text``."""
        content: dict[str, Any] = json.loads(line)
        return cls(
            Operator(**content["operator"]),
            Setting(**content["setting"]),
            tuple(content["configs"]),
            content["samples"],
            content["seconds"],
            content["patience"],
            {config: (key, symbol) for config, (key, symbol) in content["built"].items()},
            tuple(content["command"]),
        )


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason why a configuration will not be used. ``status``: the exit status of a measuring process that ended
    early, minus the signal's number if one ended it."""

    verdict: Verdict
    reason: str
    status: int | None = None

    @property
    def lasts(self) -> bool:
        """True if the configuration is at fault and need not be tried again. False if the measuring process ended by
        an error of its own, such as a full disk, or was killed from outside, for instance for lack of memory."""
        return self.status is None or (self.status < 0 and self.status != -signal.SIGKILL)


@dataclass(slots=True)
class JobOutcome:
    """The result of a job: samples in seconds for each configuration, failures, names of kernels in the store, and
    the machine's conditions (None if no process got far enough to report them)."""

    conditions: Conditions | None = None
    samples: dict[str, list[float]] = field(default_factory=dict)
    failures: dict[str, Failure] = field(default_factory=dict)
    built: dict[str, tuple[str, str]] = field(default_factory=dict)
