"""Renaming variables never merges expressions that differ only in the size that they name.

Keys of structures are in tests/ir/analysis/test_key.py, duplicates in tests/graph/passes/test_passes.py. This file
tests the
caches and plans that hold such keys, or that number and name sizes themselves: kernels of equal tasks, the task store,
the C of a kernel, memory plans, sizes at run time, tuning, ONNX graphs for all sizes, and archives.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from torch import Tensor

import taskmap
from taskmap.backend.program.memory_plan import plan_memory
from taskmap.backend.program.sizes import sizes_function
from taskmap.backend.program.structure import BufferKind, Launch, Program, ProgramBuffer
from taskmap.compile.task_store import entry_key
from taskmap.ir.analysis.key import task_key
from taskmap.ir.construct import cast, reduce
from taskmap.ir.nodes import Buffer, Dim, Expr, Var
from taskmap.ir.target import cpu_target
from taskmap.ir.task import Stage, Task
from taskmap.ir.types import f32
from taskmap.onnx.model import load_model
from taskmap.schedules import problem
from taskmap.torch_backend import compile_fx
from taskmap.util.metrics import metrics
from taskmap.util.size_codec import record_of, size_from
from tests.onnx.models import FLOAT, Array, model
from tests.schedules.running import run_task

TARGET = cpu_target("avx2", 2)
SIZES = list(itertools.permutations((2, 3, 5)))


def scaled_sums(rows: Dim, columns: Dim, divisor: Dim, dims: tuple[Var, ...]) -> Task:
    """out[i] = sum over j of x[i, j] / divisor."""
    x, out = Buffer("x", f32, (rows, columns)), Buffer("out", f32, (rows,))
    i, j = Var("i"), Var("j")
    body = reduce("sum", [(j, columns)], x[i, j]) / cast(as_size(divisor), f32)
    return Task("sums", (x,), (Stage(out, (i,), body, "sums"),), (out,), dims)


def as_size(n: Dim) -> Expr:
    assert isinstance(n, Expr)
    return n


def test_stored_tasks() -> None:
    n, m, k = Var("n"), Var("m"), Var("k")

    def entry(task: Task) -> str:
        return entry_key(task_key(task), TARGET, "")

    dims = (n, m)
    by_rows, by_columns = scaled_sums(n, m, n, dims), scaled_sums(n, m, m, dims)
    assert entry(by_rows) != entry(by_columns)
    assert entry(scaled_sums(n, n, n, (n,))) != entry(by_rows)
    assert entry(scaled_sums(n, m, k, (n, m, k))) != entry(scaled_sums(n, m, k, (n, k, m)))
    assert entry(by_rows) == entry(scaled_sums(k, n, k, (k, n)))  # renamed throughout: one kernel serves both


@pytest.mark.parametrize("which", [0, 1, 2])
def test_kernels_in_which_all_sizes_have_one_name(which: int) -> None:
    dims = (Var("n"), Var("n"), Var("n"))
    task = scaled_sums(dims[0], dims[1], dims[which], dims)
    x = np.linspace(1, 2, 3 * 5, dtype=np.float32).reshape(3, 5)
    (got,) = run_task(task, [x], dict(zip(dims, (3, 5, 7), strict=True)))
    np.testing.assert_allclose(got, x.sum(1) / (3, 5, 7)[which], rtol=1e-5)


def test_one_kernel_for_two_groups_with_their_sizes_in_another_order() -> None:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return (x / x.shape[0]).softmax(1), (y / y.shape[0]).softmax(1)

    torch._dynamo.reset()
    run, before = torch.compile(f, backend=compile_fx), metrics()
    for a, b, _ in SIZES:
        x, y = torch.randn(a, b), torch.randn(b, a)
        for t, d in itertools.product((x, y), (0, 1)):
            torch._dynamo.mark_dynamic(t, d)
        for mine, wanted in zip(run(x, y), f(x, y), strict=True):
            torch.testing.assert_close(mine, wanted)
    assert metrics().graphs - before.graphs == 1
    assert metrics().tasks_shared > before.tasks_shared


@pytest.mark.parametrize("name", ["m", "n"])
def test_memory_plans(name: str) -> None:
    n, m = Var("n"), Var(name)
    sizes: list[Dim] = [n * m * 4, m * n * 4, n * n * 4, m * m * 4]
    buffers = tuple(ProgramBuffer(BufferKind.ARENA, size) for size in sizes)
    plan = plan_memory(Program(buffers, (Launch("k", (0, 1, 2, 3)),), (n, m)))
    regions = [plan.places[i][0] for i in range(4)]
    assert name == "n" or regions[0] == regions[1]  # factors of one name may stand in either order
    assert len(set(regions[1:])) == 3
    total = sizes_function([plan.bytes], (n, m))
    for a, b in ((2, 500), (500, 2)):
        assert total((a, b))[0] >= 4 * (2 * a * b + a * a + b * b)


def test_sizes_at_run_time_and_in_archives() -> None:
    n, m = Var("n"), Var("n")
    size: Dim = n * 3 + m // 2
    assert sizes_function([size, n, m], (n, m))((5, 8)) == (19, 5, 8)
    assert sizes_function([size, n, m], (m, n))((5, 8)) == (26, 8, 5)
    names, other = {n: "n0", m: "n1"}, {"n0": Var("n"), "n1": Var("n")}
    again = size_from(record_of(size, names), other)
    assert sizes_function([again], (other["n0"], other["n1"]))((5, 8)) == (19,)
    assert record_of(size, names) != record_of(size, {n: "n1", m: "n0"})


def test_tuned_problems_tell_likely_sizes_apart() -> None:
    n, m, k = Var("n"), Var("n"), Var("n")

    def product(rows: Dim, columns: Dim) -> Task:
        a, b, out = Buffer("a", f32, (rows, k)), Buffer("b", f32, (k, columns)), Buffer("out", f32, (rows, columns))
        i, j, s = Var("i"), Var("j"), Var("s")
        stage = Stage(out, (i, j), reduce("sum", [(s, k)], a[i, s] * b[s, j]))
        return Task("p", (a, b), (stage,), (out,), (n, m, k), 0)

    hints = {n: 96, m: 160, k: 64}
    found = [problem(product(*sizes), TARGET, hints) for sizes in ((n, m), (m, n), (n, n), (m, m))]
    assert None not in found
    assert len(set(found)) == 4


def dimensions_of_three_inputs() -> onnx.ModelProto:
    """The mean over the rows of each of three matrices a × b, b × c, c × a."""
    nodes = [helper.make_node("ReduceMean", [x, "rows"], [f"mean_{x}"], keepdims=0) for x in "xyz"]
    shapes: dict[str, tuple[int, list[Any]]] = {x: (FLOAT, [x, following[x]]) for x in "xyz"}
    return model(nodes, shapes, ["mean_x", "mean_y", "mean_z"], {"rows": np.array([0])})


following = {"x": "y", "y": "z", "z": "x"}


def matrices(sizes: tuple[int, ...]) -> list[Array]:
    a, b, c = sizes
    return [np.linspace(1, 2, n * m, dtype=np.float32).reshape(n, m) for n, m in ((a, b), (b, c), (c, a))]


def test_onnx_graphs_for_all_sizes_and_their_archives(tmp_path: Path) -> None:
    path = tmp_path / "three.onnx"
    onnx.save(dimensions_of_three_inputs(), path)
    run, before = load_model(path), metrics().graphs
    taskmap.compile_onnx(path, tmp_path / "three.taskmap")
    archived = taskmap.load(tmp_path / "three.taskmap")
    for sizes in SIZES:
        given = matrices(sizes)
        for found in (run(*given), archived(*given)):
            for mine, x in zip(found, given, strict=True):
                np.testing.assert_allclose(mine, x.mean(0), rtol=1e-5)
    assert metrics().graphs - before == 2  # one of the model, one of the archive
