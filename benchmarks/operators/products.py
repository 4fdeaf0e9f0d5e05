"""Products of matrices, attention and losses."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.operators.case import Cases, across, bf16, bools, f32, f64, ints, of, unit


def _attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention as people write it."""
    scores: Tensor = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
    return scores.softmax(-1) @ v


_HEADS = (f32(4, 12, 256, 64),) * 3

PRODUCTS: Cases = {
    "mm 512": of(torch.mm, f32(512, 512), f32(512, 512), backward=True),
    "mm 509": of(torch.mm, f32(509, 509), f32(509, 509), backward=True),
    "mm of transposes": of(lambda x, y: x.T @ y.T, f32(512, 509), f32(500, 512), backward=True),
    "mm with columns": of(torch.mm, f32(512, 512), across(f32(512, 512))),
    "mm, deep": of(torch.mm, f32(64, 16_384), f32(16_384, 64), backward=True),
    "mm, tall": of(torch.mm, f32(16_384, 64), f32(64, 64), backward=True),
    "mm, thin": of(torch.mm, f32(16_384, 64), f32(64, 3), backward=True),
    "mm, outer": of(torch.mm, f32(1024, 2), f32(2, 1021), backward=True),
    "f64 mm": of(torch.mm, f64(512, 512), f64(512, 512)),
    "i64 mm": of(torch.mm, ints(9, 256, 256), ints(9, 256, 256)),
    "bf16 mm": of(torch.mm, bf16(512, 512), bf16(512, 512), backward=True),
    "matrix by vector": of(torch.mv, f32(2048, 2048), f32(2048), backward=True),
    "vector by matrix": of(lambda x, y: y @ x, f32(2048, 2048), f32(2048)),
    "linear, one row": of(functional.linear, f32(1, 1024), f32(4096, 1024), f32(4096)),
    "linear, 8 rows": of(functional.linear, f32(8, 1024), f32(4096, 1024), f32(4096)),
    "linear": of(functional.linear, f32(256, 768), f32(3072, 768), f32(3072), backward=True),
    "linear of three axes": of(functional.linear, f32(8, 128, 257), f32(129, 257), f32(129), backward=True),
    "bf16 linear": of(functional.linear, bf16(256, 768), bf16(3072, 768), bf16(3072), backward=True),
    "baddbmm": of(torch.baddbmm, f32(48, 128, 128), f32(48, 128, 64), f32(48, 64, 128), backward=True),
    "bmm of 64": of(torch.bmm, f32(64, 128, 64), f32(64, 64, 128), backward=True),
    "bmm of 4096 small": of(torch.bmm, f32(4096, 8, 8), f32(4096, 8, 8), backward=True),
    "bmm of 4096 3x3": of(torch.bmm, f32(4096, 3, 3), f32(4096, 3, 3), backward=True),
    "bmm of vectors": of(torch.bmm, f32(512, 1, 256), f32(512, 256, 64), backward=True),
    "einsum bhid,bhjd": of(lambda x, y: torch.einsum("bhid,bhjd->bhij", x, y), *_HEADS[:2], backward=True),
    "einsum bij,bjk,bkl": of(lambda x, y, z: torch.einsum("bij,bjk,bkl->bil", x, y, z), *(f32(16, 64, 64),) * 3),
    "einsum nchw,cd": of(
        lambda x, y: torch.einsum("nchw,cd->ndhw", x, y), f32(8, 64, 28, 28), f32(64, 32), backward=True
    ),
    "einsum bnhd,hde": of(
        lambda x, y: torch.einsum("bnhd,hde->bnhe", x, y), f32(4, 128, 8, 64), f32(8, 64, 64), backward=True
    ),
    "bilinear": of(functional.bilinear, f32(256, 64), f32(256, 64), f32(32, 64, 64)),
    "cdist": of(torch.cdist, f32(512, 64), f32(509, 64)),
    "distances by differences": of(
        lambda x, y: ((x[:, None] - y[None]) ** 2).sum(-1), f32(512, 64), f32(509, 64), backward=True
    ),
    "distances by products": of(
        lambda x, y: x.pow(2).sum(1)[:, None] - 2 * x @ y.T + y.pow(2).sum(1),
        f32(1024, 64),
        f32(1021, 64),
        backward=True,
    ),
    "kron": of(torch.kron, f32(32, 32), f32(31, 33)),
    "outer": of(torch.outer, f32(1024), f32(1021)),
    "gram": of(lambda x: x.flatten(2) @ x.flatten(2).mT, f32(8, 64, 56, 56), backward=True),
    "cumulative products": of(lambda x: torch.linalg.matrix_power(x, 5), f32(32, 64, 64)),
    "low rank": of(lambda x, a, b: x + (x @ a) @ b, f32(512, 768), f32(768, 8), f32(8, 768), backward=True),
    "attention, fused": of(functional.scaled_dot_product_attention, *_HEADS, backward=True),
    "attention, causal": of(
        lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=True), *_HEADS, backward=True
    ),
    "attention, masked": of(
        lambda q, k, v, m: functional.scaled_dot_product_attention(q, k, v, m), *_HEADS, bools(4, 1, 256, 256)
    ),
    "attention, grouped": of(
        lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        f32(4, 12, 256, 64),
        f32(4, 3, 256, 64),
        f32(4, 3, 256, 64),
        backward=True,
    ),
    "attention, written": of(_attention, *_HEADS, backward=True),
    "attention of 2048": of(functional.scaled_dot_product_attention, *(f32(1, 4, 2048, 64),) * 3, backward=True),
    "attention, one query": of(
        functional.scaled_dot_product_attention, f32(1, 12, 1, 64), *(f32(1, 12, 1024, 64),) * 2
    ),
    "attention of depth 80": of(functional.scaled_dot_product_attention, *(f32(2, 8, 200, 80),) * 3, backward=True),
    "attention with biases": of(
        lambda q, k, v, b: ((q @ k.mT) * 0.125 + b).softmax(-1) @ v, *_HEADS, f32(12, 256, 256), backward=True
    ),
    "bf16 attention": of(functional.scaled_dot_product_attention, *(bf16(4, 12, 256, 64),) * 3, backward=True),
    "linear attention": of(lambda q, k, v: functional.elu(q) @ (functional.elu(k).mT @ v), *_HEADS, backward=True),
    "cross_entropy of 1,000": of(functional.cross_entropy, f32(256, 1000), ints(1000, 256), backward=True),
    "cross_entropy of a vocabulary": of(functional.cross_entropy, f32(256, 50_257), ints(50_257, 256), backward=True),
    "cross_entropy, smoothed": of(
        lambda x, y: functional.cross_entropy(x, y, label_smoothing=0.1),
        f32(4096, 1000),
        ints(1000, 4096),
        backward=True,
    ),
    "cross_entropy of images": of(functional.cross_entropy, f32(4, 21, 128, 128), ints(21, 4, 128, 128), backward=True),
    "binary_cross_entropy": of(
        functional.binary_cross_entropy_with_logits, f32(1024, 1021), unit(1024, 1021), backward=True
    ),
    "mse_loss": of(functional.mse_loss, f32(1024, 1021), f32(1024, 1021), backward=True),
    "smooth_l1_loss": of(functional.smooth_l1_loss, f32(1024, 1021), f32(1024, 1021), backward=True),
    "kl_div": of(
        lambda x, y: functional.kl_div(x.log_softmax(-1), y.softmax(-1), reduction="batchmean"),
        f32(4096, 257),
        f32(4096, 257),
        backward=True,
    ),
    "dice loss": of(
        lambda x, y: 1 - (2 * (x.sigmoid() * y).sum((1, 2)) / (x.sigmoid() + y).sum((1, 2))).mean(),
        f32(16, 256, 256),
        unit(16, 256, 256),
        backward=True,
    ),
    "triplet_margin_loss": of(functional.triplet_margin_loss, *(f32(4096, 256),) * 3, backward=True),
    "contrastive loss": of(
        lambda x, y: functional.cross_entropy(
            functional.normalize(x) @ functional.normalize(y).T * 20, torch.arange(512)
        ),
        f32(512, 256),
        f32(512, 256),
        backward=True,
    ),
    "rfft": of(lambda x: torch.view_as_real(torch.fft.rfft(x)), f32(64, 4096)),
    "stft": of(
        lambda x, w: torch.stft(x, 400, 160, window=w, return_complex=True).abs() ** 2, f32(4, 160_000), unit(400)
    ),
    "cholesky solve": of(
        lambda x, y: torch.linalg.solve(x @ x.mT + 64 * torch.eye(64), y), f32(16, 64, 64), f32(16, 64, 4)
    ),
    "recurrent loop": of(lambda x, w: _loop(x, w), f32(32, 64, 128), lambda: torch.randn(128, 128) / 12, backward=True),
}
"""Cases by name."""


def _loop(x: Tensor, weight: Tensor) -> Tensor:
    """Thirty-two steps of a plain recurrent network: (32, N, D) to (N, D)."""
    state = torch.zeros_like(x[0])
    for step in x:
        state = torch.tanh(step + state @ weight)
    return state
