"""The driver's calls against a library that checks their arguments, through CUDA's own bindings."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("cuda.bindings.driver")
pytestmark = pytest.mark.skipif(shutil.which("cc") is None and shutil.which("gcc") is None, reason="no C compiler")

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(shared_cache: Path) -> Path:
    """Builds made for one test serve all."""
    return shared_cache


def script(name: str, folder: Path, log: Path, **environment: str) -> str:
    """The output of a script on the stand-in driver, which must not have reported an error."""
    done = subprocess.run(
        [sys.executable, "-m", f"tests.gpu_stand_in.{name}"],
        cwd=ROOT,
        env={**os.environ, "TASKMAP_STAND_IN": str(folder), "STUB_LOG": str(log), **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_library_refuses_what_a_driver_refuses(folder: Path, tmp_path: Path) -> None:
    """Each rule of the stand-in, violated once: a check must be able to fail."""
    printed = script("refusals", folder, tmp_path / "log")
    assert "refused 48 of 48" in printed, printed


def test_the_library_has_every_function_that_taskmap_calls() -> None:
    """None of them goes unchecked."""
    sources = [
        path.read_text(encoding="utf-8") for room in ("backend", "taskmap") for path in (ROOT / room).rglob("*.py")
    ]
    called = set(re.findall(r"(?:\"|\bapi\.)(cu[A-Z][A-Za-z0-9]+)", "\n".join(sources)))
    library = (ROOT / "tests/gpu_stand_in/libcuda.c").read_text(encoding="utf-8")
    assert {"cuLaunchKernelEx", "cuTensorMapEncodeTiled", "cuMemAlloc", "cuInit"} <= called
    assert called <= set(re.findall(r"^R (cu[A-Za-z0-9]+)(?:_v\d)?\(", library, re.MULTILINE))


def test_every_call_of_taskmap_is_as_the_driver_wants_it(folder: Path, tmp_path: Path) -> None:
    """An archive with Hopper kernels on two GPUs: memory, tensor maps, attributes, launches, copies."""
    log = tmp_path / "log"
    printed = script("archive", folder, log, STUB_DEVICES="2")
    assert printed.split() == ["right", "on", "0", "right", "on", "1", "right", "on", "0"]
    assert not log.exists(), log.read_text()


@pytest.mark.parametrize("case", ["fork", "version", "memory"])
def test_one_clear_error(case: str, folder: Path, tmp_path: Path) -> None:
    environment = {"version": {"STUB_VERSION": "12080"}, "memory": {"STUB_MEMORY": "60000"}}.get(case, {})
    printed = script("errors", folder, tmp_path / "log", STUB_CASE=case, **environment)
    assert printed.strip() == f"{case}: right", printed
