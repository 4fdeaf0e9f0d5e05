"""The benchmark of tuning: how long phases took outlives interruptions, and gains are shares of what the end gains."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.support.conditions import Conditions
from benchmarks.support.report import Report
from benchmarks.support.tuning_spent import Phase, Spent
from benchmarks.tuning import _ends
from taskmap.schedules import Problem
from taskmap.tuning.tune import Tuned
from tests.tuning.tuning_here import PROBLEM, operator

OTHER = replace(PROBLEM, m=24)
TUNED = Tuned(operator(), "a", "b", {"a": 4e-3, "b": 3e-3, "c": 2e-3}, {}, 3, 3, 1.0)


def test_what_was_spent_adds_up_over_runs(tmp_path: Path) -> None:
    def interrupted() -> Tuned:
        raise KeyboardInterrupt

    spent = Spent(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        spent.during(PROBLEM, "further", interrupted)
    assert spent.of(PROBLEM, "further").best is None
    spent.during(PROBLEM, "further", lambda: TUNED)
    spent.during(OTHER, "further", lambda: replace(TUNED, measured=0))
    with open(tmp_path / "spent.jsonl", "a", encoding="utf-8") as file:
        file.write('\n{"operator": "cpu.mat')
    again = Spent(tmp_path)
    assert again.of(PROBLEM, "further") == spent.of(PROBLEM, "further")
    assert again.of(PROBLEM, "further").best == "c"
    assert again.of(OTHER, "further") == Phase()
    again.during(OTHER, "further", lambda: TUNED)
    assert Spent(tmp_path).of(OTHER, "further") == again.of(OTHER, "further") != Phase()


def test_gains_are_of_models_that_were_tuned_to_the_end(tmp_path: Path) -> None:
    spent = Spent(tmp_path)
    spent.during(PROBLEM, "default budget", lambda: replace(TUNED, times={"a": 4e-3, "b": 3e-3}))
    spent.during(PROBLEM, "further", lambda: TUNED)
    spent.during(OTHER, "default budget", lambda: TUNED)
    models: dict[str, Counter[Problem]] = {"one": Counter({PROBLEM: 2}), "two": Counter({OTHER: 1, PROBLEM: 1})}
    report = Report("tuning", Conditions.now(0, 1, 1), ())
    _ends(report, {PROBLEM: TUNED, OTHER: replace(TUNED, total=4)}, models, 1, spent)
    assert [d["models"] for d in report.data] == ["one"]
    assert report.data[0]["untuned_seconds"] == pytest.approx(8e-3)
    assert report.data[0]["gained_seconds"] == pytest.approx(4e-3)
    assert report.data[0]["default_budget_share"] == pytest.approx(0.5)
    assert "gain over the default 100.00%" in report.notes[0]
    _ends(report, {PROBLEM: TUNED, OTHER: TUNED}, models, 1, spent)
    assert [d["models"] for d in report.data[1:]] == ["one", "two", "one and two"]
    assert report.data[3]["default_budget_share"] == pytest.approx((3 * 1 + 2) / (4 * 2))
