"""Networks for small devices: depthwise convolutions, gates, channel shuffles, cheap copies of channels."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.sweep.entry import Entry, images
from benchmarks.sweep.networks.blocks import Residual, Squeeze, conv, head

_V3 = (
    (3, 16, 16, False, nn.ReLU, 1), (3, 64, 24, False, nn.ReLU, 2), (3, 72, 24, False, nn.ReLU, 1),
    (5, 72, 40, True, nn.ReLU, 2), (5, 120, 40, True, nn.ReLU, 1), (5, 120, 40, True, nn.ReLU, 1),
    (3, 240, 80, False, nn.Hardswish, 2), (3, 200, 80, False, nn.Hardswish, 1), (3, 184, 80, False, nn.Hardswish, 1),
    (3, 184, 80, False, nn.Hardswish, 1), (3, 480, 112, True, nn.Hardswish, 1), (3, 672, 112, True, nn.Hardswish, 1),
    (5, 672, 160, True, nn.Hardswish, 2), (5, 960, 160, True, nn.Hardswish, 1), (5, 960, 160, True, nn.Hardswish, 1),
)  # fmt: skip
"""Size of the depthwise convolution, hidden and output channels, gated, activation, stride (table 1 of the paper)."""


def _inverted(
    into: int, size: int, hidden: int, out: int, gate: nn.Module | None, act: type[nn.Module], stride: int
) -> nn.Module:
    layers = [conv(into, hidden, 1, act=act)] if hidden != into else []
    layers += [conv(hidden, hidden, size, stride, hidden, act)]
    body = nn.Sequential(*layers, *([gate] if gate else []), conv(hidden, out, 1, act=None))
    return Residual(body) if stride == 1 and into == out else body


def mobilenet_v3(small: bool) -> nn.Module:
    """MobileNetV3-large."""
    layers: list[nn.Module] = [conv(3, 16, 3, 2, act=nn.Hardswish)]
    into = 16
    for size, hidden, out, gated, act, stride in _V3[:6] if small else _V3:
        gate = Squeeze(hidden, (hidden // 4 + 7) // 8 * 8, nn.Hardsigmoid) if gated else None
        layers.append(_inverted(into, size, hidden, out, gate, act, stride))
        into = out
    last = 6 * into
    layers += [conv(into, last, 1, act=nn.Hardswish), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(last, 1280)]
    return nn.Sequential(*layers, nn.Hardswish(), nn.Linear(1280, 1000))


def mnasnet(small: bool) -> nn.Module:
    """MNASNet-B1."""
    layers: list[nn.Module] = [conv(3, 32, 3, 2), conv(32, 32, 3, 1, 32), conv(32, 16, 1, act=None)]
    into = 16
    stages = (
        (3, 3, 24, 3, 2),
        (5, 3, 40, 3, 2),
        (5, 6, 80, 3, 2),
        (3, 6, 96, 2, 1),
        (5, 6, 192, 4, 2),
        (3, 6, 320, 1, 1),
    )
    for size, factor, out, count, stride in stages[:2] if small else stages:
        for block in range(count):
            layers.append(_inverted(into, size, factor * into, out, None, nn.ReLU, 1 if block else stride))
            into = out
    return nn.Sequential(*layers, conv(into, 1280, 1), head(1280, 1000))


class Shuffled(nn.Module):
    """A block of ShuffleNetV2: half of the channels pass, and halves are interleaved."""

    def __init__(self, into: int, out: int, stride: int) -> None:
        super().__init__()
        half = out // 2
        first = into if stride > 1 else half
        self.stride = stride
        self.left = (
            nn.Sequential(conv(into, into, 3, 2, into, None), conv(into, half, 1)) if stride > 1 else nn.Identity()
        )
        self.right = nn.Sequential(
            conv(first, half, 1), conv(half, half, 3, stride, half, None), conv(half, half, 1)
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        a, b = (x, x) if self.stride > 1 else x.chunk(2, 1)
        y = torch.cat([self.left(a), self.right(b)], 1)
        n, c, h, w = y.shape
        return y.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


def shufflenet_v2(small: bool) -> nn.Module:
    """ShuffleNetV2 x1.0."""
    layers: list[nn.Module] = [conv(3, 24, 3, 2), nn.MaxPool2d(3, 2, 1)]
    into = 24
    for out, count in ((116, 4), (232, 8), (464, 4)):
        layers.append(Shuffled(into, out, 2))
        layers += [Shuffled(out, out, 1) for _ in range(1 if small else count - 1)]
        into = out
    return nn.Sequential(*layers, conv(into, 1024, 1), head(1024, 1000))


class Ghost(nn.Module):
    """Half of the channels by a 1x1 convolution, the other half by a depthwise one of these."""

    def __init__(self, into: int, out: int, act: type[nn.Module] | None) -> None:
        super().__init__()
        self.first = conv(into, out // 2, 1, act=act)
        self.cheap = conv(out // 2, out // 2, 3, groups=out // 2, act=act)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        return torch.cat([y, self.cheap(y)], 1)


def _ghost_block(into: int, hidden: int, out: int, stride: int, gated: bool) -> nn.Module:
    middle: list[nn.Module] = [conv(hidden, hidden, 3, 2, hidden, None)] if stride > 1 else []
    middle += [Squeeze(hidden, hidden // 4, nn.Hardsigmoid)] if gated else []
    body = nn.Sequential(Ghost(into, hidden, nn.ReLU), *middle, Ghost(hidden, out, None))
    if stride == 1 and into == out:
        return Residual(body)
    return Residual(body, nn.Sequential(conv(into, into, 3, stride, into, None), conv(into, out, 1, act=None)))


def ghostnet(small: bool) -> nn.Module:
    """GhostNet with twelve blocks."""
    layers: list[nn.Module] = [conv(3, 16, 3, 2)]
    into = 16
    blocks = (
        (16, 16, 1, False), (48, 24, 2, False), (72, 24, 1, False), (72, 40, 2, True), (120, 40, 1, True),
        (240, 80, 2, False), (200, 80, 1, False), (184, 80, 1, False), (480, 112, 1, True), (672, 112, 1, True),
        (672, 160, 2, True), (960, 160, 1, True),
    )  # fmt: skip
    for hidden, out, stride, gated in blocks[:4] if small else blocks:
        layers.append(_ghost_block(into, hidden, out, stride, gated))
        into = out
    return nn.Sequential(*layers, conv(into, 960, 1), head(960, 1000))


ENTRIES = (
    Entry("mobilenet_v3", "mobile", mobilenet_v3, images(224), "Howard et al., 2019; large"),
    Entry("mnasnet", "mobile", mnasnet, images(224), "Tan et al., 2018; B1"),
    Entry("shufflenet_v2", "mobile", shufflenet_v2, images(224), "Ma et al., 2018; x1.0"),
    Entry("ghostnet", "mobile", ghostnet, images(224), "Han et al., 2019"),
)
