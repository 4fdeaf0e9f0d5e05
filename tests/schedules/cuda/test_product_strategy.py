"""Products move what the templates that were written by hand moved, and wait as often: as schedules of the compiler,
and (by CUDA cores) as a tree that anyone can write."""

from __future__ import annotations

from dataclasses import replace
from math import gcd
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import taskmap
from taskmap.decompose import BLOCK, REGISTER, SHARED, THREAD, WARP, MatMul, Strategy
from taskmap.ir import TaskMapping, repeat, spatial
from taskmap.ir.nodes import Kernel
from taskmap.ir.types import f16, f32, f64
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


KINDS = {"f16": "float16", "f32": "float32"}
H, T = "mma_m16n8k16_f16_f32", "mma_m16n8k8_tf32_f32"
OF_TENSOR_CORES = {
    ("plain", MatmulConfig(H, 128, 128, 32, 64, 32, group=8)): (8004, 863, 6144, 5184, 0, 0, 12, 1152),
    ("left", MatmulConfig(H, 64, 32, 16, 32, 16, 3)): (12876, 1145, 7200, 5600, 0, 0, 100, 1200),
    ("right", MatmulConfig(H, 64, 64, 32, 32, 32, group=8, split=2)): (35580, 3962, 7032, 5304, 36, 48, 84, 1152),
    ("right", MatmulConfig(T, 64, 64, 16, 32, 32, 3, 8)): (15152, 1140, 11520, 8640, 0, 0, 60, 1920),
    ("plain", MatmulConfig(T, 64, 64, 16, 32, 32)): (15584, 1232, 24960, 10080, 0, 0, 72, 1920),
}
"""The same, and fragments that ldmatrix loads: of operands transposed or not, copied asynchronously or by registers."""


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


def counters(kernel: Kernel, form: str = "plain", kind: str = "f32", off: float = 1e-4) -> list[float]:
    """The counters of a kernel whose result is right."""
    rng = np.random.default_rng(0)
    x: NDArray[Any]
    y: NDArray[Any]
    x, y = rng.standard_normal((M, K)).astype(KINDS[kind]), rng.standard_normal((K, N)).astype(KINDS[kind])
    a, b = x.T.copy() if form == "left" else x, y.T.copy() if form == "right" else y
    c = np.full((M, N), np.nan, KINDS[kind])
    found = taskmap.simulate(kernel, a, b, c, seeds=(0, 7), seconds=600.0)
    found.check()
    np.testing.assert_allclose(c, x.astype(np.float64) @ y, rtol=0, atol=off)
    return [found.counters[name] for name in (*COUNTED, "ldmatrix")]


@pytest.mark.parametrize("config", COUNTS, ids=str)
def test_schedule_and_tree_have_the_counters_of_the_template(config: MatmulConfig) -> None:
    p = find_product(fused([matrix_product("plain", M, N, K, f32)]))
    assert p is not None
    assert counters(schedule_product(p, config, cuda())) == [*COUNTS[config], 0]
    assert counters(strategy(config).kernel()) == [*COUNTS[config], 0]


@pytest.mark.parametrize(("form", "config"), OF_TENSOR_CORES, ids=str)
def test_tensor_cores_have_the_counters_of_the_template(form: str, config: MatmulConfig) -> None:
    dtype = f16 if config.multiplier == H else f32
    p = find_product(fused([matrix_product(form, M, N, K, dtype)]))
    assert p is not None
    kernel = schedule_product(p, config, replace(cuda(), tf32=True))
    assert counters(kernel, form, dtype.name, off=0.03) == list(OF_TENSOR_CORES[form, config])


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
