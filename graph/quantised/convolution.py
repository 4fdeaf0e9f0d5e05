"""A convolution of bytes, or of narrow floats, as a matrix product.

    out[n, o, place] = sum over k of image[n, channel(k), place + tap(k)] · w[o, k]

The image is padded and stored with its channels innermost, their number rounded up to a multiple of four, so that
groups of two or four neighbours along the sum are neighbours in memory, of one tap each. Nothing else is copied: k runs
over taps, then channels, and the product reads the window through its indices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from taskmap.graph.build import define, reduction
from taskmap.graph.nodes import Node
from taskmap.ir.analysis.contraction import BYTES
from taskmap.ir.analysis.simplify import Simplifier
from taskmap.ir.construct import cast, compare, const, index, load, maximum, minimum, reduce, select, static_size
from taskmap.ir.nodes import Buffer, Dim, Expr, ExprLike, Var
from taskmap.ir.types import boolean, compute_type, i32

_GROUP = 4


@dataclass(frozen=True, slots=True)
class PaddedWindow:
    """The movement of a kernel, per spatial dimension: stride, dilation, and padding before and behind."""

    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]


def convolution_product(x: Node, padding_value: Node | None, w: Node, slide: PaddedWindow) -> Node:
    """The sums of products x [n, c, spatial...] · w [o, c, kernel...] as [n, o, spatial...]: i32 if both are u8 or i8;
    if both are floats of one type, that type, with sums in its compute type. ``padding_value``: the tensor of one
    element that surrounds the image; None for 0. Channels and kernel are known."""
    wide = i32 if x.dtype in BYTES else compute_type(x.dtype)
    kernel = [static_size(n) or 1 for n in w.shape[2:]]
    channels = static_size(x.shape[1]) or 1
    whole = -(-channels // _GROUP) * _GROUP
    if any(map(any, slide.padding)) or whole != channels:
        x = _padded(x, padding_value, slide.padding, whole)
    sizes = zip(x.shape[2:], kernel, slide.stride, slide.dilation, strict=True)
    spatial = [Simplifier().dim((index(n) - d * (k - 1) - 1) // s + 1) for n, k, s, d in sizes]
    matrix = _matrix(w, kernel, whole)
    length = static_size(matrix.shape[1]) or 1

    def element(image: Buffer, weight: Buffer) -> Callable[..., ExprLike]:
        def at(n: Expr, o: Expr, *place: Expr) -> Expr:
            k = Var("k")
            tap, channel = _tap(k, whole)
            window: list[Expr] = []
            for d in reversed(range(len(kernel))):
                offset, tap = (tap % kernel[d], tap // kernel[d]) if d else (tap, tap)
                window.insert(0, place[d] * slide.stride[d] + offset * slide.dilation[d])
            pixel = load(image, (n, channel, *window))
            return reduce("sum", [(k, length)], cast(pixel, wide) * cast(weight[o, k], wide))

        return at

    shape = (x.shape[0], w.shape[0], *spatial)
    dtype = i32 if x.dtype in BYTES else x.dtype
    return define("convolution_product", [x, matrix], shape, element, dtype, storage="channels_last")


def _tap(k: Expr, channels: int) -> tuple[Expr, Expr]:
    """The tap and the channel of term k, written by groups of four terms."""
    group, groups = k // _GROUP, channels // _GROUP
    return group // groups, group % groups * _GROUP + k % _GROUP


def _matrix(w: Node, kernel: Sequence[int], channels: int) -> Node:
    """[o, taps · channels]: the weights in the order of the sum, with zeros for channels that the image only pads."""
    taps = 1
    for n in kernel:
        taps *= n
    present = static_size(w.shape[1]) or 1

    def element(f: Buffer) -> Callable[..., ExprLike]:
        def at(o: Expr, k: Expr) -> Expr:
            tap, channel = _tap(k, channels)
            place: list[Expr] = []
            for d in reversed(range(len(kernel))):
                place.insert(0, tap % kernel[d])
                tap = tap // kernel[d]
            value = load(f, (o, minimum(channel, present - 1), *place))
            return value if channels == present else select(channel < present, value, const(0, f.dtype))

        return at

    return define("weight_matrix", [w], (w.shape[0], taps * channels), element, w.dtype)


def _padded(x: Node, value: Node | None, padding: Sequence[tuple[int, int]], channels: int) -> Node:
    """``x`` in a frame of ``value``, with further channels of zeros, stored with its channels innermost."""
    shape: list[Dim] = [x.shape[0], channels, *(n + a + b for n, (a, b) in zip(x.shape[2:], padding, strict=True))]

    def element(f: Buffer, *filler: Buffer) -> Callable[..., ExprLike]:
        def at(n: Expr, c: Expr, *place: Expr) -> Expr:
            there: list[Expr] = [n, minimum(c, index(x.shape[1]) - 1)]
            inside: Expr = const(True, boolean)
            present: Expr = const(True, boolean)
            if channels != static_size(x.shape[1]):
                present = compare("lt", c, index(x.shape[1]))
            for i, size, (before, behind) in zip(place, x.shape[2:], padding, strict=True):
                if before or behind:
                    inside = inside & compare("ge", i, before) & compare("lt", i, index(size) + before)
                there.append(minimum(maximum(i - before, 0), index(size) - 1) if before or behind else i)
            outside = filler[0][()] if filler else const(0, x.dtype)
            return select(present, select(inside, f[tuple(there)], outside), const(0, x.dtype))

        return at

    inputs = [x] if value is None else [x, value]
    return define("pad_image", inputs, shape, element, x.dtype, storage="channels_last")


def window_sums(image: Node, kernel: Sequence[Dim], slide: PaddedWindow, shape: Sequence[Dim]) -> Node:
    """The sums of the padded ``image`` over each position of a window: i32 [n, 1, spatial...], for results of
    ``shape``."""
    pixels = reduction("byte_sums", image, (1,), True, "sum", lambda e: cast(e, i32), dtype=i32)
    taps = [(Var(f"t{d}"), n) for d, n in enumerate(kernel)]

    def element(f: Buffer) -> Callable[..., ExprLike]:
        def at(n: Expr, _: Expr, *place: Expr) -> Expr:
            moved = [i * s + t * e for i, (t, _), s, e in zip(place, taps, slide.stride, slide.dilation, strict=True)]
            return reduce("sum", taps, load(f, (n, 0, *moved)))

        return at

    return define("window_sums", [pixels], (shape[0], 1, *shape[2:]), element, i32)
