"""docs/how-instructions-are-chosen.md works when followed literally."""

from __future__ import annotations

from pathlib import Path

from tests.pages import run_page


def test_the_page(tmp_path: Path) -> None:
    names = run_page("how-instructions-are-chosen.md", tmp_path)
    assert {"choice", "rule", "found"} <= set(names)
