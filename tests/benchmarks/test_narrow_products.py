"""The benchmark of narrow products runs, and refuses wrong results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks.narrow_products import Case, _check, cases, main


def test_every_type_is_measured_and_checked(tmp_path: Path) -> None:
    arguments = ["--sizes", "17", "8x16x24", "--rounds", "1", "--window", "0.001", "--patience", "0"]
    assert main([*arguments, "--threads", "1", "--out", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "narrow_products.json").read_text())
    names = [c.name for c in cases(["bf16", "s8s8", "u8s8"], ["17", "8x16x24"])]
    assert [row[0] for row in found["rows"]] == names
    assert len(names) == 12
    assert {c["name"] for c in found["checks"]} == {f"{name}: rate over eager's" for name in names}


@pytest.mark.parametrize("kind", ["bf16", "s8s8"])
def test_a_wrong_product_ends_the_run(kind: str) -> None:
    case = Case(kind, 8, 16, 8, True)
    module, args = case.build(0)
    right = module(*args)
    _check(case, 0, right)
    with pytest.raises(SystemExit, match="an error of" if kind == "bf16" else "are not eager's"):
        _check(case, 0, torch.where(torch.arange(8) == 3, right + 1, right))
