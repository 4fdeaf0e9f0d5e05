"""Rows divided among several blocks of a GPU: the same bits in every run, counters reset to 0, and when rows divide."""

from __future__ import annotations

import numpy as np
import pytest

from taskmap.graph.build import reduction
from taskmap.graph.nodes import Node
from taskmap.graph.ops import activations, arithmetic
from taskmap.ir.errors import ScheduleError
from taskmap.ir.nodes import Dim, Kernel, Var
from taskmap.ir.target import cuda_target
from taskmap.ir.types import DType, boolean, f32, i64
from taskmap.schedules import schedule
from taskmap.schedules.common.row_domain import find_contiguous_rows
from taskmap.schedules.cuda.rows.config import RowConfig
from taskmap.schedules.cuda.rows.template import schedule_rows
from tests.schedules import cuda_running
from tests.schedules.graph_tasks import fused, tensor
from tests.schedules.running import TOLERANCE, Array, Case, compare_outputs

LOOSE = {**TOLERANCE, "f32": 1e-3}


def folded(op: str, shape: tuple[Dim, ...], dims: list[int], dtype: DType = f32) -> Node:
    return reduction(op, tensor(*shape, dtype=dtype), dims, False, op)


def numbers(*shape: int, dtype: type = np.float32) -> Array:
    drawn = np.random.default_rng(sum(shape)).standard_normal(shape)
    return (drawn > 3.5) if dtype is np.bool_ else (10 * drawn).astype(dtype) / dtype(10)


@pytest.fixture(autouse=True)
def _short_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let blocks divide rows that are short enough for the simulator."""
    monkeypatch.setattr("taskmap.schedules.cuda.rows.config._LEAST_STEPS", 1)


def check(case: Case, parts: int, interpret: bool = False) -> Kernel:
    kernel = schedule(case.task, cuda_running.cuda())
    assert f"parts={parts}" in kernel.note
    if interpret:
        cuda_running.check_interpreted(case, kernel, LOOSE)
    source = cuda_running.source_of(kernel)
    results = [cuda_running.simulated(case, kernel, source, seed) for seed in range(3)]
    compare_outputs(case, results[0], LOOSE)
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(a, b)
    return kernel


@pytest.mark.parametrize("op", ["sum", "max", "argmin"])
def test_one_long_row(op: str) -> None:
    check(Case(fused([folded(op, (8201,), [0])]), [numbers(8201)]), 4, interpret=op == "argmin")


def test_other_types() -> None:
    check(Case(fused([folded("any", (16384,), [0], boolean)]), [numbers(16384, dtype=np.bool_)]), 2)
    check(Case(fused([folded("sum", (5000,), [0], i64)]), [np.arange(5000) % 1000 - 500]), 4)


def test_columns() -> None:
    check(Case(fused([folded("sum", (600, 40), [0])]), [numbers(600, 40)]), 2, interpret=True)


def test_statistics_of_channels() -> None:
    check(Case(fused([folded("sum", (16, 2, 16, 20), [0, 2, 3])]), [numbers(16, 2, 16, 20)]), 2)


def test_what_is_fused_before_and_after() -> None:
    y = activations.relu(tensor(8192))
    total = reduction("sum", arithmetic.mul(y, y), [0], False, "sum")
    check(Case(fused([arithmetic.mul(total, 1 / 8192), y]), [numbers(8192)]), 4, interpret=True)


def test_the_length_may_be_known_late() -> None:
    n = Var("n")
    task = fused([folded("sum", (n,), [0])])
    for size in (1, 3000):
        check(Case(task, [numbers(size)], {n: size}), 4)


def test_blocks_share_only_what_is_long_and_few() -> None:
    gpu = cuda_target("sm_90a")
    assert "parts=264" in schedule(fused([folded("sum", (10_000_000,), [0])]), gpu).note
    assert "parts=4" in schedule(fused([folded("sum", (128, 64, 56, 56), [0, 2, 3])]), gpu).note
    x = tensor(1 << 20)
    twice = arithmetic.sub(x, reduction("max", x, [0], True, "max"))
    for task in (fused([folded("sum", (1500,), [0])]), fused([folded("sum", (1024, 4096), [1])]), fused([twice])):
        kernel = schedule(task, gpu)
        assert "parts" not in kernel.note
        assert kernel.own == ()


def test_a_row_that_is_walked_twice_is_refused() -> None:
    x = tensor(4096)
    task = fused([arithmetic.sub(x, reduction("max", x, [0], True, "max"))])
    rows = find_contiguous_rows(task)
    assert rows is not None
    with pytest.raises(ScheduleError, match=r"(?s)shared by 4 blocks.*last block"):
        schedule_rows(task, rows, cuda_running.cuda(), RowConfig(256, 4, 0, parts=4))
