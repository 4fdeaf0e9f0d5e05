"""Operators on images and boxes in numpy, for what is not compiled."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def max_pool_with_places(
    a: Array,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pairs: Sequence[tuple[int, int]],
    out: Sequence[int],
    column_major: bool,
) -> list[Array]:
    """The largest element of every window, and its number in the flat tensor."""
    spatial = a.shape[2:]
    rank = len(spatial)
    result = np.empty((*a.shape[:2], *out), a.dtype)
    places = np.empty(result.shape, np.int64)
    area = int(np.prod(spatial))
    weights = [1] * rank
    for d in range(1, rank) if column_major else reversed(range(rank - 1)):
        weights[d] = weights[d - 1] * spatial[d - 1] if column_major else weights[d + 1] * spatial[d + 1]
    offsets = (np.arange(a.shape[0])[:, None] * a.shape[1] + np.arange(a.shape[1])) * area
    for window in itertools.product(*map(range, out)):
        taps = [
            [p for k in range(kernel[d]) if 0 <= (p := o * strides[d] - pairs[d][0] + k * dilations[d]) < spatial[d]]
            for d, o in enumerate(window)
        ]
        part = a[np.ix_(range(a.shape[0]), range(a.shape[1]), *taps)].reshape(*a.shape[:2], -1)
        best = part.argmax(-1)
        digits = np.unravel_index(best, [len(t) for t in taps])
        flat = sum(np.array(t)[g] * w for t, g, w in zip(taps, digits, weights, strict=True))
        place: tuple[Any, ...] = (..., *window)
        result[place] = np.take_along_axis(part, best[..., None], -1)[..., 0]
        places[place] = flat + offsets
    return [result, places]


def non_max_suppression(
    boxes: Array, scores: Array, most: int, overlap: float, least: float | None, center: bool
) -> Array:
    """Boxes that no better one of their class overlaps by more than ``overlap``: rows of batch, class, box.

    boxes [batch, n, 4] as two corners (y, x), or as center and size (x, y, w, h); scores [batch, classes, n].
    """
    corners = _corners(boxes, center)
    chosen: list[tuple[int, int, int]] = []
    for b, c in itertools.product(range(scores.shape[0]), range(scores.shape[1])):
        values = scores[b, c]
        order = np.argsort(-values, kind="stable")
        if least is not None:
            order = order[values[order] > least]
        kept: list[int] = []
        while len(order) and len(kept) < most:
            best, order = int(order[0]), order[1:]
            kept.append(best)
            order = order[~(_shared(corners[b, best], corners[b, order]) > overlap)]
        chosen += [(b, c, i) for i in kept]
    return np.array(chosen, np.int64).reshape(-1, 3)


def _corners(boxes: Array, center: bool) -> Array:
    if center:
        x, y, w, h = np.moveaxis(boxes, -1, 0)
        return np.stack([y - h / 2, x - w / 2, y + h / 2, x + w / 2], -1)
    a, b = boxes[..., :2], boxes[..., 2:]
    return np.concatenate([np.minimum(a, b), np.maximum(a, b)], -1)


def _shared(a: Array, others: Array) -> Array:
    """The quotients of the areas of intersection and union of one box with others."""
    low, high = np.maximum(a[:2], others[:, :2]), np.minimum(a[2:], others[:, 2:])
    common = np.prod(np.maximum(high - low, 0), -1)
    union = np.prod(a[2:] - a[:2]) + np.prod(others[:, 2:] - others[:, :2], -1) - common
    with np.errstate(all="ignore"):
        return np.asarray(np.where(union > 0, common / union, 0.0))


def bilinear(image: Array, y: Array, x: Array) -> Array:
    """image [c, h, w] at the positions y, x, linear between its elements and zero beyond them: [c, *positions]."""
    h, w = image.shape[-2:]
    top, left = np.floor(y).astype(np.int64), np.floor(x).astype(np.int64)
    total = np.zeros((image.shape[0], *y.shape), np.result_type(image.dtype, np.float32))
    for dy, dx in itertools.product((0, 1), (0, 1)):
        row, column = top + dy, left + dx
        inside = (row >= 0) & (row < h) & (column >= 0) & (column < w)
        weight = (1 - np.abs(y - row)) * (1 - np.abs(x - column)) * inside
        total += image[:, np.clip(row, 0, h - 1), np.clip(column, 0, w - 1)] * weight
    return total


def deform_conv(
    x: Array,
    w: Array,
    offset: Array,
    bias: Array | None,
    mask: Array | None,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pairs: Sequence[tuple[int, int]],
    groups: int,
    shifts: int,
) -> Array:
    """A convolution whose taps are moved by ``offset`` [n, shifts * taps * 2, oh, ow] and weighted by ``mask``.

    Source: Dai et al., "Deformable convolutional networks" (2017); Zhu et al. (2019) for the mask.
    """
    n, c = x.shape[:2]
    oh, ow = offset.shape[2:]
    taps = int(np.prod(kernel))
    moved = offset.reshape(n, shifts, taps, 2, oh, ow)
    weights = np.ones((n, shifts, taps, oh, ow), x.dtype) if mask is None else mask.reshape(n, shifts, taps, oh, ow)
    columns = np.zeros((n, c, taps, oh, ow), np.result_type(x.dtype, np.float32))
    per_shift = c // shifts
    rows, cols = np.meshgrid(np.arange(oh), np.arange(ow), indexing="ij")
    for b, s, t in itertools.product(range(n), range(shifts), range(taps)):
        ky, kx = divmod(t, kernel[1])
        y = rows * strides[0] - pairs[0][0] + ky * dilations[0] + moved[b, s, t, 0]
        z = cols * strides[1] - pairs[1][0] + kx * dilations[1] + moved[b, s, t, 1]
        part = slice(s * per_shift, (s + 1) * per_shift)
        columns[b, part, t] = bilinear(x[b, part], y, z) * weights[b, s, t]
    made = w.shape[0] // groups
    grouped = columns.reshape(n, groups, c // groups, taps, oh, ow)
    kernels = w.reshape(groups, made, c // groups, taps)
    result = np.einsum("ngcthw,gmct->ngmhw", grouped, kernels).reshape(n, w.shape[0], oh, ow)
    return np.asarray(result if bias is None else result + bias[:, None, None], x.dtype)


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
    """As ``bilinear``, but positions within one element of the edge are moved to it. With ``apart`` the largest of the
    four weighted neighbours is taken in place of their sum, as ONNX defines it for the mode max."""
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


def col2im(
    x: Array,
    image: Sequence[int],
    block: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pairs: Sequence[tuple[int, int]],
) -> Array:
    """Columns [n, c * block, windows] added up into images [n, c, *image]."""
    rank = len(image)
    n = x.shape[0]
    c = x.shape[1] // int(np.prod(block))
    counts = [(image[d] + sum(pairs[d]) - dilations[d] * (block[d] - 1) - 1) // strides[d] + 1 for d in range(rank)]
    columns = x.reshape(n, c, *block, *counts)
    whole = np.zeros((n, c, *(image[d] + sum(pairs[d]) for d in range(rank))), x.dtype)
    for tap in itertools.product(*map(range, block)):
        place = tuple(
            slice(tap[d] * dilations[d], tap[d] * dilations[d] + strides[d] * (counts[d] - 1) + 1, strides[d])
            for d in range(rank)
        )
        target: tuple[Any, ...] = (slice(None), slice(None), *place)
        source: tuple[Any, ...] = (slice(None), slice(None), *tap)
        whole[target] += columns[source]
    inner = [slice(pairs[d][0], pairs[d][0] + image[d]) for d in range(rank)]
    middle: tuple[Any, ...] = (slice(None), slice(None), *inner)
    return np.asarray(whole[middle])
