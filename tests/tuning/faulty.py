"""A measuring process with harmful configurations: `python faulty.py FAULT=CONFIG ...`.

FAULT: crash, hang, wrong; build-crash, which dies while building; mute, which dies before it has said anything; busy,
which is slowed down four times in first looks, where all configurations seem to take the same time otherwise.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence

from taskmap.tuning.bench import Bench, WrongResultError
from taskmap.tuning.child import main
from taskmap.tuning.job import Job
from taskmap.tuning.tune import LOOKS

FAULTS = {config: fault for fault, _, config in (argument.partition("=") for argument in sys.argv[1:])}


class Faulty(Bench):
    def __init__(self, job: Job) -> None:
        if "mute" in FAULTS.values():
            print("there is no machine here", file=sys.stderr)
            os._exit(3)
        super().__init__(job)
        self.looking = job.samples == LOOKS

    def build(self, configs: Sequence[str], started: Callable[[str], None]) -> dict[str, tuple[str, str]]:
        for config in (c for c in configs if FAULTS.get(c) == "build-crash"):
            started(config)
            os.kill(os.getpid(), signal.SIGSEGV)
        return super().build(configs, started)

    def check(self, config: str) -> None:
        fault = FAULTS.get(config)
        if fault == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if fault == "hang":
            time.sleep(3600)
        if fault == "wrong":
            raise WrongResultError("the largest error is 1, and 0 is allowed")
        super().check(config)

    def sample(self, config: str, seconds: float) -> float:
        if "busy" not in FAULTS.values():
            return super().sample(config, seconds)
        return 4e-3 if self.looking and FAULTS.get(config) == "busy" else 1e-3


if __name__ == "__main__":
    main(Faulty)
