"""The benchmark of single operators: names are unique, cases run in both directions, a failure is a note."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks.operators import __main__ as operators
from benchmarks.operators.case import f32, of


def test_names_are_unique_and_every_family_is_large() -> None:
    names = [name for cases in operators.FAMILIES.values() for name in cases]
    assert len(names) == len(set(names))
    assert min(map(len, operators.FAMILIES.values())) >= 40


def test_cases_are_measured_and_a_failure_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        raise ValueError("no such operator")

    cases = {"double": of(lambda x: x * 2, f32(8, 9), backward=True), "broken": of(broken, f32(3))}
    monkeypatch.setattr(operators, "FAMILIES", {"few": cases})
    options = ["--engines", "eager", "taskmap", "--rounds", "1", "--window", "0.001", "--out", str(tmp_path)]
    assert operators.main(options) == 0
    found = json.loads((tmp_path / "operators.json").read_text())
    assert [row["name"] for row in found["data"]] == ["double", "double, backward"]
    assert all(row["speed"] > 0 and row["error_over_eager"] <= 1 for row in found["data"])
    assert found["notes"] == ["broken: ValueError: no such operator"]
