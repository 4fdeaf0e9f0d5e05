"""Exit statuses of the tuning cache are those of docs/tune-and-share.md: 1 only where the page documents it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from taskmap.cli import main
from taskmap.cli.cache.command import actions

PAGE = Path(__file__).parents[2] / "docs" / "tune-and-share.md"

ANSWERS = {
    "list": [],
    "show": [],
    "best": [],
    "export": [],
    "explain-miss": ["matmul", "--m", "8", "--n", "8", "--k", "8"],
    "import": ["records.jsonl"],
    "merge": ["records.jsonl"],
    "diff": ["records.jsonl"],
    "verify": [],
    "prune": ["--older", "1"],
    "stats": [],
    "path": [],
    "tune": [],
    "clear": ["--yes"],
}
"""The arguments of each action on an empty cache, and on a file with a line that is no record."""


def documented() -> set[str]:
    """The commands for which the page documents the status 1."""
    table = PAGE.read_text(encoding="utf-8").partition("| command | 1 means |")[2]
    return {
        name for row in re.findall(r"^\| (.*?) \|", table, re.MULTILINE) for name in re.findall(r"cache ([\w-]+)", row)
    }


def test_statuses_of_an_empty_cache(cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("records.jsonl").write_text("no record\n", encoding="utf-8")
    assert {*ANSWERS} == {*actions()}
    statuses = {name: main(["cache", name, *words]) for name, words in ANSWERS.items()}
    no = {name for name, status in statuses.items() if status == 1}
    assert no == {"best", "explain-miss", "import", "merge", "tune"}
    assert no <= documented()
    assert {name for name, status in statuses.items() if status == 2} == {"show"}  # nothing to show is impossible
    assert {*statuses.values()} == {0, 1, 2}


def test_the_impossible_is_2(cache_dir: Path) -> None:
    assert main(["cache", "import", "no-such-file.jsonl"]) == 2
    assert main(["cache", "clear"]) == 2
