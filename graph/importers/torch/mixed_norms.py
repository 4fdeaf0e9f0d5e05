"""Normalisations of bf16 and f16 with parameters of f32, as in training under autocast, on CPUs.

PyTorch's kernels for them save statistics in f32 for the gradient. Its rules by which graphs are traced say those of
the input's type (PyTorch 2.13), which would lose most of their digits where the mean is larger than the deviation. So
such an operator is that of f32, between casts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

_NARROW = (torch.bfloat16, torch.float16)
_aten = torch.ops.aten


def mixed_norms() -> dict[OpOverload, Callable[..., Any]]:
    """The rules; each leaves the operator as it is where its types are others."""
    weights = {
        _aten.native_layer_norm.default: 2,
        _aten.native_group_norm.default: 1,
        _aten._native_batch_norm_legit.no_stats: 1,
        _aten._native_batch_norm_legit_functional.default: 1,
    }
    return {op: _in_f32(op, position) for op, position in weights.items()}


def _in_f32(op: OpOverload, weight: int) -> Callable[..., Any]:
    """The rule for ``op``, whose argument ``weight`` is the factor of each element."""

    def rule(x: Tensor, *rest: Any) -> Any:
        factor = rest[weight - 1]
        mixed = isinstance(factor, Tensor) and factor.dtype == torch.float32
        if not mixed or x.dtype not in _NARROW or x.device.type != "cpu":
            return NotImplemented
        made: Sequence[Tensor] = op(x.float(), *rest)
        return made[0].to(x.dtype), *made[1:]

    return rule
