"""Padding by symbolic amounts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from taskmap.graph.build import define, same_dim
from taskmap.graph.nodes import Node
from taskmap.graph.ops.pointwise import number
from taskmap.graph.ops.promotion import Scalar
from taskmap.ir.construct import compare, const, index, maximum, minimum, select, static_size
from taskmap.ir.nodes import Buffer, Dim, Expr, ExprLike
from taskmap.ir.types import boolean


def open_pad(x: Node, before: Sequence[Dim], after: Sequence[Dim], value: Scalar) -> Node:
    """``x`` with these numbers of elements of ``value`` before and after each dimension; none may be negative."""
    shape = [
        n if static_size(b) == 0 and static_size(a) == 0 else index(n) + b + a
        for n, b, a in zip(x.shape, before, after, strict=True)
    ]

    def element(f: Buffer) -> Callable[..., ExprLike]:
        def at(*axes: Expr) -> Expr:
            inside: Expr = const(True, boolean)
            held: list[Expr] = []
            for axis, n, whole, b in zip(axes, x.shape, shape, before, strict=True):
                place = axis if static_size(b) == 0 else axis - b
                if not same_dim(n, whole):
                    inside = inside & compare("ge", place, 0) & compare("lt", place, n)
                    place = minimum(maximum(place, 0), index(n) - 1)
                held.append(place)
            return select(inside, f[tuple(held)], number(value, x.dtype))

        return at

    return define("constant_pad", [x], shape, element, x.dtype)
