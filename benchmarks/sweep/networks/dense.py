"""Dense prediction: detectors, segmenters, super-resolution."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.sweep.entry import Entry, images
from benchmarks.sweep.networks.blocks import Joined, Residual, conv
from benchmarks.sweep.networks.residual import backbone


class Retina(nn.Module):
    """A feature pyramid on ResNet-18, and heads for classes and boxes that all levels share."""

    def __init__(self, width: int, side: int, classes: int) -> None:
        super().__init__()
        self.stem, self.first, *stages = backbone(width)
        self.stages = nn.ModuleList(stages)
        self.sides = nn.ModuleList(nn.Conv2d(width << k, side, 1) for k in (1, 2, 3))
        self.smooth = nn.ModuleList(nn.Conv2d(side, side, 3, padding=1) for _ in range(3))
        self.classes, self.boxes = (
            nn.Sequential(
                *(m for _ in range(4) for m in (nn.Conv2d(side, side, 3, padding=1), nn.ReLU())),
                nn.Conv2d(side, 9 * each, 3, padding=1),
            )
            for each in (classes, 4)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.first(self.stem(x))
        levels = []
        for stage in self.stages:
            x = stage(x)
            levels.append(x)
        made = [side(level) for side, level in zip(self.sides, levels, strict=True)]
        for k in (1, 0):
            made[k] = made[k] + F.interpolate(made[k + 1], scale_factor=2.0, mode="nearest")
        made = [smooth(level) for smooth, level in zip(self.smooth, made, strict=True)]
        scores = [self.classes(level).flatten(2).transpose(1, 2).sigmoid() for level in made]
        boxes = [self.boxes(level).flatten(2).transpose(1, 2) for level in made]
        return torch.cat(scores, 1), torch.cat(boxes, 1)


def _swish(into: int, out: int, size: int = 1, stride: int = 1) -> nn.Sequential:
    return conv(into, out, size, stride, act=nn.SiLU)


class Csp(nn.Module):
    """Channels split in two, of which a part passes residual blocks; all parts are concatenated."""

    def __init__(self, into: int, out: int, depth: int) -> None:
        super().__init__()
        half = out // 2
        self.into, self.out = _swish(into, out), _swish((2 + depth) * half, out)
        self.blocks = nn.ModuleList(
            Residual(nn.Sequential(_swish(half, half, 3), _swish(half, half, 3))) for _ in range(depth)
        )

    def forward(self, x: Tensor) -> Tensor:
        parts = list(self.into(x).chunk(2, 1))
        for block in self.blocks:
            parts.append(block(parts[-1]))
        y: Tensor = self.out(torch.cat(parts, 1))
        return y


class Pooled(nn.Module):
    """Three max pools in a row, concatenated with their input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.into, self.out = _swish(channels, channels // 2), _swish(2 * channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        parts = [self.into(x)]
        for _ in range(3):
            parts.append(F.max_pool2d(parts[-1], 5, 1, 2))
        y: Tensor = self.out(torch.cat(parts, 1))
        return y


class Yolo(nn.Module):
    """A one-stage detector with cross-stage blocks, an upward path, and boxes as expectations over bins."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        w = width
        self.a = nn.Sequential(
            _swish(3, w, 3, 2), _swish(w, 2 * w, 3, 2), Csp(2 * w, 2 * w, 1), _swish(2 * w, 4 * w, 3, 2)
        )
        self.b = Csp(4 * w, 4 * w, 2)
        self.c = nn.Sequential(_swish(4 * w, 8 * w, 3, 2), Csp(8 * w, 8 * w, 2))
        self.d = nn.Sequential(_swish(8 * w, 16 * w, 3, 2), Csp(16 * w, 16 * w, 1), Pooled(16 * w))
        self.e, self.f = Csp(24 * w, 8 * w, 1), Csp(12 * w, 4 * w, 1)
        self.heads = nn.ModuleList(
            nn.Sequential(_swish(k * w, 4 * w, 3), nn.Conv2d(4 * w, 64 + classes, 1)) for k in (4, 8, 16)
        )
        self.bins: Tensor
        self.register_buffer("bins", torch.arange(16.0), persistent=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        b = self.b(self.a(x))
        c = self.c(b)
        d = self.d(c)
        c = self.e(torch.cat([F.interpolate(d, scale_factor=2.0), c], 1))
        b = self.f(torch.cat([F.interpolate(c, scale_factor=2.0), b], 1))
        flat = torch.cat([head(y).flatten(2) for head, y in zip(self.heads, (b, c, d), strict=True)], 2)
        sides, scores = flat[:, :64], flat[:, 64:]
        n, _, places = sides.shape
        boxes = (sides.view(n, 4, 16, places).softmax(2) * self.bins[:, None].to(x.dtype)).sum(2)
        return boxes, scores.sigmoid()


class DeepLab(nn.Module):
    """Atrous pyramid pooling on ResNet-18, enlarged to the image."""

    def __init__(self, width: int, side: int, classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(*backbone(width)[:4])
        wide = [conv(4 * width, side, 3, dilation=d) for d in (6, 12, 18)]
        self.pyramid = Joined([conv(4 * width, side, 1), *wide])
        self.context = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(4 * width, side, 1), nn.ReLU())
        self.head = nn.Sequential(conv(5 * side, side, 1), conv(side, side), nn.Conv2d(side, classes, 1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        context = F.interpolate(self.context(y), size=y.shape[-2:], mode="bilinear", align_corners=False)
        y = self.head(torch.cat([self.pyramid(y), context], 1))
        return F.interpolate(y, size=x.shape[-2:], mode="bilinear", align_corners=False)


class Bisected(nn.Module):
    """Encoder and decoder with remembered max pooling places replaced by bilinear steps; all at full resolution."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.down = nn.ModuleList([conv(3, width), conv(width, 2 * width, 3, 2), conv(2 * width, 4 * width, 3, 2)])
        self.up = nn.ModuleList([conv(4 * width, 2 * width), conv(2 * width, width)])
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for layer in self.down:
            x = layer(x)
            kept.append(x)
        for layer, skip in zip(self.up, (kept[1], kept[0]), strict=True):
            x = layer(F.interpolate(x, size=skip.shape[-2:], mode="bilinear", align_corners=True)) + skip
        y: Tensor = self.head(x)
        return y


def espcn(small: bool) -> nn.Module:
    """Sub-pixel convolution, three times as large."""
    width = 8 if small else 64
    return nn.Sequential(
        nn.Conv2d(1, width, 5, padding=2), nn.Tanh(), nn.Conv2d(width, width // 2, 3, padding=1), nn.Tanh(),
        nn.Conv2d(width // 2, 9, 3, padding=1), nn.PixelShuffle(3),
    )  # fmt: skip


def edsr(small: bool) -> nn.Module:
    """EDSR-baseline, twice as large."""
    w = 8 if small else 64

    def block() -> nn.Module:
        return Residual(nn.Sequential(nn.Conv2d(w, w, 3, padding=1), nn.ReLU(), nn.Conv2d(w, w, 3, padding=1)))

    body = nn.Sequential(*(block() for _ in range(2 if small else 16)), nn.Conv2d(w, w, 3, padding=1))
    tail = [nn.Conv2d(w, 4 * w, 3, padding=1), nn.PixelShuffle(2), nn.Conv2d(w, 3, 3, padding=1)]
    return nn.Sequential(nn.Conv2d(3, w, 3, padding=1), Residual(body), *tail)


class DenseResidual(nn.Module):
    """Five convolutions, each of all that came before, and a scaled residual."""

    def __init__(self, width: int, growth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Conv2d(width + k * growth, growth if k < 4 else width, 3, padding=1) for k in range(5)
        )

    def forward(self, x: Tensor) -> Tensor:
        parts = [x]
        for layer in self.layers:
            y = layer(torch.cat(parts, 1))
            parts.append(F.leaky_relu(y, 0.2))
        z: Tensor = x + 0.2 * y
        return z


def rrdb(small: bool) -> nn.Module:
    """ESRGAN's generator with three dense blocks, four times as large."""
    w = 8 if small else 64
    body = nn.Sequential(*(DenseResidual(w, w // 2) for _ in range(1 if small else 3)), nn.Conv2d(w, w, 3, padding=1))
    raised = [m for _ in range(2) for m in (nn.Upsample(scale_factor=2), nn.Conv2d(w, w, 3, padding=1), nn.LeakyReLU())]
    return nn.Sequential(nn.Conv2d(3, w, 3, padding=1), Residual(body), *raised, nn.Conv2d(w, 3, 3, padding=1))


ENTRIES = (
    Entry(
        "retinanet18", "detection", lambda small: Retina(8, 16, 3) if small else Retina(64, 128, 80), images(320),
        "Lin et al., 2017; ResNet-18, 128 channels",
    ),
    Entry("yolo_n", "detection", lambda small: Yolo(8 if small else 16, 80), images(320), "Jocher et al., 2023; nano"),
    Entry(
        "deeplab18", "segmentation", lambda small: DeepLab(8, 16, 3) if small else DeepLab(64, 128, 21), images(256),
        "Chen et al., 2017; ResNet-18, 128 channels",
    ),
    Entry("bilinear_segmenter", "segmentation", lambda small: Bisected(4 if small else 32, 19), images(256), "made up"),
    Entry("espcn", "super-resolution", espcn, images(160, 24, 1), "Shi et al., 2016"),
    Entry("edsr", "super-resolution", edsr, images(96, 24), "Lim et al., 2017; baseline"),
    Entry("rrdb", "super-resolution", rrdb, images(64, 16), "Wang et al., 2018; three blocks"),
)  # fmt: skip
