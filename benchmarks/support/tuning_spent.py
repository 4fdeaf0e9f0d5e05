"""The duration of tuning, by operator and phase: a file of lines beside the records."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from taskmap.schedules import Problem
from taskmap.tuning.tune import Tuned

_FILE = "spent.jsonl"


@dataclass(frozen=True, slots=True)
class Phase:
    """Seconds that a phase took of one operator, and the configuration that was the best when it ended."""

    seconds: float = 0.0
    best: str | None = None


@dataclass(slots=True)
class Spent:
    """The phases of earlier runs recorded in ``folder``, and those of this run."""

    folder: Path
    _phases: dict[tuple[str, str], Phase] = field(default_factory=dict)

    def __post_init__(self) -> None:
        path = self.folder / _FILE
        for line in path.read_text().splitlines() if path.exists() else ():
            try:
                content = json.loads(line)
                self._count(content["operator"], content["phase"], content["seconds"], content["best"])
            except (ValueError, KeyError, TypeError):
                continue  # a line that was being written when its process was killed

    def of(self, problem: Problem, phase: str) -> Phase:
        """All that a phase took of ``problem``, interrupted attempts too."""
        return self._phases.get((_name(problem), phase), Phase())

    def during(self, problem: Problem, phase: str, do: Callable[[], Tuned]) -> Tuned:
        """The result of ``do``; its duration is recorded, even if it is interrupted."""
        began = time.monotonic()
        found: Tuned | None = None
        try:
            found = do()
            return found
        finally:
            if found is None or found.measured:
                self._add(_name(problem), phase, time.monotonic() - began, None if found is None else found.best)

    def _add(self, operator: str, phase: str, seconds: float, best: str | None) -> None:
        self._count(operator, phase, seconds, best)
        content: Mapping[str, object] = {"operator": operator, "phase": phase, "seconds": seconds, "best": best}
        with open(self.folder / _FILE, "a", encoding="utf-8") as file:
            file.write("\n" * (file.tell() > 0) + json.dumps(content))

    def _count(self, operator: str, phase: str, seconds: float, best: str | None) -> None:
        was = self._phases.get((operator, phase), Phase())
        self._phases[operator, phase] = Phase(was.seconds + seconds, best or was.best)


def _name(problem: Problem) -> str:
    return f"{problem.template} {problem.shapes} {problem.dtypes} {problem.layout}"
