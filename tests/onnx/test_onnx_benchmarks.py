"""The ONNX benchmarks: their report of errors, and the order in which they take first results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import onnx_first_result
from benchmarks.accuracy import MOST
from benchmarks.onnx_files import ModelFile
from benchmarks.onnx_latency import ROUNDING, errors
from benchmarks.support.report import Check


def facts(**found: float | None) -> dict[str, dict[str, Any]]:
    return {name: {} if error is None else {"relative_error": error} for name, error in found.items()}


def test_errors_are_reported_beside_the_rivals() -> None:
    error, times, value = errors(facts(taskmap=6e-7, onnxruntime=3e-7))
    assert (error, times) == ("6.00e-07", "2.00")
    assert value == pytest.approx(2.0)
    assert errors(facts(taskmap=ROUNDING, onnxruntime=0.0))[2] == 1.0
    assert errors(facts(taskmap=6e-7, onnxruntime=None)) == ("6.00e-07", "", None)
    assert errors(facts(taskmap=None, onnxruntime=3e-7)) == ("", "", None)
    assert errors({}) == ("", "", None)
    value = errors(facts(taskmap=1.3e-6, onnxruntime=3e-7))[2]
    assert value is not None
    assert not Check("error", value, MOST).met


def test_errors_are_against_float64(tmp_path: Path) -> None:
    exact = np.array([1.0, 1.0 + 1e-9])
    np.savez(tmp_path / "exact.npz", exact)
    file = ModelFile("any", tmp_path)
    assert file.error([exact]) == 0.0
    assert 0 < file.error([exact.astype(np.float32)]) < 1e-8
    with pytest.raises(ValueError, match="shape"):
        file.error([torch.ones(3).numpy()])


def test_the_archive_is_made_from_what_the_first_run_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[tuple[str, Path]] = []

    def one(engine: str, file: ModelFile, threads: int, cache: Path) -> float:
        done.append((engine, cache))
        return 1.0

    def archive(file: ModelFile, threads: int, cache: Path) -> str | None:
        done.append(("compile", cache))
        return "it failed"

    monkeypatch.setattr(onnx_first_result, "one", one)
    monkeypatch.setattr(onnx_first_result, "archive", archive)
    engines = ["openvino", "archive", "taskmap"]
    times, notes = onnx_first_result.collect(ModelFile("any", tmp_path), engines, 3, seed=0, threads=1)
    assert [name for name, _ in done[:3]] == ["taskmap", "taskmap", "compile"]
    assert len({cache for _, cache in done[:3]}) == 1
    assert [name for name, _ in done].count("compile") == 1
    assert {key: len(found) for key, found in times.items()} == {
        (engine, phase): 3 for engine in engines for phase in ("cold", "warm")
    }
    assert notes == ["it failed"]


def test_a_process_that_does_not_end_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_first_result, "LONGEST", 0.2)
    with pytest.raises(RuntimeError, match="did not end"):
        onnx_first_result.measured(["sleep", "20"], 1, tmp_path)
