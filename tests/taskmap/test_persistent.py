"""A block for each multiprocessor, which takes tiles in turns: the same values in six orders of threads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import taskmap
from taskmap.decompose import BLOCK, REGISTER, SHARED, THREAD, WARPGROUP, MatMul, Strategy, dim
from taskmap.ir.decompose.show import show
from taskmap.ir.interp.run import interpret
from taskmap.ir.lower.gpu import on_multiprocessors
from taskmap.ir.lower.pipeline import lower
from taskmap.ir.nodes import Dim
from taskmap.ir.target import gpu_named
from taskmap.ir.types import f16
from taskmap.ir.workers import MULTIPROCESSORS
from tests.taskmap.test_split_sum import rows_of_shared_memory
from tests.taskmap.test_strategies import close, operands, simulate

M, N, K = dim("m"), dim("n"), dim("k")


def of_threads(m: Dim, n: Dim, k: Dim, stages: int, asynchronous: bool, batch: Sequence[Dim] = ()) -> Strategy:
    """Tiles of 32×32, with copies fetched ahead, and results by way of shared memory."""
    block = MatMul(m, n, k, batch=batch).tile(32, 32).to(BLOCK).group(2).persistent()
    part = block.accumulate_in(REGISTER, store=rows_of_shared_memory).split(8)
    for name in "ab":
        part = part.move(name, SHARED)
        part = part.prefetch(stages) if stages > 1 else part
        part = part.asynchronous() if asynchronous else part
    return part.tile(4, 4).to(THREAD).split(1).tile(1, 1).done()


def of_warpgroups(m: Dim, n: Dim, k: Dim, batch: Sequence[Dim] = ()) -> Strategy:
    """wgmma; the fetching warpgroup is a tile ahead."""
    block = (
        MatMul(m, n, k, a=f16, b=f16, batch=batch).tile(64, 64).to(BLOCK).persistent().specialize(WARPGROUP, "fetch")
    )
    part = block.accumulate_in(REGISTER).split(64).move("a", SHARED).prefetch(3).move("b", SHARED).prefetch(3)
    return part.tile(64, 64).to(WARPGROUP).split(16).unroll().done()


@pytest.mark.parametrize(("stages", "asynchronous"), [(1, False), (2, False), (3, True)])
def test_threads(stages: int, asynchronous: bool) -> None:
    """With several parts, with one, and at sizes that are no multiples; three blocks take 9 or 12 tiles."""
    for shape in ((96, 96, 24), (96, 96, 8), (65, 97, 33)):
        kernel = of_threads(*shape, stages, asynchronous).kernel()
        found = simulate(on_multiprocessors(kernel, 3), operands(of_threads(*shape, 1, False), *shape))
        assert (found.runs, found.counters["blocks"]) == (6, 3)
    tree = of_threads(M, N, K, stages, asynchronous, (dim("z"),))
    simulate(on_multiprocessors(tree.kernel(), 2), operands(tree, 3, 33, 40, 20), seeds=(0,))


def test_warpgroups() -> None:
    for shape in ((192, 128, 64), (128, 192, 320)):
        tree = of_warpgroups(*shape)
        found = simulate(on_multiprocessors(tree.kernel(), 2), operands(tree, *shape), seeds=(0, 1))
        assert found.counters["blocks"] == 2
    tree = of_warpgroups(M, N, K, (dim("z"),))
    simulate(on_multiprocessors(tree.kernel(), 2), operands(tree, 2, 129, 70, 130), seeds=(0,))


def test_more_multiprocessors_than_tiles() -> None:
    tree = of_threads(M, N, K, 2, False)
    arrays = operands(tree, 33, 20, 9)
    found = taskmap.simulate(tree.kernel(), *arrays, gpu="T4", seeds=(0,))
    found.check()
    close(*arrays)
    assert found.counters["blocks"] == gpu_named("T4").cores


@pytest.mark.parametrize("gpu", ["T4", "H200"])
def test_the_grid_is_that_of_the_target(gpu: str) -> None:
    kernel, target = of_threads(512, 512, 64, 2, False).kernel(), gpu_named(gpu)
    made = lower(kernel, target=target, verify=True)
    assert kernel.launch is not None
    assert made.launch is not None
    assert kernel.launch.grid == (MULTIPROCESSORS,)
    assert made.launch.grid == (target.cores,)


def test_the_interpreter_takes_turns() -> None:
    kernel = of_threads(96, 32, 4, 1, False).kernel()
    a, b, c = operands(of_threads(96, 32, 4, 1, False), 96, 32, 4)
    c[:] = interpret(kernel, dict(zip(kernel.buffers, (a, b), strict=False)))[kernel.outputs[0]]
    close(a, b, c)
    assert not np.isnan(c).any()


def test_it_is_printed() -> None:
    assert ".tile(64, 64).to(BLOCK).specialize(WARPGROUP, 'fetch').persistent()\n" in show(of_warpgroups(M, N, K))
