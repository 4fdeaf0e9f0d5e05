"""Joined tensors: cat, stack, and a tensor with a slice replaced by another tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from taskmap.graph.build import define, same_dim
from taskmap.graph.nodes import Node
from taskmap.graph.ops.pointwise import to_dtype
from taskmap.graph.ops.promotion import result_type
from taskmap.graph.ops.views import position, slice_bounds, unsqueeze
from taskmap.ir.construct import cast, compare, eq, index, maximum, minimum, select, static_size
from taskmap.ir.errors import GraphError, UnsupportedError
from taskmap.ir.nodes import Buffer, Dim, Expr, ExprLike

MOST_PARTS = 64
"""The most tensors among which a definition selects: its length and its compile time grow with their number."""


def cat(tensors: Sequence[Node], dim: int = 0) -> Node:
    """The tensors in sequence along ``dim``, in their common type; tensors of shape (0,) are skipped."""
    dtype = result_type(*tensors)
    parts = [to_dtype(t, dtype) for t in tensors if static_size(t.shape[0] if t.shape else 1) != 0 or len(t.shape) > 1]
    parts = [t for t in parts if all(static_size(n) != 0 for n in t.shape)]
    if not parts:
        raise UnsupportedError("a concatenation of empty tensors")
    if len(parts) == 1:
        return parts[0]
    if len(parts) > MOST_PARTS:
        raise UnsupportedError(
            f"a concatenation of {len(parts)} tensors, when a kernel selects among at most {MOST_PARTS}"
        )
    axis = dim % len(parts[0].shape)
    starts: list[Dim] = [0]
    for part in parts:
        if len(part.shape) != len(parts[0].shape):
            raise GraphError(f"cat of tensors of rank {len(parts[0].shape)} and {len(part.shape)}")
        starts.append(starts[-1] + part.shape[axis])
    shape = [starts[-1] if d == axis else n for d, n in enumerate(parts[0].shape)]

    def element(*formals: Buffer) -> Callable[..., ExprLike]:
        def at(*axes: Expr) -> Expr:
            return _choose(formals, axes, axis, starts)

        return at

    return define("cat", parts, shape, element, dtype, dim=axis)


def _choose(formals: Sequence[Buffer], axes: Sequence[Expr], axis: int, starts: Sequence[Dim]) -> Expr:
    """The element of the part that contains the position; reads of the other parts are clamped to stay in bounds."""

    def of(part: int) -> Expr:
        f = formals[part]
        here = axes[axis] - starts[part] if part else axes[axis]
        if part:
            here = maximum(here, 0)
        if part < len(formals) - 1:
            here = minimum(here, index(f.shape[axis]) - 1)
        return f[tuple(here if d == axis else a for d, a in enumerate(axes))]

    value = of(len(formals) - 1)
    for part in reversed(range(len(formals) - 1)):
        value = select(compare("lt", axes[axis], starts[part + 1]), of(part), value)
    return value


def stack(tensors: Sequence[Node], dim: int = 0) -> Node:
    """The tensors along a new dimension."""
    if len(tensors) == 1:
        return unsqueeze(tensors[0], dim)
    return cat([unsqueeze(t, dim) for t in tensors], dim % (len(tensors[0].shape) + 1))


def slice_scatter(
    x: Node, source: Node, dim: int = 0, start: Dim | None = None, end: Dim | None = None, step: int = 1
) -> Node:
    """``x`` with the elements selected by slice(dim, start, end, step) replaced by ``source``."""
    axis = dim % len(x.shape)
    first, length = slice_bounds(x.shape[axis], start, end, step)
    if static_size(length) == 0:
        return x
    if same_dim(length, x.shape[axis]):
        return to_dtype(source, x.dtype)

    def element(f: Buffer, g: Buffer) -> Callable[..., ExprLike]:
        def at(*axes: Expr) -> Expr:
            offset = axes[axis] - first
            inside = compare("ge", offset, 0) & compare("lt", offset, index(length) * step)
            if step != 1:
                inside = inside & eq(offset % step, 0)
            held = minimum(maximum(offset // step, 0), index(length) - 1)
            return select(
                inside, cast(g[tuple(held if d == axis else a for d, a in enumerate(axes))], x.dtype), f[axes]
            )

        return at

    return define("slice_scatter", [x, source], x.shape, element, x.dtype)


def select_scatter(x: Node, source: Node, dim: int, at: Dim) -> Node:
    """``x`` with position ``at`` of ``dim`` replaced by ``source``."""
    axis = dim % len(x.shape)
    place = position(at, x.shape[axis])

    def element(f: Buffer, g: Buffer) -> Callable[..., ExprLike]:
        def value(*axes: Expr) -> Expr:
            inside = eq(axes[axis], place)
            return select(inside, cast(g[tuple(a for d, a in enumerate(axes) if d != axis)], x.dtype), f[axes])

        return value

    return define("select_scatter", [x, source], x.shape, element, x.dtype)
