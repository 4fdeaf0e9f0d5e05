"""docs/add-an-instruction.md works when followed literally, the change to the table included."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import run_page

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "add-an-instruction.md"
ENTRY = re.compile(r"^```(python entry|cuda|c)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

NEEDED = (
    "pyproject.toml", "ir", "backend", "schedules", "taskmap", "tests/conftest.py", "tests/ir/test_instructions.py",
    "tests/ir/instruction_kernels.py", "tests/schedules/running.py", "tests/backend/sim", "tests/backend/cuda_calls.py",
    "tests/backend/test_cuda_instructions.py",
)  # fmt: skip


def test_the_page(tmp_path: Path) -> None:
    names = run_page("add-an-instruction.md", tmp_path)
    assert {"lowered", "on_gpu"} <= set(names)


def test_the_entry_in_the_table_is_checked(checkout: Path) -> None:
    """The page's entry for a CPU is added, and the generic test run on it."""
    change(checkout / "ir" / "instructions.py", "INSTRUCTIONS: tuple", "\n)\n", on_page()[0])
    table = checkout / "ir" / "instructions.py"
    text = table.read_text(encoding="utf-8")
    table.write_text(re.sub(r"(from taskmap.ir.types import .*)", r"\1, i32", text), encoding="utf-8")
    assert passed(checkout, "mla_i32x4", "tests/ir/test_instructions.py") == 4


def test_the_instruction_of_a_gpu_is_checked(checkout: Path) -> None:
    """The page's entry, its device function and its twin are added, and the generic tests run on them."""
    _, device, twin, entry = on_page()
    change(checkout / "ir" / "instructions_mma.py", "MMA: tuple", "\n)\n", entry)
    with (checkout / "backend" / "cuda" / "device" / "mma.cuh").open("a", encoding="utf-8") as file:
        file.write(device)
    change(checkout / "backend" / "sim" / "device" / "matrix.h", "TM_MMA(", "\n#undef TM_MMA\n", twin)
    name = "mma_m16n8k8_f64_f64"
    assert passed(checkout, name, "tests/ir/test_instructions.py", "tests/backend/sim/test_instructions.py") == 3
    assert passed(checkout, "compiles and sm_90a", "tests/backend/test_cuda_instructions.py") == 1


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what the tests of the table need."""
    for name in NEEDED:
        source, copy = ROOT / name, tmp_path / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, copy)
    return tmp_path


def on_page() -> list[str]:
    """What the page says to put into files, in its order."""
    return [text for _, text in ENTRY.findall(PAGE.read_text(encoding="utf-8"))]


def change(file: Path, after: str, before: str, added: str) -> None:
    """Put text before the first ``before`` that follows ``after``."""
    text = file.read_text(encoding="utf-8")
    end = text.index(before, text.index(after)) + 1
    file.write_text(text[:end] + added + text[end:], encoding="utf-8")


def passed(checkout: Path, chosen: str, *files: str) -> int:
    """How many of the chosen tests passed, all of them."""
    command = [sys.executable, "-m", "pytest", "-q", "-rs", *files, "-k", chosen]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"\b(\d+) passed\b", done.stdout)
    assert found, done.stdout
    return int(found[1])
