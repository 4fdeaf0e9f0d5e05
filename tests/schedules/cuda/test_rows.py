"""Rows on a GPU: softmax, norms, extrema and sums, over many shapes, layouts and types, known and symbolic."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from taskmap.graph.ops import norms, reductions, softmax
from taskmap.ir.decompose.lowering import kernel_on
from taskmap.ir.decompose.strategy import Strategy
from taskmap.ir.errors import ScheduleError, UnsupportedError
from taskmap.ir.interp.definitions import size_of
from taskmap.ir.nodes import Buffer, Dim, Kernel, Var
from taskmap.schedules import schedule
from taskmap.schedules.common.row_domain import find_contiguous_rows, find_rows
from taskmap.schedules.cuda.rows.config import RowConfig
from taskmap.schedules.cuda.rows.template import schedule_rows
from tests.schedules.cpu.test_rows import centred, random_case
from tests.schedules.cuda_running import check, check_kernel, cuda, simulated, source_of
from tests.schedules.graph_tasks import channels_last, fused, layer_norm, tensor
from tests.schedules.running import Case

_LOOSE = {"f64": 1e-9, "f32": 1e-4, "f16": 1e-2, "bf16": 5e-2}


def schedulable(seed: int) -> Case | None:
    """A random task; None if no schedule takes it whole (its parts are tested instead) or no operator has this form."""
    try:
        case = random_case(seed, "generic", 120)
        schedule(case.task, cuda())
    except (ScheduleError, UnsupportedError):
        return None
    return case


@pytest.mark.parametrize("seed", range(500, 545))
def test_random_rows(seed: int) -> None:
    case = schedulable(seed)
    if case is not None:
        check(case, _LOOSE)


def test_most_random_tasks_are_taken_whole() -> None:
    assert sum(schedulable(seed) is None for seed in range(500, 600)) < 25


@pytest.mark.parametrize("length", [1, 2, 31, 32, 37, 128, 260, 1024])
def test_every_length_of_a_row(length: int) -> None:
    rng = np.random.default_rng(length)
    x = rng.standard_normal((5, length)).astype(np.float32)
    node = tensor(5, length)
    for y in (softmax.softmax(node, 1), reductions.argmax(node, 1), reductions.sum_(node, 1)):
        check(Case(fused([y]), [x]), _LOOSE)


@pytest.mark.parametrize("config", [
    RowConfig(1, 1, 24), RowConfig(8, 4, 1), RowConfig(32, 1, 1), RowConfig(64, 4, 1), RowConfig(128, 1, 1),
    RowConfig(32, 4, 0), RowConfig(256, 1, 0),
], ids=str)  # fmt: skip
def test_every_way_to_share_a_row(config: RowConfig) -> None:
    rng = np.random.default_rng(0)
    node = tensor(7, 24)
    for y in (layer_norm(node, 1, True), [softmax.softmax(node, 1)]):
        task = fused(y)
        arrays = [rng.standard_normal([size_of(d, {}) for d in b.shape]).astype(np.float32) for b in task.inputs]
        rows = find_contiguous_rows(task)
        assert rows is not None
        check_kernel(Case(task, arrays), schedule_rows(task, rows, cuda(), config), _LOOSE)


def test_the_passes_are_steps_of_a_strategy(monkeypatch: pytest.MonkeyPatch) -> None:
    trees: list[Strategy] = []

    def noted(tree: Strategy, name: str, buffers: Mapping[str, Buffer]) -> Kernel:
        trees.append(tree)
        return kernel_on(tree, name, buffers)

    monkeypatch.setattr("taskmap.schedules.cuda.rows.template.kernel_on", noted)
    for length, walk in ((1024, ".split(256)"), (Var("n"), ".split(131072)")):
        schedule(fused([softmax.softmax(tensor(4096, length), 1)]), cuda())
        text = str(trees.pop())
        assert walk in text
        assert [f"done(pass {n}, by=" in text for n in range(4)] == [True, True, True, False]


@pytest.mark.parametrize("shape", [(70, 5), (65, 33), (3, 100, 7)], ids=str)
def test_columns(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape).astype(np.float32)
    node = tensor(*shape)
    d = len(shape) - 2
    outputs = (
        [softmax.softmax(node, d)],
        [reductions.sum_(node, (d,))],
        [reductions.argmax(node, d)],
        centred(node, [d]),
    )
    for y in outputs:
        kernel = check(Case(fused(y), [x]), _LOOSE)
        assert "cuda.rows" in kernel.note


def test_statistics_of_channels() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 40, 5, 7)).astype(np.float32)
    node = tensor(*x.shape)
    y = list(reductions.var_mean(node, (0, 2, 3), 1, True))
    for strides in ({}, {node: channels_last(3, 40, 5, 7)}):
        assert "cuda.rows" in check(Case(fused(y, strides=strides), [x]), _LOOSE).note


def test_columns_of_any_height() -> None:
    n, m = Var("n"), Var("m")
    x = tensor(n, m)
    for y in ([softmax.softmax(x, 0)], [reductions.sum_(x, 0)]):
        for rows, columns in ((1, 1), (5, 33), (300, 2)):
            array = np.random.default_rng(0).standard_normal((rows, columns)).astype(np.float32)
            case = Case(fused(y), [array], {n: rows, m: columns})
            check_kernel(case, schedule(case.task, cuda()), _LOOSE)


def test_one_kernel_serves_all_lengths_and_counts() -> None:
    rng = np.random.default_rng(0)
    n, m = Var("n"), Var("m")
    x = tensor(n, m)
    for y in (softmax.softmax(x, 1), layer_norm(x, 1)[0], reductions.argmin(x, 1)):
        task = fused([y])
        for rows, length in ((1, 1), (3, 2), (2, 300)):
            arrays = [rng.standard_normal([{n: rows, m: length}[d] for d in b.shape]) for b in task.inputs]  # type: ignore[index]  # all sizes are symbolic
            case = Case(task, [a.astype(np.float32) for a in arrays], {n: rows, m: length})
            check_kernel(case, schedule(task, cuda()), _LOOSE)


def test_group_norm_and_rows_of_channels() -> None:
    rng = np.random.default_rng(0)
    shape, groups = (2, 6, 5, 3), 3
    x = tensor(*shape)
    w, b = tensor(shape[1]), tensor(shape[1])
    outputs = norms.group_norm(x, w, b, groups, 1e-5)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in (shape, (shape[1],), (shape[1],))]
    check(Case(fused(outputs, inputs=[x, w, b]), arrays), _LOOSE)
    soft = softmax.softmax(x, 1)  # the channels are contiguous
    check(Case(fused([soft], strides={x: channels_last(*shape), soft: channels_last(*shape)}), arrays[:1]), _LOOSE)


def test_a_row_is_read_once() -> None:
    task = fused([softmax.softmax(tensor(4, 512), 1)])
    note = schedule(task, cuda()).note
    assert note.endswith("registers)")
    assert "passes=3" in note


LENGTH = Var("length")
LONG: dict[str, tuple[tuple[Dim, ...], RowConfig, int]] = {
    "walked by few threads": ((2, 1 << 17), RowConfig(8, 1, 0), 1),
    "a tail": ((2, 70_004), RowConfig(8, 4, 0), 1),
    "of any length": ((2, LENGTH), RowConfig(8, 1, 0), 1),
    "shared by blocks": ((1, 100_003), RowConfig(32, 1, 0, parts=2), 1),
    "columns": ((1 << 15, 5), RowConfig(4, 1, 0, columns=32), 0),
}


@pytest.mark.parametrize("name", LONG)
def test_long_sums_are_exact(name: str) -> None:
    """Sums of positive numbers, in which rounding errors cannot cancel."""
    shape, config, axis = LONG[name]
    dims = {LENGTH: 1 << 16}
    x = np.random.default_rng(0).random([size_of(d, dims) for d in shape]).astype(np.float32)
    node = tensor(*shape)
    for y, want in (
        (reductions.sum_(node, [axis]), x.astype(np.float64).sum(axis)),
        (reductions.mean(node, [axis]), x.astype(np.float64).mean(axis)),
    ):
        case = Case(fused([y]), [x], dims if name == "of any length" else {})
        rows = find_rows(case.task)
        assert rows is not None
        kernel = schedule_rows(case.task, rows, cuda(), config)
        (got,) = simulated(case, kernel, source_of(kernel))
        assert np.abs(got.reshape(want.shape) / want - 1).max() <= 2.0**-22
