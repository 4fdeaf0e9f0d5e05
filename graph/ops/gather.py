"""Reads at data-dependent positions: embedding, gather, index_select, advanced indexing.

Every position goes through ``checked_index``, which reports a position out of range. Only advanced indexing and take
count negative positions from the end, as in PyTorch; for the others a negative position is out of range.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from taskmap.graph.build import broadcast_shapes, define, read_broadcast
from taskmap.graph.nodes import Node
from taskmap.ir.construct import call, cast, compare, index, select, static_size
from taskmap.ir.errors import UnsupportedError
from taskmap.ir.nodes import Buffer, Dim, Expr, ExprLike
from taskmap.ir.types import i64


def checked(position: Expr, size: Dim) -> Expr:
    """``position`` if it is in [0, size); any other position is reported."""
    at = cast(position, i64)
    return wrapped(select(compare("lt", at, 0), index(size), at), size)


def wrapped(position: Expr, size: Dim) -> Expr:
    """``position`` in [-size, size) mapped to [0, size); any other position is reported."""
    return call("checked_index", cast(position, i64), index(size), dtype=i64)


def embedding(weight: Node, indices: Node) -> Node:
    """weight[indices]: [..., d] for weight [n, d] and indices [...]."""

    def element(w: Buffer, i: Buffer) -> Callable[..., ExprLike]:
        return lambda *axes: w[checked(i[axes[:-1]], weight.shape[0]), axes[-1]]

    return define("embedding", [weight, indices], (*indices.shape, weight.shape[1]), element)


def index_select(x: Node, dim: int, indices: Node) -> Node:
    """The slices of ``x`` at ``indices`` (1-d or 0-d) along ``dim``."""
    if not x.shape:
        return define("index_select", [x, indices], (), lambda f, i: lambda: f[()])
    axis = dim % len(x.shape)
    length = indices.shape[0] if indices.shape else 1
    shape = [length if d == axis else n for d, n in enumerate(x.shape)]

    def element(f: Buffer, i: Buffer) -> Callable[..., ExprLike]:
        def at(*axes: Expr) -> Expr:
            here = checked(i[(axes[axis],) if i.shape else ()], x.shape[axis])
            return f[tuple(here if d == axis else a for d, a in enumerate(axes))]

        return at

    return define("index_select", [x, indices], shape, element)


def gather(x: Node, dim: int, indices: Node) -> Node:
    """out[i] = x[i with component ``dim`` replaced by indices[i]]."""
    if not x.shape:
        return define("gather", [x, indices], indices.shape, lambda f, i: lambda *axes: f[()])
    axis = dim % len(x.shape)

    def element(f: Buffer, i: Buffer) -> Callable[..., ExprLike]:
        def at(*axes: Expr) -> Expr:
            here = checked(i[axes], x.shape[axis])
            return f[tuple(here if d == axis else a for d, a in enumerate(axes))]

        return at

    if not indices.shape:
        return define("gather", [x, indices], (), lambda f, i: lambda: f[(checked(i[()], x.shape[0]),)])
    return define("gather", [x, indices], indices.shape, element)


@dataclass(frozen=True, slots=True)
class Indexing:
    """x[indices] with integer ``tensors``, broadcast together, for the dimensions ``indexed`` of ``x``.

    The broadcast dimensions replace the indexed ones if those are adjacent, and come first otherwise; the rest is kept.
    """

    x: Node
    indexed: tuple[int, ...]
    tensors: tuple[Node, ...]

    @property
    def common(self) -> tuple[Dim, ...]:
        """The shape of the tensors, broadcast together."""
        return broadcast_shapes(*(n.shape for n in self.tensors))

    @property
    def kept(self) -> list[int]:
        """The dimensions of ``x`` that are not indexed."""
        return [d for d in range(len(self.x.shape)) if d not in self.indexed]

    @property
    def before(self) -> int:
        """The number of kept dimensions before the broadcast ones."""
        first = self.indexed[0]
        return first if self.indexed == tuple(range(first, first + len(self.indexed))) else 0

    @property
    def shape(self) -> list[Dim]:
        """The shape of x[indices]."""
        rest = [self.x.shape[d] for d in self.kept]
        return [*rest[: self.before], *self.common, *rest[self.before :]]

    def position(self, at: Sequence[Expr], entries: Sequence[Buffer]) -> list[Expr]:
        """The position in ``x`` of element ``at`` of x[indices]; ``entries`` are the tensors' buffers."""
        begin, end = self.before, self.before + len(self.common)
        where: dict[int, Expr] = dict(zip(self.kept, [*at[:begin], *at[end:]], strict=True))
        for d, entry in zip(self.indexed, entries, strict=True):
            where[d] = wrapped(read_broadcast(entry, at[begin:end]), self.x.shape[d])
        return [where[d] for d in range(len(self.x.shape))]


def indexing(x: Node, indices: Sequence[Node | None]) -> Indexing:
    """x[indices]; None keeps a dimension."""
    given = [(d, n) for d, n in enumerate(indices) if n is not None]
    return Indexing(x, tuple(d for d, _ in given), tuple(n for _, n in given))


def advanced_index(x: Node, indices: Sequence[Node | None]) -> Node:
    """x[indices] as ``Indexing`` describes it; None keeps a dimension. Raises UnsupportedError for a mask."""
    plan = indexing(x, indices)
    if any(not n.dtype.is_int or n.dtype.bits == 8 for n in plan.tensors):
        raise UnsupportedError("indexing by a mask, whose result has a size that depends on data")

    def element(f: Buffer, *entries: Buffer) -> Callable[..., ExprLike]:
        return lambda *axes: f[tuple(plan.position(axes, entries))]

    return define("index", [x, *plan.tensors], plan.shape, element)


def take(x: Node, indices: Node) -> Node:
    """Elements of the flat ``x``."""
    sizes = x.shape
    total: Dim = 1
    for n in sizes:
        total = total * n

    def element(f: Buffer, i: Buffer) -> Callable[..., ExprLike]:
        def at(*axes: Expr) -> Expr:
            flat = wrapped(i[axes], total)
            position: list[ExprLike] = []
            for n in reversed(sizes):
                position.insert(0, 0 if static_size(n) == 1 else flat % n)
                flat = flat // n
            return f[tuple(position)]

        return at

    return define("take", [x, indices], indices.shape, element)
