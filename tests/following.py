"""Guides whose blocks are files of a checkout: a guide is followed in a copy of the checkout."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOMS = ("ir", "graph", "backend", "schedules", "taskmap")


def copy_of_checkout(folder: Path, *others: str) -> Path:
    """Copy the packages, the configuration of tests and ``others`` (files and folders of the checkout) into
    ``folder``."""
    for name in (*ROOMS, "pyproject.toml", "tests/conftest.py", *others):
        source, copy = ROOT / name, folder / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, copy, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, copy)
    return folder


def blocks(page: str, *kinds: str) -> list[str]:
    """The blocks of a page whose fence opens with one of ``kinds``, in order."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    opened = "|".join(re.escape(kind) for kind in kinds)
    return [found[1] for found in re.finditer(rf"^```(?:{opened})\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)]


def add(file: Path, added: str, *, after: str = "", before: str | None = None) -> None:
    """Put text before the first ``before`` after ``after``, or at the end, unless the file already contains it."""
    text = file.read_text(encoding="utf-8")
    if added in text:
        return
    end = len(text) if before is None else text.index(before, text.index(after)) + 1
    file.write_text(text[:end] + added + text[end:], encoding="utf-8")


def in_checkout(checkout: Path, command: Iterable[str]) -> subprocess.CompletedProcess[str]:
    """Run Python with ``command``, using the taskmap of ``checkout``."""
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    return subprocess.run(
        [sys.executable, *command], cwd=checkout, env=environment, capture_output=True, text=True, check=False
    )


def passed(checkout: Path, chosen: str, *files: str) -> int:
    """The number of chosen tests, all of which passed."""
    done = in_checkout(checkout, ["-m", "pytest", "-q", "-rs", *files, "-k", chosen])
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"\b(\d+) passed\b", done.stdout)
    assert found, done.stdout
    return int(found[1])
