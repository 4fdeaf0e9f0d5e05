"""A measuring process some of whose configurations do harm: `python faulty.py FAULT=CONFIG ...`, to be killed by it.

FAULT: crash, hang, wrong; build-crash, which dies while building; mute, which dies before it has said anything.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence

from taskmap.tuning.bench import Bench, WrongResultError
from taskmap.tuning.child import main
from taskmap.tuning.job import Job

FAULTS = {config: fault for fault, _, config in (argument.partition("=") for argument in sys.argv[1:])}


class Faulty(Bench):
    def __init__(self, job: Job) -> None:
        if "mute" in FAULTS.values():
            print("there is no machine here", file=sys.stderr)
            os._exit(3)
        super().__init__(job)

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


if __name__ == "__main__":
    main(Faulty)
