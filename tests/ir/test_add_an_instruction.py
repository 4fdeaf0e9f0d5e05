"""docs/add-an-instruction.md works when followed literally, the change to the table included."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.ir.test_write_a_kernel import BLOCK, run

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "add-an-instruction.md"
ENTRY = re.compile(r"^```python entry\n(.*?)^```$", re.MULTILINE | re.DOTALL)

NEEDED = (
    "pyproject.toml", "ir", "backend", "schedules", "taskmap", "tests/conftest.py", "tests/ir/test_instructions.py",
    "tests/ir/instruction_kernels.py", "tests/schedules/running.py",
)  # fmt: skip


def test_the_page(tmp_path: Path) -> None:
    names: dict[str, Any] = {"__name__": "kernels"}
    printed = ""
    for number, (kind, text) in enumerate(BLOCK.findall(PAGE.read_text(encoding="utf-8"))):
        if kind == "text":
            assert printed == text.rstrip()
            printed = ""
            continue
        assert not printed, f"the page does not show this output:\n{printed}"
        folder = tmp_path / str(number)
        folder.mkdir()
        printed = run(text, folder / "kernels.py", names, refused=False)
    assert not printed


def test_the_entry_in_the_table_is_checked(tmp_path: Path) -> None:
    """A copy of what the generic test needs, with the page's entry added, and the test run on it."""
    for name in NEEDED:
        source, copy = ROOT / name, tmp_path / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, copy)
    table = tmp_path / "ir" / "instructions.py"
    (entry,) = ENTRY.findall(PAGE.read_text(encoding="utf-8"))
    text = table.read_text(encoding="utf-8")
    end = text.index("\n)\n", text.index("INSTRUCTIONS: tuple")) + 1
    text = text[:end] + entry + text[end:]
    table.write_text(re.sub(r"(from taskmap.ir.types import .*)", r"\1, i32", text), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "tests/ir/test_instructions.py", "-k", "mla_i32x4"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\b4 passed\b", done.stdout), done.stdout
