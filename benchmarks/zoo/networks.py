"""Networks of our own for the zoo: recurrent, speech, detection, graph, and an encoder; exported by PyTorch."""

from __future__ import annotations

import copy
import itertools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.zoo.entries import Entry, Ranking


class Tagger(nn.Module):
    """A label for every word: an embedding, a GRU in both directions, a linear layer."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.words = nn.Embedding(1000, width)
        self.states = nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.labels = nn.Linear(2 * width, 17)

    def forward(self, words: Tensor) -> Tensor:
        """[batch, words] to [batch, words, labels]."""
        return self.labels(self.states(self.words(words))[0])  # type: ignore[no-any-return]


class Scorer(nn.Module):
    """Scores of letters for a signal: convolutions with strides, an LSTM, a linear layer."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(40, width, 5, 2, 2), nn.Conv1d(width, width, 5, 2, 2)
        self.norm = nn.LayerNorm(width)
        self.states = nn.LSTM(width, width, num_layers=2)
        self.letters = nn.Linear(width, 32)

    def forward(self, signal: Tensor) -> Tensor:
        """[batch, 40, frames] to [frames / 4, batch, letters]."""
        x = F.gelu(self.second(F.gelu(self.first(signal))))
        scores: Tensor = self.letters(self.states(self.norm(x.permute(2, 0, 1)))[0])
        return scores.log_softmax(-1)


class Detector(nn.Module):
    """Boxes and scores: a small backbone, two scales joined by a resize, the best sixteen."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        sizes = [3, width, 2 * width, 4 * width]
        self.steps = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, b, 3, 2, 1, bias=False), nn.BatchNorm2d(b), nn.SiLU())
            for a, b in itertools.pairwise(sizes)
        )
        self.lateral = nn.Conv2d(4 * width, 2 * width, 1)
        self.head = nn.Conv2d(2 * width, 5, 3, padding=1)

    def candidates(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """[batch, 3, height, width] to all boxes [batch, 4, places] and scores [batch, places]."""
        low = self.steps[1](self.steps[0](image))
        high = F.interpolate(self.lateral(self.steps[2](low)), scale_factor=2.0, mode="nearest")
        made = self.head(low + high).flatten(2)
        return made[:, :4], made[:, 4].sigmoid()

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """[batch, 3, height, width] to boxes [batch, 16, 4] and scores [batch, 16]."""
        boxes, all_scores = self.candidates(image)
        scores, places = all_scores.topk(16, 1)
        return boxes.gather(2, places[:, None].expand(-1, 4, -1)).transpose(1, 2), scores


class Messages(nn.Module):
    """A graph network: two rounds of messages along edges, added where they arrive."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.rounds = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(2))
        self.out = nn.Linear(width, 7)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        """Features [nodes, 64] and edges [2, edges] to [nodes, 7]."""
        for layer in self.rounds:
            there = edges[1][:, None].expand(-1, nodes.shape[1])
            sent = torch.zeros_like(nodes).scatter_add(0, there, nodes[edges[0]])
            nodes = F.relu(layer(torch.cat([nodes, sent], 1)))
        return self.out(nodes)  # type: ignore[no-any-return]


class Encoder(nn.Module):
    """Two layers of a transformer encoder, written out as exporters meet them."""

    def __init__(self, width: int = 128, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    **{n: nn.Linear(width, width) for n in ("q", "k", "v", "o")},
                    "up": nn.Linear(width, 4 * width),
                    "down": nn.Linear(4 * width, width),
                    "first": nn.LayerNorm(width),
                    "second": nn.LayerNorm(width),
                }
            )
            for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        """[batch, length, width] to the same."""
        batch, length, width = x.shape
        for layer in self.layers:
            assert isinstance(layer, nn.ModuleDict)
            parts = (layer[n](x).view(batch, length, self.heads, -1).transpose(1, 2) for n in ("q", "k", "v"))
            made = F.scaled_dot_product_attention(*parts).transpose(1, 2).reshape(batch, length, width)
            x = layer["first"](x + layer["o"](made))
            x = layer["second"](x + layer["down"](F.gelu(layer["up"](x))))
        return x


class Classifier(nn.Module):
    """A convolution network with shortcuts, a pool and a linear layer."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(width, width, 3, padding=1, bias=False),
                nn.BatchNorm2d(width),
                nn.ReLU(),
                nn.Conv2d(width, width, 3, padding=1, groups=width, bias=False),
                nn.BatchNorm2d(width),
            )
            for _ in range(3)
        )
        self.out = nn.Linear(width, 10)

    def forward(self, image: Tensor) -> Tensor:
        """[batch, 3, height, width] to [batch, 10]."""
        x = self.first(image)
        for block in self.blocks:
            x = F.relu(x + block(x))
        return self.out(x.mean((2, 3)))  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class Network:
    """A network, its example inputs for a factor of their free sizes, and which axes are free."""

    build: Callable[[], nn.Module]
    inputs: Callable[[int], tuple[Tensor, ...]]
    free: dict[str, dict[int, str]]


def _edges(factor: int) -> tuple[Tensor, ...]:
    nodes = 150 * factor
    return torch.randn(nodes, 64), torch.randint(0, nodes, (2, 600 * factor))


NETWORKS = {
    "tagger": Network(Tagger, lambda f: (torch.randint(0, 1000, (1, 30 * f)),), {"words": {1: "words"}}),
    "scorer": Network(Scorer, lambda f: (torch.randn(1, 40, 200 * f),), {"signal": {2: "frames"}}),
    "detector": Network(Detector, lambda f: (torch.randn(1, 3, 128 * f, 128),), {"image": {0: "batch"}}),
    "messages": Network(Messages, _edges, {"nodes": {0: "nodes"}, "edges": {1: "edges"}}),
    "encoder": Network(Encoder, lambda f: (torch.randn(1, 64 * f, 128),), {"x": {0: "batch", 1: "length"}}),
    "classifier": Network(Classifier, lambda f: (torch.randn(f, 3, 64, 64),), {"image": {0: "batch"}}),
}


def exported(name: str, folder: Path, seed: int) -> Entry:
    """The network ``name`` as a file in ``folder`` with named sizes, and its result by PyTorch in f64."""
    network, path = NETWORKS[name], folder / f"{name}.onnx"
    torch.manual_seed(seed)
    module = network.build().eval()
    given = network.inputs(1)
    names = list(network.free)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module, given, path, dynamo=False, input_names=names, dynamic_axes=network.free, opset_version=17
        )
        wide = copy.deepcopy(module).double()
        doubles = [t.double() if t.is_floating_point() else t for t in given]
        exact = wide(*doubles)
        ranking = None
        if isinstance(wide, Detector):
            boxes, scores = (t[0].numpy() for t in wide.candidates(*doubles))
            ranking = Ranking(boxes.T, scores)
    results: Any = exact if isinstance(exact, tuple) else (exact,)
    factor = 1 if name == "detector" else 2
    return Entry(
        name,
        "exported",
        path,
        dict(zip(names, (t.numpy() for t in given), strict=True)),
        dict(zip(names, (t.numpy() for t in network.inputs(factor)), strict=True)) if factor > 1 else None,
        [t.numpy() for t in results],
        ranking=ranking,
    )
