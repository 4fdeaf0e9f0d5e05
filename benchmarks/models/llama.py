"""A small Llama-style decoder (Touvron et al., 2023): RMSNorm, rotary positions, grouped-query attention, SwiGLU."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.models.spec import Example


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension (Zhang and Sennrich, 2019)."""

    def __init__(self, dim: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of x (N, heads, T, D) by cos and sin (T, D), pairing element i with i + D/2."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class DecoderLayer(nn.Module):
    """Causal grouped-query attention, then SwiGLU: (N, T, D) to itself."""

    def __init__(self, dim: int, heads: int, kv_heads: int, hidden: int) -> None:
        super().__init__()
        self.head_dim = dim // heads
        self.attention_norm = RMSNorm(dim)
        self.q = nn.Linear(dim, heads * self.head_dim, bias=False)
        self.k = nn.Linear(dim, kv_heads * self.head_dim, bias=False)
        self.v = nn.Linear(dim, kv_heads * self.head_dim, bias=False)
        self.out = nn.Linear(heads * self.head_dim, dim, bias=False)
        self.mlp_norm = RMSNorm(dim)
        self.gate = nn.Linear(dim, hidden, bias=False)
        self.up = nn.Linear(dim, hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)

    def split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], -1, self.head_dim).transpose(1, 2)

    def attention(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q, k = rotate(self.split(self.q(x)), cos, sin), rotate(self.split(self.k(x)), cos, sin)
        mixed = functional.scaled_dot_product_attention(q, k, self.split(self.v(x)), is_causal=True, enable_gqa=True)
        y: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return y

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        h = self.mlp_norm(x)
        y: Tensor = x + self.down(functional.silu(self.gate(h)) * self.up(h))
        return y


class Llama(nn.Module):
    """Token ids (N, T) to logits (N, T, vocabulary), T up to `context`."""

    cos: Tensor
    sin: Tensor

    def __init__(
        self, layers: int, dim: int, heads: int, kv_heads: int, hidden: int, vocabulary: int, context: int
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, dim)
        self.layers = nn.ModuleList(DecoderLayer(dim, heads, kv_heads, hidden) for _ in range(layers))
        self.norm = RMSNorm(dim)
        self.head = nn.Linear(dim, vocabulary, bias=False)
        frequency = 10000.0 ** (-torch.arange(0, dim // heads, 2, dtype=torch.float64) / (dim // heads))
        angle = torch.outer(torch.arange(context, dtype=torch.float64), frequency).repeat(1, 2)
        self.register_buffer("cos", angle.cos().float(), persistent=False)
        self.register_buffer("sin", angle.sin().float(), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        cos, sin = self.cos[: ids.shape[1]], self.sin[: ids.shape[1]]
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, cos, sin)
        logits: Tensor = self.head(self.norm(x))
        return logits


def make_llama(small: bool) -> Example:
    """128 tokens, 8 layers, 512 wide, 8 query and 2 key heads; small: 19 tokens, 2 layers, 64 wide."""
    if small:
        return Llama(2, 64, 4, 2, 176, 200, 64), (torch.randint(0, 200, (1, 19)),), {}
    return Llama(8, 512, 8, 2, 1376, 32000, 2048), (torch.randint(0, 32000, (1, 128)),), {}
