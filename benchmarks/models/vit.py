"""ViT-B/16 (Dosovitskiy et al., 2021): pre-norm encoder on 16x16 patches with a class token."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.models.spec import Example


class EncoderBlock(nn.Module):
    """Self-attention and a GELU perceptron, each after a layer norm and around a residual: (N, T, D) to itself."""

    def __init__(self, dim: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln1 = nn.LayerNorm(dim, eps=1e-6)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.ln2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim))

    def attention(self, x: Tensor) -> Tensor:
        n, t, d = x.shape
        q, k, v = self.qkv(x).view(n, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, d)
        y: Tensor = self.out(mixed)
        return y

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.ln1(x))
        y: Tensor = x + self.mlp(self.ln2(x))
        return y


class VisionTransformer(nn.Module):
    """(N, 3, image, image) to (N, classes)."""

    def __init__(self, image: int, patch: int, layers: int, dim: int, heads: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, dim, patch, stride=patch)
        self.class_token = nn.Parameter(torch.empty(1, 1, dim).normal_(std=0.02))
        self.positions = nn.Parameter(torch.empty(1, (image // patch) ** 2 + 1, dim).normal_(std=0.02))
        self.blocks = nn.Sequential(*(EncoderBlock(dim, heads, hidden) for _ in range(layers)))
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.head = nn.Linear(dim, classes)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.class_token.expand(tokens.shape[0], -1, -1), tokens], dim=1) + self.positions
        logits: Tensor = self.head(self.norm(self.blocks(tokens))[:, 0])
        return logits


def make_vit_b_16(small: bool) -> Example:
    """224x224 images, 197 tokens, 1000 classes; small: 64x64 images, 17 tokens, 2 layers, 64 wide."""
    if small:
        return VisionTransformer(64, 16, 2, 64, 4, 128, 10), (torch.randn(1, 3, 64, 64),), {}
    return VisionTransformer(224, 16, 12, 768, 12, 3072, 1000), (torch.randn(1, 3, 224, 224),), {}
