"""Clusters of blocks, which fetch parts for each other: right in several orders of threads, with fewer sectors read."""

from __future__ import annotations

import pytest

import taskmap
from taskmap.decompose import BLOCK, CLUSTER, REGISTER, SHARED, THREAD, WARPGROUP, MatMul, Strategy, dim
from taskmap.ir.decompose.show import show
from taskmap.ir.errors import ScheduleError
from taskmap.ir.nodes import Dim
from taskmap.ir.types import f16
from tests.taskmap.test_strategies import operands, simulate

M, N, K = dim("m"), dim("n"), dim("k")


def fetched(m: Dim, n: Dim, k: Dim, sent: str, order: str = "row", *, persistent: bool = False) -> Strategy:
    """Four blocks of 64×64 in a cluster; the operands in ``sent`` are fetched together."""
    tree = MatMul(m, n, k, a=f16, b=f16).tile(128, 128).to(CLUSTER)
    tree = (tree.persistent() if persistent else tree).tile(64, 64).to(BLOCK).layout(order)
    tree = tree.specialize(WARPGROUP, "fetch").accumulate_in(REGISTER).split(64)
    for name in "ab":
        tree = tree.move(name, SHARED).prefetch(3)
        tree = tree.multicast(CLUSTER) if name in sent else tree
    return tree.tile(64, 64).to(WARPGROUP).split(16).unroll().done()


@pytest.mark.parametrize("order", ["row", "column"])
def test_blocks_fetch_for_each_other(order: str) -> None:
    """Every part is read once by the cluster instead of twice, by all orders of threads."""
    counted = {}
    for sent in ("", "b", "ab"):
        tree = fetched(128, 128, 256, sent, order)
        launch = tree.kernel().launch
        assert launch is not None
        assert launch.cluster == (4,)
        counted[sent] = simulate(tree.kernel(), operands(tree, 128, 128, 256)).counters["global sectors"]
    part = 128 * 256 * 2 // 32  # an operand
    assert counted[""] - counted["b"] == counted["b"] - counted["ab"] == part


@pytest.mark.parametrize("persistent", [False, True])
def test_blocks_beyond_the_end_fetch_too(persistent: bool) -> None:
    for shape in ((72, 264, 136), (200, 72, 264)):
        tree = fetched(*shape, "ab", persistent=persistent)
        simulate(tree.kernel(), operands(tree, *shape), seeds=(0, 1))
    tree = fetched(M, N, K, "ab", persistent=persistent)  # by threads: sizes are known too late for TMA
    simulate(tree.kernel(), operands(tree, 65, 129, 70), seeds=(0,))


def test_clusters_of_threads() -> None:
    tree = MatMul(M, N, K).tile(64, 32).to(CLUSTER).group(2).tile(32, 32).to(BLOCK).accumulate_in(REGISTER)
    done = tree.split(8).move("a", SHARED).move("b", SHARED).tile(4, 4).to(THREAD).split(1).tile(1, 1).done()
    simulate(done.kernel(), operands(done, 70, 40, 20), seeds=(0, 1))
    with pytest.raises(ScheduleError, match="its blocks form clusters of 2, which need cuda:sm_90"):
        taskmap.simulate(done.kernel(), *operands(done, 70, 40, 20), gpu="A100")


def test_it_is_printed() -> None:
    text = show(fetched(M, N, K, "b", persistent=True))
    assert "MatMul(m,n,k)(GL,GL,GL)(Kernel)              .tile(128, 128).to(CLUSTER).persistent()\n" in text
    assert "MatMul(128,128,k)(GL,GL,GL)(Cluster)         .tile(64, 64).to(BLOCK)" in text
    assert ".move('b', SHARED).prefetch(3).multicast(CLUSTER)\n" in text
