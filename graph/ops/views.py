"""Operators that only change the indices of elements: reshape, permute, expand, slices. Each is a reindex node."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from taskmap.graph.analysis.size_forms import normal
from taskmap.graph.build import reindex, same_dim
from taskmap.graph.nodes import Node
from taskmap.ir.analysis.positions import flatten, unravel
from taskmap.ir.analysis.simplify import Simplifier
from taskmap.ir.construct import index, maximum, minimum, product, select, static_size
from taskmap.ir.errors import GraphError, UnsupportedError
from taskmap.ir.nodes import Binary, Dim, Expr, ExprLike, Var
from taskmap.ir.visit import walk_exprs

Factors = tuple[int, frozenset[tuple[Expr, int]]]


def _factors(dims: Sequence[Dim]) -> Factors:
    """A product of sizes, as a number and a multiset of symbolic factors: equal products have equal factors."""
    number, symbols = 1, Counter[Expr]()
    stack: list[Dim] = list(dims)
    while stack:
        dim = stack.pop()
        value = static_size(dim)
        if value is not None:
            number *= value
        elif isinstance(dim, Binary) and dim.op == "mul":
            stack += [dim.a, dim.b]
        elif isinstance(dim, Expr):
            symbols[dim] += 1
    return number, frozenset(symbols.items())


def resolve(x: Node, size: Sequence[Dim]) -> tuple[Dim, ...]:
    """``size`` with -1 replaced by the extent that the number of elements implies."""
    unknown = [d for d, n in enumerate(size) if static_size(n) == -1]
    if not unknown:
        return tuple(size)
    rest = product([n for d, n in enumerate(size) if d not in unknown])
    total = product(x.shape)
    missing = normal(index(total) // index(rest))
    return tuple(missing if d in unknown else n for d, n in enumerate(size))


def _groups(old: Sequence[Dim], new: Sequence[Dim]) -> list[tuple[range, range]]:
    """Cuts both shapes where their leading products agree, so that each group can be reshaped separately."""
    if old and new and _factors(old) != _factors(new) and all(isinstance(n, int) for n in (*old, *new)):
        raise GraphError(f"a tensor of shape {tuple(old)} cannot be reshaped to {tuple(new)}")
    places = {_factors(new[: d + 1]): d + 1 for d in reversed(range(len(new)))}
    groups: list[tuple[range, range]] = []
    start, begun = 0, 0
    for d in range(len(old)):
        reached = places.get(_factors(old[: d + 1]))
        if reached is None or reached <= begun or static_size(old[d]) == 1:
            continue
        groups.append((range(start, d + 1), range(begun, reached)))
        start, begun = d + 1, reached
    if start < len(old) or begun < len(new):
        groups.append((range(start, len(old)), range(begun, len(new))))
    return groups


def reshape(x: Node, size: Sequence[Dim], op: str = "view") -> Node:
    """The elements of ``x`` in row-major order in another shape; one size may be -1. Returns x for its own shape."""
    shape = resolve(x, size)
    if len(shape) == len(x.shape) and all(same_dim(a, b) for a, b in zip(shape, x.shape, strict=True)):
        return x
    groups = _groups(x.shape, shape)

    def source(*axes: Expr) -> list[ExprLike]:
        position: list[ExprLike] = []
        for old, new in groups:
            position += unravel(_join([axes[d] for d in new], [shape[d] for d in new]), [x.shape[d] for d in old])
        return position

    return reindex(op, x, shape, source)


def _join(axes: Sequence[Expr], sizes: Sequence[Dim]) -> Expr:
    """The row-major number of an index."""
    return flatten([(axis, size) for axis, size in zip(axes, sizes, strict=True) if static_size(size) != 1])


def permute(x: Node, dims: Sequence[int], op: str = "permute") -> Node:
    """Dimensions in another order: dimension d of the result is dimension ``dims[d]`` of x."""
    rank = len(x.shape)
    order = [d % rank for d in dims]
    if order == list(range(rank)):
        return x
    inverse = [order.index(d) for d in range(rank)]
    return reindex(op, x, [x.shape[d] for d in order], lambda *axes: [axes[inverse[d]] for d in range(rank)])


def transpose(x: Node, dim0: int, dim1: int) -> Node:
    """``x`` with two dimensions exchanged."""
    if not x.shape:
        return x
    order = list(range(len(x.shape)))
    a, b = dim0 % len(order), dim1 % len(order)
    order[a], order[b] = order[b], order[a]
    return permute(x, order, "transpose")


def expand(x: Node, size: Sequence[Dim]) -> Node:
    """``x`` repeated along dimensions of extent 1, and along new leading dimensions; -1 keeps an extent."""
    extra = len(size) - len(x.shape)
    if extra < 0:
        raise GraphError(f"a tensor of rank {len(x.shape)} cannot be expanded to rank {len(size)}")
    old = (*([1] * extra), *x.shape)
    shape = [o if static_size(n) == -1 else n for o, n in zip(old, size, strict=True)]
    if not extra and all(same_dim(a, b) for a, b in zip(shape, x.shape, strict=True)):
        return x

    def source(*axes: Expr) -> list[ExprLike]:
        return [0 if static_size(n) == 1 else axes[extra + d] for d, n in enumerate(x.shape)]

    return reindex("expand", x, shape, source)


def squeeze(x: Node, dims: Sequence[int] | None = None) -> Node:
    """``x`` without its dimensions of extent 1 (only those among ``dims``, if given)."""
    rank = len(x.shape)
    chosen = range(rank) if dims is None else {d % rank for d in dims} if rank else set()
    return reshape(x, [n for d, n in enumerate(x.shape) if d not in chosen or static_size(n) != 1], "squeeze")


def unsqueeze(x: Node, dim: int) -> Node:
    """``x`` with a new dimension of extent 1 at ``dim``."""
    shape = list(x.shape)
    shape.insert(dim % (len(shape) + 1), 1)
    return reshape(x, shape, "unsqueeze")


def slice_(x: Node, dim: int = 0, start: Dim | None = None, end: Dim | None = None, step: int = 1) -> Node:
    """Elements start, start + step, ... below end along ``dim``; bounds as in Python, step positive."""
    axis = dim % len(x.shape)
    size = x.shape[axis]
    first, length = slice_bounds(size, start, end, step)
    if static_size(first) == 0 and step == 1 and same_dim(length, size):
        return x
    shape = [length if d == axis else n for d, n in enumerate(x.shape)]
    return reindex("slice", x, shape, lambda *axes: [a * step + first if d == axis else a for d, a in enumerate(axes)])


def slice_bounds(size: Dim, start: Dim | None, end: Dim | None, step: int) -> tuple[Dim, Dim]:
    """The first position of a slice of a dimension of extent ``size``, and its number of positions."""
    first = _bound(0 if start is None else start, size)
    last = _bound(size if end is None else end, size)
    return first, _length(first, last, static_size(step))


def _bound(value: Dim, size: Dim) -> Dim:
    """A slice bound as a position in [0, size]."""
    known, length = static_size(value), static_size(size)
    if known is not None and length is not None:
        return min(max(known + length if known < 0 else known, 0), length)
    if known is not None and known >= 2**62:
        return size
    if known == 0:
        return 0
    if same_dim(value, size):
        return value
    if known is None and isinstance(value, Expr):
        place = index(_from_start(value, size))
        return minimum(maximum(place, 0) if least(place) < 0 else place, size)
    return maximum(index(size) + value, 0) if known is not None and known < 0 else minimum(value, size)


def _from_start(value: Expr, size: Dim) -> Dim:
    """A position that counts from the end if it is negative, which may be known only at run time."""
    if least(value) >= 0:
        return value
    from_end = index(size) + value
    return from_end if least(-value) >= 1 else select(value < 0, from_end, value)


def least(value: Expr) -> float:
    """A lower bound of ``value``: symbolic sizes are at least 1."""
    simplifier = Simplifier()
    for e in walk_exprs(value):
        if isinstance(e, Var):
            simplifier.bind_range(e, (1, math.inf))
    return simplifier.range(simplifier(value))[0]


def _length(first: Dim, last: Dim, step: int | None) -> Dim:
    if step is None:
        raise UnsupportedError("a slice with a symbolic step")
    if isinstance(first, int) and isinstance(last, int):
        return max(0, -(-(last - first) // step))
    span = index(last) - index(first)
    return span if step == 1 else (span + (step - 1)) // step


def select_(x: Node, dim: int, at: Dim) -> Node:
    """``x`` at position ``at`` (from the end if negative) of ``dim``, which is removed."""
    axis = dim % len(x.shape)
    place = position(at, x.shape[axis])
    shape = [n for d, n in enumerate(x.shape) if d != axis]
    return reindex("select", x, shape, lambda *axes: [*axes[:axis], place, *axes[axis:]])


def position(at: Dim, size: Dim) -> Dim:
    """``at`` as an index of a dimension of extent ``size``; counts from the end if negative."""
    known = static_size(at)
    if known is None and isinstance(at, Expr):
        return _from_start(at, size)
    return index(size) + at if known is not None and known < 0 else at


def split(x: Node, sizes: Sequence[Dim], dim: int = 0) -> list[Node]:
    """Consecutive slices of the given sizes along ``dim``."""
    parts: list[Node] = []
    start: Dim = 0
    for size in sizes:
        end: Dim = start + size
        parts.append(slice_(x, dim, start, end))
        start = end
    return parts


def diagonal(x: Node, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Node:
    """The diagonals of the matrices in dimensions ``dim1`` and ``dim2``, as a new last dimension."""
    rank = len(x.shape)
    a, b = dim1 % rank, dim2 % rank
    rows, columns = static_size(x.shape[a]), static_size(x.shape[b])
    if rows is None or columns is None:
        raise UnsupportedError("the diagonal of a matrix of symbolic size")
    length = max(min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns), 0)
    shape = [*(n for d, n in enumerate(x.shape) if d not in (a, b)), length]

    def source(*axes: Expr) -> list[ExprLike]:
        rest = iter(axes[:-1])
        along = {a: axes[-1] + max(-offset, 0), b: axes[-1] + max(offset, 0)}
        return [along[d] if d in along else next(rest) for d in range(rank)]

    return reindex("diagonal", x, shape, source)


def copy(x: Node) -> Node:
    """A new tensor with the elements of ``x``."""
    return reindex("copy", x, x.shape, lambda *axes: axes)
