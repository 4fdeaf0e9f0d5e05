"""Operators by their definitions, where PyTorch's kernels do not compute what these say."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten


class Decomposed(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Normalisations and variances by the mean of squared deviations, and some gradients of activations, by their
    definitions; in float64 every operator by its definition in Python, which PyTorch has beside its kernels.

    The kernels of normalisations and variances update moments step by step. Where squares exceed the range of the type,
    that gives an infinity or NaN by how the elements fall into vectors; the definition gives an infinity. Beside an
    infinite element their mean is NaN.
    The gradients of piecewise functions at NaN are 0 or NaN in a full vector and the incoming gradient after the last
    one; that of gelu's tanh formula is 0 times infinity where the square of x exceeds the type.
    """

    def __init__(self, everything: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.everything = everything

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in DEFINED:
            return DEFINED[func](*args, **kwargs)
        if not self.everything or func._schema.is_mutable:
            return func(*args, **kwargs)
        rule = decomposition_table.get(func)
        if rule is None:
            return func(*args, **kwargs)
        with self:
            return rule(*args, **kwargs)


def _moments(x: Tensor, dim: Any, correction: float, keepdim: bool) -> tuple[Tensor, Tensor]:
    """The mean, rounded to the type of ``x``, and the variance, in f64."""
    axes = list(range(x.ndim)) if dim is None or len(dim) == 0 else [d % x.ndim for d in dim]
    count = math.prod(x.shape[d] for d in axes)
    center = x.double().mean(axes, keepdim=True).to(x.dtype)
    squares = (x - center).double().square().sum(axes, keepdim=True)
    spread = squares / max(count - correction, 0)
    if not keepdim:
        center, spread = (t.squeeze(tuple(axes)) for t in (center, spread))
    return center, spread


def _var(x: Tensor, dim: Any = None, *, correction: float | None = None, keepdim: bool = False) -> Tensor:
    return _moments(x, dim, 1 if correction is None else correction, keepdim)[1].to(x.dtype)


def _std(x: Tensor, dim: Any = None, *, correction: float | None = None, keepdim: bool = False) -> Tensor:
    """Rounded once: the variance may exceed the type where its root does not."""
    return _moments(x, dim, 1 if correction is None else correction, keepdim)[1].sqrt().to(x.dtype)


def _var_mean(x: Tensor, dim: Any = None, *, correction: float | None = None, keepdim: bool = False) -> Any:
    center, spread = _moments(x, dim, 1 if correction is None else correction, keepdim)
    return spread.to(x.dtype), center


def _layer_norm(x: Tensor, shape: Any, weight: Tensor | None, bias: Tensor | None, eps: float) -> Any:
    center, spread = _moments(x, range(x.ndim - len(shape), x.ndim), 0, True)
    rstd = (spread.to(x.dtype) + eps).rsqrt()
    unit = (x - center) * rstd
    return _affine(unit, weight, bias), center, rstd


def _group_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, n: int, c: int, size: int, groups: int, eps: float
) -> Any:
    center, spread = _moments(x.reshape(n, groups, -1), (2,), 0, True)
    rstd = (spread.to(x.dtype) + eps).rsqrt()
    unit = ((x.reshape(n, groups, -1) - center) * rstd).reshape(x.shape)
    shape = (1, c, *([1] * (x.ndim - 2)))
    weight, bias = (None if p is None else p.reshape(shape) for p in (weight, bias))
    return _affine(unit, weight, bias), center.reshape(n, groups), rstd.reshape(n, groups)


def _affine(unit: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    scaled = unit if weight is None else unit * weight
    return scaled if bias is None else scaled + bias


def _gelu_backward(grad: Tensor, x: Tensor, *, approximate: str = "none") -> Tensor:
    formula = decomposition_table[aten.gelu_backward.default](grad, x, approximate=approximate)
    # Far from 0 the derivative is 0 or 1 to the last digit, which the formula says as long as it does not overflow.
    far = x.double().abs() > 1e6
    return torch.where(far, torch.where(x > 0, grad, grad * 0), formula)


def _softshrink_backward(grad: Tensor, x: Tensor, lambd: float) -> Tensor:
    return torch.where((x >= -lambd) & (x <= lambd), grad * 0, grad)


Rules = dict[Any, Callable[..., Any]]
PIECEWISE = [
    aten.elu_backward.default,
    aten.hardswish_backward.default,
    aten.hardtanh_backward.default,
]
DEFINED: Rules = {
    aten.native_layer_norm.default: _layer_norm,
    aten.native_group_norm.default: _group_norm,
    aten.gelu_backward.default: _gelu_backward,
    aten.softshrink_backward.default: _softshrink_backward,
    aten.var.correction: _var,
    aten.std.correction: _std,
    aten.var_mean.correction: _var_mean,
    **{op: decomposition_table[op] for op in PIECEWISE},
}
PRODUCTS = (" @ ", "mm(", "matmul(", "mv(", "dot(", "einsum(", "linear(", "conv", "attention(")
"""Parts of programs that compute sums of products."""
BY_PLACE = (
    "layer_norm",
    "group_norm",
    "var",
    "std",
    "relu6",
    "hardtanh",
    "softshrink",
    "hardswish",
    "F.elu",
    "celu",
    "selu",
)
"""Parts of the names of functions whose kernels give values that depend on the place of an element in a vector."""
