"""Harmful configurations are detected, in a process of their own; the others are still measured."""

from dataclasses import replace
from pathlib import Path

import pytest

from taskmap.ir.errors import ScheduleError
from taskmap.tuning.bench import Bench
from taskmap.tuning.isolation import Attempts, attempt
from taskmap.tuning.job import Job
from taskmap.tuning.record import Verdict
from tests.tuning.tuning_here import DEFAULT, OTHERS, here, job

A, B = OTHERS[:2]


def test_a_job_travels_as_text(tmp_path: Path) -> None:
    wanted = replace(job(tmp_path, A, samples=3, faults=("crash=x",)), built={A: ("key", "symbol")})
    assert Job.from_text(wanted.to_text()) == wanted


def test_building_and_measuring(tmp_path: Path) -> None:
    built = attempt(job(tmp_path, A))
    assert set(built.built) == {DEFAULT, A}
    assert built.samples == {}
    measured = attempt(replace(job(tmp_path, A, samples=3), built=built.built))
    assert {c: len(s) for c, s in measured.samples.items()} == {DEFAULT: 3, A: 3}
    assert all(s > 0 for seconds in measured.samples.values() for s in seconds)
    assert measured.failures == {}
    assert measured.built == {}
    assert replace(measured.conditions or here(), clock=0) == replace(here(), clock=0)


@pytest.mark.parametrize(
    ("fault", "verdict", "reason"),
    [
        ("crash", Verdict.CRASHED, "signal 11 (SIGSEGV)"),
        ("build-crash", Verdict.CRASHED, "signal 11 (SIGSEGV)"),
        ("hang", Verdict.HUNG, "nothing happened for 4 s"),
        ("wrong", Verdict.WRONG, "the largest error is 1"),
    ],
)
def test_harm_is_recorded_and_the_others_go_on(tmp_path: Path, fault: str, verdict: Verdict, reason: str) -> None:
    attempt(job(tmp_path, A, B))
    wanted = replace(job(tmp_path, A, B, samples=2, faults=(f"{fault}={A}",)), patience=4.0)
    outcome = attempt(wanted)
    assert set(outcome.failures) == {A}
    assert outcome.failures[A].verdict is verdict
    assert reason in outcome.failures[A].reason
    assert {DEFAULT, B} <= set(outcome.samples)


def test_a_broken_baseline_ends_the_job(tmp_path: Path) -> None:
    outcome = attempt(job(tmp_path, A, samples=2, faults=(f"crash={DEFAULT}",)))
    assert set(outcome.failures) == {DEFAULT}
    assert outcome.samples == {}


def test_a_process_that_cannot_begin_says_why(tmp_path: Path) -> None:
    outcome = attempt(job(tmp_path, A, faults=("mute=x",)))
    assert {f.reason for f in outcome.failures.values()} == {"exit status 3: there is no machine here"}
    assert set(outcome.failures) == {DEFAULT, A}


def test_a_text_that_is_no_configuration_is_refused(tmp_path: Path) -> None:
    outcome = attempt(job(tmp_path, "rm -rf /"))
    assert outcome.failures["rm -rf /"].verdict is Verdict.REFUSED
    assert set(outcome.built) == {DEFAULT}


def test_an_unknown_operator_is_refused(tmp_path: Path) -> None:
    wanted = job(tmp_path)
    with pytest.raises(ScheduleError, match="does not describe an operator of"):
        Bench(replace(wanted, operator=replace(wanted.operator, name="cpu.fft")))
    (failure,) = attempt(replace(wanted, operator=replace(wanted.operator, name="cpu.fft"))).failures.values()
    assert "does not describe an operator of" in failure.reason


def test_what_was_given_up_starts_nothing(tmp_path: Path) -> None:
    attempts = Attempts()
    attempts.cancel()
    outcome = attempts(job(tmp_path, A))
    assert not outcome.built
    assert not outcome.failures


def test_a_wrong_result_is_noticed(tmp_path: Path) -> None:
    bench = Bench(job(tmp_path))
    bench.build([DEFAULT], lambda _: None)
    bench.check(DEFAULT)
    bench._functions[DEFAULT] = lambda *_: None
    with pytest.raises(Exception, match="the largest error is nan"):
        bench.check(DEFAULT)
