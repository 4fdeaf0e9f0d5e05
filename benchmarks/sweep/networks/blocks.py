"""Blocks that several networks share."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def conv(
    into: int, out: int, size: int = 3, stride: int = 1, groups: int = 1, act: type[nn.Module] | None = nn.ReLU,
    dilation: int = 1,
) -> nn.Sequential:  # fmt: skip
    """A convolution that keeps the size where stride is 1, batch norm, and the activation."""
    padding = dilation * (size - 1) // 2
    layers: list[nn.Module] = [
        nn.Conv2d(into, out, size, stride, padding, dilation=dilation, groups=groups, bias=False),
        nn.BatchNorm2d(out),
    ]
    return nn.Sequential(*layers, *([act()] if act else []))


class Squeeze(nn.Module):
    """Squeeze and excitation (Hu et al., 2018): channels scaled by a function of their means."""

    def __init__(self, channels: int, hidden: int, gate: type[nn.Module] = nn.Sigmoid) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, hidden, 1), nn.ReLU(), nn.Conv2d(hidden, channels, 1), gate()
        )

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x * self.body(x)
        return y


class Residual(nn.Module):
    """body(x) + skip(x), then an activation."""

    def __init__(self, body: nn.Module, skip: nn.Module | None = None, act: nn.Module | None = None) -> None:
        super().__init__()
        self.body, self.skip, self.act = body, skip or nn.Identity(), act or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.act(self.body(x) + self.skip(x))
        return y


class Joined(nn.Module):
    """Branches of one input, concatenated along the channels."""

    def __init__(self, branches: Sequence[nn.Module]) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


def head(channels: int, classes: int) -> nn.Sequential:
    """The global mean and a classifier."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))
