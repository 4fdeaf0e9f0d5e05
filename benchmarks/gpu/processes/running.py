"""Runs the parts of `make gpu`: each is a process, restarted after the case that ended it while time is left."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu.parts import MODULE, ROOT, Part
from benchmarks.gpu.processes.warm import can_fork, forked
from benchmarks.gpu.record import LOST, WRONG, close, count
from benchmarks.gpu.watchdog import hang_file

WORKSPACES = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "CUBLASLT_WORKSPACE_SIZE": "32768"}
"""The work space that PyTorch gives cuBLAS: 32 MiB, as NVIDIA advises for Hopper."""

LEAST_SECONDS = 5.0
"""With less left no process is begun: it would not get to its first case."""

_MOST_IDLE = 2  # ends without a case: the part itself does not work
_DYING = 10.0  # a process that is killed inside the driver may not go


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a part: passed, failed, out of time; or skipped, if a requirement is not installed. starts: how
    often it was begun. ends: the cases that ended a process, with reasons.
    """

    name: str
    status: str
    seconds: float
    starts: int = 1
    ends: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a run. case_seconds: for one case, overriding the part's own limit."""

    out: Path
    cache: str
    resume: bool = False
    only: tuple[str, ...] = ()
    case_seconds: float | None = None


def run(part: Part, seconds: float, limits: Limits) -> Outcome:
    """Run a part within this many seconds. A process that ends at a case, by a signal, by its watchdog or because the
    GPU's context is lost, is followed by another one behind that case.
    """
    seconds = min(seconds, part.most)
    started = time.perf_counter()
    end = started + seconds
    starts, idle, ends = 0, 0, list[str]()
    print(f"\n== {part.name}, at most {seconds:.0f} s", flush=True)
    status = "out of time"
    while end - time.perf_counter() > (0 if starts == 0 else LEAST_SECONDS):
        before = count(limits.out / f"{part.record}.json") if limits.resume or starts else 0
        code = _ended(_command(part, end - time.perf_counter(), limits, again=starts > 0), end, limits.cache)
        starts += 1
        if code in (0, WRONG):
            status = "passed" if code == 0 else "failed"
            break
        culprit, why = _culprit(part, code, limits.out)
        if code != LOST and (culprit or code is not None):
            ends.append(f"{culprit or 'at no case'}: {why}")
            print(f"FAILED  {ends[-1]}", flush=True)
        if code is None:
            status = "failed" if culprit else status
            break
        status = "failed"
        idle = 0 if count(limits.out / f"{part.record}.json") > before else idle + 1
        if part.most < 1e9 or idle == _MOST_IDLE:  # a rung is one case
            break
    if ends and status == "passed":
        status = "failed"
    return Outcome(part.name, status, time.perf_counter() - started, starts, tuple(ends))


def _command(part: Part, left: float, limits: Limits, *, again: bool) -> list[str]:
    command = [*part.command, "--seconds", f"{0.8 * left:.0f}", "--out", str(limits.out)]
    command += ["--resume"] if limits.resume or again or part.record == "gpu_ladder" else []
    command += ["--only", *limits.only] if limits.only else []
    return command + (["--case-seconds", str(limits.case_seconds)] if limits.case_seconds else [])


def _culprit(part: Part, code: int | None, out: Path) -> tuple[str, str]:
    """The case at which a process ended, and how. A case that the part's time did not suffice for is none: it is begun
    again by --resume; but a rung has as much time as it needs.
    """
    path = out / f"{part.record}.json"
    hang = hang_file(path)
    if code is None and part.most > 1e8:
        return close(path, "", failed=False) and "", ""
    if code is None:
        why = f"no result after {part.most:.0f} s"
    elif code < 0:
        why = f"the process was ended by {signal.Signals(-code).name}"
    elif hang.exists() and hang.stat().st_size:
        kept = hang.with_name(f"{part.record}.hang{len(list(out.glob(f'{part.record}.hang*'))):02}.txt")
        hang.replace(kept)
        why = f"no result in time: the stacks are in {kept.name}"
    else:
        why = f"the process ended with status {code}"
    return close(path, why), why


def environment() -> dict[str, str]:
    """Of the processes: the checkout is found, and what they print is seen at once."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {**WORKSPACES, **os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}


def _ended(command: list[str], end: float, cache: str) -> int | None:
    """The exit status of a process, negative for a signal; None when it had to be ended."""
    surroundings = {"TASKMAP_CACHE_DIR": cache, **environment()}
    warm = can_fork() and tuple(command[:2]) == MODULE[:2]
    process = forked(command, surroundings) if warm else _Begun(command, surroundings)
    try:
        process.join(max(end - time.perf_counter(), 0.1))
        return process.exitcode
    finally:
        if process.exitcode is None and process.pid is not None:
            with suppress(ProcessLookupError):  # it has not begun a session of its own
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            process.join(_DYING)
            if process.exitcode is None:
                print(f"process {process.pid} does not end: the driver holds it", flush=True)


class _Begun:
    """A process with all its own imports, behind the methods of one that is forked."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True)
        self.pid, self.kill = self._process.pid, self._process.kill

    @property
    def exitcode(self) -> int | None:
        return self._process.poll()

    def join(self, seconds: float) -> None:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
