"""The process that builds and measures, and may crash: `python -m taskmap.tuning.child`.

A job arrives as the first line of standard input; events are written as lines to standard output. The process exits
when its input ends, so it never outlives its parent.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Protocol

from taskmap.ir.errors import TaskmapError
from taskmap.ir.util.lazy import lazily
from taskmap.tuning.bench import Bench, WrongResultError
from taskmap.tuning.job import Job
from taskmap.tuning.record import Conditions, Verdict


class Measuring(Protocol):
    """Builds and measures an operator: ``Bench`` on the CPU, ``CudaBench`` on a GPU."""

    conditions: Conditions
    refused: dict[str, str]

    def adopt(self, names: Mapping[str, tuple[str, str]]) -> None:
        """Load kernels that the store holds under these names."""

    def build(self, configs: Sequence[str], started: Callable[[str], None]) -> dict[str, tuple[str, str]]:
        """Build kernels that are missing; returns their names in the store."""
        ...

    def check(self, config: str) -> None:
        """Run once, on poisoned memory. Raises WrongResultError."""

    def sample(self, config: str, seconds: float) -> float:
        """Seconds per run, measured in about ``seconds``."""
        ...


Say = Callable[..., None]
Make = Callable[[Job], Measuring]
if TYPE_CHECKING:
    from taskmap.tuning.cuda_bench import CudaBench as _CudaBench
else:
    _CudaBench = lazily("taskmap.tuning.cuda_bench", "CudaBench")


def bench_of(job: Job) -> Measuring:
    """The bench for a job's operator."""
    return _CudaBench(job) if job.operator.target.startswith("cuda:") else Bench(job)


def main(make: Make = bench_of) -> None:
    """Serve one job. ``make`` creates the bench."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash here is a result, not a bug to debug
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # other output must not be taken for events

    def say(event: str, **content: object) -> None:
        events.write(json.dumps({"event": event, **content}) + "\n")
        events.flush()

    job = Job.from_text(sys.stdin.readline())
    threading.Thread(target=_end_with_input, daemon=True).start()
    serve(job, make(job), say)
    say("end")


def serve(job: Job, bench: Measuring, say: Say) -> None:
    """Build missing kernels, check those to be measured, measure them in rounds."""
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
        for config in (*sound[turn:], *sound[:turn]):  # vary each configuration's predecessor
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
