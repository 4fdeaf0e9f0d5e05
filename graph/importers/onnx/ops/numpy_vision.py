"""Operators on images and boxes in numpy, for the cases that are not compiled."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
BLOCK = 64
"""The number of boxes that are compared with each other at once."""


def non_max_suppression(
    boxes: Array, scores: Array, most: int, overlap: float, least: float | None, center: bool
) -> Array:
    """The boxes that no better box of their class overlaps by more than ``overlap``: rows of batch, class, box.

    boxes [batch, n, 4] as two corners (y, x), or as center and size (x, y, w, h); scores [batch, classes, n].
    """
    corners = _corners(boxes, center)
    chosen: list[tuple[int, int, int]] = []
    for b, c in itertools.product(range(scores.shape[0]), range(scores.shape[1])):
        values = scores[b, c]
        order = np.argsort(-values, kind="stable")
        if least is not None:
            order = order[values[order] > least]
        chosen += [(b, c, int(i)) for i in order[_unlike(corners[b][order], most, overlap)]]
    return np.array(chosen, np.int64).reshape(-1, 3)


def _unlike(corners: Array, most: int, overlap: float) -> Array:
    """The positions of the boxes, best first, that overlap no better kept box; at most ``most``. A block of boxes at a
    time is compared with the boxes kept so far, and then within itself."""
    kept = np.empty(0, np.int64)
    for first in range(0, len(corners), BLOCK):
        if len(kept) >= most:
            break
        block = corners[first : first + BLOCK]
        alive = ~(_shared(corners[kept], block) > overlap).any(0)
        inside = np.flatnonzero(alive)
        alike = _shared(block[inside], block[inside]) > overlap
        left = np.ones(len(inside), bool)
        for i in range(len(inside)):
            if left[i]:
                left[i + 1 :] &= ~alike[i, i + 1 :]
        kept = np.concatenate([kept, first + inside[left]])
    return kept[:most]


def _corners(boxes: Array, center: bool) -> Array:
    if center:
        x, y, w, h = np.moveaxis(boxes, -1, 0)
        return np.stack([y - h / 2, x - w / 2, y + h / 2, x + w / 2], -1)
    a, b = boxes[..., :2], boxes[..., 2:]
    return np.concatenate([np.minimum(a, b), np.maximum(a, b)], -1)


def _shared(some: Array, others: Array) -> Array:
    """The quotients of intersection and union areas for each pair of boxes [m, 4] and others [n, 4]: [m, n]."""
    a, b = some[:, None], others[None]
    sides = np.maximum(np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2]), 0)
    common = sides[..., 0] * sides[..., 1]
    union = np.prod(a[..., 2:] - a[..., :2], -1) + np.prod(b[..., 2:] - b[..., :2], -1) - common
    with np.errstate(all="ignore"):
        return np.asarray(np.where(union > 0, common / union, 0.0))


def roi_align(
    x: Array, rois: Array, batch: Array, size: tuple[int, int], ratio: int, scale: float, half: bool, largest: bool
) -> Array:
    """Each region of interest [x1, y1, x2, y2] as ``size`` bins, the mean or the largest of samples in each.

    Source: He et al., "Mask R-CNN" (2017), section 3.
    """
    oh, ow = size
    shift = 0.5 if half else 0.0
    result = np.zeros((len(rois), x.shape[1], oh, ow), x.dtype)
    for r, (roi, b) in enumerate(zip(rois.astype(np.float64), batch, strict=True)):
        x1, y1, x2, y2 = roi * scale - shift
        width, height = x2 - x1, y2 - y1
        if not half:
            width, height = max(width, 1.0), max(height, 1.0)
        bh, bw = height / oh, width / ow
        sh, sw = (ratio, ratio) if ratio > 0 else (int(np.ceil(bh)), int(np.ceil(bw)))
        ys = y1 + (np.arange(oh)[:, None] + (np.arange(sh) + 0.5) / max(sh, 1)) * bh
        xs = x1 + (np.arange(ow)[:, None] + (np.arange(sw) + 0.5) / max(sw, 1)) * bw
        grid_y = np.broadcast_to(ys[:, None, :, None], (oh, ow, sh, sw))
        grid_x = np.broadcast_to(xs[None, :, None, :], (oh, ow, sh, sw))
        samples = _clamped_samples(x[int(b)], grid_y, grid_x, largest)
        result[r] = samples.max((-1, -2)) if largest else samples.sum((-1, -2)) / max(sh * sw, 1)
    return result


def _clamped_samples(image: Array, y: Array, x: Array, apart: bool) -> Array:
    """As ``bilinear``, but positions within one element of the edge move to it. With ``apart`` the largest of the four
    weighted neighbours replaces their sum, as ONNX defines the mode max."""
    h, w = image.shape[-2:]
    beyond = (y < -1) | (y > h) | (x < -1) | (x > w)
    y, x = np.clip(y, 0, h - 1), np.clip(x, 0, w - 1)
    top, left = np.floor(y).astype(np.int64), np.floor(x).astype(np.int64)
    bottom, right = np.minimum(top + 1, h - 1), np.minimum(left + 1, w - 1)
    fy, fx = y - top, x - left
    parts = [
        image[:, row, column] * weight
        for row, column, weight in (
            (top, left, (1 - fy) * (1 - fx)),
            (top, right, (1 - fy) * fx),
            (bottom, left, fy * (1 - fx)),
            (bottom, right, fy * fx),
        )
    ]
    value = np.maximum.reduce(parts) if apart else sum(parts)
    return np.where(beyond, 0, value)


def grid_sample(x: Array, grid: Array, mode: str, padding: str, align: bool) -> Array:
    """x [n, c, spatial...] at positions in [-1, 1], last coordinate first, grid [n, out..., rank].

    Source: Jaderberg et al., "Spatial transformer networks" (2015).
    """
    rank = x.ndim - 2
    sizes = x.shape[2:]
    result = np.zeros((*x.shape[:2], *grid.shape[1:-1]), x.dtype)
    for b in range(x.shape[0]):
        places = []
        for d, size in enumerate(sizes):
            g = grid[b, ..., rank - 1 - d].astype(np.float64)
            p = (g + 1) / 2 * (size - 1) if align else ((g + 1) * size - 1) / 2
            places.append(p)
        result[b] = _sampled(x[b], places, mode, padding, align)
    return result


def _sampled(x: Array, places: list[Array], mode: str, padding: str, align: bool) -> Array:
    sizes = x.shape[1:]
    if mode == "cubic":
        return _cubic(x, places, padding, align)
    if padding != "zeros":
        places = [_folded(p, n, padding, align) for p, n in zip(places, sizes, strict=True)]
    if mode == "nearest":
        return _pick(x, [np.rint(p).astype(np.int64) for p in places])
    low = [np.floor(p).astype(np.int64) for p in places]
    total = np.zeros((x.shape[0], *places[0].shape))
    for corner in itertools.product((0, 1), repeat=len(sizes)):
        weight = np.ones(places[0].shape)
        for p, base, side in zip(places, low, corner, strict=True):
            weight = weight * ((p - base) if side else (1 - (p - base)))
        total += _pick(x, [base + side for base, side in zip(low, corner, strict=True)]) * weight
    return total


def _folded(p: Array, size: int, padding: str, align: bool) -> Array:
    if padding == "border":
        return np.clip(p, 0, size - 1)
    low, high = (0.0, size - 1.0) if align else (-0.5, size - 0.5)
    span = high - low
    if span <= 0:
        return np.zeros_like(p)
    t = np.abs(p - low) % (2 * span)
    folded = np.where(t > span, 2 * span - t, t) + low
    return np.clip(folded, 0, size - 1)


def _pick(x: Array, places: list[Array]) -> Array:
    """Elements at whole positions, zero outside."""
    inside = np.ones(places[0].shape, bool)
    held = []
    for p, n in zip(places, x.shape[1:], strict=True):
        inside &= (p >= 0) & (p < n)
        held.append(np.clip(p, 0, n - 1))
    position: tuple[Any, ...] = (slice(None), *held)
    return np.asarray(x[position] * inside)


def _cubic(x: Array, places: list[Array], padding: str, align: bool) -> Array:
    low = [np.floor(p).astype(np.int64) for p in places]
    weights = [_cubic_weights(p - base) for p, base in zip(places, low, strict=True)]
    total = np.zeros((x.shape[0], *places[0].shape))
    for taps in itertools.product(range(4), repeat=len(places)):
        spots = [base + t - 1 for base, t in zip(low, taps, strict=True)]
        if padding != "zeros":
            spots = [
                np.rint(_folded(s.astype(np.float64), n, padding, align)).astype(np.int64)
                for s, n in zip(spots, x.shape[1:], strict=True)
            ]
        weight = np.ones(places[0].shape)
        for w, t in zip(weights, taps, strict=True):
            weight = weight * w[t]
        total += _pick(x, spots) * weight
    return total


def _cubic_weights(t: Array, a: float = -0.75) -> list[Array]:
    """Weights of the four neighbours. Source: Keys, "Cubic convolution interpolation" (1981)."""

    def near(s: Array) -> Array:
        return np.asarray(((a + 2) * s - (a + 3)) * s * s + 1)

    def far(s: Array) -> Array:
        return np.asarray(((a * s - 5 * a) * s + 8 * a) * s - 4 * a)

    return [far(t + 1), near(t), near(1 - t), far(2 - t)]
