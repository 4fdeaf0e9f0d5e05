"""Runs a job in child processes: if one crashes or hangs, the configuration at fault is named, and the next goes on.

Executors run this. It needs nothing from the process that submitted the job.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import taskmap
from taskmap.backend.children import kill_group
from taskmap.tuning.job import Failure, Job, JobOutcome
from taskmap.tuning.record import Conditions, Verdict

_SHOWN = 2000


def attempt(job: Job) -> JobOutcome:
    """Build and measure the configurations of ``job``, as ``Attempts`` does."""
    return Attempts()(job)


@dataclass(slots=True, eq=False)
class Attempts:
    """Runs jobs, from any number of threads, until they are cancelled."""

    _running: set[int] = field(default_factory=set, init=False)
    _cancelled: bool = field(default=False, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def __call__(self, job: Job) -> JobOutcome:
        """Build and measure the configurations of ``job``. No configuration can make this raise; if the child cannot
        even start, its error output goes into the failure of every configuration."""
        outcome = JobOutcome()
        wanted = job.configs
        while wanted and not self._cancelled:
            culprit, failure = self._run(replace(job, configs=wanted, built={**job.built, **outcome.built}), outcome)
            if failure is None or self._cancelled:
                break
            blamed = (culprit,) if culprit is not None else wanted
            outcome.failures.update(dict.fromkeys(blamed, failure))
            wanted = tuple(c for c in wanted if c not in outcome.failures)
            if job.configs[0] in outcome.failures:
                break  # without the baseline, times mean nothing
        return outcome

    def cancel(self) -> None:
        """End every child, and start no more."""
        with self._lock:
            self._cancelled = True
            for pid in self._running:
                kill_group(pid)

    def _run(self, job: Job, outcome: JobOutcome) -> tuple[str | None, Failure | None]:
        """Run one child; returns the configuration at which it ended early, None before the first, and its failure."""
        with tempfile.TemporaryFile() as complaints, self._child(job, complaints) as child:
            assert child.stdin is not None
            assert child.stdout is not None
            with contextlib.suppress(BrokenPipeError):
                child.stdin.write(job.to_text().encode() + b"\n")
                child.stdin.flush()
            current, hung, ended = _listen(child.stdout, job.patience, outcome)
            if ended:
                return None, None
            if hung:
                return current, Failure(Verdict.HUNG, f"nothing happened for {job.patience:g} s")
            status = child.wait()
            complaints.seek(0)
            return current, Failure(Verdict.CRASHED, _ending(status, complaints.read()), status)

    @contextlib.contextmanager
    def _child(self, job: Job, complaints: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
        """A measuring process that does not outlive the block."""
        with self._lock:
            child = subprocess.Popen(
                job.command or (sys.executable, "-m", "taskmap.tuning.child"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=complaints,
                env=_environment(job),
                start_new_session=True,
            )
            self._running.add(child.pid)
        try:
            yield child
        finally:
            with self._lock:
                self._running.discard(child.pid)
            if child.returncode is None:
                kill_group(child.pid)
                child.wait()
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()


def _listen(stream: IO[bytes], patience: float, outcome: JobOutcome) -> tuple[str | None, bool, bool]:
    """Read events; returns (the current configuration, whether patience ended, whether the job is done)."""
    lines: queue.Queue[bytes] = queue.Queue()

    def read() -> None:
        with contextlib.suppress(OSError, ValueError):
            for line in stream:
                lines.put(line)
        lines.put(b"")

    threading.Thread(target=read, daemon=True).start()
    current: str | None = None
    while True:
        try:
            line = lines.get(timeout=patience)
        except queue.Empty:
            return current, True, False
        if not line:
            return current, False, False
        event: dict[str, Any] = json.loads(line)
        if event["event"] == "end":
            return current, False, True
        if event["event"] == "start":
            current = event["config"]
        _take(event, outcome)


def _take(event: Mapping[str, Any], outcome: JobOutcome) -> None:
    match event["event"]:
        case "here":
            outcome.conditions = Conditions(**event["conditions"])
        case "built":
            outcome.built[event["config"]] = (event["key"], event["symbol"])
        case "bad":
            outcome.failures[event["config"]] = Failure(Verdict(event["verdict"]), event["reason"])
        case "sample":
            outcome.samples.setdefault(event["config"], []).append(event["seconds"])


def _environment(job: Job) -> dict[str, str]:
    """The child's environment: the same taskmap, and the job's number of threads."""
    root = str(Path(taskmap.__file__).parent.parent)
    paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
        "OMP_NUM_THREADS": str(job.setting.threads),
        "OPENBLAS_NUM_THREADS": "1",
    }


def _ending(status: int, complaints: bytes) -> str:
    text = complaints[-_SHOWN:].decode(errors="replace").strip()
    how = f"exit status {status}"
    if status < 0:
        with contextlib.suppress(ValueError):
            how = f"signal {-status} ({signal.Signals(-status).name})"
    return f"{how}: {text}" if text else how
