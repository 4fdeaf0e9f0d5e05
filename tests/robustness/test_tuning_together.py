"""Eight processes that tune one operator at once, some of them killed: every reported record is in the database."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from taskmap.tuning.record import Verdict
from tests.tuning.tuning_here import SPACE, database, operator

ROOT = Path(__file__).parents[2]
TUNE = """
import sys
from pathlib import Path
from taskmap.tuning.database import Database
from taskmap.tuning.tune import Budget, tune
from tests.tuning.tuning_here import PROBLEM, TARGET, database, here, setting
folder = Path(sys.argv[1])
instant = (sys.executable, "-S", str(Path("tests/tuning/instant.py").resolve()))
with database(folder) as found:
    for _ in range(int(sys.argv[2])):
        tuned = tune(PROBLEM, TARGET, setting(folder), here(), found, Budget(20, None, again=True), command=instant)
        print(len(found.records()), tuned.best is not None, flush=True)
"""


def start(folder: Path, times: int) -> "subprocess.Popen[str]":
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", TUNE, str(folder), str(times)]
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)


def test_eight_processes_tune_one_operator(cache_dir: Path) -> None:
    processes = [start(cache_dir, 1) for _ in range(8)]
    said = [p.communicate()[0].split() for p in processes]
    assert [p.returncode for p in processes] == [0] * 8
    assert said == [[str(len(SPACE.configs)), "True"]] * 8
    with database(cache_dir) as found:
        assert {r.config for r in found.records(operator())} == {str(c) for c in SPACE.configs}
        assert all(r.verdict is Verdict.OK for r in found.records())
        assert found.verify() is None


def test_tuning_that_is_killed_at_any_moment(cache_dir: Path) -> None:
    chance = random.Random(4)
    said = 0
    for _ in range(3):
        process = start(cache_dir, 1000)
        assert process.stdout is not None
        process.stdout.readline()
        said = len(SPACE.configs)
        time.sleep(chance.random() / 4)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        with database(cache_dir) as found:
            assert found.count() == said
            assert found.verify() is None
