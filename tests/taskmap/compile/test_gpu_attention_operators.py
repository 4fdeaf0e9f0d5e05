"""The operators that PyTorch chooses for attention on a GPU become taskmap's own; here they are called by name, because
PyTorch chooses them only for tensors of a GPU."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import taskmap
from taskmap.graph.importers.torch.gpu_attention import gpu_attention_rules
from taskmap.ir.target import cuda_target
from taskmap.torch_backend import _attentions

aten: Any = torch.ops.aten
HEADS, WIDTH = 4, 64
Function = Callable[..., Tensor]


def cudnn(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float | None) -> Tensor:
    out: Tensor = aten._scaled_dot_product_cudnn_attention(q, k, v, mask, True, 0.0, causal, False, scale=scale)[0]
    return out


def flash(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float | None) -> Tensor:
    assert mask is None
    out: Tensor = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, False, scale=scale)[0]
    return out


def efficient(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float | None) -> Tensor:
    out: Tensor = aten._scaled_dot_product_efficient_attention(q, k, v, mask, True, 0.0, causal, scale=scale)[0]
    return out


def operand(heads: int, rows: int, *, by_rows: bool) -> Tensor:
    """A tensor [batch, heads, rows, width]; ``by_rows``: as a projection of all heads leaves it."""
    shape = (2, rows, heads, WIDTH) if by_rows else (2, heads, rows, WIDTH)
    x = torch.randn(shape, dtype=torch.bfloat16)
    return (x.transpose(1, 2) if by_rows else x).detach().requires_grad_()


def error(got: Tensor, want: Tensor) -> float:
    got, want = got.detach().double(), want.detach().double()
    return float((got - want).norm() / want.norm())


@pytest.mark.parametrize(
    ("operator", "causal", "scale", "masked", "by_rows"),
    [
        (cudnn, False, None, False, False), (cudnn, True, None, False, True), (cudnn, False, 0.3, True, False),
        (flash, False, 0.3, False, True), (flash, True, None, False, False), (efficient, True, None, False, False),
        (efficient, False, None, True, True),
    ],
)  # fmt: skip
def test_forward_and_gradients(
    operator: Function, causal: bool, scale: float | None, masked: bool, by_rows: bool
) -> None:
    torch.manual_seed(0)
    q, k, v = (operand(HEADS, rows, by_rows=by_rows) for rows in (37, 37, 37))
    mask = torch.randn(2, HEADS, 37, 37, dtype=torch.bfloat16) if masked else None
    before = taskmap.metrics()
    compiled: Function = torch.compile(operator, backend="taskmap")
    got = compiled(q, k, v, mask, causal, scale)
    after = taskmap.metrics()
    assert (after.externs, after.fallbacks) == (before.externs, before.fallbacks)
    wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
    bias = None if mask is None else mask.double()
    want = scaled_dot_product_attention(wide[0], wide[1], wide[2], attn_mask=bias, is_causal=causal, scale=scale)
    assert error(got, want) < 5e-3
    # As the operator's own kernels lay out their results.
    by_query = torch.empty_like(q).stride()
    assert got.stride() == ((37 * HEADS * WIDTH, WIDTH, HEADS * WIDTH, 1) if operator is efficient else by_query)
    above = torch.randn_like(want)
    found = torch.autograd.grad(got, (q, k, v), above.to(got.dtype))
    for gradient, exact in zip(found, torch.autograd.grad(want, wide, above), strict=True):
        assert error(gradient, exact) < 1e-2
    with torch.no_grad():
        assert error(compiled(q, k, v, mask, causal, scale), want) < 5e-3


@pytest.mark.parametrize("operator", [cudnn, flash])
def test_heads_share_keys_and_values(operator: Function) -> None:
    torch.manual_seed(0)
    q, k, v = operand(HEADS, 20, by_rows=True), operand(2, 70, by_rows=True), operand(2, 70, by_rows=True)
    with torch.no_grad():
        compiled: Function = torch.compile(operator, backend="taskmap")
        got = compiled(q, k, v, None, False, None)
        want = scaled_dot_product_attention(q.double(), k.double(), v.double(), enable_gqa=True)
    assert error(got, want) < 5e-3


@pytest.mark.parametrize(
    ("target", "device", "replaced"),
    [("sm_90a", "cuda", True), ("sm_80", "cuda", False), ("sm_80", "cpu", True)],  # the last one is simulated
)
def test_gpus_that_were_not_measured_keep_pytorchs(target: str, device: str, replaced: bool) -> None:
    platform = SimpleNamespace(device=SimpleNamespace(type=device))
    session: Any = SimpleNamespace(target=cuda_target(target), platform=platform)
    assert bool(_attentions(session)) == replaced


def test_what_pytorch_keeps() -> None:
    """Dropout, whose numbers are random; f32, of which nothing is measured; a wanted mask of the dropout; a few rows of
    queries."""
    rules: dict[Any, Callable[..., Any]] = gpu_attention_rules()
    half, single = (torch.zeros(1, 1, 32, 8, dtype=dtype) for dtype in (torch.float16, torch.float32))
    forward = rules[aten._scaled_dot_product_flash_attention.default]
    assert forward(half, half, half, 0.1) is NotImplemented
    assert forward(single, single, single) is NotImplemented
    assert forward(half, half, half, 0.0, False, True) is NotImplemented
    assert forward(half[:, :, :1], half, half) is NotImplemented
    assert forward(half, half, half) is not NotImplemented
    gradient = rules[aten._scaled_dot_product_efficient_attention_backward.default]
    kept = gradient(*[half] * 5, half, half, half, half, 0.0, [True] * 4)
    assert kept is NotImplemented
