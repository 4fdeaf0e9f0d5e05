"""docs/write-a-kernel.md: its code runs and prints the page's output."""

from __future__ import annotations

from pathlib import Path

from tests.pages import run_page


def test_the_page(tmp_path: Path) -> None:
    names = run_page("write-a-kernel.md", tmp_path)
    assert {"scale_here", "gram", "matmul"} <= set(names)
