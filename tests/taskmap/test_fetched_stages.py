"""Stages that a warpgroup fetches in every way, and results that TMA stores: right in several orders of threads."""

from __future__ import annotations

import numpy as np
import pytest

import taskmap
from taskmap.decompose import BLOCK, REGISTER, SHARED, WARPGROUP, MatMul, Strategy, dim
from taskmap.ir import repeat, spatial
from taskmap.ir.decompose.show import show
from taskmap.ir.nodes import Dim, Invoke, Kernel
from taskmap.ir.types import TensorType, f16, tf32
from taskmap.ir.visit import walk_stmts
from tests.taskmap.test_strategies import operands, simulate

M, N, K = dim("m"), dim("n"), dim("k")


def invoked(kernel: Kernel) -> set[str]:
    """The instructions of a kernel."""
    return {s.instruction.name for s in walk_stmts(kernel.body) if isinstance(s, Invoke)}


def by_tma(copy: Strategy) -> Strategy:
    """Results by way of shared memory."""
    return copy.move("src", SHARED).tile(64, 64).to(WARPGROUP).done().asynchronous()


def stored(m: Dim, n: Dim, k: Dim, *, persistent: bool = False) -> Strategy:
    """Two warpgroups, whose results TMA stores."""
    tree = MatMul(m, n, k, a=f16, b=f16).tile(128, 64).to(BLOCK).specialize(WARPGROUP, "fetch")
    tree = (tree.persistent() if persistent else tree).accumulate_in(REGISTER, store=by_tma).split(64)
    tree = tree.move("a", SHARED).prefetch(2).move("b", SHARED).prefetch(2)
    return tree.tile(64, 64).to(WARPGROUP).split(16).unroll().done()


@pytest.mark.parametrize("persistent", [False, True])
def test_results_leave_by_tma(persistent: bool) -> None:
    for shape in ((128, 64, 64), (200, 72, 72)):
        tree = stored(*shape, persistent=persistent)
        kernel = tree.kernel()
        assert {"tma_store_2d", "tma_wait"} <= invoked(kernel)
        assert ("tma_wait_read" in invoked(kernel)) == persistent
        simulate(kernel, operands(tree, *shape), seeds=(0, 1))
    assert ".done().asynchronous()" in show(tree)


def test_threads_store_lines_that_are_not_aligned() -> None:
    tree = stored(M, N, K)
    assert not any(name.startswith("tma_") for name in invoked(tree.kernel()))
    simulate(tree.kernel(), operands(tree, 70, 65, 30), seeds=(0,))


def test_lines_run_along_columns() -> None:
    """TMA copies both operands as they lie, and wgmma reads them as they come: a has neighbours along m, b along k."""
    a, b = TensorType(f16, (72, 136), strides=(1, 72)), TensorType(f16, (136, 64), strides=(1, 136))
    tree = MatMul(72, 64, 136, a=a, b=b).tile(64, 64).to(BLOCK).specialize(WARPGROUP, "fetch").accumulate_in(REGISTER)
    for name in "ab":
        tree = tree.split(64) if name == "a" else tree
        tree = tree.move(name, SHARED).storage("column").prefetch(2)
    tree = tree.tile(64, 64).to(WARPGROUP).split(16).unroll().done()
    x, y, c = operands(tree, 72, 64, 136)
    assert "tma_load_2d" in invoked(tree.kernel())
    simulate(tree.kernel(), [np.asfortranarray(x), np.asfortranarray(y), c], seeds=(0, 1))


@pytest.mark.parametrize("stages", [2, 4])
def test_threads_copy_asynchronously(stages: int) -> None:
    """Copies land some parts after they were issued; a decomposition of the copy is for threads, tile after tile."""
    share = repeat(1, 1) * spatial(16, 8)
    tree = MatMul(72, 64, 264, a=f16, b=f16).tile(64, 64).to(BLOCK).specialize(WARPGROUP, "fetch")
    tree = tree.accumulate_in(REGISTER).split(64)
    tree = tree.move("a", SHARED, lambda copy: copy.tile(16, 64).done(by=share)).prefetch(stages).asynchronous()
    tree = tree.move("b", SHARED).prefetch(stages).tile(64, 64).to(WARPGROUP).split(16).unroll().done()
    source = simulate(tree.kernel(), operands(tree, 72, 64, 264), seeds=(0, 1)).source
    assert "for (int copied = 0; copied < 4; copied++)" in source.text
    assert f"tm_cp_async_wait<{stages - 2}>" in source.text


def test_a_sum_of_one_part_is_set_by_its_first_product() -> None:
    source = simulate(stored(128, 64, 64).kernel(), operands(stored(128, 64, 64), 128, 64, 64), seeds=(0,)).source
    assert "total[r" not in source.text


def test_operands_are_rounded_where_they_are_fetched() -> None:
    tree = MatMul(72, 64, 40).tile(64, 64).to(BLOCK).specialize(WARPGROUP, "fetch").accumulate_in(REGISTER).split(32)
    tree = tree.move("a", SHARED, dtype=tf32).prefetch(2).move("b", SHARED, dtype=tf32).storage("column").prefetch(2)
    tree = tree.tile(64, 64).to(WARPGROUP).split(8).unroll().done()
    a, b, c = operands(tree, 72, 64, 40)
    found = taskmap.simulate(tree.kernel(), a, b, c, seeds=(0,))
    found.check()
    np.testing.assert_allclose(c, a.astype(np.float64) @ b, rtol=0, atol=2e-2)
    assert "tm_round_tf32" in found.source.text
