"""The parts of a GPU target that options decide: rounding of operands in f32 products, which else follows PyTorch's
settings, and dependent launches."""

from __future__ import annotations

from dataclasses import replace

import torch

from taskmap.ir.target import DEPENDENT_LAUNCH, GpuTarget
from taskmap.options import Options


def with_options(target: GpuTarget, options: Options) -> GpuTarget:
    """``target``, a GPU, with or without permission to round the operands of f32 products to tf32, and with dependent
    launches if they are asked for and it has them."""
    allowed = pytorch_allows_tf32() if options.tf32 is None else options.tf32
    dependent = options.dependent_launch and target.capability >= DEPENDENT_LAUNCH
    return replace(target, tf32=allowed, dependent_launch=dependent)


def pytorch_allows_tf32() -> bool:
    """The current setting of PyTorch's own products: torch.backends.cuda.matmul.fp32_precision, and the settings that
    it stands for: allow_tf32 beside it, and torch.set_float32_matmul_precision."""
    matmul = torch.backends.cuda.matmul
    if hasattr(matmul, "fp32_precision"):
        return bool(matmul.fp32_precision == "tf32")
    return bool(matmul.allow_tf32)  # PyTorch 2.8 and older
