"""The process that the parts of `make gpu` are forked from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu.processes.warm import can_fork

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(not can_fork(), reason="this system does not fork")

IMPORTS = """
import sys
import torch
def used(*_):
    raise AssertionError("the GPU is asked for")
torch.cuda.is_available = torch.cuda.device_count = torch.cuda._lazy_init = used
import benchmarks.gpu.processes.imported
# A PyTorch with CUDA counts the GPUs when this is imported; one without does not, so that only its name shows it.
assert "torch._inductor.compile_fx" not in sys.modules
print("nothing asked for the GPU")
"""
"""Of a process that has asked for the GPU, children cannot use it (PyTorch: "Cannot re-initialize CUDA")."""

FORKED = """
import os, sys
from benchmarks.gpu.processes.running import _ended, environment
from benchmarks.gpu.processes.warm import forked
codes = []
for module in ("platform", "no_such_module", "tests.gpu.ends_by_a_signal"):
    process = forked((sys.executable, "-m", module), {**environment(), "FROM": "the parent"})
    process.join()
    codes.append(process.exitcode)
import time
codes.append(_ended([sys.executable, "-m", "tests.gpu.never_ends"], time.perf_counter() + 1, "cache"))
print("codes", *codes)
"""


def script(text: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_is_imported_before_the_fork_does_not_use_the_gpu() -> None:
    assert "nothing asked for the GPU" in script(IMPORTS)


def test_forked_processes_end_as_others_do() -> None:
    """By themselves, by an error, by a signal, and because their time is over."""
    printed = script(FORKED)
    assert "codes 0 1 -11 None" in printed
    assert "Linux" in printed  # what they print is seen
