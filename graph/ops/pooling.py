"""Pooling over windows of one to three trailing dimensions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from taskmap.graph.build import define
from taskmap.graph.nodes import Node
from taskmap.graph.ops.convolution import Window, output_size, spread, tap_positions, window
from taskmap.ir.analysis.positions import flatten
from taskmap.ir.construct import (
    call,
    cast,
    compare,
    const,
    eq,
    index,
    load,
    maximum,
    minimum,
    product,
    reduce,
    select,
    static_size,
)
from taskmap.ir.errors import UnsupportedError
from taskmap.ir.nodes import Buffer, Dim, Expr, ExprLike, Var
from taskmap.ir.types import DType, boolean, compute_type, i32, i64


def _kernel(rank: int, size: Sequence[Dim], stride: Sequence[Dim]) -> tuple[tuple[int, ...], Sequence[Dim]]:
    kernel = spread(size, rank)
    return kernel, (stride if not isinstance(stride, int) and len(stride) else kernel)


def _shape(x: Node, kernel: tuple[int, ...], s: Window, ceil_mode: bool) -> tuple[Dim, ...]:
    rank = len(kernel)
    sizes = x.shape[len(x.shape) - rank :]
    parts = zip(sizes, kernel, s.stride, s.padding, s.dilation, strict=True)
    return (*x.shape[: len(x.shape) - rank], *(output_size(n, k, st, p, d, ceil_mode) for n, k, st, p, d in parts))


def max_pool(
    x: Node,
    rank: int,
    kernel_size: Sequence[Dim],
    stride: Sequence[Dim] = (),
    padding: Sequence[Dim] = (0,),
    dilation: Sequence[Dim] = (1,),
    ceil_mode: bool = False,
) -> tuple[Node, Node]:
    """The largest element of each window (NaN if there is one), and its row-major number in the spatial dimensions:
    that of the first among equals, or of the last NaN.

    A tap outside x moves to the nearest tap of the same window that is inside. It then repeats an element, so no mask
    is needed.
    """
    kernel, step = _kernel(rank, kernel_size, stride)
    s = window(rank, step, padding, dilation)
    shape = _shape(x, kernel, s, ceil_mode)
    sizes = x.shape[len(x.shape) - rank :]
    wide, held = compute_type(x.dtype), number_type(sizes)
    hold = [
        _may_leave(n, k, o, s, d, ceil_mode)
        for d, (n, k, o) in enumerate(zip(sizes, kernel, shape[-rank:], strict=True))
    ]

    def positions(out: Sequence[Expr], taps: Sequence[Expr]) -> list[Expr]:
        return [
            _held(o, k, sizes[d], s, d) if hold[d] else _tap(o, k, s, d)
            for d, (o, k) in enumerate(zip(out, taps, strict=True))
        ]

    def value(f: Buffer) -> Callable[..., ExprLike]:
        def at(*axes: Expr) -> Expr:
            taps = [Var(f"k{d}") for d in range(rank)]
            place = positions(axes[-rank:], taps)
            return reduce("max", list(zip(taps, kernel, strict=True)), cast(load(f, (*axes[:-rank], *place)), wide))

        return at

    def winner(f: Buffer, best: Buffer) -> Callable[..., ExprLike]:
        def at(*axes: Expr) -> Expr:
            taps = [Var(f"k{d}") for d in range(rank)]
            place = positions(axes[-rank:], taps)
            element = cast(load(f, (*axes[:-rank], *place)), wide)
            number = cast(flatten(list(zip(place, sizes, strict=True))), held)
            # Among equal elements the smallest number wins: its key is the largest below zero. Keys of NaN are not
            # negative, so the last NaN wins.
            other, least = const(-1, held), const(-(1 << (held.bits - 1)), held)
            key = select(eq(element, cast(best[axes], wide)), other - number, least)
            if wide.is_float:
                key = select(call("isnan", element, dtype=boolean), number, key)
            found = reduce("max", list(zip(taps, kernel, strict=True)), key)
            return cast(maximum(found, other - found), i64)

        return at

    pooled = define("max_pool", [x], shape, value, x.dtype)
    return pooled, define("max_pool_indices", [x, pooled], shape, winner, i64)


def number_type(sizes: Sequence[Dim]) -> DType:
    """The type in which positions in dimensions of ``sizes`` are numbered: as narrow as a float if that suffices."""
    count = static_size(product(list(sizes)))
    return i32 if count is not None and count < 1 << 31 else i64


def _tap(o: Expr, k: Expr, s: Window, d: int) -> Expr:
    return o * s.stride[d] + k * s.dilation[d] - s.padding[d]


def _may_leave(size: Dim, kernel: int, out: Dim, s: Window, d: int, ceil_mode: bool) -> bool:
    """True if a tap may be outside the input."""
    if s.padding[d]:
        return True
    if isinstance(size, int) and isinstance(out, int):
        return (out - 1) * s.stride[d] + (kernel - 1) * s.dilation[d] >= size
    return ceil_mode


def _held(o: Expr, k: Expr, size: Dim, s: Window, d: int) -> Expr:
    """The tap's position, moved to the first or last tap of its window that is inside."""
    step = s.dilation[d]
    start = o * s.stride[d] - s.padding[d]
    if step == 1:
        return minimum(maximum(start + k, 0), index(size) - 1)
    first = select(compare("lt", start, 0), start % step, start)
    last = index(size) - 1 - (index(size) - 1 - start) % step
    return minimum(maximum(start + k * step, first), last)


def averaged(place: Expr, d: int, kernel: int, size: Dim, s: Window, count_include_pad: bool) -> Expr:
    """The elements along dimension ``d`` that the average at ``place`` divides by, with or without the padding."""
    start = place * s.stride[d] - s.padding[d]
    beyond = s.padding[d] if count_include_pad else 0
    low = start if count_include_pad else maximum(start, 0)
    return minimum(start + kernel, index(size) + beyond) - low


def avg_pool(
    x: Node,
    rank: int,
    kernel_size: Sequence[Dim],
    stride: Sequence[Dim] = (),
    padding: Sequence[Dim] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Node:
    """The sum of each window divided by ``divisor_override``, or by its size, either with or without its padding.

    The part of a ceil_mode window beyond the padding never counts. A window larger than the input sums the input.
    """
    if not x.dtype.is_float:
        raise UnsupportedError(f"the average of {x.dtype}")
    kernel, step = _kernel(rank, kernel_size, stride)
    s = window(rank, step, padding, (1,))
    shape = _shape(x, kernel, s, ceil_mode)
    sizes = x.shape[len(x.shape) - rank :]
    wide = compute_type(x.dtype)
    parts = enumerate(zip(sizes, kernel, shape[-rank:], strict=True))
    leaves = any(_may_leave(n, k, o, s, d, ceil_mode) for d, (n, k, o) in parts)
    clipped = [
        _Clipped(k, o) if isinstance(n, int) and k > n else None
        for n, k, o in zip(sizes, kernel, shape[-rank:], strict=True)
    ]
    extents = [k if c is None else n for n, k, c in zip(sizes, kernel, clipped, strict=True)]

    def divisor(out: Sequence[Expr]) -> Expr:
        if divisor_override is not None:
            return const(divisor_override, wide)
        number: Expr = index(1)
        for d, o in enumerate(out):
            whole = not leaves or (count_include_pad and not ceil_mode)
            number = number * (kernel[d] if whole else averaged(o, d, kernel[d], sizes[d], s, count_include_pad))
        return cast(number, wide)

    def element(f: Buffer) -> Callable[..., ExprLike]:
        def at(*axes: Expr) -> Expr:
            out = axes[-rank:]
            taps = [Var(f"k{d}") for d in range(rank)]
            place, inside = _averaged_taps(out, taps, sizes, s, leaves, clipped)
            value = cast(load(f, (*axes[:-rank], *place)), wide)
            if inside is not None:
                value = select(inside, value, const(0.0, wide))
            return reduce("sum", list(zip(taps, extents, strict=True)), value) / divisor(out)

        return at

    return define("avg_pool", [x], shape, element, x.dtype)


@dataclass(frozen=True, slots=True)
class _Clipped:
    """A dimension whose window is larger than the input, with ``out`` windows."""

    kernel: int
    out: Dim

    def covers(self, size: Dim, padding: int) -> bool:
        """True if the only window has the whole input."""
        return static_size(self.out) == 1 and isinstance(size, int) and self.kernel - padding >= size


def _averaged_taps(
    out: Sequence[Expr],
    taps: Sequence[Expr],
    sizes: Sequence[Dim],
    s: Window,
    leaves: bool,
    clipped: Sequence[_Clipped | None],
) -> tuple[list[Expr], Expr | None]:
    """The position that each tap reads, and the condition that it counts. Taps of ``clipped`` windows number the
    positions of the input."""
    if not leaves:
        return tap_positions(out, taps, sizes, Window(s.stride, (0,) * len(out), s.dilation))
    place: list[Expr] = []
    inside: Expr = const(True, boolean)
    for d, (o, k) in enumerate(zip(out, taps, strict=True)):
        window_of = clipped[d]
        if window_of is not None:
            place.append(k)
            if not window_of.covers(sizes[d], s.padding[d]):
                start = o * s.stride[d] - s.padding[d]
                inside = inside & compare("ge", k, start) & compare("lt", k, start + window_of.kernel)
            continue
        position = _tap(o, k, s, d)
        inside = inside & compare("ge", position, 0) & compare("lt", position, sizes[d])
        place.append(minimum(maximum(position, 0), index(sizes[d]) - 1))
    return place, inside


def adaptive_avg_pool(x: Node, output_size: Sequence[Dim]) -> Node:
    """The mean of bins that cover each trailing dimension: bin i is [floor(i n / o), ceil((i + 1) n / o))."""
    rank = len(output_size)
    targets = spread(output_size, rank)
    known = [static_size(n) for n in x.shape[len(x.shape) - rank :]]
    sizes = [n for n in known if n is not None]
    if len(sizes) != rank:
        raise UnsupportedError("adaptive pooling of a symbolic size")
    wide = compute_type(x.dtype)
    widths = [max(-(-(i + 1) * n // o) - i * n // o for i in range(o)) for n, o in zip(sizes, targets, strict=True)]

    def element(f: Buffer) -> Callable[..., ExprLike]:
        def at(*axes: Expr) -> Expr:
            taps = [Var(f"k{d}") for d in range(rank)]
            place: list[Expr] = []
            inside: Expr = const(True, boolean)
            number: Expr = index(1)
            for d, (i, k) in enumerate(zip(axes[-rank:], taps, strict=True)):
                n, o = sizes[d], targets[d]
                even = n % o == 0
                start = i * (n // o) if even else i * n // o
                width: Expr = index(n // o) if even else ((i + 1) * n + (o - 1)) // o - start
                number = number * width
                inside = inside if even else inside & compare("lt", k, width)
                place.append(start + k if even else minimum(start + k, index(n - 1)))
            value = select(inside, cast(load(f, (*axes[:-rank], *place)), wide), const(0.0, wide))
            return reduce("sum", list(zip(taps, widths, strict=True)), value) / cast(number, wide)

        return at

    shape = (*x.shape[: len(x.shape) - rank], *targets)
    return define("adaptive_avg_pool", [x], shape, element, x.dtype)
