"""Gradients of resizing, written as gathers: each source element sums over the results that read it, one dimension
after another.

The results that read a source position are neighbours, because positions grow with the result. Which they are is the
same arithmetic in f32 as the forward's (see resample.py), so it is tabulated once, and exact by construction.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from taskmap.graph.build import define
from taskmap.graph.nodes import Node
from taskmap.graph.ops.pointwise import to_dtype
from taskmap.graph.ops.resample import Neighbours, corners, nearest_place, whole_factor
from taskmap.ir.construct import cast, compare, const, eq, index, load, maximum, minimum, reduce, select, static_size
from taskmap.ir.errors import UnsupportedError
from taskmap.ir.nodes import Buffer, Dim, Expr, ExprLike, Var
from taskmap.ir.types import DType, compute_type, i64


@dataclass(frozen=True, slots=True)
class _Axis:
    """A resized dimension: ``size`` source elements, ``results`` elements of the gradient."""

    size: int
    results: int


@dataclass(frozen=True, slots=True)
class _Readers:
    """The results that read source element ``p``: ``count`` neighbours, the first being ``factor * p - before``, or
    where ``table`` is given element ``p`` of it. The results of ``p`` end where those of ``p + reach`` begin."""

    count: int
    factor: int = 1
    before: int = 0
    table: Node | None = None
    reach: int = 1


def upsample_nearest_backward(
    grad: Node, input_size: Sequence[Dim], scales: Sequence[float | None], exact: bool = False
) -> Node:
    """The sum of the gradients of the results that copied this element; ``input_size`` is the shape of the source.
    Raises UnsupportedError where a size is symbolic."""
    made = grad
    for d, scale in enumerate(scales, len(grad.shape) - len(scales)):
        made = _nearest(made, d, _axis(grad, input_size, d), scale, exact)
    return to_dtype(made, grad.dtype)


def _nearest(grad: Node, d: int, a: _Axis, scale: float | None, exact: bool) -> Node:
    if a.size == a.results and not scale:
        return grad
    factor = whole_factor(a.size, a.results, scale)
    if factor is not None and not exact and factor * a.size == a.results:
        readers = _Readers(factor, factor)
    else:
        step = 1 / scale if scale else a.size / a.results
        count = _most([(o + exact / 2) * step for o in range(a.results)], a.size, 1)
        table = _firsts(a, lambda o: nearest_place(o, a.size, a.results, scale, exact), 1)
        readers = _Readers(count, table=table)
    return _gathered("upsample_nearest_backward", grad, d, a, readers, None)


def upsample_linear_backward(
    grad: Node, input_size: Sequence[Dim], align_corners: bool, scales: Sequence[float | None]
) -> Node:
    """The sum of the gradients of the results that this element is a neighbour of, by its weights in them. Raises
    UnsupportedError where a size is symbolic."""
    made = grad
    for d, scale in enumerate(scales, len(grad.shape) - len(scales)):
        made = _linear(made, d, _axis(grad, input_size, d), scale, align_corners)
    return to_dtype(made, grad.dtype)


def _linear(grad: Node, d: int, a: _Axis, scale: float | None, align_corners: bool) -> Node:
    if a.size == a.results and (align_corners or not scale):
        return grad
    wide = compute_type(grad.dtype)

    def around(o: Expr) -> Neighbours:
        return corners(o, a.size, a.results, scale, align_corners, wide)

    factor = None if align_corners else whole_factor(a.size, a.results, scale)
    if factor is not None and factor * a.size == a.results:
        readers = _Readers(2 * factor, factor, (factor + 1) // 2)
    else:
        places = [_position(o, a, scale, align_corners) for o in range(a.results)]
        table = _firsts(a, lambda o: around(o)[0][0], 2)
        readers = _Readers(_most(places, a.size, 2), table=table, reach=2)
    return _gathered("upsample_linear_backward", grad, d, a, readers, _weights(a, readers, around, wide))


def _axis(grad: Node, input_size: Sequence[Dim], d: int) -> _Axis:
    size, results = static_size(input_size[d]), static_size(grad.shape[d])
    if not size or not results:
        raise UnsupportedError("the gradient of resizing from or to a symbolic size")
    return _Axis(size, results)


def _position(o: int, a: _Axis, scale: float | None, align_corners: bool) -> float:
    """The place of a result between source elements."""
    if align_corners:
        return o * (a.size - 1) / (a.results - 1) if a.results > 1 else 0.0
    return max(0.0, (o + 0.5) * (1 / scale if scale else a.size / a.results) - 0.5)


def _most(places: Sequence[float], size: int, reach: int) -> int:
    """The most results that read one source element, the error of positions in f32 allowed for: results at ``places``
    read ``reach`` source elements from there on."""
    error = 4e-7 * (size + 1)
    counts: Counter[int] = Counter()
    for place in places:
        low, high = (min(max(math.floor(place + e), 0), size - 1) for e in (-error, error))
        counts.update(range(low, high + reach))
    return max(counts.values())


def _firsts(a: _Axis, place: Callable[[Expr], Expr], reach: int) -> Node:
    """For each source position, the first result that reads it: the number of results that read only ones before.
    ``place``: the first of the ``reach`` positions that a result reads."""

    def element() -> Callable[..., ExprLike]:
        def at(p: Expr) -> Expr:
            o = Var("o")
            before = compare("lt", place(o) + (reach - 1), p)
            return reduce("sum", [(o, a.results)], select(before, const(1, i64), const(0, i64)))

        return at

    return define("resize_readers", [], (a.size + reach,), element, i64)


def _first(readers: _Readers, firsts: Buffer | None, p: Expr) -> Expr:
    return p * readers.factor - readers.before if firsts is None else load(firsts, (p,))


def _exists(readers: _Readers, firsts: Buffer | None, p: Expr, o: Expr, a: _Axis) -> list[Expr]:
    """Conditions under which ``o`` is a result that reads ``p``."""
    if firsts is not None:
        return [compare("lt", o, load(firsts, (p + readers.reach,)))]
    if not readers.before and readers.count == readers.factor:
        return []
    return [compare("ge", o, 0), compare("lt", o, a.results)]


def _weights(a: _Axis, readers: _Readers, around: Callable[[Expr], Neighbours], wide: DType) -> Node:
    """[count, size]: the weight of a source element in each result that reads it."""

    def element(*firsts: Buffer) -> Callable[..., ExprLike]:
        def at(k: Expr, p: Expr) -> Expr:
            o = minimum(maximum(_first(readers, firsts[0] if firsts else None, p) + k, 0), a.results - 1)
            total: Expr = const(0, wide)
            for position, weight in around(o):
                total = total + select(eq(position, p), weight, const(0, wide))
            return total

        return at

    tables = [readers.table] if readers.table is not None else []
    return define("resize_weights", tables, (readers.count, a.size), element, wide)


def _gathered(op: str, grad: Node, d: int, a: _Axis, readers: _Readers, weights: Node | None) -> Node:
    """The gradient with dimension ``d`` taken back to the source, in the compute type: other dimensions follow."""
    wide = compute_type(grad.dtype)

    def element(g: Buffer, *tables: Buffer) -> Callable[..., ExprLike]:
        firsts = tables[0] if readers.table is not None else None
        table = tables[-1] if weights is not None else None

        def at(*axes: Expr) -> Expr:
            k = index(0) if readers.count == 1 else Var("k")
            p = axes[d]
            o = _first(readers, firsts, p) + k
            inside = minimum(maximum(o, 0), a.results - 1)
            value = cast(load(g, (*axes[:d], inside, *axes[d + 1 :])), wide)
            if table is not None:
                value = value * load(table, (k, p))
            for test in _exists(readers, firsts, p, o, a):
                value = select(test, value, const(0, wide))
            return reduce("sum", [(k, readers.count)], value) if isinstance(k, Var) else value

        return at

    shape = (*grad.shape[:d], a.size, *grad.shape[d + 1 :])
    tables = [t for t in (readers.table, weights) if t is not None]
    return define(op, [grad, *tables], shape, element, wide)
