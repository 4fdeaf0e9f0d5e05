"""One run of a program: everything that its caller can observe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Run:
    """The arguments after a call, its results, and the gradients that reach the arguments."""

    inputs: list[Any]
    results: list[Any]
    grads: list[Tensor | None]

    def named(self) -> list[tuple[str, Any]]:
        """Every value by a descriptive name."""
        return [
            *((f"result {k}", r) for k, r in enumerate(self.results)),
            *((f"input {k}", x) for k, x in enumerate(self.inputs)),
            *((f"gradient {k}", g) for k, g in enumerate(self.grads)),
        ]


def call(function: Callable[..., Any], inputs: list[Any], grad: bool) -> Run:
    """Call, and with ``grad`` differentiate a weighted sum of all results that have a gradient."""
    results = list(function(*inputs))
    if not grad:
        return Run(inputs, results, [])
    outs = [r for r in results if isinstance(r, Tensor) and r.requires_grad]
    if outs:
        torch.autograd.backward(outs, [_weights(r) for r in outs])
    return Run(inputs, results, [x.grad if x.is_leaf else None for x in inputs])


def _weights(result: Tensor) -> Tensor:
    """Numbers that every floating-point type represents exactly, so that all precisions have the same weights."""
    steps = (
        torch.arange(result.numel(), dtype=torch.float64, device=result.device).mul(0.3).cos().mul(16).round().div(16)
    )
    return steps.to(result.dtype).reshape(result.shape)


def aliases(run: Run) -> dict[tuple[str, str], int]:
    """Pairs of values whose elements share memory, with the distance of their first elements in bytes."""
    tensors = [(n, v) for n, v in run.named() if isinstance(v, Tensor) and v.numel() and not n.startswith("gradient")]
    found: dict[tuple[str, str], int] = {}
    for i, (name, a) in enumerate(tensors):
        for other, b in tensors[i + 1 :]:
            if a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr() and _bytes(a) & _bytes(b):
                found[name, other] = b.data_ptr() - a.data_ptr()
    return found


def _bytes(t: Tensor) -> set[int]:
    """The addresses of a tensor's elements in its storage, in bytes; all of them, as tensors here are small."""
    last = sum((n - 1) * k for n, k in zip(t.shape, t.stride(), strict=True))
    places = torch.arange(last + 1).as_strided(t.shape, t.stride(), 0).flatten().tolist()
    return {(int(t.storage_offset()) + p) * t.element_size() for p in places}


def layout(t: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape, and the strides that can be observed: 0 for axes of one element, and for all of an empty tensor."""
    if not t.numel():
        return tuple(t.shape), (0,) * t.dim()
    return tuple(t.shape), tuple(0 if n == 1 else k for n, k in zip(t.shape, t.stride(), strict=True))


def largest(t: Tensor) -> float:
    """The largest finite magnitude."""
    magnitudes = t.double().abs()
    finite = magnitudes[magnitudes.isfinite()]
    return float(finite.max()) if finite.numel() else 0.0
