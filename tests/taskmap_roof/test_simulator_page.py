"""docs/simulator.md: its code is run, and what it prints is what the page says."""

from __future__ import annotations

from pathlib import Path

from taskmap.backend.sim.problems import KINDS
from tests.pages import run_page

PAGE = Path(__file__).parent.parent.parent / "docs" / "simulator.md"


def test_the_page(tmp_path: Path) -> None:
    assert {"reverse", "found"} <= set(run_page("simulator.md", tmp_path))


def test_the_page_names_every_kind_of_problem() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [kind for kind in KINDS if f"\n| {kind} |" not in text] == []
