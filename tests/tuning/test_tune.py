"""Tuning one operator from first to last: on this machine, by executors, with workers and configurations that fail."""

import os
import signal
import time
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from taskmap.errors import TuningError
from taskmap.tuning.isolation import Attempts
from taskmap.tuning.job import Failure, Job, JobOutcome
from taskmap.tuning.record import Record, Verdict
from taskmap.tuning.tune import LOOKS, Budget, Progress, Tuned, tune
from tests.tuning.tuning_here import DEFAULT, FAULTY, OTHERS, PROBLEM, SPACE, TARGET, database, here, operator, setting

FEW = Budget(seconds=600, first=3)
COSTS = {str(c): cost for c, cost in zip(SPACE.configs, SPACE.cycles, strict=True)}
FIRST = tuple(dict.fromkeys([DEFAULT, *(str(c) for c in SPACE.configs[:3])]))


def tuned(folder: Path, budget: Budget = FEW, **more: Any) -> Tuned:
    with database(folder) as opened:
        return tune(PROBLEM, TARGET, setting(folder), here(), opened, budget, **more)


def test_the_fastest_is_remembered(tmp_path: Path) -> None:
    seen: list[Progress] = []
    found = tuned(tmp_path, show=seen.append)
    assert set(found.times) == set(FIRST)
    assert found.measured == len(FIRST)
    assert found.total == len(SPACE.configs)
    assert found.pick == str(SPACE.configs[0])
    assert seen[-1].done == seen[-1].total == len(FIRST)
    assert seen[-1].best in FIRST
    with database(tmp_path) as opened:
        best = opened.best(operator(), here())
        assert best is not None
        assert best.config == found.best
        assert best.typical == min(found.times.values())


def test_a_machine_that_fails_is_no_fault_of_configurations(tmp_path: Path) -> None:
    """For instance a full disk: once there is room, the configurations are tried again."""
    found = tuned(tmp_path, command=(*FAULTY, "mute=any"))
    assert not found.times
    assert {f.reason for f in found.failures.values()} == {"exit status 3: there is no machine here"}
    with database(tmp_path) as kept:
        assert kept.records() == []
    assert not any(f.lasts for f in found.failures.values())
    assert not Failure(Verdict.CRASHED, "exit status 1", 1).lasts
    assert not Failure(Verdict.CRASHED, "signal 9 (SIGKILL)", -9).lasts
    assert Failure(Verdict.CRASHED, "signal 11 (SIGSEGV)", -11).lasts
    assert Failure(Verdict.WRONG, "exit status 1").lasts


def test_nothing_is_measured_that_could_not_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskmap.tuning.database.can_write", lambda path: False)
    monkeypatch.setattr("taskmap.tuning.tune.Workers", None)
    with pytest.raises(TuningError, match="cannot be written"):
        tuned(tmp_path)


def test_what_is_known_is_not_measured_again(tmp_path: Path) -> None:
    first = tuned(tmp_path)
    began = time.monotonic()
    second = tuned(tmp_path)
    assert second.measured == 0
    assert second.times == first.times
    assert time.monotonic() - began < 1
    assert tuned(tmp_path, Budget(600, 3, again=True)).measured == len(FIRST)


def test_a_configuration_that_crashes_is_recorded_and_never_tried_again(tmp_path: Path) -> None:
    victim = next(c for c in FIRST if c != DEFAULT)
    found = tuned(tmp_path, command=(*FAULTY, f"crash={victim}"))
    assert found.failures[victim].verdict is Verdict.CRASHED
    assert found.failures[victim].reason == "signal 11 (SIGSEGV)"
    assert set(found.times) == set(FIRST) - {victim}
    assert tuned(tmp_path).measured == 0
    with database(tmp_path) as opened:
        assert {r.config: r.verdict for r in opened.records()}[victim] is Verdict.CRASHED


@pytest.mark.parametrize("victim", [DEFAULT, next(c for c in FIRST if c != DEFAULT)])
def test_what_a_compiler_slows_down_is_measured_again(tmp_path: Path, victim: str) -> None:
    found = tuned(tmp_path, Budget(seconds=0, first=3), command=(*FAULTY, f"busy={victim}"))
    assert victim in found.times
    assert set(found.times.values()) == {1e-3}


def test_a_look_that_was_all_there_was_time_for_is_not_believed(tmp_path: Path) -> None:
    slow = next(c for c in FIRST if c != DEFAULT)
    samples = dict.fromkeys(FIRST, (4e-3,) * 4) | {DEFAULT: (1e-3,) * 4, slow: (4e-3,) * 2}
    with database(tmp_path) as opened:
        opened.add(Record(operator(), c, Verdict.OK, here(), time.time(), s) for c, s in samples.items())
    found = tuned(tmp_path, command=(*FAULTY, "busy=nothing"))
    assert found.measured == 2
    assert found.times == {c: 1e-3 if c in (DEFAULT, slow) else 4e-3 for c in FIRST}


@pytest.mark.parametrize("then", [0.5e-3, 2e-3])
def test_a_machine_that_was_faster_or_slower_does_not_decide(tmp_path: Path, then: float) -> None:
    six = tuple(dict.fromkeys([DEFAULT, *(str(c) for c in SPACE.configs[:6])]))
    slow = six[-1]
    with database(tmp_path) as opened:
        opened.add(
            Record(operator(), c, Verdict.OK, here(), time.time(), (then * (3 if c == slow else 1),) * 4) for c in six
        )
    found = tuned(tmp_path, Budget(600, 10), command=(*FAULTY, "busy=nothing"))
    assert len(found.times) > len(six)
    assert found.times == pytest.approx({c: 3e-3 if c == slow else 1e-3 for c in found.times})


def test_what_fails_in_a_round_is_given_up(tmp_path: Path) -> None:
    victim = next(c for c in FIRST if c != DEFAULT)
    with database(tmp_path) as opened:
        opened.add(
            Record(operator(), c, Verdict.OK, here(), time.time(), (1e-4 if c == victim else 1e-3,) * 2) for c in FIRST
        )
    found = tuned(tmp_path, command=(*FAULTY, f"crash={victim}"))
    assert found.failures[victim].verdict is Verdict.CRASHED
    assert victim not in found.times


def test_no_time_at_all_measures_nothing_new(tmp_path: Path) -> None:
    found = tuned(tmp_path, Budget(seconds=0, first=None))
    assert len(found.times) < len(SPACE.configs)


def test_any_executor_measures(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        assert set(tuned(tmp_path, executor=pool).times) == set(FIRST)


def test_processes_measure(tmp_path: Path) -> None:
    with ProcessPoolExecutor(1) as pool:
        assert set(tuned(tmp_path, executor=pool).times) == set(FIRST)


class Dying(ProcessPoolExecutor):
    """An executor whose workers are killed at the second job."""

    def __init__(self) -> None:
        super().__init__(1)
        self.jobs = 0

    def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.jobs += 1
        if self.jobs == 2:
            return super().submit(_die)
        return super().submit(function, *args, **kwargs)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_workers_that_die_cost_nothing_but_time(tmp_path: Path) -> None:
    pool = Dying()
    try:
        assert set(tuned(tmp_path, executor=pool).times) == set(FIRST)
    finally:
        pool.shutdown()


class Refusing(ThreadPoolExecutor):
    """An executor that refuses every job."""

    def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        failed: Future[Any] = Future()
        failed.set_exception(ConnectionError("the cable is out"))
        return failed


def test_an_executor_that_is_of_no_use_is_done_without(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Refusing(1) as pool:
        assert set(tuned(tmp_path, executor=pool).times) == set(FIRST)
    assert "the cable is out" in caplog.text


class Pretending:
    """Does jobs without compiling or measuring: a configuration takes as long as the cost model says, and the second
    build waits for the first look."""

    def __init__(self) -> None:
        self.looking = Event()
        self.builds = 0
        self.overlapped = False

    def __call__(self, _: Attempts, job: Job) -> JobOutcome:
        if job.samples:
            self.looking.set()
            return JobOutcome(here(), {c: [COSTS[c] * 1e-6] * job.samples for c in job.configs})
        self.builds += 1
        if self.builds == 2:
            self.overlapped = self.looking.wait(60)
        return JobOutcome(here(), built=dict.fromkeys(job.configs, ("key", "symbol")))


def test_measuring_does_not_wait_for_all_builds_and_drops_what_is_clearly_worse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretending = Pretending()
    monkeypatch.setattr(Attempts, "__call__", lambda attempts, job: pretending(attempts, job))
    found = tuned(tmp_path, Budget(seconds=60, first=None))
    assert pretending.overlapped
    assert set(found.times) == set(COSTS)
    assert found.best == min(COSTS, key=lambda c: (COSTS[c], c))
    with database(tmp_path) as opened:
        samples = {r.config: len(r.seconds) for r in opened.records(operator())}
    least = min(COSTS.values())
    assert {n for c, n in samples.items() if COSTS[c] > least * 1.3} == {LOOKS}
    assert min(n for c, n in samples.items() if COSTS[c] < least * 1.005) > LOOKS


def test_an_interrupt_ends_the_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(_: Progress) -> None:
        raise KeyboardInterrupt

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        tuned(tmp_path, Budget(seconds=600, first=None), show=stop, command=(*FAULTY, f"hang={OTHERS[0]}"))
    assert time.monotonic() - began < 60
