"""Residual networks: basic and bottleneck blocks, grouped, gated, wide, and in three dimensions."""

from __future__ import annotations

from torch import Tensor, nn

from benchmarks.sweep.entry import Entry, images, rows
from benchmarks.sweep.networks.blocks import Residual, Squeeze, conv, head


def _skip(into: int, out: int, stride: int) -> nn.Module | None:
    return conv(into, out, 1, stride, act=None) if stride > 1 or into != out else None


def basic(into: int, width: int, stride: int) -> nn.Module:
    """Two 3x3 convolutions."""
    body = nn.Sequential(conv(into, width, 3, stride), conv(width, width, act=None))
    return Residual(body, _skip(into, width, stride), nn.ReLU())


def _bottleneck(into: int, width: int, stride: int, groups: int, per: int, gated: bool) -> nn.Module:
    inner, out = width * per * groups // 64, 4 * width
    layers: list[nn.Module] = [
        conv(into, inner, 1), conv(inner, inner, 3, stride, groups), conv(inner, out, 1, act=None)
    ]  # fmt: skip
    layers += [Squeeze(out, out // 16)] if gated else []
    return Residual(nn.Sequential(*layers), _skip(into, out, stride), nn.ReLU())


def resnet18(small: bool) -> nn.Module:
    """ResNet-18."""
    return nn.Sequential(*backbone(16 if small else 64), head(128 if small else 512, 1000))


def backbone(width: int) -> list[nn.Module]:
    """The stem and the four stages of ResNet-18, for a ``width`` of 64."""
    made: list[nn.Module] = [nn.Sequential(conv(3, width, 7, 2), nn.MaxPool2d(3, 2, 1))]
    into = width
    for stage in range(4):
        out = width << stage
        made.append(nn.Sequential(basic(into, out, 1 + (stage > 0)), basic(out, out, 1)))
        into = out
    return made


def _deep(small: bool, groups: int, per: int, gated: bool) -> nn.Module:
    layers: list[nn.Module] = [conv(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
    into = 64
    for stage, count in enumerate((1, 1, 1, 1) if small else (3, 4, 6, 3)):
        for block in range(count):
            stride = 2 if stage and not block else 1
            layers.append(_bottleneck(into, 64 << stage, stride, groups, per, gated))
            into = 256 << stage
    return nn.Sequential(*layers, head(into, 1000))


class PreActivation(nn.Module):
    """Norm and ReLU before each of two 3x3 convolutions (He et al., 2016)."""

    def __init__(self, into: int, out: int, stride: int) -> None:
        super().__init__()
        self.one, self.two = nn.BatchNorm2d(into), nn.BatchNorm2d(out)
        self.first = nn.Conv2d(into, out, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.skip = nn.Conv2d(into, out, 1, stride, bias=False) if into != out else None

    def forward(self, x: Tensor) -> Tensor:
        y = self.one(x).relu()
        skip = x if self.skip is None else self.skip(y)
        z: Tensor = skip + self.second(self.two(self.first(y)).relu())
        return z


def wide_resnet(small: bool) -> nn.Module:
    """WRN-16-4 for 32x32 images."""
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1, bias=False)]
    into = 16
    for stage, width in enumerate((16, 32, 64) if small else (64, 128, 256)):
        for block in range(1 if small else 2):
            layers.append(PreActivation(into, width, 2 if stage and not block else 1))
            into = width
    return nn.Sequential(*layers, nn.BatchNorm2d(into), nn.ReLU(), head(into, 10))


def _split(into: int, out: int, stride: int) -> list[nn.Module]:
    """A convolution of space, then one of time."""
    return [
        nn.Conv3d(into, out, (1, 3, 3), (1, stride, stride), (0, 1, 1), bias=False), nn.BatchNorm3d(out), nn.ReLU(),
        nn.Conv3d(out, out, (3, 1, 1), (stride, 1, 1), (1, 0, 0), bias=False), nn.BatchNorm3d(out),
    ]  # fmt: skip


def video(small: bool) -> nn.Module:
    """R(2+1)D with ten layers, for clips of eight frames of 112x112."""
    layers: list[nn.Module] = [*_split(3, 64, 1), nn.ReLU()]
    into = 64
    for width in (64, 128) if small else (64, 128, 256, 512):
        stride = 1 + (width > into)
        skip = nn.Conv3d(into, width, 1, stride, bias=False) if width > into else None
        layers.append(Residual(nn.Sequential(*_split(into, width, stride)), skip, nn.ReLU()))
        into = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(into, 400))


ENTRIES = (
    Entry("resnet18", "residual", resnet18, images(224), "He et al., 2015"),
    Entry("resnext50", "residual", lambda small: _deep(small, 32, 4, False), images(224), "Xie et al., 2016; 32x4d"),
    Entry("se_resnet50", "residual", lambda small: _deep(small, 1, 64, True), images(224), "Hu et al., 2017"),
    Entry("wide_resnet16_4", "residual", wide_resnet, images(32, 32), "Zagoruyko and Komodakis, 2016"),
    Entry("r2plus1d_10", "video", video, rows((3, 8, 112, 112)), "Tran et al., 2018; ten layers"),
)
