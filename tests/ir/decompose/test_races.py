"""Barriers left out: refused where threads provably meet, else shown, and judged by the simulator."""

from __future__ import annotations

import numpy as np
import pytest

import taskmap
from taskmap.decompose import BLOCK, REGISTER, SHARED, THREAD, WARP, MatMul, Move, Strategy, dim, micro_kernel
from taskmap.ir import spatial
from taskmap.ir.errors import ScheduleError
from taskmap.ir.nodes import Barrier
from taskmap.ir.types import f32
from taskmap.ir.visit import walk_stmts
from tests.ir.decompose.micro_scripts import forwards
from tests.ir.decompose.test_kernels import multiply

M, N, K = dim("m"), dim("n"), dim("k")


def barriers(tree: Strategy) -> int:
    return sum(isinstance(s, Barrier) for s in walk_stmts(tree.kernel().body))


def own_rows(*, synchronised: bool) -> Strategy:
    """Each thread copies the row of a that it reads."""
    tree = MatMul(M, N, K).tile(32, 4).to(BLOCK).accumulate_in(REGISTER).split(4).move("a", SHARED, by=spatial(32, 1))
    return (tree if synchronised else tree.no_sync()).tile(1, 4).to(THREAD).split(1).tile(1, 1).done()


def both(*, first: bool, second: bool) -> Strategy:
    """Both operands in shared memory, shared by all threads."""
    tree = MatMul(M, N, K).tile(16, 16).to(BLOCK).accumulate_in(REGISTER).split(8).move("a", SHARED)
    tree = (tree if first else tree.no_sync()).move("b", SHARED)
    return (tree if second else tree.no_sync()).tile(2, 2).to(THREAD).split(1).tile(1, 1).done()


def test_threads_that_read_what_they_copied_need_no_barrier() -> None:
    assert barriers(own_rows(synchronised=True)) == 2
    assert barriers(own_rows(synchronised=False)) == 0
    assert ".no_sync()" in str(own_rows(synchronised=False))
    multiply(own_rows(synchronised=False), (33, 7, 9))


def test_a_barrier_that_another_copy_needs_stays() -> None:
    """The barriers before the first copy and after the second serve both."""
    assert barriers(both(first=True, second=False)) == barriers(both(first=True, second=True)) == 2
    multiply(both(first=True, second=False), (17, 16, 9))


@pytest.mark.parametrize(("first", "second"), [(False, True), (False, False)])
def test_a_proven_race_names_threads_and_bytes(first: bool, second: bool) -> None:
    with pytest.raises(ScheduleError, match=r"thread \d+ writes bytes \d+ to \d+ of a_shared, thread \d+ reads them"):
        both(first=first, second=second).kernel()
    assert "barrier" not in str(both(first=first, second=second)).replace("no_sync", "")


def undecided() -> Strategy:
    """A micro-kernel copies a, in an order that the tree does not know."""
    copy = micro_kernel(forwards, Move(f32[32, 4]), BLOCK, (taskmap.decompose.GLOBAL, SHARED))
    tree = MatMul(64, 4, 16).tile(32, 4).to(BLOCK).accumulate_in(REGISTER).split(4)
    tree = tree.move("a", SHARED, lambda c: c.done(copy)).no_sync()
    return tree.tile(1, 1).to(THREAD).split(1).tile(1, 1).done()


def test_what_is_not_known_is_said_and_the_simulator_judges() -> None:
    tree = undecided()
    assert "no barrier, and whether threads meet is undecided: a micro-kernel copies a" in str(tree)
    assert barriers(tree) == 0
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((64, 16), (16, 4)))
    found = taskmap.simulate(tree.kernel(), a, b, np.empty((64, 4), np.float32), seeds=(0, 1))
    assert any("race" in p.kind for p in found.problems)


def test_lanes_of_a_warp_are_not_ordered_either() -> None:
    tree = MatMul(M, N, K).tile(16, 16).to(BLOCK).accumulate_in(REGISTER).split(8).move("a", SHARED).no_sync()
    tree = tree.tile(16, 16).to(WARP).tile(2, 4).to(THREAD).split(1).tile(1, 1).done()
    with pytest.raises(ScheduleError, match=r"nothing orders the two"):
        tree.kernel()
