"""DenseNet-121 (Huang et al., 2017): each layer reads the concatenation of all layers before it in its block."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.models.init import initialise_convnet
from benchmarks.models.spec import Example, ModelSpec


class DenseLayer(nn.Module):
    """Norm, ReLU, 1x1 convolution, norm, ReLU, 3x3 convolution; the result is appended to the channels of the input."""

    def __init__(self, in_channels: int, growth: int) -> None:
        super().__init__()
        hidden = 4 * growth
        self.body = nn.Sequential(
            nn.BatchNorm2d(in_channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(in_channels, hidden, 1, bias=False),
            nn.BatchNorm2d(hidden),
            nn.ReLU(inplace=True),
            nn.Conv2d(hidden, growth, 3, padding=1, bias=False),
        )

    def forward(self, parts: list[Tensor]) -> list[Tensor]:
        return [*parts, self.body(torch.cat(parts, 1))]


class DenseNet(nn.Module):
    """(N, 3, H, W) to (N, classes); `blocks` lists the layers of each dense block (table 1 of the paper)."""

    def __init__(self, blocks: tuple[int, ...], growth: int, classes: int) -> None:
        super().__init__()
        channels = 2 * growth
        self.stem = nn.Sequential(
            nn.Conv2d(3, channels, 7, 2, 3, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )
        self.blocks = nn.ModuleList()
        self.transitions = nn.ModuleList()
        for number, layers in enumerate(blocks):
            self.blocks.append(nn.ModuleList(DenseLayer(channels + i * growth, growth) for i in range(layers)))
            channels += layers * growth
            if number < len(blocks) - 1:
                self.transitions.append(
                    nn.Sequential(
                        nn.BatchNorm2d(channels),
                        nn.ReLU(inplace=True),
                        nn.Conv2d(channels, channels // 2, 1, bias=False),
                        nn.AvgPool2d(2, 2),
                    )
                )
                channels //= 2
        self.last = nn.BatchNorm2d(channels)
        self.classifier = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for number, block in enumerate(self.blocks):
            parts = [x]
            for layer in block:  # type: ignore[attr-defined]  # a ModuleList of ModuleLists
                parts = layer(parts)
            x = torch.cat(parts, 1)
            if number < len(self.transitions):
                x = self.transitions[number](x)
        x = torch.relu(self.last(x)).mean((2, 3))
        logits: Tensor = self.classifier(x)
        return logits


def make_densenet121(small: bool) -> Example:
    """224x224 images and 1000 classes; small: 64x64 images, an eighth of the growth, half the layers of each block."""
    model = DenseNet((3, 6, 12, 8), 4, 10) if small else DenseNet((6, 12, 24, 16), 32, 1000)
    size = 64 if small else 224
    initialise_convnet(model, torch.randn(8 if small else 2, 3, size, size))
    return model, (torch.randn(1, 3, size, size),), {}


DENSENET121 = ModelSpec("densenet121", make_densenet121, 7_978_856, "Huang et al., 2017")
"""Measured beside MODELS: its concatenations grow, which no other model's do."""
