"""Networks for speech, text and graphs, with batch and length left open."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.dynamic.case import Case, Inputs


def waves(batch: int, length: int) -> Inputs:
    """Sound of one channel."""
    return (torch.randn(batch, 1, length),)


def features(batch: int, length: int) -> Inputs:
    """Frames of 20 features."""
    return (torch.randn(batch, length, 20),)


def tokens(batch: int, length: int) -> Inputs:
    """Token numbers below 50."""
    return (torch.randint(1, 50, (batch, length)),)


class Tagger(nn.Module):
    """An embedding, a recurrent layer in both directions, a label for each token."""

    def __init__(self, layer: Any, both: bool = True) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 24)
        self.layer = layer(24, 16, batch_first=True, bidirectional=both)
        self.head = nn.Linear(32 if both else 16, 7)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.layer(self.embed(x))[0]).log_softmax(-1)
        return result


class Reader(nn.Module):
    """A text recogniser: convolutions, then LSTMs over the width."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
        self.layer, self.head = nn.LSTM(32 * 4, 24, 2, bidirectional=True, batch_first=True), nn.Linear(48, 30)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.a(x)), 2)
        x = F.max_pool2d(F.relu(self.b(x)), (2, 1))
        x = x.permute(0, 3, 1, 2).flatten(2)
        result: Tensor = self.head(self.layer(x)[0]).softmax(-1)
        return result


class Separator(nn.Module):
    """Sound to sound: a strided encoder, dilated blocks, a mask, a transposed decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Conv1d(1, 32, 16, 8), nn.ConvTranspose1d(32, 1, 16, 8)
        self.blocks = nn.ModuleList([nn.Conv1d(32, 32, 3, padding=2**k, dilation=2**k) for k in range(3)])
        self.norm = nn.GroupNorm(1, 32)

    def forward(self, x: Tensor) -> Tensor:
        made = F.relu(self.encode(x))
        mask = made
        for inner in self.blocks:
            mask = mask + F.relu(inner(self.norm(mask)))
        made = self.decode(made * mask.sigmoid())
        result: Tensor = F.pad(made, (0, x.shape[-1] - made.shape[-1]))
        return result


class Vocoder(nn.Module):
    """Frames to sound by transposed convolutions and dilated residual blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(20, 32, 7, padding=3)
        self.up = nn.ModuleList([nn.ConvTranspose1d(32, 16, 8, 4, 2), nn.ConvTranspose1d(16, 8, 8, 4, 2)])
        self.mix = nn.ModuleList([nn.Conv1d(n, n, 3, padding=3, dilation=3) for n in (16, 8)])
        self.last = nn.Conv1d(8, 1, 7, padding=3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x.transpose(1, 2))
        for up, mix in zip(self.up, self.mix, strict=True):
            x = up(F.leaky_relu(x, 0.1))
            x = x + mix(F.leaky_relu(x, 0.1))
        result: Tensor = self.last(F.leaky_relu(x)).tanh()
        return result


class Conformer(nn.Module):
    """Attention with distances, a depthwise convolution with a gate, subsampled by four."""

    def __init__(self) -> None:
        super().__init__()
        self.sub, self.project = (
            nn.Sequential(nn.Conv2d(1, 8, 3, 2), nn.ReLU(), nn.Conv2d(8, 8, 3, 2), nn.ReLU()),
            nn.Linear(32, 32),
        )
        self.qkv, self.out, self.norm = nn.Linear(32, 96), nn.Linear(32, 32), nn.LayerNorm(32)
        self.wide, self.deep, self.head = (
            nn.Conv1d(32, 64, 1),
            nn.Conv1d(32, 32, 5, padding=2, groups=32),
            nn.Linear(32, 11),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.sub(x.unsqueeze(1))
        x = self.project(x.transpose(1, 2).flatten(2))
        n, length, _ = x.shape
        q, k, v = (t.view(n, length, 4, 8).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        place = torch.arange(length, device=x.device)
        distance = (place[None] - place[:, None]).abs().float().neg() * 0.1
        x = x + self.out(
            (q @ k.transpose(-1, -2) * 8**-0.5 + distance).softmax(-1).matmul(v).transpose(1, 2).flatten(2)
        )
        x = x + F.silu(self.deep(F.glu(self.wide(x.transpose(1, 2)), 1))).transpose(1, 2)
        result: Tensor = self.head(x).log_softmax(-1)
        return result


class Spectrum(nn.Module):
    """A scorer of sound: a Fourier transform as a convolution, powers in bands, a GRU, the mean over time."""

    def __init__(self) -> None:
        super().__init__()
        place = torch.arange(64).float()
        angle = place[None] * torch.arange(33).float()[:, None] * (2 * torch.pi / 64)
        self.register_buffer("waves", torch.cat([angle.cos(), angle.sin()])[:, None] * torch.hann_window(64))
        self.bands, self.layer, self.head = nn.Linear(33, 20), nn.GRU(20, 16, batch_first=True), nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.conv1d(F.pad(x, (32, 32), mode="reflect"), self.waves, stride=32)  # type: ignore[arg-type]  # a buffer
        power = x[:, :33].square() + x[:, 33:].square()
        result: Tensor = self.head(
            self.layer((self.bands(power.transpose(1, 2)).abs() + 1e-5).log())[0].mean(1)
        ).sigmoid()
        return result


class Causal(nn.Module):
    """A temporal convolution network: padded on the left alone."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Conv1d(20 if k == 0 else 24, 24, 3, dilation=2**k) for k in range(3)])
        self.head = nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(1, 2)
        for k, layer in enumerate(self.layers):
            x = F.relu(layer(F.pad(x, (2 * 2**k, 0))))
        result: Tensor = self.head(x.transpose(1, 2))
        return result


class Masked(nn.Module):
    """A classifier of texts: a transformer under a mask of the padding, and the mean of what is not masked."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(50, 32), nn.Embedding(128, 32)
        self.layers = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True), 2, enable_nested_tensor=False
        )
        self.head = nn.Linear(32, 3)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        place = torch.arange(x.shape[1], device=x.device)
        mask = place[None] >= lengths[:, None]
        made = self.layers(self.embed(x) + self.places(place), src_key_padding_mask=mask)
        made = made.masked_fill(mask[..., None], 0.0)
        result: Tensor = self.head(made.sum(1) / lengths[:, None])
        return result


def with_lengths(batch: int, length: int) -> Inputs:
    """Token numbers and how many of each row count."""
    return (*tokens(batch, length), torch.randint(3, length + 1, (batch,)))


class Graph(nn.Module):
    """Two layers of messages over edges: sums at the targets, divided by the degree."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(12, 16), nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        degree = torch.zeros(x.shape[0]).index_add(0, edges[1], torch.ones(edges.shape[1])).clamp(min=1)
        for layer in (self.a, self.b):
            sent = layer(x)[edges[0]]
            x = F.relu(torch.zeros(x.shape[0], 16).index_add(0, edges[1], sent) / degree[:, None])
        result: Tensor = self.head(x)
        return result


class Attended(nn.Module):
    """Attention over the edges of a graph: a softmax for each target by scattered maxima and sums."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.score, self.head = nn.Linear(12, 16), nn.Linear(32, 1), nn.Linear(16, 4)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        h = self.project(x)
        pair = torch.cat([h[edges[0]], h[edges[1]]], -1)
        score = F.leaky_relu(self.score(pair)).squeeze(-1)
        most = torch.full((x.shape[0],), -1e9).scatter_reduce(0, edges[1], score, "amax")
        share = (score - most[edges[1]]).exp()
        total = torch.zeros(x.shape[0]).scatter_add(0, edges[1], share)
        sent = h[edges[0]] * (share / total[edges[1]])[:, None]
        made = torch.zeros(x.shape[0], 16).scatter_add(0, edges[1][:, None].expand(-1, 16), sent)
        result: Tensor = self.head(made)
        return result


def graph(nodes: int, edges: int) -> Inputs:
    """Nodes of 12 features and pairs of numbers of nodes."""
    return torch.randn(nodes, 12), torch.randint(0, nodes, (2, edges))


class Recommender(nn.Module):
    """Scores of items for users' histories: bags of embeddings, an outer product, the best ten."""

    def __init__(self) -> None:
        super().__init__()
        self.items, self.mix = nn.Embedding(60, 16), nn.Linear(16, 16)

    def forward(self, history: Tensor) -> tuple[Tensor, Tensor]:
        seen = self.items(history)
        mask = (history > 0).unsqueeze(-1)
        user = self.mix((seen * mask).sum(1) / mask.sum(1).clamp(min=1))
        scores = user @ self.items.weight.t()
        scores = scores.scatter(1, history, -1e9)
        best = scores.topk(10)
        return best.values, best.indices


TEXT = (2, 11), (3, 17)
SOUND = (2, 640), (1, 1000)
CASES = (
    Case("lstm_tagger", lambda: Tagger(nn.LSTM), tokens, *TEXT, script=True),
    Case("gru_tagger", lambda: Tagger(nn.GRU), tokens, *TEXT, script=True),
    Case("rnn_language_model", lambda: Tagger(nn.RNN, False), tokens, *TEXT, script=True),
    Case("text_recogniser", Reader, lambda n, w: (torch.randn(n, 1, 16, w),), (1, 40), (3, 62), script=True),
    Case("separator", Separator, waves, *SOUND),
    Case("vocoder", Vocoder, features, (1, 9), (2, 14), script=True),
    Case("conformer", Conformer, features, (2, 40), (3, 57)),
    Case("spectrum_scorer", Spectrum, waves, *SOUND, script=True),
    Case("causal_convolutions", Causal, features, (2, 40), (3, 57)),
    Case("masked_classifier", Masked, with_lengths, (2, 11), (3, 17)),
    Case("graph_convolution", Graph, graph, (10, 31), (17, 40)),
    Case("graph_attention", Attended, graph, (10, 31), (17, 40)),
    Case("recommender", Recommender, tokens, *TEXT),
)
