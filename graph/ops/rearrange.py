"""Operators that move, mirror, repeat or pad elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from taskmap.graph.build import define, reindex
from taskmap.graph.nodes import Node
from taskmap.graph.ops.convolution import output_size, spread, window
from taskmap.graph.ops.pointwise import number
from taskmap.graph.ops.promotion import Scalar
from taskmap.graph.ops.views import reshape
from taskmap.ir.construct import compare, const, index, maximum, minimum, product, select, static_size
from taskmap.ir.errors import UnsupportedError
from taskmap.ir.nodes import Buffer, Dim, Expr, ExprLike
from taskmap.ir.types import boolean


def flip(x: Node, dims: Sequence[int]) -> Node:
    """``x`` mirrored along ``dims``."""
    rank = len(x.shape)
    mirrored = {d % rank for d in dims} if rank else set()
    if not mirrored:
        return x

    def source(*axes: Expr) -> list[ExprLike]:
        return [index(x.shape[d]) - 1 - a if d in mirrored else a for d, a in enumerate(axes)]

    return reindex("flip", x, x.shape, source)


def roll(x: Node, shifts: Sequence[int], dims: Sequence[int]) -> Node:
    """``x`` shifted cyclically by ``shifts`` along ``dims``."""
    rank = len(x.shape)
    moved: dict[int, int] = {}
    for shift, dim in zip(shifts, dims, strict=True):
        moved[dim % rank] = moved.get(dim % rank, 0) + shift

    def source(*axes: Expr) -> list[ExprLike]:
        return [(a - moved[d]) % index(x.shape[d]) if d in moved else a for d, a in enumerate(axes)]

    return reindex("roll", x, x.shape, source)


def repeat(x: Node, repeats: Sequence[Dim]) -> Node:
    """``x`` tiled ``repeats`` times in each dimension, including new leading dimensions."""
    extra = len(repeats) - len(x.shape)
    old = (*([1] * extra), *x.shape)
    shape = [n if static_size(r) == 1 else n * r for n, r in zip(old, repeats, strict=True)]

    def place(axis: Expr, size: Dim, times: Dim) -> ExprLike:
        if static_size(size) == 1:
            return 0
        return axis if static_size(times) == 1 else axis % index(size)

    def source(*axes: Expr) -> list[ExprLike]:
        return [place(axes[extra + d], n, repeats[extra + d]) for d, n in enumerate(x.shape)]

    return reindex("repeat", x, shape, source)


def pairs_of(x: Node, padding: Sequence[int]) -> list[tuple[int, int]]:
    """Padding before and after each dimension of ``x``, from PyTorch's list, which starts with the last dimension."""
    if any(static_size(p) is None for p in padding):
        raise UnsupportedError("a symbolic padding")
    rank = len(x.shape)
    pairs = [(0, 0)] * rank
    for d in range(len(padding) // 2):
        pairs[rank - 1 - d] = (int(padding[2 * d]), int(padding[2 * d + 1]))
    return pairs


def constant_pad(x: Node, padding: Sequence[int], value: Scalar = 0) -> Node:
    """``x`` inside a border of ``value``; a negative padding removes elements."""
    pairs = pairs_of(x, padding)
    shape = [n if pair == (0, 0) else n + (pair[0] + pair[1]) for n, pair in zip(x.shape, pairs, strict=True)]

    def element(f: Buffer) -> Callable[..., ExprLike]:
        def at(*axes: Expr) -> Expr:
            inside: Expr = const(True, boolean)
            place: list[Expr] = []
            for a, n, (before, after) in zip(axes, x.shape, pairs, strict=True):
                position = a - before
                if before > 0:
                    inside = inside & compare("ge", position, 0)
                    position = maximum(position, 0)
                if after > 0:
                    inside = inside & compare("lt", a - before, n)
                    position = minimum(position, index(n) - 1)
                place.append(position)
            return select(inside, f[tuple(place)], number(value, x.dtype))

        return at

    return define("constant_pad", [x], shape, element, x.dtype, pads=tuple(pairs), value=value)


def reflection_pad(x: Node, padding: Sequence[int]) -> Node:
    """``x`` inside a border that mirrors it without repeating the edge."""

    def place(position: Expr, size: Dim) -> Expr:
        mirrored = maximum(position, -position)
        last = index(size) - 1
        return last - maximum(mirrored - last, last - mirrored)

    return _pad_by("reflection_pad", x, padding, place)


def replication_pad(x: Node, padding: Sequence[int]) -> Node:
    """``x`` inside a border that repeats its edge."""
    return _pad_by("replication_pad", x, padding, lambda p, n: minimum(maximum(p, 0), index(n) - 1))


def _pad_by(op: str, x: Node, padding: Sequence[int], place: Callable[[Expr, Dim], Expr]) -> Node:
    pairs = pairs_of(x, padding)
    shape = [n if pair == (0, 0) else n + (pair[0] + pair[1]) for n, pair in zip(x.shape, pairs, strict=True)]

    def source(*axes: Expr) -> list[ExprLike]:
        parts = zip(axes, x.shape, pairs, strict=True)
        return [a if pair == (0, 0) else place(a - pair[0], n) for a, n, pair in parts]

    return reindex(op, x, shape, source)


def unfold(x: Node, dim: int, size: int, step: int) -> Node:
    """Windows of ``size`` elements, ``step`` apart, along ``dim``; their elements form a new last dimension."""
    if not x.shape:
        raise UnsupportedError("windows of a 0-d tensor")
    axis = dim % len(x.shape)
    extent = x.shape[axis]
    windows = (extent - size) // step + 1
    shape = [*(windows if d == axis else n for d, n in enumerate(x.shape)), size]

    def source(*axes: Expr) -> list[ExprLike]:
        return [a * step + axes[-1] if d == axis else a for d, a in enumerate(axes[:-1])]

    return reindex("unfold", x, shape, source)


def columns_of_image(
    x: Node, size: Sequence[Dim], dilation: Sequence[Dim], padding: Sequence[Dim], stride: Sequence[Dim]
) -> Node:
    """Each window of an image as a column: [n, c, h, w] to [n, c * taps, windows], or the same without n."""
    kernel, w = spread(size, 2), window(2, stride, padding, dilation)
    sides = x.shape[-2:]
    shape = (
        *x.shape[:-2],
        *kernel,
        *(
            output_size(n, k, s, p, d)
            for n, k, s, p, d in zip(sides, kernel, w.stride, w.padding, w.dilation, strict=True)
        ),
    )
    down, across = w.padding
    padded = constant_pad(x, (across, across, down, down)) if any(w.padding) else x

    def source(*axes: Expr) -> list[ExprLike]:
        *outer, k0, k1, i, j = axes
        places = zip((i, j), (k0, k1), w.stride, w.dilation, strict=True)
        return [*outer, *(o * step + k * apart for o, k, step, apart in places)]

    columns = reindex("im2col", padded, shape, source)
    return reshape(columns, (*x.shape[:-3], product([x.shape[-3], *kernel]), product(shape[-2:])))


def strided_view(x: Node, order: Sequence[int], shape: Sequence[Dim], stride: Sequence[Dim], offset: Dim) -> Node:
    """The elements at storage positions offset + sum(i * stride) of a dense ``x`` whose dimensions are stored in
    ``order``, slowest first."""

    def source(*axes: Expr) -> list[ExprLike]:
        flat: Expr = index(offset)
        for a, s in zip(axes, stride, strict=True):
            flat = flat + a * s
        place: list[ExprLike] = [0] * len(x.shape)
        for d in reversed(order):
            place[d] = flat % index(x.shape[d])
            flat = flat // index(x.shape[d])
        return place

    return reindex("as_strided", x, shape, source)


def triangle(x: Node, diagonal: int, lower: bool) -> Node:
    """``x`` with zeros above (``lower``) or below the given diagonal of its last two dimensions."""

    def element(f: Buffer) -> Callable[..., ExprLike]:
        def at(*axes: Expr) -> Expr:
            distance = axes[-1] - axes[-2]
            kept = compare("le" if lower else "ge", distance, diagonal)
            return select(kept, f[axes], const(0, x.dtype))

        return at

    return define("tril" if lower else "triu", [x], x.shape, element, x.dtype)
