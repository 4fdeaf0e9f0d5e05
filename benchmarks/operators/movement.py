"""Operators that move, choose and place elements."""

from __future__ import annotations

import torch
from torch.nn import functional

from benchmarks.operators.case import Cases, bf16, bools, f32, ints, of, together, unit

_SQUARE, _IMAGES = (1024, 1021), (16, 64, 56, 56)

MOVEMENT: Cases = {
    "transposed": of(lambda x: x.T.contiguous(), f32(*_SQUARE), backward=True),
    "bf16 transposed": of(lambda x: x.T.contiguous(), bf16(*_SQUARE)),
    "heads apart": of(lambda x: x.view(8, 256, 12, 64).transpose(1, 2).contiguous(), f32(8, 256, 768), backward=True),
    "heads together": of(lambda x: x.transpose(1, 2).reshape(8, 256, 768), f32(8, 12, 256, 64), backward=True),
    "axes reversed": of(lambda x: x.permute(3, 2, 1, 0).contiguous(), f32(16, 64, 33, 31)),
    "to channels last": of(lambda x: x.contiguous(memory_format=torch.channels_last), f32(*_IMAGES)),
    "from channels last": of(lambda x: x.contiguous(), together(f32(*_IMAGES))),
    "cat of rows": of(lambda *x: torch.cat(x), *(f32(256, 1021),) * 4, backward=True),
    "cat of columns": of(lambda *x: torch.cat(x, 1), *(f32(1024, 257),) * 4, backward=True),
    "cat of channels": of(lambda *x: torch.cat(x, 1), *(f32(8, 32, 56, 56),) * 3, backward=True),
    "cat of 64": of(lambda *x: torch.cat(x, -1), *(f32(1024, 16),) * 64),
    "stack": of(lambda *x: torch.stack(x), *(f32(512, 512),) * 4, backward=True),
    "stack of the last": of(lambda *x: torch.stack(x, -1), *(f32(512, 512),) * 4, backward=True),
    "split and add": of(lambda x: sum(x.split(257, 1)), f32(1024, 1028), backward=True),
    "chunks swapped": of(lambda x: torch.cat(x.chunk(2, -1)[::-1], -1), f32(1024, 1024), backward=True),
    "flip of rows": of(lambda x: x.flip(0), f32(*_SQUARE)),
    "flip of columns": of(lambda x: x.flip(1), f32(*_SQUARE), backward=True),
    "roll": of(lambda x: x.roll((3, 5), (2, 3)), f32(*_IMAGES), backward=True),
    "windows": of(lambda x: x.view(8, 8, 7, 8, 7, 96).transpose(2, 3).reshape(-1, 49, 96), f32(8, 56, 56, 96)),
    "pad with zeros": of(lambda x: functional.pad(x, (1, 1, 1, 1)), f32(*_IMAGES), backward=True),
    "pad by reflection": of(lambda x: functional.pad(x, (3,) * 4, "reflect"), f32(*_IMAGES), backward=True),
    "pad by edges": of(lambda x: functional.pad(x, (3,) * 4, "replicate"), f32(*_IMAGES), backward=True),
    "pad around": of(lambda x: functional.pad(x, (3,) * 4, "circular"), f32(*_IMAGES), backward=True),
    "repeat": of(lambda x: x.repeat(4, 3), f32(512, 257), backward=True),
    "repeat_interleave": of(lambda x: x.repeat_interleave(4, 1), f32(8, 4, 256, 64), backward=True),
    "expand": of(
        lambda x: x[:, :, None].expand(8, 4, 4, 256, 64).reshape(8, 16, 256, 64), f32(8, 4, 256, 64), backward=True
    ),
    "unfold": of(lambda x: functional.unfold(x, 3, padding=1), f32(4, 64, 28, 28), backward=True),
    "fold": of(lambda x: functional.fold(x, (28, 28), 3, padding=1), f32(4, 576, 784), backward=True),
    "frames": of(lambda x: x.unfold(-1, 400, 160) * 2, f32(4, 160_000), backward=True),
    "pixel_shuffle": of(lambda x: functional.pixel_shuffle(x, 2), f32(*_IMAGES), backward=True),
    "pixel_unshuffle": of(lambda x: functional.pixel_unshuffle(x, 2), f32(*_IMAGES), backward=True),
    "channel_shuffle": of(lambda x: functional.channel_shuffle(x, 4), f32(*_IMAGES), backward=True),
    "tril": of(torch.tril, f32(*_SQUARE), backward=True),
    "triu to a mask": of(lambda x: x + torch.full((1024, 1024), float("-inf")).triu(1), f32(1024, 1024)),
    "diagonal": of(lambda x: x.diagonal(dim1=-2, dim2=-1) * 2, f32(64, 128, 128), backward=True),
    "diag_embed": of(torch.diag_embed, f32(64, 128), backward=True),
    "one_hot": of(lambda x: functional.one_hot(x, 100).float(), ints(100, 10_007)),
    "meshgrid": of(lambda x, y: torch.stack(torch.meshgrid(x, y, indexing="ij"), -1), f32(512), f32(509)),
    "embedding": of(functional.embedding, ints(5000, 64, 128), f32(5000, 256)),
    "embedding with its gradient": of(
        lambda i, w: functional.embedding(i, w), ints(5000, 64, 128), f32(5000, 256), backward=True
    ),
    "embedding of 8": of(functional.embedding, ints(5000, 64, 1024), f32(5000, 8)),
    "embedding_bag": of(
        lambda i, w: functional.embedding_bag(i, w), ints(50_000, 512, 32), f32(50_000, 64), backward=True
    ),
    "index_select of rows": of(lambda x, i: x.index_select(0, i), f32(4096, 256), ints(4096, 8192), backward=True),
    "index_select of columns": of(lambda x, i: x.index_select(1, i), f32(1024, 1024), ints(1024, 1021), backward=True),
    "gather of rows": of(lambda x, i: x.gather(1, i), f32(1024, 1024), ints(1024, 1024, 512), backward=True),
    "gather of columns": of(lambda x, i: x.gather(0, i), f32(1024, 1024), ints(1024, 512, 1024), backward=True),
    "gather of the label": of(lambda x, i: x.gather(1, i), f32(4096, 1000), ints(1000, 4096, 1), backward=True),
    "take_along_dim": of(lambda x, i: torch.take_along_dim(x, i[..., None], 1), f32(64, 512, 64), ints(512, 64, 128)),
    "points by two lists": of(
        lambda x, i, j: x[i, j], f32(1024, 1024), ints(1024, 200_003), ints(1024, 200_003), backward=True
    ),
    "scatter": of(lambda x, i, y: x.scatter(1, i, y), f32(1024, 1024), ints(1024, 1024, 512), f32(1024, 512)),
    "scatter_add of rows": of(
        lambda x, i, y: x.index_add(0, i, y), f32(4096, 64), ints(4096, 20_011), f32(20_011, 64), backward=True
    ),
    "scatter_add of elements": of(
        lambda x, i, y: x.scatter_add(0, i, y), f32(4096, 64), ints(4096, 20_011, 64), f32(20_011, 64), backward=True
    ),
    "scatter_reduce amax": of(
        lambda x, i, y: x.scatter_reduce(0, i, y, "amax"), f32(4096), ints(4096, 200_003), f32(200_003)
    ),
    "index_put": of(
        lambda x, i, y: x.index_put((i,), y), f32(4096, 256), lambda: torch.randperm(4096)[:512], f32(512, 256)
    ),
    "index_put, accumulated": of(
        lambda x, i, y: x.index_put((i,), y, accumulate=True), f32(4096, 256), ints(4096, 5003), f32(5003, 256)
    ),
    "cache written at a position": of(
        lambda x, i, y: x.index_copy(2, i, y), f32(1, 12, 1024, 64), ints(1024, 1), f32(1, 12, 1, 64)
    ),
    "slice written": of(lambda x, y: x.slice_scatter(y, 1, 100, 357), f32(1024, 1021), f32(1024, 257), backward=True),
    "masked_fill": of(lambda x, m: x.masked_fill(m, -1e9), f32(8, 12, 256, 256), bools(8, 1, 256, 256), backward=True),
    "masked_select": of(torch.masked_select, f32(*_SQUARE), bools(*_SQUARE)),
    "nonzero": of(torch.nonzero, bools(*_SQUARE)),
    "where of bins": of(lambda x: torch.bucketize(x, torch.linspace(0, 1, 64)), unit(*_SQUARE)),
    "searchsorted": of(lambda e, x: torch.searchsorted(e.sort()[0], x), unit(4096), unit(200_003)),
    "bincount": of(lambda x: torch.bincount(x, minlength=256), ints(256, 200_003)),
    "topk of a vocabulary": of(lambda x: x.topk(50, -1), f32(16, 50_257)),
    "topk of few": of(lambda x: x.topk(2, -1), f32(8192, 8), backward=True),
    "sort of rows": of(lambda x: x.sort(-1), f32(1024, 1021)),
    "argsort of short rows": of(lambda x: x.argsort(-1), f32(8192, 16)),
    "median of rows": of(lambda x: x.median(-1), f32(1024, 1021)),
    "kthvalue": of(lambda x: x.kthvalue(10, -1), f32(1024, 1021)),
    "unique": of(torch.unique, ints(999, 100_003)),
    "arange and compare": of(lambda n: torch.arange(1024)[None] < n[:, None], ints(1024, 1021)),
    "dropout": of(lambda x: functional.dropout(x, 0.1), f32(*_SQUARE), backward=True),
    "rand": of(lambda x: torch.rand_like(x) + x, f32(*_SQUARE)),
    "randn": of(lambda x: torch.randn_like(x) + x, f32(*_SQUARE)),
}
"""Cases by name."""
