"""Sums and their kin, scans, norms and softmax, along every axis."""

from __future__ import annotations

import torch
from torch.nn import functional

from benchmarks.operators.case import Cases, bf16, bools, each, f32, f64, ints, of, together, unit

_LONG, _TALL, _ODD, _IMAGES = (64, 16_384), (8192, 1024), (4096, 257), (16, 64, 56, 56)

REDUCTIONS: Cases = {
    "sum of all": of(torch.sum, f32(1024, 1021), backward=True),
    "sum of rows": of(lambda x: x.sum(-1), f32(*_TALL), backward=True),
    "sum of long rows": of(lambda x: x.sum(-1), f32(*_LONG), backward=True),
    "sum of short rows": of(lambda x: x.sum(-1), f32(65_536, 7)),
    "sum of columns": of(lambda x: x.sum(0), f32(1024, 1024), backward=True),
    "sum of tall columns": of(lambda x: x.sum(0), f32(*_TALL), backward=True),
    "sum of odd columns": of(lambda x: x.sum(0), f32(*_ODD)),
    "sum of few columns": of(lambda x: x.sum(0), f32(65_536, 10)),
    "sum of wide columns": of(lambda x: x.sum(0), f32(8, 100_003)),
    "sum of the middle": of(lambda x: x.sum(1), f32(64, 128, 130)),
    "sum of two axes": of(lambda x: x.sum((0, 2)), f32(64, 128, 130), backward=True),
    "sum of images": of(lambda x: x.sum((2, 3)), f32(*_IMAGES), backward=True),
    "sum of channels": of(lambda x: x.sum(1), f32(*_IMAGES)),
    "sum over a batch of images": of(lambda x: x.sum((0, 2, 3)), f32(*_IMAGES), backward=True),
    "sum of images, channels last": of(lambda x: x.sum((2, 3)), together(f32(*_IMAGES))),
    "sum over a batch, channels last": of(lambda x: x.sum((0, 2, 3)), together(f32(*_IMAGES))),
    "sum to three": of(lambda x: x.sum((0, 1)), f32(512, 512, 3)),
    "f64 sum of columns": of(lambda x: x.sum(0), f64(1024, 1024)),
    "bf16 sum of columns": of(lambda x: x.sum(0), bf16(*_TALL)),
    "bf16 sum of rows": of(lambda x: x.sum(1), bf16(*_TALL)),
    "i64 sum": of(torch.sum, ints(99, 1024, 1021)),
    "bool sum": of(torch.sum, bools(1024, 1021)),
    "bool sum of columns": of(lambda x: x.sum(0), bools(1024, 1021)),
    "bool any of rows": of(lambda x: x.any(1), bools(1024, 1021)),
    "all of closeness": of(lambda x, y: ((x - y).abs() < 1e9).all(), f32(1024, 1021), f32(1024, 1021)),
    "count_nonzero": of(torch.count_nonzero, ints(2, 1024, 1021)),
    "mean of rows": of(lambda x: x.mean(-1), f32(*_TALL), backward=True),
    "var of rows": of(lambda x: x.var(-1), f32(*_TALL), backward=True),
    "var of columns": of(lambda x: x.var(0), f32(*_TALL), backward=True),
    "std of all": of(torch.std, f32(1024, 1021), backward=True),
    "std of images": of(lambda x: x.std((2, 3)), f32(*_IMAGES)),
    "max of all": of(torch.amax, f32(1024, 1021)),
    "max of rows with places": of(lambda x: x.max(-1), f32(*_TALL), backward=True),
    "max of columns with places": of(lambda x: x.max(0), f32(*_TALL)),
    "amin of columns": of(lambda x: x.amin(0), f32(*_TALL), backward=True),
    "argmax of all": of(torch.argmax, f32(1024, 1021)),
    "argmax of rows": of(lambda x: x.argmax(-1), f32(*_TALL)),
    "argmax of columns": of(lambda x: x.argmax(0), f32(*_TALL)),
    "argmax of classes": of(lambda x: x.argmax(1), f32(4, 21, 256, 256)),
    "argmin of long rows": of(lambda x: x.argmin(-1), f32(*_LONG)),
    "i64 max of rows": of(lambda x: x.amax(-1), ints(9999, 1024, 1021)),
    "aminmax": of(lambda x: torch.aminmax(x), f32(1024, 1021)),
    "prod of rows": of(lambda x: x.prod(-1), unit(*_ODD), backward=True),
    "norm": of(lambda x: x.norm(), f32(1024, 1021), backward=True),
    "norm of rows": of(lambda x: x.norm(dim=-1), f32(*_TALL), backward=True),
    "norm 1 of columns": of(lambda x: x.norm(1, 0), f32(*_TALL)),
    "logsumexp of rows": of(lambda x: x.logsumexp(-1), f32(*_TALL), backward=True),
    "logsumexp of columns": of(lambda x: x.logsumexp(0), f32(*_TALL)),
    "dot": of(torch.dot, f32(1_000_003), f32(1_000_003)),
    "cosine_similarity": of(functional.cosine_similarity, f32(4096, 512), f32(4096, 512), backward=True),
    "pairwise_distance": of(functional.pairwise_distance, f32(4096, 512), f32(4096, 512)),
    "cumsum of rows": of(lambda x: x.cumsum(-1), f32(*_TALL), backward=True),
    "cumsum of long rows": of(lambda x: x.cumsum(-1), f32(16, 65_536)),
    "cumsum of one row": of(lambda x: x.cumsum(-1), f32(1_000_003)),
    "cumsum of columns": of(lambda x: x.cumsum(0), f32(*_TALL), backward=True),
    "i64 cumsum of a mask": of(lambda x: x.cumsum(-1) - 1, ints(2, 256, 2048)),
    "cumprod of rows": of(lambda x: x.cumprod(-1), unit(1024, 1021)),
    "cummax of rows": of(lambda x: x.cummax(-1), f32(1024, 1021)),
    "logcumsumexp": of(lambda x: x.logcumsumexp(-1), f32(1024, 1021)),
    "softmax of rows": of(lambda x: x.softmax(-1), f32(*_TALL), backward=True),
    "softmax of long rows": of(lambda x: x.softmax(-1), f32(*_LONG), backward=True),
    "softmax of short rows": of(lambda x: x.softmax(-1), f32(65_536, 10), backward=True),
    "softmax of columns": of(lambda x: x.softmax(0), f32(*_TALL), backward=True),
    "softmax of classes": of(lambda x: x.softmax(1), f32(4, 21, 256, 256), backward=True),
    "log_softmax of a vocabulary": of(lambda x: x.log_softmax(-1), f32(64, 50_257), backward=True),
    "bf16 softmax of rows": of(lambda x: x.softmax(-1), bf16(*_TALL), backward=True),
    "masked softmax": of(
        lambda x, m: x.masked_fill(m, float("-inf")).softmax(-1), f32(8, 8, 256, 256), bools(8, 1, 256, 256)
    ),
    "layer_norm": of(
        lambda x, w, b: functional.layer_norm(x, (768,), w, b), f32(2048, 768), *(f32(768),) * 2, backward=True
    ),
    "layer_norm of 100": of(
        lambda x, w, b: functional.layer_norm(x, (100,), w, b), f32(8192, 100), *(f32(100),) * 2, backward=True
    ),
    "layer_norm of images": of(lambda x: functional.layer_norm(x, x.shape[1:]), f32(16, 64, 56, 56), backward=True),
    "bf16 layer_norm": of(
        lambda x, w, b: functional.layer_norm(x, (768,), w, b), bf16(2048, 768), *(bf16(768),) * 2, backward=True
    ),
    "rms_norm": of(lambda x, w: functional.rms_norm(x, (768,), w), f32(2048, 768), f32(768), backward=True),
    "group_norm": of(lambda x, w, b: functional.group_norm(x, 8, w, b), f32(*_IMAGES), *(f32(64),) * 2, backward=True),
    "group_norm, channels last": of(
        lambda x, w, b: functional.group_norm(x, 8, w, b), together(f32(*_IMAGES)), *(f32(64),) * 2, backward=True
    ),
    "instance_norm": of(functional.instance_norm, f32(*_IMAGES), backward=True),
    "batch_norm in training": of(
        lambda x, w, b: functional.batch_norm(x, None, None, w, b, True), f32(*_IMAGES), *(f32(64),) * 2, backward=True
    ),
    "batch_norm in training, channels last": of(
        lambda x, w, b: functional.batch_norm(x, None, None, w, b, True),
        together(f32(*_IMAGES)),
        *(f32(64),) * 2,
        backward=True,
    ),
    "batch_norm of rows": of(
        lambda x, w, b: functional.batch_norm(x, None, None, w, b, True),
        f32(4096, 512),
        *(f32(512),) * 2,
        backward=True,
    ),
    "batch_norm": of(lambda x, m, v: functional.batch_norm(x, m, v), f32(*_IMAGES), f32(64), unit(64)),
    "local_response_norm": of(lambda x: functional.local_response_norm(x, 5), f32(*_IMAGES)),
    "normalize": of(functional.normalize, f32(*_TALL), backward=True),
    "normalize channels": of(functional.normalize, f32(*_IMAGES), backward=True),
    "standardised": of(lambda x: (x - x.mean(0)) / x.std(0), f32(*_TALL), backward=True),
    **each("", (torch.nansum, torch.nanmean), f32(1024, 1021)),
    "covariance": of(torch.cov, f32(64, 16_384)),
    "histogram by comparison": of(lambda x: (x[:, None] == torch.arange(16)).sum(0), ints(16, 100_003)),
}
"""Cases by name."""
