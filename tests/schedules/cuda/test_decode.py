"""Attention of few queries on a GPU: several blocks divide the keys, heads with common keys are rows of one product."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from taskmap.backend.sim import run as sim
from taskmap.graph.nodes import Node
from taskmap.graph.ops import arithmetic
from taskmap.graph.ops.attention import attention
from taskmap.ir.errors import ScheduleError
from taskmap.ir.interp.definitions import size_of
from taskmap.ir.target import cuda_target
from taskmap.ir.types import DType, bf16, boolean, f16, f32
from taskmap.schedules.cuda.attention.problem_view import find_attention_task
from taskmap.schedules.cuda.attention.products import AttentionConfig
from taskmap.schedules.cuda.select_attention import choose, schedule_attention
from tests.schedules.cuda.test_attention import LOOSE
from tests.schedules.cuda_running import check_interpreted, check_kernel, cuda, simulated, source_of
from tests.schedules.graph_tasks import fused, tensor
from tests.schedules.random_tasks import random_array
from tests.schedules.running import Case

SPLIT = AttentionConfig("mma_m16n8k16_f16_f32", 1, 16, 16, 2, 3)


def decode(
    dtype: DType = f16, heads: int = 8, shared: int = 2, queries: int = 1, keys: int = 88, *, mask: DType | None = None,
    causal: bool = False,
) -> Case:  # fmt: skip
    """Attention of a batch of two; a mask excludes all keys for the second head's first query."""
    q, k, v = (tensor(2, h, n, 16, dtype=dtype) for h, n in ((heads, queries), (shared, keys), (shared, keys)))
    m: Node | None = None if mask is None else tensor(2, heads, queries, keys, dtype=mask)
    out = arithmetic.mul(attention(q, k, v, m, causal), 2.0)
    task = fused([out], inputs=(q, k, v) if m is None else (q, k, v, m))
    chance = random.Random(0)
    arrays = [random_array(chance, b.dtype, [size_of(n, {}) for n in b.shape]) for b in task.inputs]
    if mask is not None:
        arrays[3][:, 1, 0] = False if mask == boolean else -np.inf
    return Case(task, arrays)


@pytest.mark.parametrize("split", [1, 2, 3, 6])
@pytest.mark.parametrize(("queries", "heads", "shared"), [(1, 8, 2), (3, 8, 2), (1, 4, 4), (20, 4, 2)])
def test_keys_shared_by_blocks(queries: int, heads: int, shared: int, split: int) -> None:
    case = decode(heads=heads, shared=shared, queries=queries)
    kernel = schedule_attention(case.task, cuda(), replace(SPLIT, split=split))
    assert kernel is not None
    assert kernel.launch is not None
    rows = queries * heads // shared if queries < 16 else queries
    groups = shared if queries < 16 else heads
    assert kernel.launch.grid == (2 * groups * -(-rows // 16) * split,)
    assert len(kernel.launch.counters) == (split > 1)
    check_kernel(case, kernel, LOOSE)


@pytest.mark.parametrize("mask", [f16, boolean], ids=str)
@pytest.mark.parametrize("split", [1, 3])
def test_masks(mask: DType, split: int) -> None:
    case = decode(mask=mask, queries=2)
    kernel = schedule_attention(case.task, cuda(), replace(SPLIT, split=split))
    assert kernel is not None
    check_kernel(case, kernel, LOOSE)


@pytest.mark.parametrize("dtype", [bf16, f32], ids=str)
def test_types(dtype: DType) -> None:
    case = decode(dtype)
    multiplier = AttentionConfig.multiplier_for(dtype, cuda())
    kernel = schedule_attention(case.task, cuda(), replace(SPLIT, multiplier=multiplier, split=2))
    assert kernel is not None
    check_kernel(case, kernel, LOOSE)


def test_few_causal_queries_of_many_heads() -> None:
    case = decode(queries=3, causal=True)
    kernel = schedule_attention(case.task, cuda(), replace(SPLIT, split=1))
    assert kernel is not None
    check_kernel(case, kernel, LOOSE)
    with pytest.raises(ScheduleError, match="sees depends on the query"):
        schedule_attention(case.task, cuda(), SPLIT)


def test_in_the_interpreter() -> None:
    case = decode(keys=40)
    kernel = schedule_attention(case.task, cuda(), replace(SPLIT, split=2))
    assert kernel is not None
    check_interpreted(case, kernel, LOOSE)


def test_results_do_not_depend_on_the_order_of_blocks() -> None:
    case = decode()
    kernel = schedule_attention(case.task, cuda(), SPLIT)
    assert kernel is not None
    source = source_of(kernel)
    first, *others = (simulated(case, kernel, source, seed) for seed in (0, 1, 5, 11))
    assert all(a.tobytes() == b.tobytes() for other in others for a, b in zip(first, other, strict=True))


def test_a_block_without_keys_is_refused() -> None:
    case = decode(keys=64)
    with pytest.raises(ScheduleError, match="4 tiles of keys are not enough for 3 blocks"):
        schedule_attention(case.task, cuda(), SPLIT)


def test_decoding_fills_the_gpu_and_reads_keys_once() -> None:
    """One query of 32 heads, 4096 keys of 8: two or more blocks per multiprocessor divide 8 times 4096 keys."""
    q, k, v = (tensor(1, h, n, 128, dtype=f16) for h, n in ((32, 1), (8, 4096), (8, 4096)))
    target = cuda_target("sm_90a")
    t = find_attention_task(fused([attention(q, k, v)]))
    assert t is not None
    config = choose(t, target)
    assert isinstance(config, AttentionConfig)
    kernel = schedule_attention(t.task, target)
    assert kernel is not None
    assert kernel.launch is not None
    (blocks,) = kernel.launch.grid
    assert isinstance(blocks, int)
    assert blocks >= 2 * target.cores
    assert blocks == 8 * config.split
    assert config.queries == 16


@pytest.mark.parametrize(("keys", "shared"), [(128, False), (1024, True)])
def test_blocks_share_keys_only_if_that_saves_more_than_their_join_costs(keys: int, shared: bool) -> None:
    q, k, v = (tensor(1, 12, n, 64, dtype=f16) for n in (128, keys, keys))
    t = find_attention_task(fused([attention(q, k, v)]))
    assert t is not None
    config = choose(t, cuda_target("sm_90a"))
    assert isinstance(config, AttentionConfig)
    assert (config.split > 1) == shared


@pytest.mark.parametrize(("heads", "shared"), [(8, 2), (8, 8)])
def test_every_key_and_value_is_copied_once(heads: int, shared: int) -> None:
    case = decode(heads=heads, shared=shared, keys=96)
    kernel = schedule_attention(case.task, cuda(), SPLIT)
    assert kernel is not None
    result = np.zeros((2, heads, 1, 16), np.float16)
    report = sim.run(source_of(kernel), [*case.arrays, result], {}, outputs=[3])
    q, k, v = (a.nbytes for a in case.arrays)
    assert report.counters["copied"] == k + v + SPLIT.split * q
