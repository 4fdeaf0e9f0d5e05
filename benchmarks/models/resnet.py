"""ResNet-50 (He et al., 2016) in the variant that has the stride in the 3x3 convolution of a bottleneck ("v1.5")."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.models.init import initialise_convnet
from benchmarks.models.spec import Example

EXPANSION = 4


class Bottleneck(nn.Module):
    """1x1 down, 3x3, 1x1 up, each with batch norm, around a residual connection."""

    def __init__(self, in_channels: int, width: int, stride: int) -> None:
        super().__init__()
        out_channels = width * EXPANSION
        self.conv1 = nn.Conv2d(in_channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, out_channels, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out_channels)
        self.downsample: nn.Module | None = None
        if stride != 1 or in_channels != out_channels:
            self.downsample = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False), nn.BatchNorm2d(out_channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        y = functional.relu(self.bn1(self.conv1(x)))
        y = functional.relu(self.bn2(self.conv2(y)))
        return functional.relu(self.bn3(self.conv3(y)) + shortcut)


class ResNet(nn.Module):
    """A stem, four stages of bottlenecks, global average pooling, a classifier: (N, 3, H, W) to (N, classes)."""

    def __init__(self, blocks: tuple[int, int, int, int], width: int, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        stages: list[nn.Module] = []
        channels = width
        for stage, count in enumerate(blocks):
            for block in range(count):
                stages.append(Bottleneck(channels, width << stage, 2 if stage > 0 and block == 0 else 1))
                channels = (width << stage) * EXPANSION
        self.stages = nn.Sequential(*stages)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(functional.relu(self.bn1(self.conv1(x))))
        x = self.avgpool(self.stages(x))
        logits: Tensor = self.fc(torch.flatten(x, 1))
        return logits


def make_resnet50(small: bool) -> Example:
    """224x224 images and 1000 classes; small: 64x64 images, two blocks in the first two stages, width 16."""
    model = ResNet((2, 2, 1, 1), 16, 10) if small else ResNet((3, 4, 6, 3), 64, 1000)
    size = 64 if small else 224
    initialise_convnet(model, torch.randn(8 if small else 2, 3, size, size))
    return model, (torch.randn(1, 3, size, size),), {}
