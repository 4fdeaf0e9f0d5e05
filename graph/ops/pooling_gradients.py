"""Gradients of pooling, written as gathers: each element of x sums over the windows that cover it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from taskmap.graph.build import define
from taskmap.graph.nodes import Node
from taskmap.graph.ops.convolution import Window, spread, window
from taskmap.graph.ops.pooling import averaged
from taskmap.ir.construct import cast, compare, const, eq, index, load, maximum, minimum, reduce, select, static_size
from taskmap.ir.errors import UnsupportedError
from taskmap.ir.nodes import Buffer, Dim, Expr, ExprLike, Var
from taskmap.ir.types import boolean, compute_type


def _covering(
    position: Sequence[Expr], taps: Sequence[Expr], outs: Sequence[Dim], s: Window
) -> tuple[list[Expr], Expr]:
    """The window whose tap is at ``position``, clamped, and the condition that such a window exists."""
    place: list[Expr] = []
    exists: Expr = const(True, boolean)
    for d, (p, k) in enumerate(zip(position, taps, strict=True)):
        reached = p + s.padding[d] - k * s.dilation[d]
        out = reached // s.stride[d]
        exists = exists & compare("ge", reached, 0) & compare("lt", out, outs[d])
        if s.stride[d] != 1:
            exists = exists & eq(reached % s.stride[d], 0)
        place.append(minimum(maximum(out, 0), index(outs[d]) - 1))
    return place, exists


def max_pool_backward(
    grad: Node,
    x: Node,
    indices: Node,
    rank: int,
    kernel_size: Sequence[Dim],
    stride: Sequence[Dim],
    padding: Sequence[Dim],
    dilation: Sequence[Dim],
) -> Node:
    """The sum of the gradients of the windows that chose this element."""
    kernel = spread(kernel_size, rank)
    s = window(rank, stride if len(stride) else kernel, padding, dilation)
    sizes, outs = x.shape[-rank:], grad.shape[-rank:]
    wide = compute_type(grad.dtype)

    def element(g: Buffer, chosen: Buffer) -> Callable[..., ExprLike]:
        def at(*axes: Expr) -> Expr:
            taps = [Var(f"k{d}") for d in range(rank)]
            place, exists = _covering(axes[-rank:], taps, outs, s)
            number: Expr = index(0)
            for a, n in zip(axes[-rank:], sizes, strict=True):
                number = number * n + a
            here = (*axes[:-rank], *place)
            mine = exists & eq(load(chosen, here), number)
            value = select(mine, cast(load(g, here), wide), const(0.0, wide))
            return reduce("sum", list(zip(taps, kernel, strict=True)), value)

        return at

    return define("max_pool_backward", [grad, indices], x.shape, element, grad.dtype)


def avg_pool_backward(
    grad: Node,
    x: Node,
    rank: int,
    kernel_size: Sequence[Dim],
    stride: Sequence[Dim],
    padding: Sequence[Dim],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Node:
    """The sum of the gradients of the windows that cover this element, each divided by its window's divisor."""
    kernel = spread(kernel_size, rank)
    s = window(rank, stride if len(stride) else kernel, padding, (1,))
    sizes, outs = x.shape[-rank:], grad.shape[-rank:]
    wide = compute_type(grad.dtype)

    def divisor(place: Sequence[Expr]) -> Expr:
        if divisor_override is not None:
            return const(divisor_override, wide)
        number: Expr = index(1)
        for d, o in enumerate(place):
            number = number * averaged(o, d, kernel[d], sizes[d], s, count_include_pad)
        return cast(number, wide)

    def element(g: Buffer) -> Callable[..., ExprLike]:
        def at(*axes: Expr) -> Expr:
            taps = [Var(f"k{d}") for d in range(rank)]
            place, exists = _covering(axes[-rank:], taps, outs, s)
            share = cast(load(g, (*axes[:-rank], *place)), wide) / divisor(place)
            return reduce("sum", list(zip(taps, kernel, strict=True)), select(exists, share, const(0.0, wide)))

        return at

    return define("avg_pool_backward", [grad], x.shape, element, grad.dtype)


def adaptive_avg_pool_backward(grad: Node, x: Node, rank: int) -> Node:
    """The gradient of this element's bin divided by the bin's size; all bins must have equal sizes."""
    sizes = [static_size(n) for n in x.shape[-rank:]]
    outs = [static_size(n) for n in grad.shape[-rank:]]
    widths = [n // o if n is not None and o and n % o == 0 else 0 for n, o in zip(sizes, outs, strict=True)]
    if 0 in widths:
        raise UnsupportedError("the gradient of adaptive pooling with overlapping bins")
    wide = compute_type(grad.dtype)
    total = 1
    for width in widths:
        total *= width

    def element(g: Buffer) -> Callable[..., ExprLike]:
        def at(*axes: Expr) -> Expr:
            place = [a // w for a, w in zip(axes[-rank:], widths, strict=True)]
            return cast(load(g, (*axes[:-rank], *place)), wide) / const(total, wide)

        return at

    return define("adaptive_avg_pool_backward", [grad], x.shape, element, grad.dtype)
