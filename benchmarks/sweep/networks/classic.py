"""The first deep networks for images: plain stacks of convolutions, and branches that are concatenated."""

from __future__ import annotations

from torch import nn

from benchmarks.sweep.entry import Entry, images
from benchmarks.sweep.networks.blocks import Joined, conv, head


def alexnet(small: bool) -> nn.Module:
    """AlexNet in one column."""
    w = 8 if small else 64
    side = 1 if small else 6
    return nn.Sequential(
        nn.Conv2d(3, w, 11, 4, 2), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.Conv2d(w, 3 * w, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.Conv2d(3 * w, 6 * w, 3, padding=1), nn.ReLU(), nn.Conv2d(6 * w, 4 * w, 3, padding=1), nn.ReLU(),
        nn.Conv2d(4 * w, 4 * w, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2), nn.Flatten(),
        nn.Linear(4 * w * side * side, 64 * w), nn.ReLU(), nn.Linear(64 * w, 64 * w), nn.ReLU(),
        nn.Linear(64 * w, 1000),
    )  # fmt: skip


def vgg16(small: bool) -> nn.Module:
    """VGG-16 without norms."""
    base = 8 if small else 64
    layers: list[nn.Module] = []
    into = 3
    for count, factor in ((2, 1), (2, 2), (3, 4), (3, 8), (3, 8)):
        for _ in range(count):
            layers += [nn.Conv2d(into, factor * base, 3, padding=1), nn.ReLU()]
            into = factor * base
        layers.append(nn.MaxPool2d(2))
    wide, side = 64 * base, 2 if small else 7
    layers += [nn.Flatten(), nn.Linear(into * side * side, wide), nn.ReLU(), nn.Linear(wide, wide), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(wide, 1000))


def _fire(into: int, squeeze: int, expand: int) -> nn.Module:
    wide = [nn.Sequential(nn.Conv2d(squeeze, expand, k, padding=k // 2), nn.ReLU()) for k in (1, 3)]
    return nn.Sequential(nn.Conv2d(into, squeeze, 1), nn.ReLU(), Joined(wide))


def squeezenet(small: bool) -> nn.Module:
    """SqueezeNet 1.1."""
    pool = nn.MaxPool2d(3, 2, ceil_mode=True)
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, 2), nn.ReLU(), pool, _fire(64, 16, 64), _fire(128, 16, 64),
        pool, _fire(128, 32, 128), _fire(256, 32, 128), pool, _fire(256, 48, 192), _fire(384, 48, 192),
        _fire(384, 64, 256), _fire(512, 64, 256), nn.Conv2d(512, 10 if small else 1000, 1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip


_INCEPTIONS = (
    (192, 64, 96, 128, 16, 32, 32), (256, 128, 128, 192, 32, 96, 64), (),
    (480, 192, 96, 208, 16, 48, 64), (512, 160, 112, 224, 24, 64, 64), (512, 128, 128, 256, 24, 64, 64),
    (512, 112, 144, 288, 32, 64, 64), (528, 256, 160, 320, 32, 128, 128), (),
    (832, 256, 160, 320, 32, 128, 128), (832, 384, 192, 384, 48, 128, 128),
)  # fmt: skip
"""Channels of the blocks' input, of the 1x1, the 3x3 and its reduction, the 5x5 and its, and after pooling."""


def _inception(into: int, one: int, three: int, third: int, five: int, fifth: int, pooled: int) -> nn.Module:
    pool = nn.Sequential(nn.MaxPool2d(3, 1, 1), conv(into, pooled, 1))
    wide = [nn.Sequential(conv(into, thin, 1), conv(thin, out, 3)) for thin, out in ((three, third), (five, fifth))]
    return Joined([conv(into, one, 1), *wide, pool])


def googlenet(small: bool) -> nn.Module:
    """GoogLeNet with batch norms and 3x3 in place of 5x5, without auxiliary classifiers."""
    pool = nn.MaxPool2d(3, 2, ceil_mode=True)
    blocks = [_inception(*sizes) if sizes else pool for sizes in (_INCEPTIONS[:3] if small else _INCEPTIONS)]
    stem = [conv(3, 64, 7, 2), pool, conv(64, 64, 1), conv(64, 192, 3), pool]
    return nn.Sequential(*stem, *blocks, head(480 if small else 1024, 1000))


ENTRIES = (
    Entry("alexnet", "convolution", alexnet, images(224), "Krizhevsky et al., 2012"),
    Entry("vgg16", "convolution", vgg16, images(224), "Simonyan and Zisserman, 2014"),
    Entry("squeezenet1.1", "convolution", squeezenet, images(224), "Iandola et al., 2016"),
    Entry("googlenet", "convolution", googlenet, images(224), "Szegedy et al., 2014"),
)
