"""Writes at positions that are data, where few positions compete for an element: read from the other side.

Along ``dim`` the index has one entry (or a few, where all write the same value); every element of the result looks
whether it is meant. Anything longer is left to PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from taskmap.graph.build import define, same_dim
from taskmap.graph.graph import Node
from taskmap.graph.ops.gather import checked
from taskmap.graph.ops.pointwise import number
from taskmap.graph.ops.promotion import Scalar
from taskmap.ir.construct import cast, constant_dim, eq, load, reduce, select
from taskmap.ir.errors import UnsupportedError
from taskmap.ir.nodes import Buffer, Expr, ExprLike, Var
from taskmap.ir.types import compute_type

LONGEST = 16


def _entries(x: Node, dim: int, indices: Node, most: int) -> tuple[int, int]:
    """The dimension, not negative, and how many entries the index has along it."""
    if len(indices.shape) != len(x.shape) or not x.shape:
        raise UnsupportedError("scatter into a 0-d tensor")
    axis = dim % len(x.shape)
    others = [d for d in range(len(x.shape)) if d != axis]
    if not all(same_dim(x.shape[d], indices.shape[d]) for d in others):
        raise UnsupportedError("scatter by an index that does not cover the other dimensions")
    length = constant_dim(indices.shape[axis])
    if length is None or length > most:
        raise UnsupportedError(f"scatter by more than {most} positions along its dimension")
    return axis, length


def _at(axes: Sequence[Expr], axis: int, position: ExprLike) -> tuple[ExprLike, ...]:
    return tuple(position if d == axis else a for d, a in enumerate(axes))


def scatter_value(x: Node, dim: int, indices: Node, value: Scalar) -> Node:
    """``x`` with ``value`` at the positions ``indices`` along ``dim``."""
    axis, length = _entries(x, dim, indices, LONGEST)

    def element(f: Buffer, i: Buffer) -> Callable[..., ExprLike]:
        def at(*axes: Expr) -> Expr:
            r = Var("r")
            chosen = eq(checked(load(i, _at(axes, axis, r)), x.shape[axis]), axes[axis])
            return select(reduce("any", [(r, length)], chosen), number(value, x.dtype), f[axes])

        return at

    return define("scatter", [x, indices], x.shape, element, x.dtype)


def scatter(x: Node, dim: int, indices: Node, source: Node, accumulate: bool = False) -> Node:
    """``x`` with ``source`` at the one position along ``dim`` that the index names, or added there."""
    axis, _ = _entries(x, dim, indices, 1)
    if not all(same_dim(a, b) for a, b in zip(indices.shape, source.shape, strict=True)):
        raise UnsupportedError("scatter of a source larger than its index")
    if accumulate and x.dtype.is_bool:
        raise UnsupportedError("a sum of bools")
    wide = compute_type(x.dtype)

    def element(f: Buffer, i: Buffer, s: Buffer) -> Callable[..., ExprLike]:
        def at(*axes: Expr) -> Expr:
            chosen = eq(checked(load(i, _at(axes, axis, 0)), x.shape[axis]), axes[axis])
            new, old = cast(load(s, _at(axes, axis, 0)), wide), cast(f[axes], wide)
            return select(chosen, old + new if accumulate else new, old)

        return at

    return define("scatter", [x, indices, source], x.shape, element, x.dtype)
