"""Networks for sequences: recurrent, dilated, convolution with attention, and one step of a decoder with a cache."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.sweep.entry import Entry, Inputs, rows, tokens
from benchmarks.sweep.networks.blocks import Residual


class Recurrent(nn.Module):
    """The scores of each token of a text (N, T), by a recurrence of ``kind`` in ``layers`` layers."""

    def __init__(self, kind: type[nn.RNNBase], vocabulary: int, width: int, layers: int, both: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.body: nn.Module = kind(width, width, layers, batch_first=True, bidirectional=both)  # type: ignore[arg-type]  # RNNBase's own signature differs from its kinds'
        self.head = nn.Linear(width * (1 + both), vocabulary)

    def forward(self, ids: Tensor) -> Tensor:
        y: Tensor = self.head(self.body(self.embed(ids))[0])
        return y


class DeepSpeech(nn.Module):
    """Letters from a spectrogram (N, 1, 80, T): strided convolutions, then recurrences both ways."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(1, 32, (41, 11), (2, 2), (20, 5)), nn.BatchNorm2d(32), nn.Hardtanh(0, 20),
            nn.Conv2d(32, 32, (21, 11), (2, 1), (10, 5)), nn.BatchNorm2d(32), nn.Hardtanh(0, 20),
        )  # fmt: skip
        self.body = nn.GRU(640, width, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, 29)

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x).flatten(1, 2).transpose(1, 2)
        z: Tensor = self.head(self.body(y)[0]).log_softmax(-1)
        return z


class Conformer(nn.Module):
    """A block of half a perceptron, attention, a gated depthwise convolution, and the other half: (N, T, D)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.halves = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width))
            for _ in range(2)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.gate, self.last = nn.Conv1d(width, 2 * width, 1), nn.Conv1d(width, width, 1)
        self.deep, self.norm = nn.Conv1d(width, width, 31, padding=15, groups=width), nn.BatchNorm1d(width)

    def forward(self, x: Tensor) -> Tensor:
        n, t, d = x.shape
        x = x + 0.5 * self.halves[0](x)
        y = self.norms[0](x)
        q, k, v = (part(y).view(n, t, self.heads, -1).transpose(1, 2) for part in (self.q, self.k, self.v))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, d))
        y = F.glu(self.gate(self.norms[1](x).transpose(1, 2)), 1)
        x = x + self.last(F.silu(self.norm(self.deep(y)))).transpose(1, 2)
        z: Tensor = self.norms[2](x + 0.5 * self.halves[1](x))
        return z


class Separator(nn.Module):
    """Two speakers' waves from one (N, 1, T): a learned basis, dilated depthwise convolutions, masks."""

    def __init__(self, basis: int, width: int, depth: int) -> None:
        super().__init__()
        self.encode, self.decode = nn.Conv1d(1, basis, 16, 8), nn.ConvTranspose1d(basis, 1, 16, 8)
        self.into, self.out = nn.Conv1d(basis, width, 1), nn.Conv1d(width, 2 * basis, 1)
        self.norm = nn.GroupNorm(1, basis)
        self.blocks = nn.Sequential(*(self.block(width, 2 * width, 1 << k % 8) for k in range(depth)))

    @staticmethod
    def block(width: int, hidden: int, dilation: int) -> nn.Module:
        """A 1x1 convolution, a dilated depthwise one, a 1x1 one, around a residual."""
        return Residual(
            nn.Sequential(
                nn.Conv1d(width, hidden, 1), nn.PReLU(), nn.GroupNorm(1, hidden),
                nn.Conv1d(hidden, hidden, 3, padding=dilation, dilation=dilation, groups=hidden), nn.PReLU(),
                nn.GroupNorm(1, hidden), nn.Conv1d(hidden, width, 1),
            )
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        y = self.encode(x).relu()
        masks = self.out(self.blocks(self.into(self.norm(y)))).unflatten(1, (2, -1)).sigmoid()
        parts = (masks * y[:, None]).flatten(0, 1)
        return self.decode(parts).unflatten(0, (-1, 2)).squeeze(2)  # type: ignore[no-any-return]  # calls of modules have no type


class WaveNet(nn.Module):
    """Gated dilated causal convolutions with skips: (N, C, T) to scores of 256 levels."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.into = nn.Conv1d(1, width, 1)
        self.gates = nn.ModuleList(nn.Conv1d(width, 2 * width, 2, dilation=1 << k % 8) for k in range(depth))
        self.outs = nn.ModuleList(nn.Conv1d(width, 2 * width, 1) for _ in range(depth))
        self.head = nn.Sequential(nn.ReLU(), nn.Conv1d(width, width, 1), nn.ReLU(), nn.Conv1d(width, 256, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.into(x)
        total = torch.zeros_like(x)
        for k, (gate, out) in enumerate(zip(self.gates, self.outs, strict=True)):
            a, b = gate(F.pad(x, (1 << k % 8, 0))).chunk(2, 1)
            more, skip = out(a.tanh() * b.sigmoid()).chunk(2, 1)
            x, total = x + more, total + skip
        y: Tensor = self.head(total)
        return y


class Cached(nn.Module):
    """One step of a decoder: the new token's row is written into caches of ``length`` keys and values per layer."""

    def __init__(self, layers: int, width: int, heads: int, length: int, vocabulary: int) -> None:
        super().__init__()
        self.heads, self.length = heads, length
        self.embed = nn.Embedding(vocabulary, width)
        self.q, self.k, self.v, self.out, self.gate, self.up, self.down = (
            nn.ModuleList(nn.Linear(a * width, b * width, bias=False) for _ in range(layers))
            for a, b in ((1, 1), (1, 1), (1, 1), (1, 1), (1, 4), (1, 4), (4, 1))
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers))

    def forward(self, ids: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        x = self.embed(ids)
        n, width = x.shape
        for k, (before, after) in enumerate(zip(self.norms[::2], self.norms[1::2], strict=True)):
            y = before(x)
            q, new, value = (part[k](y).view(n, self.heads, 1, -1) for part in (self.q, self.k, self.v))
            all_keys, all_values = torch.cat([keys[:, k], new], 2), torch.cat([values[:, k], value], 2)
            mixed = F.scaled_dot_product_attention(q, all_keys, all_values).reshape(n, width)
            x = x + self.out[k](mixed)
            y = after(x)
            x = x + self.down[k](F.silu(self.gate[k](y)) * self.up[k](y))
        return F.linear(x, self.embed.weight)


def _step(batch: int, small: bool) -> Inputs:
    layers, heads, length, depth = (2, 4, 19, 16) if small else (12, 12, 255, 64)
    cache = torch.randn(2, batch, layers, heads, length, depth)
    return torch.randint(0, 100, (batch,)), cache[0], cache[1]


def _conformer(small: bool) -> nn.Module:
    width, heads, layers = (32, 4, 1) if small else (256, 4, 8)
    return nn.Sequential(*(Conformer(width, heads) for _ in range(layers)))


ENTRIES = (
    Entry(
        "lstm_512", "recurrent", lambda small: Recurrent(nn.LSTM, 100, 32, 2, False) if small
        else Recurrent(nn.LSTM, 10000, 512, 2, False), tokens(10000, 50), "Zaremba et al., 2014",
    ),
    Entry(
        "gru_tagger", "recurrent", lambda small: Recurrent(nn.GRU, 100, 32, 1, True) if small
        else Recurrent(nn.GRU, 5000, 256, 2, True), tokens(5000, 50), "Huang et al., 2015",
    ),
    Entry("deepspeech2", "speech", lambda small: DeepSpeech(32 if small else 512), rows((1, 80, 200)), "Amodei, 2015"),
    Entry(
        "conformer", "speech", _conformer,
        lambda batch, small: (torch.randn(batch, 20, 32) if small else torch.randn(batch, 200, 256),),
        "Gulati et al., 2020; 8 blocks",
    ),
    Entry(
        "conv_tasnet", "speech", lambda small: Separator(32, 16, 3) if small else Separator(512, 128, 24),
        lambda batch, small: (torch.randn(batch, 1, 800 if small else 16000),), "Luo and Mesgarani, 2018",
    ),
    Entry(
        "wavenet", "speech", lambda small: WaveNet(8, 3) if small else WaveNet(64, 16),
        lambda batch, small: (torch.randn(batch, 1, 200 if small else 4000),), "van den Oord et al., 2016",
    ),
    Entry(
        "decoder_step", "decoder", lambda small: Cached(2, 64, 4, 19, 100) if small
        else Cached(12, 768, 12, 255, 32000), _step, "Touvron et al., 2023; one token, a cache of 255",
    ),
)  # fmt: skip
