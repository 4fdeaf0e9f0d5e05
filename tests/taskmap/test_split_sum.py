"""Sums that blocks, or the warps of a block, share: right in six orders of threads, at sizes that do not divide."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

import taskmap
from taskmap.decompose import BLOCK, REGISTER, SHARED, THREAD, WARP, WARPGROUP, MatMul, Strategy, dim
from taskmap.ir.decompose.show import show
from taskmap.ir.nodes import Dim
from taskmap.ir.types import f16, i32
from tests.taskmap.test_strategies import operands, simulate

M, N, K = dim("m"), dim("n"), dim("k")
Store = Callable[[Strategy], Strategy]


def rows_of_shared_memory(store: Strategy) -> Strategy:
    return store.move("src", SHARED).pad(8).done()


def of_threads(m: Dim, n: Dim, k: Dim, blocks: int = 1, workers: int = 1, batch: Sequence[Dim] = ()) -> Strategy:
    """Multiply-adds: tiles of 32×32, shared by blocks and by warps."""
    block = MatMul(m, n, k, batch=batch).tile(32, 32).to(BLOCK)
    block = block.split_sum(blocks) if blocks > 1 else block
    warp = block.accumulate_in(REGISTER).split(8).move("a", SHARED).move("b", SHARED).tile(16, 32).to(WARP)
    warp = warp.split_sum(workers) if workers > 1 else warp
    return warp.tile(4, 4).to(THREAD).split(1).tile(1, 1).done()


def of_tensor_cores(
    m: Dim, n: Dim, k: Dim, blocks: int, workers: int, stages: int = 1, store: Store | None = None
) -> Strategy:
    """Tensor instructions, with copies fetched ahead."""
    block = MatMul(m, n, k, a=f16, b=f16).tile(32, 32).to(BLOCK).group(2)
    block = block.split_sum(blocks) if blocks > 1 else block
    part = block.accumulate_in(REGISTER, store=store).split(32)
    for name in "ab":
        part = part.move(name, SHARED)
        part = part.prefetch(stages) if stages > 1 else part
        part = part.asynchronous() if stages > 2 else part
    warp = part.tile(16, 32).to(WARP)
    warp = warp.split_sum(workers) if workers > 1 else warp
    return warp.split(16).move("a", REGISTER).move("b", REGISTER).tile(16, 8).done()


def of_warpgroups(m: Dim, n: Dim, k: Dim, blocks: int) -> Strategy:
    """wgmma, with a warpgroup that fetches."""
    block = MatMul(m, n, k, a=f16, b=f16).tile(64, 64).to(BLOCK).specialize(WARPGROUP, "fetch").split_sum(blocks)
    part = block.accumulate_in(REGISTER).split(64).move("a", SHARED).prefetch(2).move("b", SHARED).prefetch(2)
    return part.tile(64, 64).to(WARPGROUP).split(16).unroll().done()


@pytest.mark.parametrize(("blocks", "workers"), [(4, 1), (1, 2), (3, 2)])
def test_threads_at_sizes_that_do_not_divide(blocks: int, workers: int) -> None:
    tree = of_threads(M, N, K, blocks, workers)
    for shape in ((64, 64, 64), (33, 65, 70), (7, 5, 3)):
        found = simulate(tree.kernel(m=shape[0], n=shape[1]), operands(tree, *shape))
        assert found.runs == 6
        assert found.counters["blocks"] == -(-shape[0] // 32) * -(-shape[1] // 32) * blocks
        assert found.source.threads == 64 * workers


def test_batches() -> None:
    tree = of_threads(M, N, K, 3, 2, (dim("z"),))
    simulate(tree.kernel(m=33, n=40, z=2), operands(tree, 2, 33, 40, 70), seeds=(0,))


@pytest.mark.parametrize(
    ("stages", "store"), [(1, rows_of_shared_memory), (2, None), (3, rows_of_shared_memory), (3, None)]
)
def test_tensor_cores_with_stages(stages: int, store: Store | None) -> None:
    for tree, shape in (
        (of_tensor_cores(M, N, K, 3, 2, stages, store), (33, 65, 130)),
        (of_tensor_cores(64, 64, 160, 2, 1, stages, store), (64, 64, 160)),  # the last block has fewer parts
        (of_tensor_cores(64, 32, 64, 4, 1, stages, store), (64, 32, 64)),  # two blocks have none
    ):
        sizes = dict(zip("mn", shape, strict=False)) if tree.root.extents[0][1] is M else {}
        simulate(tree.kernel(**sizes), operands(tree, *shape), seeds=(0, 1))


def test_warpgroups_that_are_fed() -> None:
    simulate(of_warpgroups(64, 64, 256, 2).kernel(), operands(of_warpgroups(64, 64, 256, 2), 64, 64, 256), seeds=(0, 1))
    tree = of_warpgroups(M, N, K, 3)
    simulate(tree.kernel(m=65, n=33), operands(tree, 65, 33, 100), seeds=(0,))


def test_the_first_value_is_added_once() -> None:
    whole = MatMul(32, 32, 64, a=i32, b=i32, c=i32).tile(16, 16).to(BLOCK).split_sum(2).accumulate_in(REGISTER, init=5)
    tree = whole.split(8).tile(4, 4).to(THREAD).split_sum(4).split(1).tile(1, 1).done()
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-9, 9, shape, dtype=np.int32) for shape in ((32, 64), (64, 32)))
    c = np.full((32, 32), 99, np.int32)
    taskmap.simulate(tree.kernel(), a, b, c).check()
    np.testing.assert_array_equal(c, a @ b + 5)


def test_the_mapping_is_that_of_one_part() -> None:
    """The threads of the first part hold the sums; all threads copy."""
    tree = of_threads(64, 64, 64, workers=2)
    assert (tree.mapping("c").num_workers, tree.mapping("b").num_workers) == (64, 128)
    assert tree.mapping("c") == of_threads(64, 64, 64).mapping("c")


def test_it_is_printed() -> None:
    text = show(of_threads(64, 64, 64, 4, 2))
    assert ".tile(32, 32).to(BLOCK).split_sum(4)\n" in text
    assert "MatMul(32,32,16)(GL,GL,GL)(Block)" in text
    assert ".tile(16, 32).to(WARP).split_sum(2)\n" in text
    assert "MatMul(16,32,4)(SH,SH,RF)(Warp)" in text
