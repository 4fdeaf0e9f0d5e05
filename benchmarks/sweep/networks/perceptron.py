"""Networks of fully connected layers: mixers, recommendation, radiance fields, an autoencoder."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.sweep.entry import Entry, Inputs, images, rows


class Mixer(nn.Module):
    """MLP-Mixer: perceptrons over patches and over channels, in turn."""

    def __init__(self, patches: int, width: int, layers: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 16, 16)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers + 1))
        self.space = nn.ModuleList(self.perceptron(patches, width // 2) for _ in range(layers))
        self.channels = nn.ModuleList(self.perceptron(width, 4 * width) for _ in range(layers))
        self.head = nn.Linear(width, 1000)

    @staticmethod
    def perceptron(width: int, hidden: int) -> nn.Module:
        """Two layers with GELU between them."""
        return nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).flatten(2).transpose(1, 2)
        for k, (space, channels) in enumerate(zip(self.space, self.channels, strict=True)):
            x = x + space(self.norms[2 * k](x).transpose(1, 2)).transpose(1, 2)
            x = x + channels(self.norms[2 * k + 1](x))
        y: Tensor = self.head(self.norms[-1](x).mean(1))
        return y


class Gated(nn.Module):
    """gMLP: one half of the channels, mixed over positions, scales the other."""

    def __init__(self, length: int, width: int, layers: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.into = nn.ModuleList(nn.Linear(width, 6 * width) for _ in range(layers))
        self.inner = nn.ModuleList(nn.LayerNorm(3 * width) for _ in range(layers))
        self.space = nn.ModuleList(nn.Conv1d(length, length, 1) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(3 * width, width) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for norm, into, inner, space, out in zip(self.norms, self.into, self.inner, self.space, self.out, strict=True):
            a, b = F.gelu(into(norm(x))).chunk(2, -1)
            x = x + out(a * space(inner(b)))
        return x


class Recommender(nn.Module):
    """DLRM: embeddings of categories, their products with each other and with dense features, a perceptron."""

    def __init__(self, tables: int, rows_each: int, width: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows_each, width, mode="sum") for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, width), nn.ReLU())
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(
            nn.Linear(width + pairs, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 1)
        )
        self.places: Tensor
        self.register_buffer("places", torch.tril_indices(tables + 1, tables + 1, -1), persistent=False)

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        dense = self.bottom(x)
        all_rows = torch.stack([dense, *(table(ids[:, k]) for k, table in enumerate(self.tables))], 1)
        products = torch.bmm(all_rows, all_rows.transpose(1, 2))[:, self.places[0], self.places[1]]
        return torch.sigmoid(self.top(torch.cat([dense, products], 1)))


def _clicks(batch: int, small: bool) -> Inputs:
    tables, each = (3, 50) if small else (26, 10000)
    return torch.randn(16 * batch, 13), torch.randint(0, each, (16 * batch, tables, 4))


class Field(nn.Module):
    """Colour and density of points (N, P, 3): sines of the coordinates, eight layers, a skip in the middle."""

    def __init__(self, width: int) -> None:
        super().__init__()
        sizes = [63, *[width] * 4, width + 63, *[width] * 2]
        self.layers = nn.ModuleList(nn.Linear(n, width) for n in sizes)
        self.head = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        waves = [f(x * 2.0**k) for k in range(10) for f in (torch.sin, torch.cos)]
        coded = torch.cat([x, *waves], -1)
        y = coded
        for k, layer in enumerate(self.layers):
            y = layer(torch.cat([y, coded], -1) if k == 5 else y).relu()
        z: Tensor = self.head(y)
        return z


def autoencoder(small: bool) -> nn.Module:
    """Fully connected layers down to 16 numbers and back."""
    sizes = [784, 32, 16] if small else [784, 1024, 512, 256, 16]
    both = [*sizes, *sizes[-2::-1]]
    layers = [m for a, b in pairwise(both) for m in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1], nn.Sigmoid())


ENTRIES = (
    Entry(
        "mlp_mixer", "perceptron", lambda small: Mixer(16, 32, 2) if small else Mixer(196, 512, 8), images(224),
        "Tolstikhin et al., 2021; S/16",
    ),
    Entry(
        "gmlp", "perceptron", lambda small: Gated(16, 32, 1) if small else Gated(128, 256, 12),
        lambda batch, small: (torch.randn(batch, 16, 32) if small else torch.randn(batch, 128, 256),),
        "Liu et al., 2021",
    ),
    Entry(
        "dlrm", "recommendation", lambda small: Recommender(3, 50, 8) if small else Recommender(26, 10000, 64),
        _clicks, "Naumov et al., 2019; 16 clicks a batch",
    ),
    Entry("nerf", "perceptron", lambda small: Field(16 if small else 256), rows((1024, 3)), "Mildenhall et al., 2020"),
    Entry("autoencoder", "perceptron", autoencoder, rows((784,)), "Hinton and Salakhutdinov, 2006"),
)  # fmt: skip
