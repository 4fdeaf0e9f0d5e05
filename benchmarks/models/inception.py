"""InceptionV3 (Szegedy et al., 2016) without the auxiliary classifier, as published with its trained weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.models.init import initialise_convnet
from benchmarks.models.spec import Example

Size = int | tuple[int, int]


class ConvBN(nn.Module):
    """Convolution, batch norm (eps 0.001), ReLU."""

    def __init__(self, in_channels: int, out_channels: int, kernel: Size, stride: int = 1, padding: Size = 0) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel, stride, padding, bias=False)
        self.bn = nn.BatchNorm2d(out_channels, eps=0.001)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.bn(self.conv(x)), inplace=True)


class Branches(nn.Module):
    """The outputs of several branches on one input, concatenated along the channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


def row(in_channels: int, out_channels: int) -> ConvBN:
    """A 1x3 convolution."""
    return ConvBN(in_channels, out_channels, (1, 3), padding=(0, 1))


def column(in_channels: int, out_channels: int) -> ConvBN:
    """A 3x1 convolution."""
    return ConvBN(in_channels, out_channels, (3, 1), padding=(1, 0))


def row7(in_channels: int, out_channels: int) -> ConvBN:
    """A 1x7 convolution."""
    return ConvBN(in_channels, out_channels, (1, 7), padding=(0, 3))


def column7(in_channels: int, out_channels: int) -> ConvBN:
    """A 7x1 convolution."""
    return ConvBN(in_channels, out_channels, (7, 1), padding=(3, 0))


def pooled(in_channels: int, out_channels: int) -> nn.Module:
    """A 3x3 average, then a 1x1 convolution."""
    return nn.Sequential(nn.AvgPool2d(3, stride=1, padding=1), ConvBN(in_channels, out_channels, 1))


def block_a(c: int, pool: int, w: int) -> nn.Module:
    """35x35 grid: 1x1, 5x5 and double 3x3 branches beside the pooled one; `w` divides every width."""
    return Branches(
        ConvBN(c, 64 // w, 1),
        nn.Sequential(ConvBN(c, 48 // w, 1), ConvBN(48 // w, 64 // w, 5, padding=2)),
        nn.Sequential(
            ConvBN(c, 64 // w, 1), ConvBN(64 // w, 96 // w, 3, padding=1), ConvBN(96 // w, 96 // w, 3, padding=1)
        ),
        pooled(c, pool // w),
    )


def reduction_a(c: int, w: int) -> nn.Module:
    """35x35 to 17x17."""
    return Branches(
        ConvBN(c, 384 // w, 3, stride=2),
        nn.Sequential(
            ConvBN(c, 64 // w, 1), ConvBN(64 // w, 96 // w, 3, padding=1), ConvBN(96 // w, 96 // w, 3, stride=2)
        ),
        nn.MaxPool2d(3, stride=2),
    )


def block_b(c: int, hidden: int, w: int) -> nn.Module:
    """17x17 grid: factorised 7x7 convolutions."""
    n, out = hidden // w, 192 // w
    return Branches(
        ConvBN(c, out, 1),
        nn.Sequential(ConvBN(c, n, 1), row7(n, n), column7(n, out)),
        nn.Sequential(ConvBN(c, n, 1), column7(n, n), row7(n, n), column7(n, n), row7(n, out)),
        pooled(c, out),
    )


def reduction_b(c: int, w: int) -> nn.Module:
    """17x17 to 8x8."""
    n = 192 // w
    return Branches(
        nn.Sequential(ConvBN(c, n, 1), ConvBN(n, 320 // w, 3, stride=2)),
        nn.Sequential(ConvBN(c, n, 1), row7(n, n), column7(n, n), ConvBN(n, n, 3, stride=2)),
        nn.MaxPool2d(3, stride=2),
    )


def block_c(c: int, w: int) -> nn.Module:
    """8x8 grid: 3x3 convolutions split into a 1x3 beside a 3x1."""
    n, m = 384 // w, 448 // w
    return Branches(
        ConvBN(c, 320 // w, 1),
        nn.Sequential(ConvBN(c, n, 1), Branches(row(n, n), column(n, n))),
        nn.Sequential(ConvBN(c, m, 1), ConvBN(m, n, 3, padding=1), Branches(row(n, n), column(n, n))),
        pooled(c, 192 // w),
    )


def inception_v3(w: int, classes: int) -> nn.Module:
    """(N, 3, H, W) to (N, classes); every width is divided by `w` (1 is the published network)."""
    return nn.Sequential(
        ConvBN(3, 32 // w, 3, stride=2),
        ConvBN(32 // w, 32 // w, 3),
        ConvBN(32 // w, 64 // w, 3, padding=1),
        nn.MaxPool2d(3, stride=2),
        ConvBN(64 // w, 80 // w, 1),
        ConvBN(80 // w, 192 // w, 3),
        nn.MaxPool2d(3, stride=2),
        block_a(192 // w, 32, w),
        block_a(256 // w, 64, w),
        block_a(288 // w, 64, w),
        reduction_a(288 // w, w),
        *(block_b(768 // w, hidden, w) for hidden in (128, 160, 160, 192)),
        reduction_b(768 // w, w),
        block_c(1280 // w, w),
        block_c(2048 // w, w),
        nn.AdaptiveAvgPool2d((1, 1)),
        nn.Dropout(),
        nn.Flatten(1),
        nn.Linear(2048 // w, classes),
    )


def make_inception_v3(small: bool) -> Example:
    """299x299 images and 1000 classes; small: 107x107 images, an eighth of the width."""
    model = inception_v3(8, 10) if small else inception_v3(1, 1000)
    size = 107 if small else 299
    initialise_convnet(model, torch.randn(8 if small else 2, 3, size, size))
    return model, (torch.randn(1, 3, size, size),), {}
