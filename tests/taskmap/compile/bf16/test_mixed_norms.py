"""Normalisations of narrow floats with parameters of f32: gradients are as exact as eager mode's, whose statistics are
of f32, and each is as many kernels as one of f32."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from taskmap import explain
from tests.taskmap.compare import compiled

NORMS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "layer": (lambda: nn.LayerNorm(64), (32, 5, 64)),
    "group": (lambda: nn.GroupNorm(4, 8), (4, 8, 7, 9)),
    "instance": (lambda: nn.InstanceNorm2d(8, affine=True), (4, 8, 7, 9)),
    "batch": (lambda: nn.BatchNorm2d(8), (4, 8, 7, 9)),
}


def gradients(norm: nn.Module, function: Callable[[Tensor], Tensor], x: Tensor, grad: Tensor) -> list[Tensor]:
    """The result and the gradients of x and the parameters."""
    x = x.clone().requires_grad_()
    y = function(x)
    torch.autograd.backward(y, grad)
    return [t.detach() for t in (y, x.grad, *(p.grad for p in norm.parameters())) if t is not None]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", NORMS)
def test_gradients_where_the_mean_is_large(name: str, dtype: torch.dtype) -> None:
    make, shape = NORMS[name]
    norm = make()
    for p in norm.parameters():
        nn.init.uniform_(p, 0.5, 1.5)
    x, grad = (torch.randn(shape) + 50).to(dtype), torch.randn(shape).to(dtype)
    exact, mine, theirs = copy.deepcopy(norm).double(), copy.deepcopy(norm), copy.deepcopy(norm)
    want = gradients(exact, lambda t: F.gelu(exact(t)), x.double(), grad.double())
    eager = gradients(theirs, lambda t: F.gelu(theirs(t)), x, grad)
    found = gradients(mine, compiled(lambda t: F.gelu(mine(t))), x, grad)
    assert len(found) == 4
    for w, e, f in zip(want, eager, found, strict=True):
        assert (f.dtype, f.stride()) == (e.dtype, e.stride())
        error, theirs_error = ((t.double() - w).norm() / w.norm() for t in (f, e))
        assert error <= 1.5 * theirs_error + torch.finfo(dtype).eps / 8
    for a, b in zip(mine.buffers(), theirs.buffers(), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("name", NORMS)
def test_casts_are_no_kernels(name: str) -> None:
    make, shape = NORMS[name]
    norm = make()
    x = torch.randn(shape)

    def kernels(x: Tensor) -> int:
        torch._dynamo.reset()
        with torch.no_grad():
            return len(explain(norm, x).groups)

    assert kernels(x.bfloat16()) == kernels(x)
