"""The benchmark of single operators: names are unique, cases run in both directions, a failure is a note."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks.operators import __main__ as operators
from benchmarks.operators.case import across, f32, f64, ints, of


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


def test_operands_of_a_narrow_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of f32 keep their layout; cases without any are left out."""
    case = of(torch.mul, across(f32(8, 9)), f64(9))
    x, y = case.of_type(torch.bfloat16).inputs()
    assert (x.dtype, x.stride(), y.dtype) == (torch.bfloat16, (1, 8), torch.float64)
    monkeypatch.setattr(operators, "FAMILIES", {"few": {"double": case, "whole": of(torch.neg, ints(9, 3))}})
    options = ["--dtype", "bf16", "--rounds", "1", "--window", "0.001", "--out", str(tmp_path)]
    assert operators.main(options) == 0
    found = json.loads((tmp_path / "operators_bf16.json").read_text())
    assert [row["name"] for row in found["data"]] == ["double"]
