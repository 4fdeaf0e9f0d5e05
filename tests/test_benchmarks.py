"""The harness: the meaning of its figures, and missed bounds."""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks.support.conditions import Conditions, Probe
from benchmarks.support.engines import choose
from benchmarks.support.functions import fresh_module
from benchmarks.support.harness import Measurement, Protocol, Spread, Window, geometric_mean, interleave, measure_window
from benchmarks.support.report import Check, Report, table


def window(name: str, number: int, seconds: float, probe: float = 100.0) -> Window:
    return Window(name, number, seconds, seconds, 3, probe, 0.0)


def test_a_speedup_is_paired_by_round() -> None:
    # The machine is ten times slower in the second round, for both alike.
    measured = Measurement((window("a", 0, 1), window("b", 0, 2), window("b", 1, 30), window("a", 1, 10)))
    assert measured.speedup("a", "b") == Spread(2.5, 2.0, 3.0, 2)
    assert measured.seconds("b") == Spread(16.0, 2.0, 30.0, 2)
    assert measured.best("a") == 1


def test_windows_in_a_slow_phase_can_be_left_out() -> None:
    measured = Measurement((window("a", 0, 1), window("a", 1, 5, probe=40.0)), best_probe=100.0)
    assert measured.accept(0.0) == measured
    assert measured.accept(0.9).seconds("a") == Spread(1.0, 1.0, 1.0, 1)
    assert measured.quiet(0.9) == measured.accept(0.9)


def test_where_no_round_was_quiet_for_all_every_window_counts() -> None:
    measured = Measurement(
        (window("a", 0, 1), window("b", 0, 2, probe=40.0), window("a", 1, 5, probe=40.0), window("b", 1, 6)),
        best_probe=100.0,
    )
    assert measured.quiet(0.9) == measured


def test_a_disturbed_window_is_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    # Five probes find the best rate; then the probe falls to 10 after the first window, and only then.
    rates = iter([100.0] * 5 + [100.0, 10.0] + [100.0] * 10)

    def gflops(self: Probe) -> float:
        rate = next(rates)
        self.best = max(self.best, rate)
        return rate

    monkeypatch.setattr(Probe, "gflops", gflops)
    calls = {"a": lambda: None}
    protocol = Protocol(rounds=1, seed=0, window=0.0, pause=0.0, accept=0.5, patience=30.0)
    assert [w.probe for w in interleave(calls, protocol).windows] == [100.0]
    rates = iter([100.0] * 5 + [100.0, 10.0] + [100.0] * 10)
    hasty = Protocol(rounds=1, seed=0, window=0.0, pause=0.0, accept=0.5, patience=0)
    assert [w.probe for w in interleave(calls, hasty).windows] == [10.0]


def test_no_rounds_have_no_spread() -> None:
    with pytest.raises(ValueError, match="no rounds"):
        Measurement(()).seconds("a")


def test_every_call_gets_a_window_in_every_round() -> None:
    order: list[str] = []

    def note(name: str) -> Callable[[], None]:
        return lambda: order.append(name)

    calls = {name: note(name) for name in "abc"}
    measured = interleave(calls, Protocol(rounds=4, seed=1, window=0.001, pause=0.0))
    turns = [w.name for w in measured.windows]
    assert [sorted(turns[i : i + 3]) for i in range(0, 12, 3)] == [["a", "b", "c"]] * 4
    assert len({tuple(turns[i : i + 3]) for i in range(0, 12, 3)}) > 1
    assert order[:3] == ["a", "b", "c"]  # warming up


def test_a_window_lasts_long_enough() -> None:
    assert len(measure_window(lambda: time.sleep(0.01), seconds=0.0, least=4)) == 4
    assert min(measure_window(lambda: time.sleep(0.002), seconds=0.02)) >= 0.002


def test_geometric_mean() -> None:
    assert geometric_mean([1.0, 4.0]) == pytest.approx(2.0)
    with pytest.raises(ValueError, match="no values"):
        geometric_mean([])


def test_a_bound_can_be_missed_from_either_side_and_by_nan() -> None:
    assert Check("latency", 1.0, 1.0).met
    assert not Check("latency", 1.1, 1.0).met
    assert Check("rate", 1.1, 1.0, at_most=False).met
    assert not Check("rate", 0.9, 1.0, at_most=False).met
    assert not Check("nothing", math.nan, 1.0).met
    assert not Check("nothing", math.nan, 1.0, at_most=False).met


def test_a_report_writes_its_conditions_and_null_for_nan(tmp_path: Path) -> None:
    report = Report("sample", Conditions.now(seed=3, threads=2, rounds=1), ("what", "value"), rows=[("x", "1")])
    report.checks.append(Check("bound", math.nan, 1.0))
    arguments = argparse.Namespace(out=tmp_path / "new", check=True)
    assert report.finish(arguments) == 1
    arguments.check = False
    assert report.finish(arguments) == 0
    written = json.loads((tmp_path / "new" / "sample.json").read_text())
    assert written["checks"] == [{"name": "bound", "value": None, "bound": 1.0, "at_most": True, "met": False}]
    assert written["conditions"]["torch"] == torch.__version__
    assert written["conditions"]["seed"] == 3
    assert 0.0 <= written["conditions"]["steal"] <= 1.0


def test_table_lines_up() -> None:
    assert table(("a", "long"), [("wide", "1")]).splitlines() == ["a     long", "----  ----", "wide     1"]


def test_an_unknown_engine_is_refused_with_the_known_ones() -> None:
    with pytest.raises(SystemExit, match=r"warp.*eager"):
        choose(["warp"])


def double(self: object, x: Tensor) -> Tensor:
    return x + x


def test_each_one_operator_module_has_code_of_its_own() -> None:
    one, two = fresh_module(double), fresh_module(double)
    assert torch.equal(one(torch.ones(2)), torch.full((2,), 2.0))
    assert type(one).forward.__code__ is not type(two).forward.__code__
    assert type(one).forward.__code__.co_name != type(two).forward.__code__.co_name
    with pytest.raises(TypeError, match="plain function"):
        fresh_module(torch.relu)
