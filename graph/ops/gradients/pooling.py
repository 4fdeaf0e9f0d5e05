"""Gradients of pooling, written as gathers: each element of x sums over the windows that cover it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from taskmap.graph.build import define
from taskmap.graph.nodes import Node
from taskmap.graph.ops.convolution import Window, spread, window
from taskmap.graph.ops.pooling import averaged, number_type
from taskmap.ir.analysis.positions import flatten
from taskmap.ir.construct import cast, compare, const, eq, index, load, maximum, minimum, reduce, select, static_size
from taskmap.ir.errors import UnsupportedError
from taskmap.ir.nodes import Buffer, Dim, Expr, ExprLike, Var
from taskmap.ir.types import boolean, compute_type


@dataclass(frozen=True, slots=True)
class _Covering:
    """The windows that cover an element: the axes that number them, the place of one, and the condition that it is
    there."""

    axes: list[tuple[Var, Dim]]
    place: list[Expr]
    exists: Expr

    @staticmethod
    def of(position: Sequence[Expr], kernel: Sequence[Dim], outs: Sequence[Dim], s: Window) -> _Covering:
        """The windows at ``position``, by their distance from the last that begins before it; those of a dilated one,
        or of unknown sizes, by the tap that lies there."""
        found = _Covering([], [], const(True, boolean))
        for d, p in enumerate(position):
            size = static_size(kernel[d]) if s.dilation[d] == 1 else None
            count: Dim = kernel[d] if size is None else -(-size // s.stride[d])
            number = index(0) if count == 1 and size is not None else Var(f"k{d}")
            if isinstance(number, Var):
                found.axes.append((number, count))
            last = p + s.padding[d]
            if size is None:
                reached = last - number * s.dilation[d]
                out = reached // s.stride[d]
                tests = [compare("ge", reached, 0)]
                tests += [eq(reached % s.stride[d], 0)] if s.stride[d] != 1 else []
            else:
                out = last // s.stride[d] - number
                tests = [compare("ge", out, 0)] if isinstance(number, Var) else []
                tests += [compare("lt", last - out * s.stride[d], size)] if size % s.stride[d] else []
            for test in (*tests, compare("lt", out, outs[d])):
                found = replace(found, exists=found.exists & test)
            found.place.append(minimum(maximum(out, 0), index(outs[d]) - 1))
        return found

    def sum(self, value: Expr) -> Expr:
        """The sum of a value over the windows."""
        return reduce("sum", self.axes, value) if self.axes else value


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
    wide, held = compute_type(grad.dtype), number_type(sizes)

    def element(g: Buffer, chosen: Buffer) -> Callable[..., ExprLike]:
        def at(*axes: Expr) -> Expr:
            windows = _Covering.of(axes[-rank:], kernel, outs, s)
            number = cast(flatten(list(zip(axes[-rank:], sizes, strict=True))), held)
            here = (*axes[:-rank], *windows.place)
            mine = windows.exists & eq(cast(load(chosen, here), held), number)
            return windows.sum(select(mine, cast(load(g, here), wide), const(0.0, wide)))

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
            windows = _Covering.of(axes[-rank:], kernel, outs, s)
            share = cast(load(g, (*axes[:-rank], *windows.place)), wide) / divisor(windows.place)
            return windows.sum(select(windows.exists, share, const(0.0, wide)))

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
