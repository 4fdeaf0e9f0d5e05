"""Resizing of trailing dimensions: nearest and linear interpolation.

Source positions follow torch.nn.functional.interpolate: i * (n - 1) / (o - 1) with ``align_corners``, else
(i + 1/2) * n / o - 1/2 (linear) or floor(i * n / o) (nearest), computed in f32 as PyTorch does.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from taskmap.graph.build import define
from taskmap.graph.nodes import Node
from taskmap.ir.construct import call, cast, compare, const, index, load, maximum, minimum, select, static_size
from taskmap.ir.errors import UnsupportedError
from taskmap.ir.nodes import Buffer, Dim, Expr, ExprLike
from taskmap.ir.types import DType, compute_type, f32, f64, i64

Neighbours = tuple[tuple[Expr, Expr], tuple[Expr, Expr]]
"""Two source positions, each with its weight."""


def upsample_nearest(x: Node, output_size: Sequence[Dim], scales: Sequence[float | None], exact: bool = False) -> Node:
    """The nearest source element; ``exact`` uses the centres of the cells, as PyTorch's "nearest-exact"."""
    rank = len(output_size)
    parts = list(zip(x.shape[-rank:], output_size, scales, strict=True))
    whole = [not exact and whole_factor(*part) is not None for part in parts]

    def table(size: Dim, target: Dim, scale: float | None) -> Node:
        return define(
            "resize_places", [], (target,), lambda: lambda i: nearest_place(i, size, target, scale, exact), i64
        )

    def element(f: Buffer, *tables: Buffer) -> Callable[..., ExprLike]:
        def at(*axes: Expr) -> Expr:
            read = iter(tables)
            places = [
                nearest_place(i, *part, exact) if simple else load(next(read), (i,))
                for i, part, simple in zip(axes[-rank:], parts, whole, strict=True)
            ]
            return load(f, (*axes[:-rank], *places))

        return at

    tables = [table(*part) for part, simple in zip(parts, whole, strict=True) if not simple]
    return define("upsample_nearest", [x, *tables], (*x.shape[:-rank], *output_size), element)


def nearest_place(i: Expr, size: Dim, target: Dim, scale: float | None, exact: bool) -> Expr:
    """The source position of result ``i``."""
    whole = whole_factor(size, target, scale)
    if whole is not None and not exact:
        return i // whole
    step = const(1.0 / scale, f32) if scale else cast(index(size), f32) / cast(index(target), f32)
    middle = cast(i, f32) + const(0.5, f32) if exact else cast(i, f32)
    return minimum(cast(call("floor", middle * step), i64), index(size) - 1)


def whole_factor(size: Dim, target: Dim, scale: float | None) -> int | None:
    """The factor by which a dimension grows, if it is a whole number."""
    if scale:
        return int(scale) if scale == int(scale) else None
    n, o = static_size(size), static_size(target)
    return o // n if n is not None and o is not None and o % n == 0 else None


def _step(size: Dim, target: Dim, scale: float | None, dtype: DType) -> Expr:
    """The distance in the source between neighbours of the result."""
    n, o = static_size(size), static_size(target)
    if scale is not None and scale > 0:
        return const(1.0 / scale, dtype)
    if n is not None and o is not None:
        return const(n / o, dtype)
    return cast(index(size), dtype) / cast(index(target), dtype)


def upsample_linear(x: Node, output_size: Sequence[Dim], align_corners: bool, scales: Sequence[float | None]) -> Node:
    """Linear interpolation in one, two or three trailing dimensions."""
    rank = len(output_size)
    sizes, targets = x.shape[-rank:], tuple(output_size)
    if not x.dtype.is_float:
        raise UnsupportedError(f"linear interpolation of {x.dtype}")
    wide = compute_type(x.dtype)
    resized = [_Resized(*part) for part in zip(sizes, targets, scales, strict=True)]
    tables = [t for r in resized for t in _tables(r, align_corners, wide)]

    def element(f: Buffer, *read: Buffer) -> Callable[..., ExprLike]:
        def at(*axes: Expr) -> Expr:
            around = []
            for d, (i, r) in enumerate(zip(axes[-rank:], resized, strict=True)):
                low, share = load(read[2 * d], (i,)), load(read[2 * d + 1], (i,))
                around.append(((low, const(1.0, wide) - share), (minimum(low + 1, index(r.size) - 1), share)))
            total: Expr | None = None
            for chosen in itertools.product((0, 1), repeat=rank):
                place = [c[side][0] for c, side in zip(around, chosen, strict=True)]
                value = cast(load(f, (*axes[:-rank], *place)), wide)
                for c, side in zip(around, chosen, strict=True):
                    value = value * c[side][1]
                total = value if total is None else total + value
            return cast(total if total is not None else f[axes], x.dtype)

        return at

    return define("upsample_linear", [x, *tables], (*x.shape[:-rank], *targets), element, x.dtype)


@dataclass(frozen=True, slots=True)
class _Resized:
    """A dimension of ``size`` elements, resized to ``target``."""

    size: Dim
    target: Dim
    scale: float | None


def _tables(r: _Resized, align: bool, wide: DType) -> tuple[Node, Node]:
    """The source position below each result, and the next one's weight: both are computed once where sizes are
    static."""

    def of(i: Expr) -> Neighbours:
        return corners(i, r.size, r.target, r.scale, align, wide)

    places = define("resize_places", [], (r.target,), lambda: lambda i: of(i)[0][0], i64)
    return places, define("resize_shares", [], (r.target,), lambda: lambda i: of(i)[1][1], wide)


def corners(i: Expr, size: Dim, target: Dim, scale: float | None, align: bool, wide: DType) -> Neighbours:
    """The two source positions around output ``i``, each with its weight."""
    arithmetic = f64 if wide == f64 else f32
    if align:
        position = cast(i, arithmetic) * _corner_step(size, target, arithmetic)
    else:
        half = const(0.5, arithmetic)
        position = (cast(i, arithmetic) + half) * _step(size, target, scale, arithmetic) - half
        position = maximum(position, const(0.0, arithmetic))
    low = minimum(cast(position, i64), index(size) - 1)
    share = minimum(position - cast(low, arithmetic), const(1.0, arithmetic))
    weight = cast(share, wide)
    return (low, const(1.0, wide) - weight), (minimum(low + 1, index(size) - 1), weight)


def _corner_step(size: Dim, target: Dim, dtype: DType) -> Expr:
    """The distance in the source between neighbours of the result when the corners are aligned."""
    n, o = static_size(size), static_size(target)
    if n is not None and o is not None:
        return const((n - 1) / (o - 1) if o > 1 else 0.0, dtype)
    many = compare("gt", index(target), 1)
    gaps = select(many, index(target) - 1, index(1))
    return select(many, cast(index(size) - 1, dtype) / cast(gaps, dtype), const(0.0, dtype))
