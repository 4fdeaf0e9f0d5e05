"""Stored tasks are found by an equal task, and only by an equal one."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from taskmap.backend.cuda.source import CudaSource
from taskmap.backend.cuda.tensor_map import MapParameter
from taskmap.backend.program.sizes import sizes_function
from taskmap.backend.store.key import KernelSource
from taskmap.compile.task_store import TaskKernel, TaskStore, entry_key
from taskmap.ir.construct import ceil_div
from taskmap.ir.nodes import Dim, Var
from taskmap.ir.target import cpu_target
from taskmap.ir.types import f16
from taskmap.schedules import Choice
from taskmap.util.metrics import metrics
from tests.taskmap.compare import assert_like, compiled, since

CHOICE = Choice("cpu.matmul", "tile=6x2v")
KERNEL = TaskKernel(KernelSource("f", "void f(void) {}", ("typedef int a;", "typedef a b;"), True), "by hand", CHOICE)
TARGET = cpu_target("avx2", 2)


def test_an_entry_comes_back_as_it_was(tmp_path: Path) -> None:
    store = TaskStore(tmp_path)
    assert store.find("ab12") is None
    store.add("ab12", KERNEL)
    assert store.find("ab12") == KERNEL
    plain = replace(KERNEL, source=KernelSource("g", "text", "prelude"))
    store.add("ab13", plain)
    assert store.find("ab13") == plain


def test_an_entry_for_a_gpu_comes_back_with_its_grid(tmp_path: Path) -> None:
    n, m = Var("n"), Var("m")
    grid: tuple[Dim, ...] = (ceil_div(n * 2, 256), m, 3)
    seen = MapParameter(1, f16, (64, 128), (128, 1), (32, 64), 128, 8)
    source = CudaSource(
        "f", "text", ("base",), True, grid, 256, 1024, (n, m), (2, 1, 1), "sm_90a", ("spills",), (seen,)
    )
    store = TaskStore(tmp_path)
    store.add("ab12", TaskKernel(source, "by hand", CHOICE))
    found = store.find("ab12")
    assert found is not None
    assert isinstance(found.source, CudaSource)
    assert sizes_function(found.source.grid, found.source.dims)((1000, 7)) == (8, 7, 3)
    assert replace(found.source, grid=grid, dims=(n, m)) == source


def test_a_grid_that_cannot_be_written_down_is_not_kept(tmp_path: Path) -> None:
    source = CudaSource("f", "text", (), False, (Var("unknown"),), 32, 0, ())
    store = TaskStore(tmp_path)
    store.add("ab12", TaskKernel(source, "by hand", CHOICE))
    assert store.find("ab12") is None


@pytest.mark.parametrize("damage", ["", "{", '{"key": 1}', "edited"])
def test_a_damaged_entry_counts_as_missing(tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    store = TaskStore(tmp_path)
    store.add("ab12", KERNEL)
    (path,) = tmp_path.rglob("*.json")
    text = path.read_text()
    path.write_text(text.replace("void f", "void g") if damage == "edited" else damage)
    with caplog.at_level(logging.WARNING):
        assert store.find("ab12") is None
    assert "damaged entry" in caplog.text
    store.add("ab12", KERNEL)
    assert store.find("ab12") == KERNEL


def test_a_folder_that_cannot_be_written_keeps_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = TaskStore(tmp_path / "file" / "below")
    store.add("ab12", KERNEL)
    assert not list(tmp_path.rglob("*.json"))


def test_everything_that_can_change_the_c_changes_the_key() -> None:
    keys = {
        entry_key("task", TARGET, "1"),
        entry_key("other task", TARGET, "1"),
        entry_key("task", replace(TARGET, vector_bytes=64), "1"),
        entry_key("task", replace(TARGET, l2=1 << 19), "1"),
        entry_key("task", replace(TARGET, cores=4), "1"),
        entry_key("task", TARGET, "2"),
        entry_key("task", TARGET, "1", "tile=6x4v"),
    }
    assert len(keys) == 7


def test_a_second_compilation_schedules_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskmap.compile.kernels.compiler_version", lambda: "the same")
    x = torch.randn(4, 6)
    counts = []
    for _ in range(2):
        torch._dynamo.reset()
        before = metrics()
        assert_like(compiled(lambda x: (x.tanh() @ x.t()).softmax(-1))(x), (x.tanh() @ x.t()).softmax(-1))
        counts.append(since(before))
    assert counts[0].tasks_scheduled > 0
    assert counts[0].tasks_found == counts[1].tasks_scheduled == 0
    assert counts[1].tasks_found == counts[0].tasks_scheduled


def test_a_kernel_tells_which_ones_it_replaces(tmp_path: Path) -> None:
    choices = [Choice("cuda.matmul", name) for name in "abc"]
    first, second, third = (TaskKernel(KernelSource(c.config, ""), f"cuda.matmul({c.config}: 2)", c) for c in choices)
    made = first.replaced_by(second, "it spills")
    last = made.replaced_by(third, "it spills too")
    assert made.schedule == "cuda.matmul(b: 2) instead of cuda.matmul(a: 2): it spills"
    assert last.schedule == (
        "cuda.matmul(c: 2) instead of cuda.matmul(b: 2) instead of cuda.matmul(a: 2): it spills too"
    )
    store = TaskStore(tmp_path)
    store.add("cd34", last)
    assert store.find("cd34") == last
