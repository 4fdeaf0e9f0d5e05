"""Pooling, interpolation and convolution, with both orders of axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from benchmarks.operators.case import Cases, Draw, bf16, f32, of, together, unit

_SHAPE = (8, 64, 56, 56)


def _both(name: str, function: Callable[..., Any], *draws: Draw, backward: bool = True) -> Cases:
    """The first input with its channels apart and together."""
    return {
        name: of(function, *draws, backward=backward),
        f"{name}, channels last": of(function, together(draws[0]), *draws[1:], backward=backward),
    }


IMAGES: Cases = {
    **_both("max_pool2d 2", lambda x: functional.max_pool2d(x, 2), f32(*_SHAPE)),
    **_both("max_pool2d 3, stride 2", lambda x: functional.max_pool2d(x, 3, 2, 1), f32(*_SHAPE)),
    **_both("max_pool2d 5, stride 1", lambda x: functional.max_pool2d(x, 5, 1, 2), f32(*_SHAPE)),
    **_both("avg_pool2d 3, stride 1", lambda x: functional.avg_pool2d(x, 3, 1, 1), f32(*_SHAPE)),
    **_both("avg_pool2d 2", lambda x: functional.avg_pool2d(x, 2), f32(*_SHAPE)),
    **_both("adaptive_avg_pool2d 7", lambda x: functional.adaptive_avg_pool2d(x, 7), f32(*_SHAPE)),
    **_both("adaptive_avg_pool2d 6, uneven", lambda x: functional.adaptive_avg_pool2d(x, 6), f32(*_SHAPE)),
    **_both("adaptive_max_pool2d 1", lambda x: functional.adaptive_max_pool2d(x, 1), f32(*_SHAPE)),
    "max_pool1d": of(lambda x: functional.max_pool1d(x, 4), f32(8, 64, 4000), backward=True),
    "max_pool3d": of(lambda x: functional.max_pool3d(x, 2), f32(2, 32, 16, 56, 56), backward=True),
    "avg_pool1d": of(lambda x: functional.avg_pool1d(x, 25, 1, 12), f32(32, 7, 336), backward=True),
    "lp_pool2d": of(lambda x: functional.lp_pool2d(x, 2, 2), f32(*_SHAPE)),
    "max_unpool2d": of(
        lambda x: functional.max_unpool2d(*functional.max_pool2d(x, 2, return_indices=True), [2, 2]), f32(*_SHAPE)
    ),
    **_both("nearest x2", lambda x: functional.interpolate(x, scale_factor=2), f32(*_SHAPE)),
    **_both("nearest to 97", lambda x: functional.interpolate(x, size=(97, 97)), f32(*_SHAPE)),
    **_both("nearest to 28", lambda x: functional.interpolate(x, size=(28, 28)), f32(*_SHAPE)),
    **_both("bilinear x2", lambda x: functional.interpolate(x, scale_factor=2, mode="bilinear"), f32(*_SHAPE)),
    **_both("bilinear to 97", lambda x: functional.interpolate(x, size=97, mode="bilinear"), f32(*_SHAPE)),
    **_both(
        "bilinear to 224, aligned",
        lambda x: functional.interpolate(x, size=224, mode="bilinear", align_corners=True),
        f32(2, 21, 28, 28),
    ),
    "bilinear of three channels": of(
        lambda x: functional.interpolate(x, size=224, mode="bilinear", antialias=True), unit(4, 3, 480, 360)
    ),
    **_both("bicubic x2", lambda x: functional.interpolate(x, scale_factor=2, mode="bicubic"), f32(8, 16, 56, 56)),
    "area": of(lambda x: functional.interpolate(x, size=24, mode="area"), f32(*_SHAPE), backward=True),
    "linear x3": of(
        lambda x: functional.interpolate(x, scale_factor=3, mode="linear"), f32(8, 64, 1000), backward=True
    ),
    "trilinear": of(
        lambda x: functional.interpolate(x, scale_factor=2, mode="trilinear"), f32(1, 16, 16, 28, 28), backward=True
    ),
    "grid_sample": of(
        lambda x, g: functional.grid_sample(x, g, align_corners=False),
        f32(4, 32, 56, 56),
        lambda: torch.rand(4, 56, 56, 2) * 2 - 1,
        backward=True,
    ),
    "affine_grid": of(lambda t: functional.affine_grid(t, [4, 3, 224, 224], align_corners=False), f32(4, 2, 3)),
    "grey": of(lambda x: (x * torch.tensor([0.3, 0.6, 0.1])[:, None, None]).sum(1), unit(8, 3, 224, 224)),
    "blur": of(
        lambda x: functional.conv2d(x, torch.full((3, 1, 5, 5), 1 / 25), padding=2, groups=3), unit(8, 3, 224, 224)
    ),
    "total variation": of(
        lambda x: (x[..., 1:] - x[..., :-1]).abs().mean() + (x[..., 1:, :] - x[..., :-1, :]).abs().mean(),
        unit(8, 3, 224, 224),
        backward=True,
    ),
    "patches": of(
        lambda x: x.unfold(2, 16, 16).unfold(3, 16, 16).permute(0, 2, 3, 1, 4, 5).reshape(8, 196, 768),
        f32(8, 3, 224, 224),
        backward=True,
    ),
    **_both("conv2d 1", functional.conv2d, f32(4, 64, 56, 56), f32(128, 64, 1, 1)),
    **_both("conv2d 3", lambda x, w: functional.conv2d(x, w, padding=1), f32(4, 64, 56, 56), f32(64, 64, 3, 3)),
    **_both(
        "conv2d 3, stride 2", lambda x, w: functional.conv2d(x, w, None, 2, 1), f32(4, 64, 56, 56), f32(128, 64, 3, 3)
    ),
    **_both(
        "conv2d 7, stride 2", lambda x, w: functional.conv2d(x, w, None, 2, 3), f32(4, 3, 224, 224), f32(64, 3, 7, 7)
    ),
    **_both(
        "conv2d 3, dilation 2",
        lambda x, w: functional.conv2d(x, w, padding=2, dilation=2),
        f32(4, 64, 28, 28),
        f32(64, 64, 3, 3),
    ),
    **_both(
        "conv2d 3, 8 groups",
        lambda x, w: functional.conv2d(x, w, padding=1, groups=8),
        f32(4, 128, 28, 28),
        f32(128, 16, 3, 3),
    ),
    **_both(
        "depthwise 3",
        lambda x, w: functional.conv2d(x, w, padding=1, groups=128),
        f32(4, 128, 56, 56),
        f32(128, 1, 3, 3),
    ),
    **_both(
        "depthwise 7", lambda x, w: functional.conv2d(x, w, padding=3, groups=96), f32(4, 96, 56, 56), f32(96, 1, 7, 7)
    ),
    **_both(
        "conv2d of one channel", lambda x, w: functional.conv2d(x, w, padding=1), f32(64, 1, 28, 28), f32(32, 1, 3, 3)
    ),
    "patch embedding": of(
        lambda x, w: functional.conv2d(x, w, None, 16), f32(4, 3, 224, 224), f32(768, 3, 16, 16), backward=True
    ),
    "bf16 conv2d 3": of(
        lambda x, w: functional.conv2d(x, w, padding=1), bf16(4, 64, 56, 56), bf16(64, 64, 3, 3), backward=True
    ),
    "conv1d 3": of(lambda x, w: functional.conv1d(x, w, padding=1), f32(4, 80, 1000), f32(256, 80, 3), backward=True),
    "conv1d 10, stride 5": of(
        lambda x, w: functional.conv1d(x, w, None, 5), f32(2, 1, 80_000), f32(128, 1, 10), backward=True
    ),
    "conv1d, causal and dilated": of(
        lambda x, w: functional.conv1d(functional.pad(x, (16, 0)), w, dilation=8),
        f32(4, 64, 4000),
        f32(64, 64, 3),
        backward=True,
    ),
    "depthwise conv1d 4": of(
        lambda x, w: functional.conv1d(x, w, padding=3, groups=512), f32(4, 512, 512), f32(512, 1, 4), backward=True
    ),
    "depthwise conv1d 31": of(
        lambda x, w: functional.conv1d(x, w, padding=15, groups=256), f32(4, 256, 500), f32(256, 1, 31), backward=True
    ),
    "conv3d 3": of(
        lambda x, w: functional.conv3d(x, w, padding=1), f32(1, 16, 16, 56, 56), f32(32, 16, 3, 3, 3), backward=True
    ),
    **_both(
        "conv_transpose2d 2",
        lambda x, w: functional.conv_transpose2d(x, w, None, 2),
        f32(4, 64, 28, 28),
        f32(64, 32, 2, 2),
    ),
    **_both(
        "conv_transpose2d 4",
        lambda x, w: functional.conv_transpose2d(x, w, None, 2, 1),
        f32(4, 64, 28, 28),
        f32(64, 32, 4, 4),
    ),
    "conv_transpose1d": of(
        lambda x, w: functional.conv_transpose1d(x, w, None, 8, 4), f32(1, 128, 400), f32(128, 64, 16), backward=True
    ),
}
"""Cases by name."""
