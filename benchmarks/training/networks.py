"""Small networks of the common kinds, with the sizes at which people train them on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

Made = tuple[nn.Module, tuple[Tensor, ...]]
"""A network and its inputs."""


def perceptron() -> Made:
    """Three fully connected layers."""
    layers = (nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
    return nn.Sequential(*layers), (torch.randn(256, 784),)


def plain_convolutions() -> Made:
    """3x3 convolutions, each with a batch norm and max pooling."""
    layers: list[nn.Module] = []
    channels = 3
    for width in (32, 64, 128, 256):
        layers += [nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        layers.append(nn.MaxPool2d(2))
        channels = width
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))
    return nn.Sequential(*layers, *head), (torch.randn(32, 3, 64, 64),)


class Residual(nn.Module):
    """The first stage of a ResNet (He et al., 2015): images (N, 3, H, W) to (N, 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU())
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.blocks = nn.ModuleList(nn.Sequential(*_normed(), nn.ReLU(), *_normed()) for _ in range(3))
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.stem(x))
        for block in self.blocks:
            x = functional.relu(x + block(x))
        y: Tensor = self.head(x.mean((2, 3)))
        return y


def _normed() -> tuple[nn.Module, nn.Module]:
    return nn.Conv2d(64, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64)


def inverted_residuals() -> Made:
    """Expansion, depthwise convolution and projection, four times (Sandler et al., 2018)."""
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU6()]
    channels = 32
    for width, stride in ((64, 2), (96, 1), (128, 2), (128, 1)):
        wide = 4 * channels
        layers += [nn.Conv2d(channels, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6()]
        layers += [nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.ReLU6()]
        layers += [nn.Conv2d(wide, width, 1, bias=False), nn.BatchNorm2d(width)]
        channels = width
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))
    return nn.Sequential(*layers, *head), (torch.randn(16, 3, 96, 96),)


class UNet(nn.Module):
    """Two levels with group norm and SiLU, transposed convolution and bilinear interpolation; (N, 3, H, W) to
    (N, 2, H, W)."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(_block(i, o) for i, o in ((3, 32), (32, 64), (64, 128)))
        self.up = nn.ModuleList([nn.ConvTranspose2d(128, 64, 2, 2), nn.Upsample(scale_factor=2, mode="bilinear")])
        self.merge = nn.ModuleList([_block(128, 64), _block(64, 32)])
        self.narrow, self.head = nn.Conv2d(64, 32, 1), nn.Conv2d(32, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.down[0](x)
        b = self.down[1](functional.max_pool2d(a, 2))
        c = self.down[2](functional.avg_pool2d(b, 2))
        y = self.merge[0](torch.cat([self.up[0](c), b], 1))
        z: Tensor = self.head(self.merge[1](torch.cat([self.narrow(self.up[1](y)), a], 1)))
        return z


def _block(channels: int, width: int) -> nn.Sequential:
    first = (nn.Conv2d(channels, width, 3, padding=1), nn.GroupNorm(8, width), nn.SiLU())
    return nn.Sequential(*first, nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(8, width), nn.SiLU())


class Encoder(nn.Module):
    """Four transformer layers and a projection: (N, T, 256) to (N, T, 1000)."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(256, 8, 1024, dropout=dropout, batch_first=True, norm_first=dropout == 0)
        self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(256, 1000)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.layers(x))
        return y


class LanguageModel(nn.Module):
    """A decoder of four layers with causal attention: tokens (N, T) to the loss of predicting themselves."""

    def __init__(self, vocabulary: int = 5000, width: int = 256, layers: int = 4, heads: int = 8) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(128, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers))
        self.into = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.up = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(layers))
        self.down = nn.ModuleList(nn.Linear(4 * width, width) for _ in range(layers))
        self.head, self.heads = nn.Linear(width, vocabulary, bias=False), heads

    def forward(self, tokens: Tensor) -> Tensor:
        n, length = tokens.shape
        x = self.words(tokens) + self.places.weight[:length]
        for i, (into, out, up, down) in enumerate(zip(self.into, self.out, self.up, self.down, strict=True)):
            parts = into(self.norms[2 * i](x)).view(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            mixed = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
            x = x + out(mixed.transpose(1, 2).reshape(n, length, -1))
            x = x + down(functional.gelu(up(self.norms[2 * i + 1](x))))
        return functional.cross_entropy(self.head(x).flatten(0, 1), tokens.flatten())


class Recommender(nn.Module):
    """Embeddings of items, averaged twice, and scores of all items: (N, T) to a loss."""

    def __init__(self, items: int = 20_000) -> None:
        super().__init__()
        self.each, self.bag = nn.Embedding(items, 128), nn.EmbeddingBag(items, 128, mode="mean")
        self.hidden = nn.Sequential(nn.Linear(256, 256), nn.LayerNorm(256), nn.GELU(), nn.Linear(256, items))

    def forward(self, seen: Tensor) -> Tensor:
        x = torch.cat([self.each(seen).mean(1), self.bag(seen)], 1)
        return functional.cross_entropy(self.hidden(x), seen[:, 0])


class Recurrent(nn.Module):
    """Two recurrent layers: (N, T, 64) to (N, 10)."""

    def __init__(self, kind: type[nn.LSTM | nn.GRU]) -> None:
        super().__init__()
        self.layers, self.head = kind(64, 256, 2, batch_first=True), nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.layers(x)[0][:, -1])
        return y


def _with(make: Callable[[], nn.Module], draw: Callable[[], Tensor]) -> Made:
    return make(), (draw(),)


def _of(make: Callable[[], nn.Module], *shape: int) -> Callable[[], Made]:
    return partial(_with, make, lambda: torch.randn(*shape))


def _tokens(make: Callable[[], nn.Module], most: int, *shape: int) -> Callable[[], Made]:
    return partial(_with, make, lambda: torch.randint(0, most, shape))


NETWORKS: Mapping[str, Callable[[], Made]] = {
    "perceptron, batch 256": perceptron,
    "convolutions with max pooling, batch 32": plain_convolutions,
    "residual blocks, batch 8": _of(Residual, 8, 3, 112, 112),
    "inverted residuals, batch 16": inverted_residuals,
    "U-Net, batch 4": _of(UNet, 4, 3, 64, 64),
    "transformer encoder, batch 8": _of(partial(Encoder, 0.0), 8, 128, 256),
    "transformer encoder with dropout, batch 8": _of(partial(Encoder, 0.1), 8, 128, 256),
    "language model, batch 8": _tokens(LanguageModel, 5000, 8, 128),
    "recommender, batch 64": _tokens(Recommender, 20_000, 64, 20),
    "LSTM, batch 16": _of(partial(Recurrent, nn.LSTM), 16, 64, 64),
    "GRU, batch 16": _of(partial(Recurrent, nn.GRU), 16, 64, 64),
}
"""Networks with their inputs by name."""
