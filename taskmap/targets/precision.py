"""Rounding of operands in f32 products: decided by the options, or else by PyTorch's settings."""

from __future__ import annotations

from dataclasses import replace

import torch

from taskmap.ir.target import GpuTarget
from taskmap.options import Options


def with_precision(target: GpuTarget, options: Options) -> GpuTarget:
    """``target``, a GPU, with or without permission to round the operands of f32 products to tf32."""
    allowed = pytorch_allows_tf32() if options.tf32 is None else options.tf32
    return replace(target, tf32=allowed)


def pytorch_allows_tf32() -> bool:
    """The current setting of PyTorch's own products: torch.backends.cuda.matmul.fp32_precision, and the settings that
    it stands for: allow_tf32 beside it, and torch.set_float32_matmul_precision."""
    matmul = torch.backends.cuda.matmul
    if hasattr(matmul, "fp32_precision"):
        return bool(matmul.fp32_precision == "tf32")
    return bool(matmul.allow_tf32)  # PyTorch 2.8 and older
