"""PyTorch's three attentions of GPUs (cuDNN, flash, memory-efficient) as its attention of CPUs, which has one lowering.

`scaled_dot_product_attention` chooses between them before a backend sees the graph. They compute the same function with
results in different forms: the logarithms of the rows' sums have another shape or are padded, and there are states of
random numbers, which nothing reads without dropout. q, k, v and results are [batch, heads, rows, width].

Operators stay whole, and PyTorch runs them, with dropout, with types other than f16 and bf16, with few rows of queries,
and where v has another width than q. Source: the schemas and meta functions of PyTorch 2.11 and 2.13
(`torch/_meta_registrations.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
Rule = Callable[..., Any]
_TYPES = (torch.float16, torch.bfloat16)
"""Those that tensor cores multiply. Of f32, PyTorch's own kernels are kept."""
_ROWS = 16
"""With fewer rows of queries PyTorch's kernels were 1.3 to 2.1 times as fast on an H100 (`decode` of `make gpu`)."""
_LINE = 32
"""The memory-efficient attention pads its logarithms to a multiple of this."""


def gpu_attention_rules() -> dict[Any, Rule]:
    """A rule for each of the operators and its gradient."""
    return {
        aten._scaled_dot_product_cudnn_attention.default: _cudnn,
        aten._scaled_dot_product_cudnn_attention_backward.default: _cudnn_backward,
        aten._scaled_dot_product_flash_attention.default: _flash,
        aten._scaled_dot_product_flash_attention_backward.default: _flash_backward,
        aten._scaled_dot_product_efficient_attention.default: _efficient,
        aten._scaled_dot_product_efficient_attention_backward.default: _efficient_backward,
    }


def _stays(q: Tensor, v: Tensor, dropout_p: float, debug: bool = False) -> bool:
    """True for calls that PyTorch runs."""
    few = isinstance(q.shape[2], int) and q.shape[2] < _ROWS
    return dropout_p != 0.0 or debug or few or q.dtype not in _TYPES or q.shape[-1] != v.shape[-1]


def _forward(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool, scale: float | None
) -> tuple[Tensor, Tensor]:
    """The result, and the logarithm of each row's sum: [batch, heads, rows], f32."""
    found = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, is_causal, attn_mask=mask, scale=scale)
    return found[0], found[1]


def _backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, log_sums: Tensor, mask: Tensor | None, is_causal: bool,
    scale: float | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    backward: Any = aten._scaled_dot_product_flash_attention_for_cpu_backward
    grads = backward(grad, q, k, v, out, log_sums, 0.0, is_causal, attn_mask=mask, scale=scale)
    return grads[0], grads[1], grads[2]


def _unused(q: Tensor, dtype: torch.dtype, *shape: int) -> Tensor:
    """In the place of a state of random numbers."""
    return torch.zeros(shape, dtype=dtype, device=q.device)


def _cudnn(
    q: Tensor, k: Tensor, v: Tensor, attn_bias: Tensor | None, compute_log_sumexp: bool, dropout_p: float = 0.0,
    is_causal: bool = False, return_debug_mask: bool = False, *, scale: float | None = None,
) -> Any:  # fmt: skip
    if _stays(q, v, dropout_p, return_debug_mask):
        return NotImplemented
    out, log_sums = _forward(q, k, v, attn_bias, is_causal, scale)
    state = _unused(q, torch.int64)
    return out, log_sums.unsqueeze(-1), None, None, q.shape[2], k.shape[2], state, state.clone(), None


def _cudnn_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, logsumexp: Tensor, philox_seed: Tensor,
    philox_offset: Tensor, attn_bias: Tensor | None, cum_seq_q: Tensor | None, cum_seq_k: Tensor | None, max_q: int,
    max_k: int, dropout_p: float, is_causal: bool, *, scale: float | None = None,
) -> Any:  # fmt: skip
    if _stays(q, v, dropout_p):
        return NotImplemented
    return _backward(grad, q, k, v, out, logsumexp.squeeze(-1), attn_bias, is_causal, scale)


def _flash(
    q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, is_causal: bool = False, return_debug_mask: bool = False,
    *, scale: float | None = None,
) -> Any:  # fmt: skip
    if _stays(q, v, dropout_p, return_debug_mask):
        return NotImplemented
    out, log_sums = _forward(q, k, v, None, is_causal, scale)
    state, unused = _unused(q, torch.uint64, 2), _unused(q, torch.uint64)
    return out, log_sums, None, None, q.shape[2], k.shape[2], state, unused, q.new_empty((0,))


def _flash_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, logsumexp: Tensor, cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None, max_q: int, max_k: int, dropout_p: float, is_causal: bool, philox_seed: Tensor,
    philox_offset: Tensor, *, scale: float | None = None,
) -> Any:  # fmt: skip
    if _stays(q, v, dropout_p):
        return NotImplemented
    return _backward(grad, q, k, v, out, logsumexp, None, is_causal, scale)


def _efficient(
    q: Tensor, k: Tensor, v: Tensor, attn_bias: Tensor | None, compute_log_sumexp: bool, dropout_p: float = 0.0,
    is_causal: bool = False, *, scale: float | None = None,
) -> Any:  # fmt: skip
    if _stays(q, v, dropout_p):
        return NotImplemented
    out, log_sums = _forward(q, k, v, attn_bias, is_causal, scale)
    if compute_log_sumexp:
        log_sums = torch.constant_pad_nd(log_sums, [0, -q.shape[2] % _LINE], 0.0)
    else:
        log_sums = log_sums.new_empty((*log_sums.shape[:2], 0))
    out = out.transpose(1, 2).contiguous().transpose(1, 2)  # as it lies in memory
    state = _unused(q, torch.int64)
    return out, log_sums, state, state.clone()


def _efficient_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, attn_bias: Tensor | None, out: Tensor, logsumexp: Tensor,
    philox_seed: Tensor, philox_offset: Tensor, dropout_p: float, grad_input_mask: list[bool], is_causal: bool = False,
    *, scale: float | None = None,
) -> Any:  # fmt: skip
    if _stays(q, v, dropout_p) or grad_input_mask[3]:
        return NotImplemented
    log_sums = logsumexp[..., : q.shape[2]]
    return *_backward(grad, q, k, v, out, log_sums, attn_bias, is_causal, scale), None
