"""UNets and generators: group norms with SiLU, attention between convolutions, transposed convolution."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.sweep.entry import Entry, Inputs, images, rows
from benchmarks.sweep.networks.blocks import Residual, conv


class UNet(nn.Module):
    """Four levels of two convolutions with batch norm, enlarged by transposed convolutions."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        sizes = [width << k for k in range(4)]
        self.down = nn.ModuleList(
            nn.Sequential(conv(into, out), conv(out, out)) for into, out in zip([3, *sizes], sizes, strict=False)
        )
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * n, n, 2, 2) for n in sizes[-2::-1])
        self.join = nn.ModuleList(nn.Sequential(conv(2 * n, n), conv(n, n)) for n in sizes[-2::-1])
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept: list[Tensor] = []
        for level, layer in enumerate(self.down):
            x = layer(F.max_pool2d(x, 2) if level else x)
            kept.append(x)
        for up, join, skip in zip(self.up, self.join, kept[-2::-1], strict=True):
            x = join(torch.cat([skip, up(x)], 1))
        y: Tensor = self.head(x)
        return y


def normed(into: int, out: int) -> nn.Sequential:
    """Group norm, SiLU, a 3x3 convolution."""
    return nn.Sequential(nn.GroupNorm(8, into), nn.SiLU(), nn.Conv2d(into, out, 3, padding=1))


class TimeBlock(nn.Module):
    """A residual block to which an embedded time is added."""

    def __init__(self, into: int, out: int, time: int) -> None:
        super().__init__()
        self.first, self.second = normed(into, out), normed(out, out)
        self.time = nn.Linear(time, out)
        self.skip = nn.Conv2d(into, out, 1) if into != out else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.first(x) + self.time(F.silu(time))[:, :, None, None]
        z: Tensor = self.skip(x) + self.second(y)
        return z


class ImageAttention(nn.Module):
    """Attention among the positions of an image, after a group norm, around a residual."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.norm, self.heads = nn.GroupNorm(8, channels), heads
        self.qkv, self.out = nn.Conv2d(channels, 3 * channels, 1), nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x)).view(n, 3, self.heads, c // self.heads, h * w).transpose(-1, -2).unbind(1)
        y = F.scaled_dot_product_attention(q, k, v).transpose(-1, -2).reshape(n, c, h, w)
        z: Tensor = x + self.out(y)
        return z


class Diffusion(nn.Module):
    """The noise of an image (N, C, H, W) at a time (N,): a UNet with attention at its lowest level."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        w, time = width, 4 * width
        self.width = width
        self.embed = nn.Sequential(nn.Linear(w, time), nn.SiLU(), nn.Linear(time, time))
        self.into = nn.Conv2d(channels, w, 3, padding=1)
        self.down = nn.ModuleList([TimeBlock(w, w, time), TimeBlock(w, 2 * w, time), TimeBlock(2 * w, 4 * w, time)])
        self.shrink = nn.ModuleList(nn.Conv2d(k * w, k * w, 3, 2, 1) for k in (1, 2))
        self.middle = nn.ModuleList([TimeBlock(4 * w, 4 * w, time), TimeBlock(4 * w, 4 * w, time)])
        self.attention = ImageAttention(4 * w, 4)
        self.up = nn.ModuleList([TimeBlock(8 * w, 2 * w, time), TimeBlock(4 * w, w, time), TimeBlock(2 * w, w, time)])
        self.grow = nn.ModuleList([nn.ConvTranspose2d(2 * w, 2 * w, 4, 2, 1), nn.Conv2d(w, w, 3, padding=1)])
        self.out = normed(w, channels)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        half = self.width // 2
        rates = torch.exp(-math.log(10000.0) / half * torch.arange(half, device=x.device, dtype=x.dtype))
        angles = time[:, None] * rates
        t = self.embed(torch.cat([angles.sin(), angles.cos()], 1))
        x = self.into(x)
        kept = []
        for level, block in enumerate(self.down):
            x = block(x, t)
            kept.append(x)
            if level < 2:
                x = self.shrink[level](x)
        x = self.middle[1](self.attention(self.middle[0](x, t)), t)
        x = self.up[0](torch.cat([x, kept[2]], 1), t)
        x = self.up[1](torch.cat([self.grow[0](x), kept[1]], 1), t)
        x = self.grow[1](F.interpolate(x, scale_factor=2.0, mode="nearest"))
        y: Tensor = self.out(self.up[2](torch.cat([x, kept[0]], 1), t))
        return y


def _latents(batch: int, small: bool) -> Inputs:
    side = 16 if small else 64
    return torch.randn(batch, 3, side, side), torch.rand(batch) * 1000


def latent_decoder(small: bool) -> nn.Module:
    """Images of 256x256 from latents of 32x32: residual blocks with group norms, attention, nearest enlargement."""
    w = 16 if small else 64

    def block(into: int, out: int) -> nn.Module:
        skip = nn.Conv2d(into, out, 1) if into != out else None
        return Residual(nn.Sequential(normed(into, out), normed(out, out)), skip)

    layers: list[nn.Module] = [nn.Conv2d(4, 4 * w, 3, padding=1), block(4 * w, 4 * w), ImageAttention(4 * w, 1)]
    for into, out in ((4 * w, 2 * w), (2 * w, w), (w, w)):
        layers += [block(into, out), nn.Upsample(scale_factor=2), nn.Conv2d(out, out, 3, padding=1)]
    return nn.Sequential(*layers, normed(w, 3))


def generator(small: bool) -> nn.Module:
    """DCGAN's generator: images of 64x64 by transposed convolutions of 4x4."""
    w = 8 if small else 64
    layers: list[nn.Module] = [nn.Unflatten(1, (100, 1, 1))]
    for into, out, stride in ((100, 8 * w, 1), (8 * w, 4 * w, 2), (4 * w, 2 * w, 2), (2 * w, w, 2)):
        layers += [nn.ConvTranspose2d(into, out, 4, stride, stride - 1, bias=False), nn.BatchNorm2d(out), nn.ReLU()]
    return nn.Sequential(*layers, nn.ConvTranspose2d(w, 3, 4, 2, 1), nn.Tanh())


def style_transfer(small: bool) -> nn.Module:
    """Residual blocks with instance norms between strided and transposed convolutions, padded by reflection."""
    w = 8 if small else 32

    def layer(into: int, out: int, size: int, stride: int = 1) -> list[nn.Module]:
        made = [nn.ReflectionPad2d(size // 2), nn.Conv2d(into, out, size, stride)]
        return [*made, nn.InstanceNorm2d(out, affine=True), nn.ReLU()]

    blocks = [
        Residual(nn.Sequential(*layer(4 * w, 4 * w, 3), *layer(4 * w, 4 * w, 3)[:-1])) for _ in range(1 if small else 5)
    ]
    raised: list[nn.Module] = []
    for into, out in ((4 * w, 2 * w), (2 * w, w)):
        raised += [nn.ConvTranspose2d(into, out, 3, 2, 1, 1), nn.InstanceNorm2d(out, affine=True), nn.ReLU()]
    into_layers = [*layer(3, w, 9), *layer(w, 2 * w, 3, 2), *layer(2 * w, 4 * w, 3, 2)]
    return nn.Sequential(*into_layers, *blocks, *raised, nn.ReflectionPad2d(4), nn.Conv2d(w, 3, 9))


ENTRIES = (
    Entry("unet", "unet", lambda small: UNet(8 if small else 32, 2), images(256), "Ronneberger et al., 2015; 32 wide"),
    Entry("diffusion_unet", "unet", lambda small: Diffusion(3, 16 if small else 64), _latents, "Ho et al., 2020"),
    Entry("latent_decoder", "generator", latent_decoder, images(32, 8, 4), "Rombach et al., 2021; 64 wide"),
    Entry("dcgan", "generator", generator, rows((100,)), "Radford et al., 2015"),
    Entry("style_transfer", "generator", style_transfer, images(224), "Johnson et al., 2016"),
)
