"""Attention in training: PyTorch runs it where its scores exceed the caches, so that none of their size are stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from taskmap.compile.session import Compilation, new_session
from taskmap.graph.nodes import ExternNode
from taskmap.options import Options
from taskmap.torch_backend import compile_captured
from tests.taskmap.compare import assert_like, compiled
from tests.taskmap.compile.training.test_work import compilations


class Attend(nn.Module):
    """Attention of a projection."""

    def __init__(self, heads: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.heads = heads
        self.into = nn.Linear(8, 3 * heads * 8, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.into(x).unflatten(-1, (3, self.heads, 8)).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


@pytest.mark.parametrize(
    ("length", "heads", "dtype", "left"),
    [
        (96, 1, torch.float32, False), (511, 1, torch.float32, False), (512, 1, torch.float32, True),
        (384, 2, torch.float32, False), (384, 32, torch.float32, True), (512, 1, torch.bfloat16, False),
        (1024, 1, torch.bfloat16, True), (1024, 1, torch.float64, False),
    ],
)  # fmt: skip
def test_long_ones_are_left_to_pytorch(length: int, heads: int, dtype: torch.dtype, left: bool) -> None:
    found = compilations(Attend(heads, dtype), torch.randn(1, length, 8, dtype=dtype))
    for compilation in found:
        externs = [n.reason for n in compilation.graph.nodes() if isinstance(n, ExternNode)]
        assert externs == ["long attention in training: PyTorch keeps no matrix of scores"] * left
        if left:
            assert all(n.shape[-2:] != (length, length) for n in compilation.graph.nodes())


def test_without_a_gradient_taskmap_computes_it() -> None:
    session = new_session(Options(threads=1))
    session.record = []
    run = torch.compile(Attend(1, torch.float32), backend=lambda gm, given: compile_captured(gm, given, session))
    with torch.no_grad():
        run(torch.randn(1, 600, 8))
    (found,) = [c for c in session.record if isinstance(c, Compilation)]
    assert all(n.op != "extern" for n in found.graph.nodes())


def test_values_and_gradients() -> None:
    module = Attend(2, torch.float32)
    x = torch.randn(1, 520, 8, requires_grad=True)

    def step(run: Callable[..., Any]) -> tuple[Tensor, ...]:
        y = run(x)
        return (y.detach(), *torch.autograd.grad(y.sin().sum(), [x, *module.parameters()]))

    assert_like(step(compiled(module)), step(module), 1e-4, 1e-4)
