"""Strategies of stages: softmax of rows, sums of symbolic length, element-wise work, in the simulator and on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import taskmap
from examples.strategies import softmax_rows as softmax_module
from examples.strategies.cpu_convolution import cpu_convolution
from examples.strategies.softmax_rows import held, long_softmax_rows, softmax, softmax_rows
from examples.strategies.transpose import transpose
from taskmap.decompose import (
    BLOCK,
    CORE,
    LANES,
    REGISTER,
    SHARED,
    THREAD,
    WARP,
    Compute,
    MatMul,
    Reduce,
    Strategy,
    Task,
    dim,
    reduced,
    stage,
    tensor,
)
from taskmap.ir import repeat, spatial
from taskmap.ir.errors import ScheduleError
from taskmap.ir.types import f16, f32, i32

M, N = dim("m"), dim("n")
SIZES = [(4, 128), (5, 97), (3, 1), (2, 1009)]


def exact_softmax(x: NDArray[Any]) -> NDArray[Any]:
    power = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
    return np.asarray(power / power.sum(-1, keepdims=True))


def simulate(tree: Strategy, *arrays: NDArray[Any], **options: Any) -> taskmap.Simulation:
    found = taskmap.simulate(tree.kernel(), *arrays, seconds=600.0, **options)
    found.check()
    assert found.deterministic
    return found


@pytest.mark.parametrize("shape", SIZES)
def test_softmax_in_six_orders_of_threads(shape: tuple[int, int]) -> None:
    x = np.random.default_rng(shape[1]).standard_normal(shape).astype(np.float32) * 4
    y = np.full_like(x, np.nan)
    found = simulate(softmax_rows(M, shape[1]), x, y)
    assert found.runs == 6
    np.testing.assert_allclose(y, exact_softmax(x), rtol=0, atol=2e-6)


@pytest.mark.parametrize(("shape", "threads"), [((3, 1009), 256), ((2, 97), 64), ((2, 40), 32)])
def test_softmax_of_rows_that_blocks_hold(shape: tuple[int, int], threads: int) -> None:
    x = np.random.default_rng(shape[1]).standard_normal(shape).astype(np.float32) * 4
    y = np.full_like(x, np.nan)
    found = simulate(long_softmax_rows(M, shape[1], threads), x, y)
    assert found.runs == 6
    np.testing.assert_allclose(y, exact_softmax(x), rtol=0, atol=2e-6)
    exchanges = 2 if threads > 32 else 0  # one for each sum that warps share
    assert found.counters["barriers"] == exchanges * shape[0]


def test_a_sum_of_threads_that_are_no_power_of_two() -> None:
    for threads in (16, 48):
        with pytest.raises(ScheduleError, match=f"{threads} threads share a sum"):
            long_softmax_rows(M, 96, threads).kernel()


def test_a_block_that_takes_one_row_after_another() -> None:
    """Its warps exchange sums in the same memory time and again."""
    rows = held(Compute(softmax(M, 100)).tile(3, 128).to(BLOCK).tile(1, 128), REGISTER)
    x = np.random.default_rng(0).standard_normal((7, 100)).astype(np.float32)
    y = np.full_like(x, np.nan)
    by = repeat(1, 2) * spatial(1, 64)
    simulate(rows.done(by=by), x, y)
    np.testing.assert_allclose(y, exact_softmax(x), rtol=0, atol=2e-6)
    given = tensor("x", f32[M, 100])
    highest = stage("highest", (M,), lambda i: reduced("max", 100, lambda k: given[i, k]))
    less = Compute(Task.of("less", highest, stage("y", (M, 100), lambda i, j: given[i, j] - highest[i])))
    once = less.tile(3, 128).to(BLOCK).tile(1, 128).move("x", REGISTER).move("highest", REGISTER).done(by=by)
    simulate(once, x, y)
    np.testing.assert_array_equal(y, x - x.max(-1, keepdims=True))


@pytest.mark.parametrize("shape", SIZES)
def test_softmax_on_a_cpu(shape: tuple[int, int]) -> None:
    x = np.random.default_rng(shape[1]).standard_normal(shape).astype(np.float32) * 4
    y = np.full_like(x, np.nan)
    taskmap.build(softmax_rows(M, shape[1], CORE).kernel())(x, y)
    np.testing.assert_allclose(y, exact_softmax(x), rtol=0, atol=4e-6)


def test_a_row_is_read_once() -> None:
    x = np.ones((8, 128), np.float32)
    count = simulate(softmax_rows(M, 128), x, np.full_like(x, np.nan), seeds=(0,)).counters
    assert count["global sectors"] == 2 * x.nbytes // 32
    assert count["barriers"] == 0


@pytest.mark.parametrize("shape", [(128, 128), (129, 257), (1, 70)])
def test_a_transpose_in_six_orders_of_threads(shape: tuple[int, int]) -> None:
    x = np.arange(shape[0] * shape[1], dtype=np.float32).reshape(shape)
    y = np.full((shape[1], shape[0]), np.nan, np.float32)
    found = simulate(transpose(M, N), x, y)
    np.testing.assert_array_equal(y, x.T)
    count = found.counters
    if shape == (128, 128):
        assert count["global sectors"] == 2 * x.nbytes // 32
        assert count["shared wavefronts"] == count["shared ideal"]


def test_the_tree_of_softmax(golden: Callable[[str, str], None]) -> None:
    assert len(Path(softmax_module.__file__).read_text(encoding="utf-8").splitlines()) <= 50
    tree = softmax_rows(M, 100)
    assert str(tree.mapping("x")) == str(tree.mapping("power")) == "repeat(1, 4) * spatial(1, 32)"
    golden("decompose_softmax.txt", str(tree))


def test_the_meaning_of_every_stage() -> None:
    x = np.random.default_rng(0).standard_normal((3, 7)).astype(np.float32)
    task = softmax(M, 7)
    np.testing.assert_allclose(Compute(task).meaning(x=x), exact_softmax(x), atol=1e-6)
    np.testing.assert_array_equal(Reduce(task, "highest").meaning(x=x), x.max(-1))
    np.testing.assert_allclose(Compute(task, "power").meaning(x=x), np.exp(x - x.max(-1, keepdims=True)), rtol=1e-6)


REDUCTIONS: dict[str, Callable[..., Any]] = {"sum": np.sum, "max": np.max, "min": np.min, "prod": np.prod}


@pytest.mark.parametrize("op", REDUCTIONS)
@pytest.mark.parametrize("dtype", [f32, i32])
def test_reductions_of_symbolic_length(op: str, dtype: Any) -> None:
    """By warps and by threads in the simulator, and by cores: parts beyond the end are neutral."""
    x = tensor("x", dtype[M, N])
    spec = Reduce(Task.of("rows", stage("y", (M,), lambda i: reduced(op, N, lambda k: x[i, k]))))
    rng = np.random.default_rng(1)
    for shape in ((5, 70), (33, 1)):
        values = rng.integers(-2, 3, shape) * (1 if op != "prod" else 0.5 if dtype is f32 else 1)
        given = values.astype(np.float32 if dtype is f32 else np.int32)
        exact = REDUCTIONS[op](given.astype(np.float64), axis=1)
        by_warps = spec.tile(2).to(BLOCK).tile(1).to(WARP).accumulate_in(REGISTER).split(64).done()
        by_threads = spec.tile(32).to(BLOCK).tile(1).to(THREAD).accumulate_in(REGISTER).split(4).done()
        for tree in (by_warps, by_threads):
            y = np.full(shape[0], 99, given.dtype)
            simulate(tree, given, y, seeds=(0,), policies=("late",))
            np.testing.assert_allclose(y, exact, rtol=1e-6)
        y = np.full(shape[0], 99, given.dtype)
        taskmap.build(spec.tile(4).to(CORE).accumulate_in(REGISTER).split(16).done().kernel())(given, y)
        np.testing.assert_allclose(y, exact, rtol=1e-6)


def test_sums_over_several_axes() -> None:
    """A convolution of one channel: its operand is read beyond its tile, where it is."""
    h, w = dim("h"), dim("w")
    x, k = tensor("x", f32[h + 2, w + 2]), tensor("k", f32[3, 3])
    out = stage("y", (h, w), lambda i, j: reduced("sum", (3, 3), lambda r, s: x[i + r, j + s] * k[r, s]))
    spec = Reduce(Task.of("conv", out))
    values, kernel = (
        np.arange(9 * 21, dtype=np.float32).reshape(9, 21) % 7,
        np.arange(9, dtype=np.float32).reshape(3, 3),
    )
    exact = sum(values[r : r + 7, s : s + 19] * kernel[r, s] for r in range(3) for s in range(3))
    part = spec.tile(2, 16).to(CORE).accumulate_in(REGISTER).split(1).split(1).tile(1, 1)
    lanes = spec.tile(2, 16).to(CORE).accumulate_in(REGISTER).split(1).split(1).tile(1, 16).tile(1, 1).to(LANES)
    for tree in (part, lanes):
        y = np.full((7, 19), np.nan, np.float32)
        taskmap.build(tree.done().kernel())(values, kernel, y)
        np.testing.assert_array_equal(y, exact)


@pytest.mark.parametrize(
    ("shape", "window"), [((1, 8, 4, 16, 3), (3, 3)), ((2, 11, 5, 37, 2), (3, 1)), ((1, 3, 7, 7, 5), (1, 1))]
)
def test_convolution_on_a_cpu(shape: tuple[int, ...], window: tuple[int, int]) -> None:
    n, o, h, w, c = shape
    r, s = window
    rng = np.random.default_rng(o)
    x = rng.standard_normal((n, c, h + r - 1, w + s - 1)).astype(np.float32)
    weight = rng.standard_normal((o, c, r, s)).astype(np.float32)
    y = np.full((n, o, h, w), np.nan, np.float32)
    tree = cpu_convolution(dim("n"), dim("o"), dim("h"), dim("w"), dim("c"), window)
    taskmap.build(tree.kernel())(x, weight, y)
    parts = [(a, b) for a in range(r) for b in range(s)]
    taps = (
        np.einsum("ncij,oc->noij", x[:, :, a : a + h, b : b + w].astype(np.float64), weight[:, :, a, b])
        for a, b in parts
    )
    np.testing.assert_allclose(y, sum(taps), rtol=0, atol=1e-5)


def test_stages_that_are_not_moved_are_computed_where_they_are_read() -> None:
    x, bias = tensor("x", f16[M, N]), tensor("bias", f32[N])
    twice = stage("twice", (M, N), lambda i, j: x[i, j] * 2, f32)
    task = Task.of("linear", twice, stage("y", (M, N), lambda i, j: twice[i, j] + bias[j]))
    given = np.random.default_rng(0).standard_normal((33, 70)).astype(np.float16)
    added = np.random.default_rng(1).standard_normal(70).astype(np.float32)
    exact = given.astype(np.float64) * 2 + added
    spec = Compute(task)
    block = spec.tile(16, 32).to(BLOCK)
    trees = {
        "inlined": block.tile(1, 4).to(THREAD).done(),
        "in registers": block.tile(2, 4).to(THREAD).move("twice", REGISTER).done(),
        "shared": block.move("twice", SHARED).tile(2, 32).to(WARP).done(),
        "held by a block": block.move("x", REGISTER).tile(1, 4).to(THREAD).done(),
        "computed by a block": block.move("twice", REGISTER).tile(1, 4).to(THREAD).done(),
        "by a mapping": block.move("twice", REGISTER).done(by=repeat(2, 1) * spatial(8, 8) * repeat(1, 4)),
        "by chunks": block.move("x", REGISTER).done(by=spatial(16, 8)),
        "copied": block.move("x", SHARED).move("bias", SHARED).tile(2, 32).to(WARP).done(),
    }
    for name, tree in trees.items():
        y = np.full((33, 70), np.nan, np.float32)
        found = simulate(tree, given, added, y, seeds=(0, 1), policies=("late",))
        np.testing.assert_allclose(y, exact, rtol=1e-6, err_msg=name)
        assert (found.counters["barriers"] > 0) == (name in ("shared", "copied"))
    y = np.full((33, 70), np.nan, np.float32)
    taskmap.build(spec.tile(4, 16).to(CORE).tile(1, 16).tile(1, 1).to(LANES).done().kernel())(given, added, y)
    np.testing.assert_allclose(y, exact, rtol=1e-6)


@pytest.mark.parametrize("shape", [(33, 70), (8, 64), (1, 3)])
def test_threads_of_the_whole_grid(shape: tuple[int, int]) -> None:
    """Rows that end inside a vector, and threads without a tile."""
    x, bias = tensor("x", f32[M, N]), tensor("bias", f32[N])
    spec = Compute(Task.of("added", stage("y", (M, N), lambda i, j: x[i, j] + bias[j])))
    trees = {
        "elements": spec.tile(1, 1).to(THREAD).done(),
        "tiles": spec.tile(2, 4).to(THREAD).group(64).done(),
        "vectors": spec.tile(1, 4).to(THREAD).group(32).done().vectorize(4),
        "several vectors": spec.tile(2, 6).to(THREAD).group(96).done().vectorize(4),
        "of a block": spec.tile(8, 32).to(BLOCK).move("x", SHARED).tile(1, 4).to(THREAD).done().vectorize(4),
    }
    rng = np.random.default_rng(0)
    given, added = rng.random(shape, np.float32), rng.random(shape[1], np.float32)
    for name, tree in trees.items():
        y = np.full(shape, np.nan, np.float32)
        simulate(tree, given, added, y, seeds=(0, 1), policies=("late",))
        np.testing.assert_array_equal(y, given + added, err_msg=name)
        assert "threads" in str(tree)


def test_a_product_by_threads_of_the_whole_grid() -> None:
    tree = MatMul(M, N, dim("k")).tile(2, 3).to(THREAD).accumulate_in(REGISTER).split(1).tile(1, 1).done()
    rng = np.random.default_rng(0)
    a, b, c = rng.random((33, 20), np.float32), rng.random((20, 35), np.float32), np.zeros((33, 35), np.float32)
    simulate(tree, a, b, c, seeds=(0, 1), policies=("late",))
    np.testing.assert_allclose(c, a @ b, rtol=1e-5)
    launch = tree.kernel().launch
    assert launch is not None
    assert launch.threads == 256


def test_sizes_by_name() -> None:
    x = tensor("x", f32[M, N])
    mean = stage("mean", (M,), lambda i: reduced("sum", N, lambda k: x[i, k]))
    task = Task.of("means", mean, stage("y", (M,), lambda i: mean[i] / N, f32))
    tree = Reduce(task, "mean").tile(1).to(CORE).accumulate_in(REGISTER).split(8).done()
    kernel = tree.kernel(n=19)
    assert [v.name for v in kernel.dims] == ["m"]
    given, y = np.arange(57, dtype=np.float32).reshape(3, 19), np.full(3, np.nan, np.float32)
    taskmap.build(kernel)(given, y)
    np.testing.assert_array_equal(y, given.sum(-1))
