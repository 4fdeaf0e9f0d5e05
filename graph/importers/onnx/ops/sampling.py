"""Images sampled at data-dependent positions: each sample is a few loads at positions clamped to the image. Also the
inverse of taking windows from images, which adds up overlapping ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from taskmap.graph.build import define
from taskmap.graph.importers.onnx.read.host import concrete
from taskmap.graph.nodes import Node
from taskmap.graph.ops.gather import wrapped
from taskmap.ir.construct import binary, call, cast, compare, const, eq, load, maximum, minimum, reduce, select
from taskmap.ir.nodes import Buffer, Expr, ExprLike, Var
from taskmap.ir.types import DType, boolean, compute_type, i64

CUBIC = -0.75
"""The parameter a of Keys, "Cubic convolution interpolation" (1981), that ONNX uses."""


def held(p: Expr, low: float, high: float) -> Expr:
    """``p`` clamped to two bounds; NaN becomes the lower one."""
    lowest, highest = const(low, p.dtype), const(high, p.dtype)
    return select(compare("gt", p, lowest), select(compare("lt", p, highest), p, highest), lowest)


def grid_sample(x: Node, grid: Node, mode: str, padding: str, align: bool) -> Node:
    """x [n, c, spatial...] at positions in [-1, 1], last coordinate first, grid [n, out..., rank].

    mode: linear, nearest or cubic; padding: zeros, border or reflection.
    Source: Jaderberg et al., "Spatial transformer networks" (2015).
    """
    sizes = concrete(x.shape[2:], "samples of a tensor")
    rank = len(sizes)
    wide = compute_type(grid.dtype)

    def element(f: Buffer, g: Buffer) -> Callable[..., ExprLike]:
        def at(n: Expr, c: Expr, *out: Expr) -> Expr:
            image = _Image(f, (n, c), sizes, padding, align)
            places = [_position(cast(load(g, (n, *out, rank - 1 - d)), wide), sizes[d], align) for d in range(rank)]
            if mode == "cubic":
                return image.cubic(places)
            if mode == "nearest":
                return image.pick([call("round", image.folded(p, d)) for d, p in enumerate(places)])
            return image.linear([image.folded(p, d) for d, p in enumerate(places)])

        return at

    return define("grid_sample", [x, grid], [*x.shape[:2], *grid.shape[1:-1]], element, x.dtype)


def _position(g: Expr, size: int, align: bool) -> Expr:
    one, half = const(1.0, g.dtype), const(0.5, g.dtype)
    if align:
        return (g + one) * half * const(size - 1.0, g.dtype)
    return ((g + one) * const(float(size), g.dtype) - one) * half


class _Image:
    """The last dimensions of a tensor, read at positions that may be outside."""

    def __init__(self, x: Buffer, front: tuple[Expr, ...], sizes: Sequence[int], padding: str, align: bool) -> None:
        self.x, self.front, self.sizes = x, front, sizes
        self.padding, self.align = padding, align
        self.wide: DType = compute_type(x.dtype)

    def folded(self, p: Expr, d: int) -> Expr:
        """``p`` moved into the image by the rule of the padding; with zeros, to at most two elements outside."""
        size = self.sizes[d]
        if self.padding == "zeros":
            return held(p, -2.0, size + 1.0)
        if self.padding == "border":
            return held(p, 0.0, size - 1.0)
        low, high = (0.0, size - 1.0) if self.align else (-0.5, size - 0.5)
        span = high - low
        if span <= 0:
            return const(0.0, p.dtype)
        away = p - const(low, p.dtype)
        distance = maximum(away, const(0.0, p.dtype) - away)
        period = const(2 * span, p.dtype)
        t = distance - call("floor", distance / period) * period
        return held(select(compare("gt", t, const(span, p.dtype)), period - t, t) + const(low, p.dtype), 0.0, size - 1)

    def pick(self, places: Sequence[Expr]) -> Expr:
        """The element at whole positions, which are floats; zero outside."""
        inside: Expr = const(True, boolean)
        position: list[Expr] = []
        for p, size in zip(places, self.sizes, strict=True):
            i = cast(p, i64)
            inside = binary("and", inside, binary("and", compare("ge", i, 0), compare("lt", i, size)))
            position.append(maximum(minimum(i, const(size - 1, i64)), const(0, i64)))
        value = cast(load(self.x, (*self.front, *position)), self.wide)
        return select(inside, value, const(0.0, self.wide))

    def linear(self, places: Sequence[Expr]) -> Expr:
        """Linear interpolation between the neighbours."""
        low = [call("floor", p) for p in places]
        parts = [p - base for p, base in zip(places, low, strict=True)]
        one = const(1.0, places[0].dtype)
        total: Expr | None = None
        for corner in itertools.product((0, 1), repeat=len(places)):
            weight: Expr = const(1.0, self.wide)
            for part, side in zip(parts, corner, strict=True):
                weight = weight * cast(part if side else one - part, self.wide)
            sides = [base + const(float(side), base.dtype) for base, side in zip(low, corner, strict=True)]
            term = self.pick(sides) * weight
            total = term if total is None else total + term
        assert total is not None
        return total

    def cubic(self, places: Sequence[Expr]) -> Expr:
        """Cubic interpolation between four neighbours per dimension, each of them moved into the image separately."""
        near = [
            held(p, -3.0, n + 2.0) if self.padding == "zeros" else p for p, n in zip(places, self.sizes, strict=True)
        ]
        low = [call("floor", p) for p in near]
        weights = [_cubic_weights(p - base) for p, base in zip(near, low, strict=True)]
        total: Expr | None = None
        for taps in itertools.product(range(4), repeat=len(places)):
            spots = [base + const(t - 1.0, base.dtype) for base, t in zip(low, taps, strict=True)]
            if self.padding != "zeros":
                spots = [call("round", self.folded(s, d)) for d, s in enumerate(spots)]
            weight: Expr = const(1.0, self.wide)
            for of_axis, t in zip(weights, taps, strict=True):
                weight = weight * cast(of_axis[t], self.wide)
            term = self.pick(spots) * weight
            total = term if total is None else total + term
        assert total is not None
        return total


def _cubic_weights(t: Expr) -> list[Expr]:
    def number(value: float) -> Expr:
        return const(value, t.dtype)

    def near(s: Expr) -> Expr:
        return (number(CUBIC + 2) * s - number(CUBIC + 3)) * s * s + number(1.0)

    def far(s: Expr) -> Expr:
        return ((number(CUBIC) * s - number(5 * CUBIC)) * s + number(8 * CUBIC)) * s - number(4 * CUBIC)

    one = number(1.0)
    return [far(t + one), near(t), near(one - t), far(number(2.0) - t)]


def roi_align(x: Node, rois: Node, batch: Node, size: tuple[int, int], ratio: int, scale: float, half: bool) -> Node:
    """Each region of interest [x1, y1, x2, y2] as ``size`` bins, each the mean of ``ratio`` * ``ratio`` samples.

    Source: He et al., "Mask R-CNN" (2017), section 3.
    """
    h, w = concrete(x.shape[2:], "samples of a tensor")
    wide = compute_type(x.dtype)

    def element(f: Buffer, r: Buffer, b: Buffer) -> Callable[..., ExprLike]:
        def side(k: Expr, first: int, bins: int, here: Expr, sample: Expr) -> Expr:
            start, end = (
                cast(load(r, (k, i)), wide) * const(scale, wide) - const(0.5 if half else 0.0, wide)
                for i in (first, first + 2)
            )
            length = end - start if half else maximum(end - start, const(1.0, wide))
            step = length / const(float(bins), wide)
            within = (cast(sample, wide) + const(0.5, wide)) / const(float(ratio), wide)
            return start + (cast(here, wide) + within) * step

        def at(k: Expr, c: Expr, oy: Expr, ox: Expr) -> Expr:
            sy, sx = Var("sy"), Var("sx")
            y, z = side(k, 1, size[0], oy, sy), side(k, 0, size[1], ox, sx)
            image = _Image(f, (wrapped(load(b, (k,)), x.shape[0]), c), (h, w), "border", False)
            value = image.linear([held(y, 0.0, h - 1.0), held(z, 0.0, w - 1.0)])
            inside: Expr = const(True, boolean)
            for p, n in ((y, h), (z, w)):
                above = compare("ge", p, const(-1.0, wide))
                inside = binary("and", inside, binary("and", above, compare("le", p, const(float(n), wide))))
            sample = select(inside, value, const(0.0, wide))
            return reduce("sum", [(sy, ratio), (sx, ratio)], sample) / const(float(ratio * ratio), wide)

        return at

    return define("roi_align", [x, rois, batch], [rois.shape[0], x.shape[1], *size], element, x.dtype)


def shifted_windows(
    x: Node,
    offset: Node,
    mask: Node | None,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    before: Sequence[int],
) -> Node:
    """The taps of a convolution over x [n, c, h, w], each moved by ``offset`` [n, shifts, taps, 2, oh, ow] and weighted
    by ``mask`` [n, shifts, taps, oh, ow]: [n, c, taps, oh, ow].

    Source: Dai et al., "Deformable convolutional networks" (2017); Zhu et al. (2019) for the mask.
    """
    sizes = concrete(x.shape[2:], "samples of a tensor")
    channels = concrete(x.shape[1:2], "samples of a tensor")[0]
    n, shifts, taps, _, oh, ow = offset.shape
    each = channels // concrete([shifts], "offsets")[0]
    wide = compute_type(offset.dtype)

    def element(f: Buffer, moved: Buffer, *weights: Buffer) -> Callable[..., ExprLike]:
        def at(b: Expr, c: Expr, t: Expr, y: Expr, z: Expr) -> Expr:
            shift = c // each
            taken = (t // kernel[1], t % kernel[1])
            places: list[Expr] = []
            for d, (o, k) in enumerate(zip((y, z), taken, strict=True)):
                start = cast(o * strides[d] + k * dilations[d] - before[d], wide)
                place = start + cast(load(moved, (b, shift, t, d, y, z)), wide)
                places.append(held(place, -2.0, sizes[d] + 1.0))
            value = _Image(f, (b, c), sizes, "zeros", False).linear(places)
            return value * cast(load(weights[0], (b, shift, t, y, z)), value.dtype) if weights else value

        return at

    sources = [x, offset] if mask is None else [x, offset, mask]
    return define("shifted_windows", sources, [n, x.shape[1], taps, oh, ow], element, compute_type(x.dtype))


def overlapped(
    blocks: Node,
    image: Sequence[int],
    block: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    before: Sequence[int],
) -> Node:
    """Windows [n, c, *block, *counts] added up into images [n, c, *image]: each element sums the taps that cover it."""
    rank = len(image)
    counts = concrete(blocks.shape[2 + rank :], "windows of an image")
    wide = compute_type(blocks.dtype)

    def element(f: Buffer) -> Callable[..., ExprLike]:
        def at(n: Expr, c: Expr, *places: Expr) -> Expr:
            taps = [Var(f"k{d}") for d in range(rank)]
            inside: Expr = const(True, boolean)
            windows: list[Expr] = []
            for d, (p, k) in enumerate(zip(places, taps, strict=True)):
                start = p + before[d] - k * dilations[d]
                window = maximum(start, 0) // strides[d]
                inside = inside & compare("ge", start, 0) & eq(start % strides[d], 0) & compare("lt", window, counts[d])
                windows.append(minimum(window, counts[d] - 1))
            value = select(inside, cast(load(f, (n, c, *taps, *windows)), wide), const(0, wide))
            return reduce("sum", list(zip(taps, block, strict=True)), value)

        return at

    return define("overlapped", [blocks], [*blocks.shape[:2], *image], element, blocks.dtype)
