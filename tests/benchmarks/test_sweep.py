"""The sweep over architectures: all are named once, small ones run to the end, and a crash is a line of the table."""

from __future__ import annotations

import json
import os
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.models import as_tensors
from benchmarks.support.conditions import Conditions
from benchmarks.support.harness import Measurement, Protocol, Window
from benchmarks.support.report import Report
from benchmarks.sweep import __main__ as sweep
from benchmarks.sweep.apart import apart
from benchmarks.sweep.entries import ENTRIES
from benchmarks.sweep.entry import Entry, rows
from benchmarks.sweep.measure import Case, measured, speeds

QUICK = Protocol(rounds=1, seed=0, window=0.01, pause=0.0)
OWN = ("squeezenet1.1", "ghostnet", "yolo_n", "diffusion_unet", "conformer", "decoder_step", "gat", "dlrm", "gmlp")


def test_the_sweep_has_sixty_architectures_of_many_kinds() -> None:
    assert len(ENTRIES) >= 60
    assert len({entry.kind for entry in ENTRIES.values()}) >= 15


@pytest.mark.parametrize("name", ["autoencoder", "gcn"])
def test_a_small_architecture_is_measured(name: str) -> None:
    torch.compiler.reset()
    found = measured(Case(ENTRIES[name], 1, small=True), ["taskmap"], QUICK, kernels=True)
    assert found["right"], found["engines"]
    assert set(found["milliseconds"]) == {"eager", "taskmap"}
    assert found["speed"] > 0
    assert found["kernels"] >= 1
    lost = [kernel["lost_seconds"] for kernel in found["furthest"]]
    assert lost == sorted(lost, reverse=True)
    json.dumps(found)


@pytest.mark.parametrize("name", OWN)
def test_small_architectures_have_finite_results_for_each_batch(name: str) -> None:
    module = ENTRIES[name].build(seed=0, small=True)
    for batch in (1, 3):
        with torch.no_grad():
            results = as_tensors(module(*ENTRIES[name].inputs(0, batch, small=True)))
        assert all(bool(r.isfinite().all()) for r in results)


def test_an_architecture_is_a_function_of_the_seed() -> None:
    entry = ENTRIES["shufflenet_v2"]
    one, same, other = (entry.build(seed, small=True).state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(a, b) for a, b in zip(one.values(), same.values(), strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(one.values(), other.values(), strict=True))


class _Refusing(torch.nn.Module):
    """Differs where it is compiled."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if torch.compiler.is_compiling() else x


def test_a_wrong_engine_has_no_time_and_is_a_missed_check(tmp_path: Path) -> None:
    torch.compiler.reset()
    entry = Entry("wrong", "made up", lambda small: _Refusing(), rows((4,)), "made up")
    found = measured(Case(entry, 1), ["taskmap"], QUICK, kernels=False)
    assert not found["right"]
    assert "wrong result" in found["engines"]["taskmap"]["error"]
    assert set(found["milliseconds"]) == {"eager"}
    report = Report("sweep", Conditions.now(0, 1, 1), ("architecture",))
    report.enter(found, sweep.row(found, ["taskmap"]), tmp_path)
    sweep.sum_up(report)
    assert not report.checks[0].met


def test_the_best_of_the_others_counts() -> None:
    def window(name: str, seconds: float) -> Window:
        return Window(name, 0, seconds, seconds, 1, 1.0, 0.0)

    kept = Measurement((window("eager", 3.0), window("inductor", 1.0), window("taskmap", 2.0)))
    found = speeds(kept, ["eager", "inductor", "taskmap"])
    assert (found["best_other"], found["speed"], found["speed_over_eager"]) == ("inductor", 0.5, 1.5)
    assert found["speed_range"] == [0.5, 0.5]


def _crash() -> dict[str, Any]:
    os._exit(3)


def _raise() -> dict[str, Any]:
    raise ValueError("no such network")


def test_failures_of_the_other_process_are_results() -> None:
    assert apart(lambda: {"name": "fine"}, 60) == {"name": "fine"}
    assert "status 3" in apart(_crash, 60)["failure"]
    assert apart(_raise, 60)["failure"] == "ValueError: no such network"


def test_resumed_cases_are_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def fake(case: Case, engines: list[str], *_: Any) -> dict[str, Any]:
        calls.append(str(case))
        facts = {"first_call_seconds": 1.0, "relative_error": 0.0}
        times = {name: {"median": 1e-3} for name in ("eager", "taskmap")}
        return {
            "name": str(case), "kind": "perceptron", "batch": case.batch, "right": True, "speed": 1.0,
            "engines": {"eager": facts, "taskmap": facts}, "milliseconds": times,
        }  # fmt: skip

    monkeypatch.setattr(sweep, "measured", fake)
    monkeypatch.setattr(sweep, "apart", lambda work, seconds: work())
    words = ["--only", "autoencoder", "nerf", "--batches", "1", "8", "--out", str(tmp_path), "--threads", "1"]
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    sweep.main(words)
    assert len(calls) == 4
    sweep.main([*words, "--resume"])
    assert len(calls) == 4
    assert len(json.loads((tmp_path / "sweep.json").read_text())["data"]) == 4

    def stopped(case: Case, *_: Any) -> dict[str, Any]:
        raise KeyboardInterrupt

    monkeypatch.setattr(sweep, "measured", stopped)
    with pytest.raises(KeyboardInterrupt):
        sweep.main(["--only", "gcn", *words[1:], "--resume"])  # gcn is the first case, and not known
    assert len(json.loads((tmp_path / "sweep.json").read_text())["data"]) == 4


def test_a_name_stands_for_itself_and_a_word_for_all_names_with_it() -> None:
    def names(*words: str, telling: bool = False) -> set[str]:
        arguments = Namespace(only=list(words), telling=telling, kinds=[], batches=[1], small=False)
        return {case.entry.name for case in sweep.chosen(arguments)}

    assert names("unet") == {"unet"}
    assert {"resnet50", "se_resnet50", "resnet18"} < names("resnet")
    assert names(telling=True) == set(sweep.TELLING)
    assert names() == set(ENTRIES)


def test_compiling_only_calls_each_engine(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    torch.compiler.reset()
    monkeypatch.setattr(sweep, "apart", lambda work, seconds: work())
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    assert sweep.main(["--only", "autoencoder", "--small", "--batches", "1", "--compile-only", "--threads", "1"]) == 0
    said = capsys.readouterr().out
    assert "autoencoder, batch 1" in said
    assert "taskmap" in said
