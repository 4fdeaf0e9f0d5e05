"""Tuning's reference results equal PyTorch's in float64."""

import itertools

import numpy as np
import pytest
import torch
from torch.nn import functional

from taskmap.ir.types import f32
from taskmap.schedules.cpu.attention.problem import AttentionProblem
from taskmap.schedules.cpu.convolution.problem import ConvolutionProblem
from taskmap.tuning.expected import expected, unpacked
from taskmap.tuning.operands import operand

F32 = (f32, f32, f32)


def convolution(groups: int, transposed: bool, rank: int, weights: str = "plain") -> ConvolutionProblem:
    w = (4 * groups, 6) if transposed else (6 * groups, 4)
    extra = (1,) * rank if transposed else None
    return ConvolutionProblem(
        (2, 4 * groups, *(9, 8, 7)[:rank]), (*w, *(3, 2, 3)[:rank]), (2,) * rank, (1,) * rank, (2, 1, 1)[:rank], groups,
        F32, extra, weights=weights,
    )  # fmt: skip


@pytest.mark.parametrize(("groups", "transposed", "rank"), [*itertools.product((1, 3), (False, True), (1, 2, 3))])
def test_convolutions(groups: int, transposed: bool, rank: int) -> None:
    p = convolution(groups, transposed, rank)
    draw = np.random.default_rng(0)
    x, w = draw.normal(size=p.x), draw.normal(size=p.w)
    name = f"conv{'_transpose' if transposed else ''}{rank}d"
    more = {"output_padding": p.transposed} if transposed else {}
    want = getattr(functional, name)(
        torch.from_numpy(x), torch.from_numpy(w), None, p.stride, p.padding, groups=groups, dilation=p.dilation, **more
    ).numpy()
    got, limit = expected(p, [x, w])
    assert got.shape == p.out
    np.testing.assert_allclose(got, want, atol=1e-12)
    assert 1e-7 < limit < 1e-3


@pytest.mark.parametrize(("groups", "transposed"), [*itertools.product((1, 3), (False, True))])
def test_packed_weights_are_the_same_weights(groups: int, transposed: bool) -> None:
    plain, packed = (convolution(groups, transposed, 2, w) for w in ("plain", "packed4"))
    lies = operand(packed.task().inputs[1], np.random.default_rng(0)).values()
    w = unpacked(packed, lies)
    assert w.shape == plain.w
    column, group, tap = 5, groups - 1, (2, 1)
    logical = (1, column, *tap) if transposed else (group * 6 + column, 3, *tap)
    stored = (1, *tap, 1, 1) if transposed else (group, 1, *tap, 3, 1) if groups > 1 else (1, *tap, 3, 1)
    assert w[logical] == lies[stored]


@pytest.mark.parametrize(
    ("mask", "causal"), [("none", False), ("none", True), ("bool[b1qk]", False), ("f32[1hqk]", True)]
)
def test_attention(mask: str, causal: bool) -> None:
    p = AttentionProblem(2, 4, 2, 7, 9, 8, 5, (f32, f32), causal, mask)
    draw = np.random.default_rng(0)
    arrays = [operand(b, draw).values() for b in p.task().inputs]
    q, k, v = (torch.from_numpy(x) for x in arrays[:3])
    k, v = (t.repeat_interleave(2, 1) for t in (k, v))
    scores = q @ k.transpose(-1, -2) / 8**0.5
    if mask.startswith("bool"):
        scores = scores.masked_fill(torch.from_numpy(arrays[3]) == 0, -torch.inf)
    elif mask != "none":
        scores = scores + torch.from_numpy(arrays[3])
    if causal:
        scores = scores.masked_fill(torch.ones(7, 9, dtype=torch.bool).triu(1), -torch.inf)
    want = torch.nan_to_num(scores.softmax(-1)) @ v
    got, limit = expected(p, arrays)
    np.testing.assert_allclose(got, want.numpy(), atol=1e-12)
    assert 1e-7 < limit < 1e-3


@pytest.mark.parametrize("transposed", [False, True])
def test_weights_that_lie_by_channels_are_the_same_weights(transposed: bool) -> None:
    extra = (1, 1) if transposed else None
    p = ConvolutionProblem(
        (2, 6, 9, 8), (6, 1, 3, 2), (2, 2), (1, 1), (2, 1), 6, F32, extra, weights="channels"
    )  # fmt: skip
    lies = operand(p.task().inputs[1], np.random.default_rng(0)).values()
    w = unpacked(p, lies)
    assert w.shape == p.w
    assert w[5, 0, 2, 1] == lies[0, 0, 2, 1, 5]
