"""Attention on a GPU: causal, masked, grouped queries, head sizes, known and symbolic lengths, types, layouts."""

from __future__ import annotations

import random

import pytest

from taskmap.graph.ops.attention import attention
from taskmap.ir.errors import ScheduleError
from taskmap.ir.interp.definitions import size_of
from taskmap.ir.types import DType, bf16, f16, f32
from taskmap.schedules.cuda.attention.products import AttentionConfig
from taskmap.schedules.cuda.select_attention import schedule_attention
from tests.schedules.cpu.test_attention import random_case
from tests.schedules.cuda_running import check_interpreted, check_kernel, cuda
from tests.schedules.graph_tasks import fused, tensor
from tests.schedules.random_tasks import random_array
from tests.schedules.running import Case

LOOSE = {"f32": 1e-4, "f16": 1e-2, "bf16": 6e-2}
CONFIGS = (
    AttentionConfig("mma_m16n8k16_f16_f32", 1, 16, 16, 2),
    AttentionConfig("mma_m16n8k16_f16_f32", 2, 32, 32, 2),
    AttentionConfig("mma_m16n8k16_f16_f32", 4, 16, 64, 1),
    AttentionConfig("simt", 2, 16, 16, 2),
)


@pytest.mark.parametrize("seed", range(20))
def test_random_attention(seed: int) -> None:
    case = random_case(seed, "generic", (1, 2, 5, 17, 33, 64), (5, 8, 16, 24))
    kernel = schedule_attention(case.task, cuda())
    assert kernel is not None
    check_kernel(case, kernel, LOOSE)


def plain(dtype: DType, heads: int = 2, shared: int = 1, *, queries: int = 40, depth: int = 16, causal: bool) -> Case:
    q, k, v = (tensor(1, h, queries, depth, dtype=dtype) for h in (heads, shared, shared))
    task = fused([attention(q, k, v, causal=causal)])
    chance = random.Random(0)
    return Case(task, [random_array(chance, b.dtype, [size_of(n, {}) for n in b.shape]) for b in task.inputs])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_every_configuration(config: AttentionConfig, causal: bool) -> None:
    case = plain(f16, causal=causal)
    kernel = schedule_attention(case.task, cuda(), config)
    assert kernel is not None
    text = check_kernel(case, kernel, LOOSE).text
    assert ("tm_mma_" in text) == (config.multiplier != "simt")
    assert ("cp_async_" in text) == (config.stages == 2)


@pytest.mark.parametrize(("dtype", "depth"), [(f16, 64), (f16, 128), (bf16, 64), (f32, 64), (bf16, 40)], ids=str)
def test_head_sizes(dtype: DType, depth: int) -> None:
    case = plain(dtype, queries=70, depth=depth, causal=True)
    kernel = schedule_attention(case.task, cuda())
    assert kernel is not None
    check_kernel(case, kernel, LOOSE)


def test_attention_in_the_interpreter() -> None:
    case = plain(f16, 1, queries=17, causal=True)
    kernel = schedule_attention(case.task, cuda(), CONFIGS[0])
    assert kernel is not None
    check_interpreted(case, kernel, LOOSE)


def test_refusals_say_why() -> None:
    case = plain(f16, causal=False)
    for config, why in (
        (AttentionConfig("simt", 4, 8, 16), "do not divide"),
        (AttentionConfig("simt", 64, 16, 16), "limit of 1024"),
        (AttentionConfig("simt", 4, 16, 16, 3), "one or two stages"),
        (AttentionConfig("mma_m16n8k16_bf16_f32", 4, 16, 16), "does not multiply f16"),
        (AttentionConfig("simt", 8, 512, 128), "bytes of shared memory"),
    ):
        with pytest.raises(ScheduleError, match=why):
            schedule_attention(case.task, cuda(), config)
