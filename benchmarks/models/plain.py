"""BERT-base (Devlin et al., 2018) and GPT-2 (Radford et al., 2019) in plain PyTorch, for machines without transformers.

The operators, shapes and numbers of parameters are those of BertModel and GPT2LMHeadModel of transformers.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.models.spec import Example, ModelSpec


class Attention(nn.Module):
    """Multi-head attention of (N, T, D) to itself; the three projections are one product where ``joined``."""

    def __init__(self, width: int, heads: int, *, causal: bool, joined: bool) -> None:
        super().__init__()
        parts = [3 * width] if joined else [width] * 3
        self.into = nn.ModuleList(nn.Linear(width, part) for part in parts)
        self.out = nn.Linear(width, width)
        self.heads, self.causal = heads, causal

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        made = [part(x) for part in self.into]
        q, k, v = made[0].chunk(3, -1) if len(made) == 1 else made
        q, k, v = (y.view(n, length, self.heads, width // self.heads).transpose(1, 2) for y in (q, k, v))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        y: Tensor = self.out(mixed.transpose(1, 2).reshape(n, length, width))
        return y


class Layer(nn.Module):
    """Attention and two fully connected layers with GELU; norms come after them (BERT), or before (GPT-2)."""

    def __init__(self, width: int, heads: int, hidden: int, *, before: bool) -> None:
        super().__init__()
        epsilon = 1e-5 if before else 1e-12
        self.first, self.second = nn.LayerNorm(width, epsilon), nn.LayerNorm(width, epsilon)
        self.attention = Attention(width, heads, causal=before, joined=before)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.before = before

    def forward(self, x: Tensor) -> Tensor:
        approximate = "tanh" if self.before else "none"
        if self.before:
            x = x + self.attention(self.first(x))
            y: Tensor = x + self.down(functional.gelu(self.up(self.second(x)), approximate=approximate))
            return y
        x = self.first(x + self.attention(x))
        z: Tensor = self.second(x + self.down(functional.gelu(self.up(x), approximate=approximate)))
        return z


class Bert(nn.Module):
    """Token ids (N, T) to the last hidden state (N, T, D), and what the pooler makes of the first token (N, D)."""

    def __init__(self, vocabulary: int, positions: int, width: int, layers: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(positions, width)
        self.kinds = nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width, 1e-12)
        self.layers = nn.ModuleList(Layer(width, heads, hidden, before=False) for _ in range(layers))
        self.pooler = nn.Linear(width, width)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        places = torch.arange(ids.shape[1], device=ids.device)
        x = self.norm(self.words(ids) + self.kinds(torch.zeros_like(ids)) + self.places(places))
        for layer in self.layers:
            x = layer(x)
        return x, self.pooler(x[:, 0]).tanh()


class Gpt2(nn.Module):
    """Token ids (N, T) to logits (N, T, vocabulary), by the table that embeds them."""

    def __init__(self, vocabulary: int, positions: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(positions, width)
        self.layers = nn.ModuleList(Layer(width, heads, 4 * width, before=True) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for layer in self.layers:
            x = layer(x)
        return functional.linear(self.norm(x), self.words.weight)


def _drawn(module: nn.Module) -> nn.Module:
    """Weights as transformers draws them: normal, of deviation 0.02."""
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            nn.init.normal_(part.weight, std=0.02)
        if isinstance(part, nn.Linear):
            nn.init.zeros_(part.bias)
    return module


def make_bert(small: bool) -> Example:
    """128 tokens, 12 layers, 768 wide; small: 19 tokens, 2 layers, 64 wide."""
    model = Bert(200, 64, 64, 2, 4, 128) if small else Bert(30522, 512, 768, 12, 12, 3072)
    return _drawn(model), (torch.randint(0, 200 if small else 30522, (1, 19 if small else 128)),), {}


def make_gpt2(small: bool) -> Example:
    """128 tokens, 12 layers, 768 wide; small: 19 tokens, 2 layers, 64 wide."""
    model = Gpt2(200, 64, 64, 2, 4) if small else Gpt2(50257, 1024, 768, 12, 12)
    return _drawn(model), (torch.randint(0, 200 if small else 50257, (1, 19 if small else 128)),), {}


PLAIN: dict[str, ModelSpec] = {
    spec.name: spec
    for spec in (
        ModelSpec("bert_base", make_bert, 109_482_240, "Devlin et al., 2018"),
        ModelSpec("gpt2", make_gpt2, 124_439_808, "Radford et al., 2019"),
    )
}
"""Those of MODELS that need transformers there."""
