"""Pages of docs/ about kernels of GPUs: their code runs, and its output equals the pages'."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from taskmap.backend.counters import Counters
from taskmap.backend.cuda.compile import SUFFIX, compile_cuda
from taskmap.backend.cuda.toolchain import find_cuda_toolchain
from taskmap.backend.sim.problems import KINDS
from taskmap.backend.store.objects import KernelStore
from taskmap.ir.errors import CompilerNotFoundError
from tests.pages import DOCS, run_page


def test_the_ladder(tmp_path: Path, shared_cache: Path) -> None:
    """Each rung is right, has the page's counts, and NVRTC compiles it with no spills and no serialised wgmma."""
    ladder = run_page("write-a-cuda-kernel.md", tmp_path)["ladder"]
    assert len(ladder) == 7
    try:
        toolchain = find_cuda_toolchain("sm_90a")
    except CompilerNotFoundError as error:
        pytest.skip(f"NVRTC is not installed: {error.what}")
    store = KernelStore(shared_cache, suffix=SUFFIX)
    made = compile_cuda([found.source for found in ladder.values()], toolchain, store, Counters())
    assert len(made) == len(ladder)


def test_schedules_by_decomposition(tmp_path: Path) -> None:
    run_page("schedule-by-decomposition.md", tmp_path)


def test_the_simulator(tmp_path: Path) -> None:
    names = run_page("simulator.md", tmp_path)
    assert not names["found"].deterministic


def test_the_simulator_page_shows_every_kind_of_problem() -> None:
    text = (DOCS / "simulator.md").read_text(encoding="utf-8")
    shown = re.findall(r"^### (.*)\n((?:(?!^#).*\n)*)", text, flags=re.MULTILINE)
    assert tuple(kind for kind, _ in shown) == KINDS
    for kind, section in shown:
        assert f"\n{kind}: " in section
