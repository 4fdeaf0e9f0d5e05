"""Convolution in one to three dimensions: grouped, strided, dilated, transposed.

Layouts are logical: x [n, c, spatial...], w [oc, c / groups, spatial...], or [c, oc / groups, spatial...] if
transposed. The bias is a node of its own. Source of the index formulas: Dumoulin & Visin, "A guide to convolution
arithmetic" (2016).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import cast as typed

from taskmap.graph.build import define
from taskmap.graph.nodes import Node, OperatorNode
from taskmap.graph.ops.matmul import mm
from taskmap.graph.ops.pointwise import pointwise
from taskmap.graph.ops.views import permute, reshape
from taskmap.ir.analysis.simplify import Simplifier
from taskmap.ir.construct import (
    binary,
    cast,
    ceil_div,
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
from taskmap.ir.errors import GraphError, UnsupportedError
from taskmap.ir.nodes import Buffer, Dim, Expr, ExprLike, Var
from taskmap.ir.types import boolean, compute_type

PADDING_AFTER = "padding_after"
"""The attribute of a convolution whose padding differs on both sides; ``padding`` is that before."""


@dataclass(frozen=True, slots=True)
class Window:
    """The movement of a kernel: stride, padding before, dilation, and padding after, per spatial dimension; None: the
    padding is the same on both sides."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    after: tuple[int, ...] | None = None

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """The padding before and after, per spatial dimension."""
        return tuple(zip(self.padding, self.after or self.padding, strict=True))


def window_of(node: Node) -> Window:
    """The window of a convolution node."""
    stride, padding, dilation = (typed("tuple[int, ...]", node.attrs[k]) for k in ("stride", "padding", "dilation"))
    return Window(stride, padding, dilation, typed("tuple[int, ...] | None", node.attrs.get(PADDING_AFTER)))


def window(rank: int, stride: Sequence[Dim], padding: Sequence[Dim], dilation: Sequence[Dim]) -> Window:
    """A window of ``rank`` dimensions; a list of one number applies to all of them."""
    return Window(spread(stride, rank), spread(padding, rank), spread(dilation, rank))


def spread(values: Sequence[Dim] | int, rank: int) -> tuple[int, ...]:
    """``values`` for each of ``rank`` dimensions; raises UnsupportedError for symbolic ones."""
    listed = [values] if isinstance(values, int) else list(values)
    known = [static_size(v) for v in (listed * rank if len(listed) == 1 else listed)]
    if any(v is None for v in known):
        raise UnsupportedError("a symbolic stride, padding or dilation")
    return tuple(v for v in known if v is not None)


def output_size(
    size: Dim, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool = False, after: int | None = None
) -> Dim:
    """The number of positions of a window in a dimension of extent ``size``; after: the padding behind it, if that is
    not the one before."""
    whole = padding + (padding if after is None else after)
    room = size + (whole - dilation * (kernel - 1) - 1) + (stride - 1 if ceil_mode else 0)
    positions = Simplifier().dim((room // stride if stride != 1 else room) + 1)
    return _without_last(positions, size, stride, padding) if ceil_mode else positions


def _without_last(positions: Dim, size: Dim, stride: int, padding: int) -> Dim:
    """``positions`` without a last window that would start beyond the right padding."""
    starts = ceil_div(size + padding, stride)
    if isinstance(positions, int) and isinstance(starts, int):
        return min(positions, starts)
    return minimum(positions, starts)


def convolution(
    x: Node,
    w: Node,
    stride: Sequence[Dim],
    padding: Sequence[Dim],
    dilation: Sequence[Dim],
    transposed: bool = False,
    output_padding: Sequence[Dim] = (0,),
    groups: int = 1,
    padding_after: Sequence[int] | None = None,
) -> Node:
    """The convolution of x [n, c, spatial...] with w, without bias. padding_after: behind each dimension, if that is
    not the padding before it; not for a transposed convolution."""
    rank = len(w.shape) - 2
    slide = window(rank, stride, padding, dilation)
    if padding_after is not None and tuple(padding_after) != slide.padding:
        slide = replace(slide, after=tuple(padding_after))
    extra = spread(output_padding, rank) if transposed else (0,) * rank
    if len(x.shape) != rank + 2 or rank not in (1, 2, 3):
        raise UnsupportedError(f"a convolution of a tensor of rank {len(x.shape)} with one of rank {len(w.shape)}")
    if x.dtype != w.dtype:
        raise GraphError(f"a convolution of {x.dtype} with {w.dtype}")
    kernel = tuple(static_size(n) for n in w.shape[2:])
    if None in kernel:
        raise UnsupportedError("a convolution whose kernel has a symbolic size")
    known = tuple(n for n in kernel if n is not None)
    if transposed and groups == 1 and not any(extra) and _lies_apart(slide, known):
        return _side_by_side(x, w, known)
    node = (_transposed if transposed else _direct)(x, w, known, slide, groups, extra)
    attrs = {
        "stride": slide.stride,
        "padding": slide.padding,
        "dilation": slide.dilation,
        "groups": groups,
        "transposed": transposed,
        "output_padding": extra,
    }
    attrs |= {PADDING_AFTER: slide.after} if slide.after else {}
    return replace(node, attrs=MappingProxyType(attrs))


def _direct(x: Node, w: Node, kernel: tuple[int, ...], s: Window, groups: int, extra: tuple[int, ...]) -> OperatorNode:
    out_channels, per_group = w.shape[0], w.shape[1]
    spatial = [
        output_size(n, k, s.stride[d], s.pairs[d][0], s.dilation[d], after=s.pairs[d][1])
        for d, (n, k) in enumerate(zip(x.shape[2:], kernel, strict=True))
    ]
    wide = compute_type(x.dtype)
    of_group = _channels_per_group(out_channels, groups)

    def element(f: Buffer, g: Buffer) -> Callable[..., ExprLike]:
        def at(n: Expr, oc: Expr, *out: Expr) -> Expr:
            c, taps = Var("c"), [Var(f"k{d}") for d in range(len(kernel))]
            place, inside = tap_positions(out, taps, x.shape[2:], s)
            channel: Expr = c if groups == 1 else oc // of_group * per_group + c
            value = cast(load(f, (n, channel, *place)), wide)
            if inside is not None:
                value = select(inside, value, const(0, wide))
            axes = [(c, per_group), *zip(taps, kernel, strict=True)]
            return reduce("sum", axes, value * cast(load(g, (oc, c, *taps)), wide))

        return at

    return define("convolution", [x, w], (x.shape[0], out_channels, *spatial), element, x.dtype)


def known_groups(groups: Dim) -> int:
    """The number of groups as an integer: models compute it from a size. Raises UnsupportedError if it is unknown."""
    known = static_size(groups)
    if known is None:
        raise UnsupportedError("a convolution with a symbolic number of groups")
    return known


def _channels_per_group(channels: Dim, groups: int) -> int:
    known = static_size(channels)
    if known is None:
        raise UnsupportedError("a convolution with a symbolic number of channels")
    return known // groups


def tap_positions(
    out: Sequence[Expr], taps: Sequence[Expr], sizes: Sequence[Dim], s: Window
) -> tuple[list[Expr], Expr | None]:
    """The position in x of tap k of the window at ``out``, clamped, and the condition that it is inside (or None)."""
    place: list[Expr] = []
    inside: Expr | None = None
    for d, (o, k) in enumerate(zip(out, taps, strict=True)):
        position = o * s.stride[d] + k * s.dilation[d] - s.padding[d]
        if s.pairs[d] == (0, 0):
            place.append(position)
            continue
        here = compare("ge", position, 0) & compare("lt", position, sizes[d])
        inside = here if inside is None else inside & here
        place.append(minimum(maximum(position, 0), index(sizes[d]) - 1))
    return place, inside


def _transposed(
    x: Node, w: Node, kernel: tuple[int, ...], s: Window, groups: int, extra: tuple[int, ...]
) -> OperatorNode:
    of_group = static_size(w.shape[1])
    per_group = _channels_per_group(x.shape[1], groups)
    if of_group is None:
        raise UnsupportedError("a convolution with a symbolic number of channels")
    spatial: list[Dim] = [
        Simplifier().dim((n - 1) * s.stride[d] + (s.dilation[d] * (k - 1) + 1 + extra[d] - 2 * s.padding[d]))
        for d, (n, k) in enumerate(zip(x.shape[2:], kernel, strict=True))
    ]
    wide = compute_type(x.dtype)

    def element(f: Buffer, g: Buffer) -> Callable[..., ExprLike]:
        def at(n: Expr, oc: Expr, *out: Expr) -> Expr:
            c, taps = Var("c"), [Var(f"k{d}") for d in range(len(kernel))]
            place, inside = source_positions(out, taps, x.shape[2:], s)
            channel: Expr = c if groups == 1 else oc // of_group * per_group + c
            value = select(inside, cast(load(f, (n, channel, *place)), wide), const(0, wide))
            axes = [(c, per_group), *zip(taps, kernel, strict=True)]
            return reduce("sum", axes, value * cast(load(g, (channel, oc % of_group, *taps)), wide))

        return at

    return define("convolution", [x, w], (x.shape[0], of_group * groups, *spatial), element, x.dtype)


_MANY_TAPS = 32
"""Taps of a window that does not overlap from which a transposed convolution is a matrix product."""


def _lies_apart(s: Window, kernel: tuple[int, ...]) -> bool:
    """True if the windows of a transposed convolution lie side by side, and have many elements."""
    same = s.stride == kernel and not any(s.padding) and all(d == 1 for d in s.dilation)
    return same and math.prod(kernel) > _MANY_TAPS


def _side_by_side(x: Node, w: Node, kernel: tuple[int, ...]) -> Node:
    """A transposed convolution whose windows lie side by side: each element of the result is one position's product."""
    rank, (n, c), spatial = len(kernel), x.shape[:2], x.shape[2:]
    rows = reshape(permute(x, (0, *range(2, rank + 2), 1)), (product([n, *spatial]), c))
    found = mm(rows, reshape(w, (c, product(w.shape[1:]))))
    windows = reshape(found, (n, *spatial, *w.shape[1:]))
    order = [axis for d in range(rank) for axis in (1 + d, rank + 2 + d)]
    sizes = [Simplifier().dim(size * k) for size, k in zip(spatial, kernel, strict=True)]
    return reshape(permute(windows, (0, rank + 1, *order)), (n, w.shape[1], *sizes))


def source_positions(
    out: Sequence[Expr], taps: Sequence[Expr], sizes: Sequence[Dim], s: Window
) -> tuple[list[Expr], Expr]:
    """The position in x whose tap k reaches ``out`` in a transposed convolution, clamped, and whether it exists."""
    place: list[Expr] = []
    inside: Expr = const(True, boolean)
    for d, (o, k) in enumerate(zip(out, taps, strict=True)):
        reached = o + s.padding[d] - k * s.dilation[d]
        position = reached // s.stride[d]
        here = compare("ge", position, 0) & compare("lt", position, sizes[d])
        if s.stride[d] != 1:
            here = here & eq(reached % s.stride[d], 0)
        inside = binary("and", inside, here)
        place.append(minimum(maximum(position, 0), index(sizes[d]) - 1))
    return place, inside


def add_channel_bias(y: Node, bias: Node) -> Node:
    """y [n, c, spatial...] + bias [c]."""
    shaped = reshape(bias, (bias.shape[0], *([1] * (len(y.shape) - 2))))
    return pointwise("add", (y, shaped), lambda a, b: a + b)
