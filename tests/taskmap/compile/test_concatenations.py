"""Concatenations in compiled programs: dense blocks, training through them, sizes that vary."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from tests.taskmap.compare import compiled


class Block(nn.Module):
    """A dense block: each convolution reads all tensors before it, through an element-wise function."""

    def __init__(self, channels: int, growth: int, layers: int) -> None:
        super().__init__()
        widths = [channels + i * growth for i in range(layers)]
        self.first = nn.Conv2d(3, channels, 3, padding=1)
        self.layers = nn.ModuleList(nn.Conv2d(width, growth, 1) for width in widths)

    def forward(self, x: Tensor) -> Tensor:
        parts = [self.first(x)]
        for layer in self.layers:
            parts.append(layer(torch.tanh(torch.cat(parts, 1))))
        return torch.tanh(torch.cat(parts, 1))


def relative(got: Tensor, wide: Tensor) -> float:
    return float((got.double() - wide).norm() / wide.norm())


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_dense_block(dynamic: bool) -> None:
    module = Block(5, 3, 3).eval()
    run = compiled(module, dynamic=dynamic)
    for size in ((2, 3, 11, 7), (1, 3, 9, 13)) if dynamic else ((2, 3, 11, 7),):
        x = torch.randn(size)
        with torch.no_grad():
            assert relative(run(x), copy.deepcopy(module).double()(x.double())) < 1e-5


def test_training_through_a_dense_block() -> None:
    module = Block(5, 3, 2)
    wide = copy.deepcopy(module).double()
    x = torch.randn(2, 3, 9, 7)
    mine, theirs = x.clone().requires_grad_(), x.double().requires_grad_()
    weight = torch.randn(2, 11, 9, 7)
    (compiled(module)(mine) * weight).sum().backward()
    (wide(theirs) * weight.double()).sum().backward()
    assert mine.grad is not None
    assert theirs.grad is not None
    assert relative(mine.grad, theirs.grad) < 1e-3
    for a, b in zip(module.parameters(), wide.parameters(), strict=True):
        assert a.grad is not None
        assert b.grad is not None
        assert relative(a.grad, b.grad) < 1e-3 or b.grad.norm() < 1e-3 * a.numel()
