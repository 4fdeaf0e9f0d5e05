"""The runtime checks of `make gpu`, on a driver backed by the simulator; their records and their clock."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import conditions, timing
from benchmarks.gpu.record import WRONG, Record, measured, summary
from benchmarks.gpu.runtime import PORTABLE, Place
from tests.taskmap.targets.test_cuda_graphs import GraphedGpu

CPU = torch.device("cpu")


@pytest.mark.parametrize("check", PORTABLE, ids=lambda check: check.__name__)
def test_a_check_passes_where_it_should(check: Callable[[Place], None], tmp_path: Path) -> None:
    gpu = GraphedGpu(tmp_path)
    check(Place(CPU, gpu.compiled))
    assert gpu.recorder.replays > 0


@pytest.mark.parametrize("check", PORTABLE, ids=lambda check: check.__name__)
def test_a_check_fails_where_calls_give_what_the_first_gave(check: Callable[[Place], None]) -> None:
    def compiled(function: Callable[..., Any], **_: object) -> Callable[..., Any]:
        kept: list[Any] = []

        def called(*args: torch.Tensor) -> Any:
            kept.append(function(*(a.clamp(max=19) if a.dtype == torch.int64 else a for a in args)))
            return kept[0]

        return called

    with pytest.raises(AssertionError):
        check(Place(CPU, compiled))


def test_a_record_is_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "record.json"
    record = Record.begun(path, {"code": "a"}, resume=True)
    assert measured(record, "one", lambda: {"right": True, "ratio": 2.0, "floor": 1.0}, lambda: False)
    assert not measured(record, "two", lambda: 1 // 0, lambda: True)  # type: ignore[arg-type, return-value]
    record.begin("three")  # and the process ends
    again = Record.begun(path, {"code": "a"}, resume=True)
    assert [again.has(name) for name in ("one", "two", "three", "four")] == [True, True, True, False]
    assert [row.get("failed", "") for row in again.rows] == [
        "",
        "the GPU context is lost: ZeroDivisionError: integer division or modulo by zero",
        "the process ended here",
    ]  # fmt: skip
    assert again.status == WRONG
    measured(again, "four", lambda: {"right": True, "ratio": 0.5, "floor": 1.0}, lambda: False)
    assert len(Record.begun(path, {"code": "a"}, resume=True).rows) == 4  # though not all were written at once
    again.write()
    written = json.loads(path.read_text())
    assert [row["run"] for row in written["rows"]] == [0, 0, 0, 1]
    assert written["summary"] == {"measured": 2, "met": 1, "geometric_mean": 1.0}
    assert Record.begun(path, {"code": "b"}, resume=True).rows == []  # what was measured of other code
    assert Record.begun(path, {"code": "a"}, resume=False).rows == []
    assert summary([]) == {}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU's clock in place of the GPU's."""

    def timed(work: Callable[[], object], times: int) -> float:
        started = time.perf_counter()
        for _ in range(times):
            work()
        return (time.perf_counter() - started) / times

    monkeypatch.setattr(timing._Window, "_time", staticmethod(timed))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(timing, "WINDOW", 0.003)
    monkeypatch.setattr(timing, "SETTLE", 0.01)


@pytest.mark.usefixtures("clock")
def test_engines_take_turns_on_one_core() -> None:
    cores: set[int] = set()
    order: list[str] = []

    def call(name: str, seconds: float) -> Callable[[int], object]:
        def work(_: int) -> None:
            if hasattr(os, "sched_getaffinity"):
                cores.add(len(os.sched_getaffinity(0)))
            order.append(name)
            time.sleep(seconds)

        return work

    before = os.sched_getaffinity(0)
    found = timing.compare({"a": call("a", 1e-4), "b": call("b", 4e-4)}, "b", graphs=False)
    assert found.ratios["b"] == 1
    assert found.ratios["a"] > 1
    assert found.timings["a"].n == 9
    assert not found.timings["a"].graphed
    assert 1 in cores
    assert os.sched_getaffinity(0) == before
    firsts = [b for a, b in pairwise(order) if a != b]
    assert firsts.count("a") > 5


def test_the_same_times_are_those_of_a_stale_binary() -> None:
    timing._refuse_equal({"a": [1.0, 2.0], "b": [1.0, 2.5]})
    with pytest.raises(ValueError, match="b and a took the same times"):
        timing._refuse_equal({"a": [1.0, 2.0], "b": [1.0, 2.0]})


def test_clocks_are_read_while_the_gpu_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nsleep 0.2\necho '580.1, 1980 MHz, 3201 MHz, 1980 MHz, 512 W, 55'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    worked: list[float] = []

    def work() -> None:
        time.sleep(0.01)
        worked.append(time.perf_counter())

    state = conditions.state_while(work)
    assert len(worked) > 2
    assert state["clocks.sm"] == "1980 MHz"
    assert state["driver_version"] == "580.1"
    program.write_text("#!/bin/sh\necho unknown\n")
    assert conditions.gpu_state() == {}
    monkeypatch.setenv("PATH", "")
    assert conditions.gpu_state() == {}


def test_the_digest_of_the_code_changes_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditions, "ROOT", tmp_path)
    found = set()
    for text in ("a = 1", "a = 2"):
        (tmp_path / "ir").mkdir(exist_ok=True)
        (tmp_path / "ir" / "nodes.py").write_text(text)
        conditions.code_digest.cache_clear()
        found.add(conditions.code_digest())
    conditions.code_digest.cache_clear()
    assert len(found) == 2
