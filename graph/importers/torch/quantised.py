"""The operators ``quantized_decomposed``, which PyTorch's export quantisation (PT2E) inserts, in terms of ATen.

Most of PyTorch's own definitions are functions of tensors and serve as they are. Those that read a scale or a zero
point as a number stop a graph; here they stay tensors, with the same arithmetic: the inverse of a scale is taken in
f64 and rounded to f32.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_HOME = "torch.ao.quantization.fx._decomposed"
_AS_THEY_ARE = (
    "quantize_per_tensor",
    "dequantize_per_tensor",
    "quantize_per_channel",
    "dequantize_per_channel",
    "choose_qparams_per_token",
    "choose_qparams_per_token_asymmetric",
    "quantize_per_token",
    "dequantize_per_token",
    "quantize_per_channel_group",
    "dequantize_per_channel_group",
)
Rule = Callable[..., Any]


def quantised_rules() -> dict[Any, Rule]:
    """A rule for each of the operators; none while PyTorch has not loaded them."""
    home = sys.modules.get(_HOME)
    if home is None:
        return {}
    ops = torch.ops.quantized_decomposed
    rules: dict[Any, Rule] = {
        getattr(ops, name).default: getattr(home, name)
        for name in _AS_THEY_ARE
        if hasattr(ops, name) and hasattr(home, name)
    }
    rules[ops.quantize_per_tensor.tensor] = _quantize
    rules[ops.quantize_per_tensor.tensor2] = _quantize
    rules[ops.dequantize_per_tensor.tensor] = _dequantize
    rules[ops.dequantize_per_tensor.tensor2] = _dequantize
    rules[ops.choose_qparams.tensor] = _choose
    rules[ops.choose_qparams_symmetric.tensor] = _choose_symmetric
    return rules


def _quantize(
    x: Tensor, scale: Tensor, zero_point: Tensor, low: int | Tensor, high: int | Tensor, dtype: torch.dtype
) -> Tensor:
    inverse = (1.0 / scale.double()).float().reshape(())
    moved = torch.round(x.float() * inverse) + zero_point.reshape(())
    return torch.clamp(moved, low, high).to(dtype)  # type: ignore[arg-type]  # two numbers or two tensors


def _dequantize(
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    low: int | Tensor,
    high: int | Tensor,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    wide = x.to(out_dtype or torch.float32)
    return (wide - zero_point.reshape(())) * scale.to(wide.dtype).reshape(())


def _extent(x: Tensor) -> tuple[Tensor, Tensor]:
    """The least and the greatest element, and 0 if it is beyond them."""
    low, high = torch.amin(x), torch.amax(x)
    return torch.minimum(low, torch.zeros_like(low)), torch.maximum(high, torch.zeros_like(high))


def _choose(x: Tensor, low: int, high: int, eps: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    least, greatest = _extent(x)
    scale = torch.clamp((greatest - least).float() / float(high - low), min=eps)
    zero = torch.clamp(low - torch.round(least.float() / scale).to(torch.int32), low, high)
    return scale.double().reshape(1), zero.long().reshape(1)


def _choose_symmetric(x: Tensor, low: int, high: int, eps: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    least, greatest = _extent(x)
    scale = torch.clamp(torch.maximum(-least, greatest).float() / (float(high - low) / 2), min=eps)
    zero = torch.full((1,), 128 if dtype == torch.uint8 else 0, dtype=torch.int64, device=x.device)
    return scale.double().reshape(1), zero
