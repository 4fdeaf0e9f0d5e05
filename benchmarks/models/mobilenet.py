"""MobileNetV2 (Sandler et al., 2018): inverted residuals with depthwise convolutions and ReLU6."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.models.init import initialise_convnet
from benchmarks.models.spec import Example

STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
"""Expansion, output channels, number of blocks, stride of the first block (table 2 of the paper)."""


def round_channels(channels: float) -> int:
    """The nearest multiple of 8, at least 8, and not below nine tenths of `channels`."""
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels else rounded


def conv_bn_relu6(in_channels: int, out_channels: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Convolution with half padding, batch norm, ReLU6."""
    conv = nn.Conv2d(in_channels, out_channels, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(out_channels), nn.ReLU6(inplace=True))


class InvertedResidual(nn.Module):
    """1x1 expansion, 3x3 depthwise, linear 1x1 projection; residual where shapes allow."""

    def __init__(self, in_channels: int, out_channels: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = in_channels * expansion
        layers: list[nn.Module] = [] if expansion == 1 else [conv_bn_relu6(in_channels, hidden, 1)]
        layers.append(conv_bn_relu6(hidden, hidden, 3, stride, groups=hidden))
        layers += [nn.Conv2d(hidden, out_channels, 1, bias=False), nn.BatchNorm2d(out_channels)]
        self.body = nn.Sequential(*layers)
        self.residual = stride == 1 and in_channels == out_channels

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x)
        return x + y if self.residual else y


class MobileNetV2(nn.Module):
    """(N, 3, H, W) to (N, classes)."""

    def __init__(self, width: float, classes: int) -> None:
        super().__init__()
        channels = round_channels(32 * width)
        layers: list[nn.Module] = [conv_bn_relu6(3, channels, 3, 2)]
        for expansion, base, count, stride in STAGES:
            out_channels = round_channels(base * width)
            for block in range(count):
                layers.append(InvertedResidual(channels, out_channels, stride if block == 0 else 1, expansion))
                channels = out_channels
        last = round_channels(1280 * width)
        layers.append(conv_bn_relu6(channels, last, 1))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(last, classes))

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.adaptive_avg_pool2d(self.features(x), (1, 1))
        logits: Tensor = self.classifier(torch.flatten(x, 1))
        return logits


def make_mobilenet_v2(small: bool) -> Example:
    """224x224 images and 1000 classes; small: 64x64 images, a quarter of the width."""
    model = MobileNetV2(0.25, 10) if small else MobileNetV2(1.0, 1000)
    size = 64 if small else 224
    initialise_convnet(model, torch.randn(8 if small else 2, 3, size, size))
    return model, (torch.randn(1, 3, size, size),), {}
