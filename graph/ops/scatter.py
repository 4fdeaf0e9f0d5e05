"""Writes at data-dependent positions: scatter, index_add, index_put, index_copy, and the gradient of an embedding.

Each is a ``Scatter``: an initial tensor and, for every element of the source in order, its target position. If few
positions compete for an element, it is computed from the result's side instead, where each element checks whether a
position selects it: that is element-wise and fuses. This applies when the index has one entry along ``dim``, or a few
that all write the same value.

Every position goes through ``checked_index``, as in ``gather``. Sums and products of f16 and bf16 are accumulated in
f32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from taskmap.graph.build import define, elementwise, read_broadcast, same_dim
from taskmap.graph.nodes import Node
from taskmap.graph.ops.creation import full
from taskmap.graph.ops.gather import checked, indexing
from taskmap.graph.ops.pointwise import number, to_dtype
from taskmap.graph.ops.promotion import Scalar
from taskmap.graph.ops.views import reshape
from taskmap.ir.construct import cast, compare, const, eq, identity, index, load, reduce, select, static_size
from taskmap.ir.errors import UnsupportedError
from taskmap.ir.nodes import Buffer, Dim, Expr, ExprLike, Scatter, Var
from taskmap.ir.types import DType, boolean, compute_type, i64

LONGEST = 16

_HOW = {"add": "sum", "multiply": "prod", "amax": "max", "amin": "min", "sum": "sum", "prod": "prod", "last": "last"}
_OF_BOOLS = {"sum": "any", "prod": "all", "max": "any", "min": "all", "last": "last"}

Place = Callable[..., tuple[Sequence[ExprLike], ExprLike]]
"""place(*formals)(*source position) -> the position in the result, and the value written there."""


def scattered(
    op: str, how: str, initial: Node, sources: Sequence[Node], extents: Sequence[Dim], place: Callable[..., Place]
) -> Node:
    """``initial`` after every element of the source, whose shape is ``extents``, is written where ``place`` says.

    how: the ``op`` of a Scatter. The result has the shape and the type of ``initial``.
    """
    if any(static_size(n) == 0 for n in extents):
        return initial
    dtype = initial.dtype
    how = _OF_BOOLS[how] if dtype.is_bool else how
    wide = compute_type(dtype) if how in ("sum", "prod") else dtype

    def element(first: Buffer, *formals: Buffer) -> Callable[..., ExprLike]:
        def at(*here: Expr) -> ExprLike:
            axes = tuple((Var(f"r{d}"), n) for d, n in enumerate(extents))
            where, value = place(*formals)(*(v for v, _ in axes))
            positions = tuple(cast(index(i), i64) for i in where)  # type: ignore[arg-type]  # floats never index
            return Scatter(how, here, cast(first[here], wide), axes, positions, cast(value, wide), wide)

        return at

    made = define(op, [initial, *sources], initial.shape, element, wide)
    return to_dtype(made, dtype)


def _at(axes: Sequence[Expr], axis: int, position: ExprLike) -> tuple[ExprLike, ...]:
    return tuple(position if d == axis else a for d, a in enumerate(axes))


def _few(x: Node, axis: int, indices: Node, most: int) -> int | None:
    """The number of index entries along ``axis`` if it is at most ``most`` and the other dimensions are covered."""
    others = [d for d in range(len(x.shape)) if d != axis]
    length = static_size(indices.shape[axis])
    covers = all(same_dim(x.shape[d], indices.shape[d]) for d in others)
    return length if covers and length is not None and 0 < length <= most else None


def _as_row(x: Node) -> Node:
    return x if x.shape else reshape(x, (1,))


def _in_rows(function: Callable[..., Node], x: Node, indices: Node, *sources: Node) -> Node:
    """``function`` of 0-d tensors, applied to rows of one element."""
    return reshape(function(_as_row(x), _as_row(indices), *map(_as_row, sources)), ())


def scatter_value(x: Node, dim: int, indices: Node, value: Scalar, how: str = "last") -> Node:
    """``x`` with ``value`` written at the positions ``indices`` along ``dim``, or combined with the element there."""
    if not x.shape:
        return _in_rows(lambda f, i: scatter_value(f, 0, i, value, how), x, indices)
    axis = dim % len(x.shape)
    length = _few(x, axis, indices, LONGEST) if how == "last" else None
    if length is None:
        return scatter(x, dim, indices, full(indices.shape, value, x.dtype), how)

    def element(f: Buffer, i: Buffer) -> Callable[..., ExprLike]:
        def at(*axes: Expr) -> Expr:
            r = Var("r")
            chosen = eq(checked(load(i, _at(axes, axis, r)), x.shape[axis]), axes[axis])
            return select(reduce("any", [(r, length)], chosen), number(value, x.dtype), f[axes])

        return at

    return define("scatter", [x, indices], x.shape, element, x.dtype)


def scatter(x: Node, dim: int, indices: Node, source: Node, how: str = "last") -> Node:
    """``x`` with ``source`` written at the positions ``indices`` along ``dim``, or combined as ``_HOW`` says.

    The source may be larger than the index.
    """
    if not x.shape:
        return _in_rows(lambda f, i, s: scatter(f, 0, i, s, how), x, indices, source)
    if len(indices.shape) != len(x.shape):
        raise UnsupportedError("scatter with a 0-d index")
    axis = dim % len(x.shape)
    kind = _HOW[how]
    if (kind == "last" or (kind == "sum" and not x.dtype.is_bool)) and _few(x, axis, indices, 1):
        return _from_the_other_side(x, axis, indices, source, kind == "sum")

    def place(i: Buffer, s: Buffer) -> Place:
        return lambda *r: (_at(r, axis, checked(i[r], x.shape[axis])), s[r])

    return scattered("scatter", kind, x, [indices, source], indices.shape, place)


def _from_the_other_side(x: Node, axis: int, indices: Node, source: Node, accumulate: bool) -> Node:
    wide = compute_type(x.dtype)

    def element(f: Buffer, i: Buffer, s: Buffer) -> Callable[..., ExprLike]:
        def at(*axes: Expr) -> Expr:
            chosen = eq(checked(load(i, _at(axes, axis, 0)), x.shape[axis]), axes[axis])
            new, old = cast(load(s, _at(axes, axis, 0)), wide), cast(f[axes], wide)
            return select(chosen, old + new if accumulate else new, old)

        return at

    return define("scatter", [x, indices, source], x.shape, element, x.dtype)


def index_add(x: Node, dim: int, indices: Node, source: Node, alpha: Scalar = 1) -> Node:
    """``x`` with each slice of ``source`` along ``dim``, times ``alpha``, added to the slice given by ``indices``."""
    if alpha != 1:
        wide = compute_type(x.dtype)
        source = elementwise("mul", [source], lambda e: cast(e, wide) * number(alpha, wide), wide)
    return index_combine("index_add", x, dim, indices, source, "sum")


def index_combine(op: str, x: Node, dim: int, indices: Node, source: Node, how: str) -> Node:
    """``x`` with each slice of ``source`` along ``dim`` combined into the slice given by ``indices`` (1-d or 0-d)."""
    if not x.shape:
        return _in_rows(lambda f, i, s: index_combine(op, f, 0, i, s, how), x, indices, source)
    axis = dim % len(x.shape)
    along = _as_row(indices)
    source = _as_row(source)

    def place(i: Buffer, s: Buffer) -> Place:
        return lambda *r: (_at(r, axis, checked(i[(r[axis],)], x.shape[axis])), s[r])

    return scattered(op, _HOW[how], x, [along, source], source.shape, place)


def index_put(x: Node, indices: Sequence[Node | None], values: Node, accumulate: bool = False) -> Node:
    """x[indices] = values, or += values, for integer tensors that are broadcast together; None keeps a dimension.

    Negative positions count from the end. A single mask is accepted if the values do not depend on how many bits are
    set.
    """
    plan = indexing(x, indices)
    tensors = plan.tensors
    if len(tensors) == 1 and tensors[0].dtype.is_bool:
        return _masked_put(x, plan.indexed[0], tensors[0], values, accumulate)
    if not tensors or any(not n.dtype.is_int or n.dtype.bits == 8 for n in tensors):
        raise UnsupportedError("writing by masks")

    def place(v: Buffer, *entries: Buffer) -> Place:
        return lambda *r: (plan.position(r, entries), read_broadcast(v, r))

    return scattered("index_put", "sum" if accumulate else "last", x, [values, *tensors], plan.shape, place)


def _masked_put(x: Node, first: int, mask: Node, values: Node, accumulate: bool) -> Node:
    """Writes by a mask over dimensions from ``first`` on, in whose place the values have one, of equal values."""
    after = len(x.shape) - first - len(mask.shape)
    if len(values.shape) > after and static_size(values.shape[len(values.shape) - after - 1]) != 1:
        raise UnsupportedError("writing by a mask with one value per selected position")
    wide = compute_type(x.dtype)

    def element(f: Buffer, m: Buffer, v: Buffer) -> Callable[..., ExprLike]:
        def at(*axes: Expr) -> Expr:
            masked = axes[first : first + len(mask.shape)]
            position = (*axes[:first], index(0), *axes[first + len(mask.shape) :])
            old, new = cast(f[axes], wide), cast(read_broadcast(v, position), wide)
            both = (old | new if wide.is_bool else old + new) if accumulate else new
            return select(m[masked], both, old)

        return at

    return define("index_put", [x, mask, values], x.shape, element, x.dtype)


def embedding_gradient(
    gradient: Node, indices: Node, rows: Dim, padding: Scalar = -1, by_frequency: bool = False
) -> Node:
    """The gradient of the weight [rows, d] of an embedding: for each row, the sum of ``gradient`` [..., d] over its
    occurrences in ``indices`` [...], divided by their number if ``by_frequency``.

    Row ``padding`` and positions out of range get nothing, as in PyTorch, whose forward pass has checked the range.
    """
    wide = compute_type(gradient.dtype)
    lead = len(indices.shape)

    def row(i: Expr) -> tuple[Expr, Expr]:
        at = cast(i, i64)
        counts = compare("ge", at, 0) & compare("lt", at, index(rows)) & compare("ne", at, number(padding, i64))
        return select(counts, at, 0), counts

    sources = [gradient, indices]
    if by_frequency:

        def one(i: Buffer) -> Place:
            def at(*r: Expr) -> tuple[Sequence[ExprLike], ExprLike]:
                where, counts = row(i[r])
                return [where], cast(counts, i64)

            return at

        zeros = full((rows,), 0, i64)
        sources.append(scattered("count", "sum", zeros, [indices], indices.shape, one))

    def place(g: Buffer, i: Buffer, *count: Buffer) -> Place:
        def at(*r: Expr) -> tuple[Sequence[ExprLike], ExprLike]:
            where, counts = row(i[r[:lead]])
            value = cast(g[r], wide)
            if count:
                value = value * (const(1, wide) / cast(count[0][(where,)], wide))
            return (where, r[lead]), select(counts, value, const(0, wide))

        return at

    shape = (rows, gradient.shape[-1])
    start = full(shape, 0, wide)
    return to_dtype(scattered("embedding_gradient", "sum", start, sources, gradient.shape, place), gradient.dtype)


Fold = Callable[[Node, Node, str], Node]
"""fold(x, source, how): a scatter by one index."""


def scatter_reduce(x: Node, dim: int, indices: Node, source: Node, how: str, include_self: bool = True) -> Node:
    """``x`` with ``source`` combined into the positions ``indices`` along ``dim`` by sum, prod, mean, amax or amin,
    with or without the elements already there.
    """
    return reduced(lambda f, s, kind: scatter(f, dim, indices, s, kind), x, source, how, include_self)


def index_reduce(x: Node, dim: int, indices: Node, source: Node, how: str, include_self: bool = True) -> Node:
    """As ``scatter_reduce``, with whole slices of ``source``."""
    return reduced(lambda f, s, k: index_combine("index_reduce", f, dim, indices, s, k), x, source, how, include_self)


def reduced(fold: Fold, x: Node, source: Node, how: str, include_self: bool) -> Node:
    """A scatter that reduces. A mean is a sum divided by its number of elements."""
    dtype = x.dtype
    if how != "mean":
        if include_self:
            return fold(x, source, how)
        touched = fold(full(x.shape, False, boolean), full(source.shape, True, boolean), "amax")
        return fold(_emptied(x, touched, how), source, how)
    if dtype.is_bool:
        raise UnsupportedError("a mean of bools")
    hits = fold(full(x.shape, int(include_self), i64), full(source.shape, 1, i64), "sum")
    wide = compute_type(dtype)
    start = to_dtype(x, wide) if include_self else _emptied(to_dtype(x, wide), hits, "sum")
    return elementwise("mean", [fold(start, to_dtype(source, wide), "sum"), hits], _mean(wide), dtype)


def _mean(wide: DType) -> Callable[[Expr, Expr], ExprLike]:
    def mean(total: Expr, count: Expr) -> Expr:
        parts = select(count < 1, 1, count)
        return total / cast(parts, wide) if wide.is_float else cast(cast(total, i64) // parts, wide)

    return mean


def _emptied(x: Node, touched: Node, how: str) -> Node:
    """``x`` with each element that will be written replaced by the identity of ``how``."""
    start = identity(_HOW[how], x.dtype)
    return elementwise("where", [touched, x], lambda t, v: select(cast(t, boolean), start, v), x.dtype)
