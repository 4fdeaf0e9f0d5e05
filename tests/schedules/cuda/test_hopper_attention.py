"""Attention on Hopper: both products by warpgroups; heads that share keys, masks, causality, edges, types, refusals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from taskmap.graph.nodes import Node
from taskmap.graph.ops import activations
from taskmap.graph.ops.attention import attention
from taskmap.ir.errors import ScheduleError
from taskmap.ir.nodes import Var
from taskmap.ir.target import cuda_target
from taskmap.ir.types import DType, bf16, boolean, f16, f32
from taskmap.schedules import schedule
from taskmap.schedules.cuda.attention.problem_view import find_attention_task
from taskmap.schedules.cuda.attention.products import AttentionConfig
from taskmap.schedules.cuda.hopper.attention import HopperAttentionConfig, space, validity
from taskmap.schedules.cuda.select_attention import choose, schedule_attention
from tests.schedules.cuda.test_matmul import LOOSE, case_of
from tests.schedules.cuda_running import check_kernel, cuda
from tests.schedules.graph_tasks import Strides, fused, tensor

ONE = HopperAttentionConfig(1, 32)
TWO = HopperAttentionConfig(2, 64)


def heads(
    queries: int | Var,
    keys: int | Var,
    depth: int,
    *,
    dtype: DType = f16,
    count: int = 2,
    shared: int = 1,
    width: int = 0,
    causal: bool = False,
    mask: DType | None = None,
) -> Node:
    """Attention of one batch; ``shared`` neighbouring heads use the same keys."""
    q = tensor(1, count, queries, depth, dtype=dtype)
    k = tensor(1, count // shared, keys, depth, dtype=dtype)
    v = tensor(1, count // shared, keys, width or depth, dtype=dtype)
    m = None if mask is None else tensor(1, 1, queries, keys, dtype=mask)
    return attention(q, k, v, m, causal=causal)


def run(y: Node, config: HopperAttentionConfig, dims: dict[Var, int] | None = None) -> str:
    """The text of the kernel, after the simulator has checked it."""
    task = fused([y])
    kernel = schedule_attention(task, cuda("sm_90a"), config)
    assert kernel is not None
    return check_kernel(case_of(task, dims), kernel, LOOSE, "sm_90a").text


@pytest.mark.parametrize("overlap", [True, False])
def test_heads_of_64(overlap: bool) -> None:
    text = run(heads(70, 100, 64), replace(ONE, overlap=overlap))
    assert "tm_wgmma_m64n32k16_f16_f32<0, 0>(scores" in text
    assert "tm_wgmma_ra_m64n64k16_f16_f32<1>(sums, weights" in text


@pytest.mark.parametrize("overlap", [True, False])
def test_causal_and_shared_keys(overlap: bool) -> None:
    run(heads(140, 140, 64, count=4, shared=2, causal=True), replace(TWO, overlap=overlap))


def test_lengths_known_later() -> None:
    n, m = Var("n"), Var("m")
    y = heads(n, m, 64, count=4, shared=2, causal=True)
    texts = {run(y, TWO, {n: queries, m: keys}) for queries, keys in ((1, 1), (67, 67), (129, 140))}
    assert len(texts) == 1
    assert "tm_wgmma" in texts.pop()
    images = Var("images")
    q, k, v = (tensor(images, 2, n, 40, dtype=bf16) for _ in range(3))
    run(attention(q, k, v), replace(ONE, stages=3), {images: 2, n: 37})


def test_masks_and_heads_of_128() -> None:
    run(heads(40, 77, 128, dtype=bf16, mask=boolean, shared=2), TWO)
    run(heads(40, 33, 128, mask=f16), ONE)


def test_heads_that_fill_no_box() -> None:
    run(heads(33, 45, 40, causal=True), replace(ONE, stages=3))
    run(heads(65, 31, 72, width=24), ONE)


def test_one_tile_of_keys() -> None:
    run(heads(16, 5, 64, count=1), replace(ONE, stages=1))


def test_what_comes_after_is_fused() -> None:
    text = run(activations.relu(heads(70, 40, 64)), ONE)
    assert "const tm_vec<tm_f16, 2> relu" in text


def reason(
    y: Node, config: HopperAttentionConfig, isa: str = "sm_90a", *, strides: Mapping[Node, Strides] | None = None
) -> str:
    task = fused([y], None, strides)
    t = find_attention_task(task)
    assert t is not None
    why = validity(t, config, cuda(isa))
    assert why is not None
    with pytest.raises(ScheduleError, match="cannot be computed"):
        schedule_attention(task, cuda(isa), config)
    return why


def test_refusals_say_why() -> None:
    assert "which needs" in reason(heads(64, 64, 64), ONE, "sm_80")
    assert "f16 or bf16, not f32" in reason(heads(64, 64, 64, dtype=f32), ONE)
    assert "one or two warpgroups" in reason(heads(64, 64, 64), replace(ONE, groups=3))
    assert "multiples of 16 keys" in reason(heads(64, 64, 64), replace(ONE, keys=40))
    assert "no registers for the rest" in reason(heads(64, 64, 256), replace(ONE, keys=128))
    assert "bytes of shared memory" in reason(heads(64, 64, 128), replace(ONE, keys=128, stages=4))
    assert "multiples of 16 bytes" in reason(heads(64, 64, 60), ONE)
    n, y = Var("n"), heads(64, 64, 64)
    odd = {y.inputs[0]: (128 * n, 64 * n, n, 1)}
    assert "load the queries: its strides are not multiples of 16 bytes" in reason(y, ONE, strides=odd)


def test_the_default_is_by_warpgroups_where_they_fill_the_gpu() -> None:
    t = find_attention_task(fused([heads(256, 64, 64)]))
    assert t is not None
    assert 0 < len(space(t, cuda("sm_90a"))) <= 100
    assert isinstance(choose(t, cuda("sm_90a")), HopperAttentionConfig)
    assert isinstance(choose(t, cuda("sm_80")), AttentionConfig)
    few = find_attention_task(fused([heads(8, 64, 64)]))
    assert few is not None
    assert isinstance(choose(few, cuda("sm_90a")), AttentionConfig)


def test_what_cannot_fill_the_gpu_is_cut_finely() -> None:
    t = find_attention_task(fused([heads(144, 144, 64)]))
    assert t is not None
    chosen = choose(t, cuda_target("sm_90a"))
    assert chosen is not None
    assert chosen.queries == 16


def test_the_default_kernel_is_right() -> None:
    task = fused([heads(256, 64, 64)])
    kernel = schedule(task, cuda("sm_90a"))
    assert "cuda.attention(wgmma" in kernel.note
    check_kernel(case_of(task), kernel, LOOSE, "sm_90a", seed=7)
