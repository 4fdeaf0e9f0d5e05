"""The SIMT product moves what the template that was written by hand moved, and waits as often: as a schedule of the
compiler, and as a tree that anyone can write."""

from __future__ import annotations

from math import gcd

import numpy as np
import pytest

import taskmap
from taskmap.decompose import BLOCK, REGISTER, SHARED, THREAD, WARP, MatMul, Strategy
from taskmap.ir import TaskMapping, repeat, spatial
from taskmap.ir.nodes import Kernel
from taskmap.ir.types import f32, f64
from taskmap.schedules.cuda.matmul.config import MatmulConfig
from taskmap.schedules.cuda.matmul.problem_view import find_product
from taskmap.schedules.cuda.matmul.template import schedule_product
from taskmap.schedules.cuda.support.tile_partition import partition_tile
from tests.schedules.cuda_running import cuda, source_of
from tests.schedules.graph_tasks import fused, matrix_product

M, N, K = 200, 132, 72
"""Rows end in a tile, columns and sums too; lines of both operands are aligned."""
COUNTED = ("global sectors", "global requests", "shared wavefronts", "shared requests", "atomics", "fences", "barriers")
COUNTS = {
    MatmulConfig("simt", 128, 128, 8, 32, 64, group=8): (9920, 782, 39168, 10656, 0, 0, 40),
    MatmulConfig("simt", 64, 64, 16, 32, 32, group=8): (14384, 1067, 51840, 13920, 0, 0, 72),
    MatmulConfig("simt", 8, 32, 8, 4, 16): (47400, 3825, 121500, 78750, 0, 0, 1250),
    MatmulConfig("simt", 32, 64, 8, 16, 32, split=3): (50612, 3467, 53235, 14679, 84, 126, 378),
}
"""Of the template that was written by hand."""


def chunks(rows: int, columns: int, threads: int) -> TaskMapping:
    """The threads that copy vectors of four elements."""
    share = partition_tile(rows, columns // 4, threads)
    assert not isinstance(share, str)
    return share.mapping


def strategy(c: MatmulConfig) -> Strategy:
    """The tree of a configuration."""
    (tm, tn), wide = c.thread_tile, tuple(gcd(n, 4) for n in c.thread_tile)
    tree = MatMul(M, N, K).tile(c.block_m, c.block_n).to(BLOCK).group(c.group)
    tree = (tree.split_sum(c.split) if c.split > 1 else tree).accumulate_in(REGISTER).split(c.block_k)
    tree = tree.move("a", SHARED, by=chunks(c.block_m, c.block_k, c.threads)).storage("column").pad(4).prefetch(2)
    tree = tree.move("b", SHARED, by=chunks(c.block_k, c.block_n, c.threads)).pad(4).prefetch(2)
    pieces = (wide[0], wide[0] * c.warp_m // tm), (wide[1], wide[1] * c.warp_n // tn)
    tree = tree.tile(c.warp_m, c.warp_n).to(WARP).tile(*pieces).to(THREAD)
    tree = tree.split(1).unroll(8).move("a", REGISTER).move("b", REGISTER)
    return tree.tile(*wide).tile(1, 1).done()


def counters(kernel: Kernel) -> dict[str, float]:
    """The counters of a kernel whose result is right."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((M, K)).astype(np.float32), rng.standard_normal((K, N)).astype(np.float32)
    c = np.full((M, N), np.nan, np.float32)
    found = taskmap.simulate(kernel, a, b, c, seeds=(0, 7), seconds=600.0)
    found.check()
    np.testing.assert_allclose(c, a.astype(np.float64) @ b, rtol=0, atol=1e-4)
    return dict(found.counters)


@pytest.mark.parametrize("config", COUNTS, ids=str)
def test_schedule_and_tree_have_the_counters_of_the_template(config: MatmulConfig) -> None:
    p = find_product(fused([matrix_product("plain", M, N, K, f32)]))
    assert p is not None
    scheduled, tree = counters(schedule_product(p, config, cuda())), counters(strategy(config).kernel())
    assert tuple(scheduled[name] for name in COUNTED) == COUNTS[config]
    assert tuple(tree[name] for name in COUNTED) == COUNTS[config]


@pytest.mark.parametrize("config", COUNTS, ids=str)
def test_the_tree_has_the_owners_of_the_template(config: MatmulConfig) -> None:
    wide = repeat(*(gcd(n, 4) for n in config.thread_tile))
    pieces = repeat(*(n // w for n, w in zip(config.thread_tile, wide.task_shape, strict=True)))
    assert strategy(config).mapping("c") == spatial(*config.warps) * pieces * spatial(4, 8) * wide


def test_four_doubles_have_one_address() -> None:
    """Two instructions move them, but they are addressed, tested and stored together."""
    p = find_product(fused([matrix_product("plain", M, N, K, f64)]))
    assert p is not None
    text = source_of(schedule_product(p, MatmulConfig("simt", 64, 64, 8, 32, 32, group=8), cuda())).text
    assert "tm_load<4, 2>(a_shared" in text
    assert "tm_load<4, 2>(b_shared" in text
    assert "tm_get<4>(total" in text
