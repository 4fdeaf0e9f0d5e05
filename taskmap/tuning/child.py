"""The process that builds and measures, and may die of it: `python -m taskmap.tuning.child`.

A job comes as the first line of the standard input, events leave as lines of the standard output. The end of the input
ends the process, so none outlives who started it.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Protocol

from taskmap.ir.errors import TaskmapError
from taskmap.ir.util.lazy import lazily
from taskmap.tuning.bench import Bench, WrongResultError
from taskmap.tuning.job import Job
from taskmap.tuning.record import Conditions, Verdict


class Measuring(Protocol):
    """What builds and measures an operator: ``Bench`` on the CPU, ``CudaBench`` on a GPU."""

    conditions: Conditions
    refused: dict[str, str]

    def adopt(self, names: Mapping[str, tuple[str, str]]) -> None:
        """Load kernels that the store has under these names."""

    def build(self, configs: Sequence[str], started: Callable[[str], None]) -> dict[str, tuple[str, str]]:
        """Build what is not there yet; its names in the store."""
        ...

    def check(self, config: str) -> None:
        """Compute once, on poisoned memory. Raises WrongResultError."""

    def sample(self, config: str, seconds: float) -> float:
        """Seconds of one run, found in about ``seconds``."""
        ...


Say = Callable[..., None]
Make = Callable[[Job], Measuring]
_cuda: Make = lazily("taskmap.tuning.cuda_bench", "CudaBench")


def bench_of(job: Job) -> Measuring:
    """What builds and measures a job's operator."""
    return _cuda(job) if job.operator.target.startswith("cuda:") else Bench(job)


def main(make: Make = bench_of) -> None:
    """Serve one job. ``make`` gives what builds and measures."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash here is a finding, not something to be debugged
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what anything else prints is not an event

    def say(event: str, **content: object) -> None:
        events.write(json.dumps({"event": event, **content}) + "\n")
        events.flush()

    job = Job.from_text(sys.stdin.readline())
    threading.Thread(target=_end_with_input, daemon=True).start()
    serve(job, make(job), say)
    say("end")


def serve(job: Job, bench: Measuring, say: Say) -> None:
    """Build what is not built, check what is to be measured, measure it in rounds."""
    say("here", conditions=asdict(bench.conditions))
    bench.adopt({config: name for config, name in job.built.items() if config in job.configs})
    for config, (key, symbol) in bench.build(job.configs, lambda config: say("start", config=config)).items():
        say("built", config=config, key=key, symbol=symbol)
    for config, reason in bench.refused.items():
        say("bad", config=config, verdict=Verdict.REFUSED.value, reason=reason)
    if not job.samples:
        return
    sound = []
    for config in (c for c in job.configs if c not in bench.refused):
        say("start", config=config)
        try:
            bench.check(config)
        except WrongResultError as error:
            say("bad", config=config, verdict=Verdict.WRONG.value, reason=str(error))
            continue
        sound.append(config)
    for round_number in range(job.samples):
        turn = round_number % max(1, len(sound))
        for config in (*sound[turn:], *sound[:turn]):  # no configuration always follows the same one
            say("start", config=config)
            say("sample", config=config, seconds=bench.sample(config, job.seconds))


def _end_with_input() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    try:
        main()
    except TaskmapError as error:
        sys.exit(str(error))
