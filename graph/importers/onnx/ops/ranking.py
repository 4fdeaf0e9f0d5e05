"""TopK: the largest or smallest elements along an axis, in order, with their positions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import TensorProto

from taskmap.graph.build import define
from taskmap.graph.importers.onnx.read.call import OnnxCall
from taskmap.graph.importers.onnx.read.elements import PLAIN, held_in
from taskmap.graph.importers.onnx.read.host import on_host
from taskmap.graph.importers.onnx.read.table import lowering
from taskmap.graph.importers.onnx.read.values import Tensor
from taskmap.graph.nodes import Node
from taskmap.graph.ops.gather import wrapped
from taskmap.graph.ops.join import cat
from taskmap.graph.ops.pointwise import to_dtype
from taskmap.ir.construct import call as function_call
from taskmap.ir.construct import cast, compare, const, eq, index, load, reduce, select, static_size
from taskmap.ir.nodes import Buffer, Dim, Expr, Var
from taskmap.ir.types import DType, boolean, compute_type, i32, i64

INT64 = int(TensorProto.INT64)
MOST_WALKS = 8
"""The largest k for which each element is found by a walk of its own along the axis."""
MOST_WALKED, WALKS = 1 << 16, 32
"""The largest number of elements that up to ``WALKS`` walks may visit together: running on the host costs more."""
LONGEST_RANKED = 128
"""Along an axis up to this length, each element counts its predecessors."""


@lowering("TopK")
def _top_k(call: OnnxCall) -> Any:
    x = call.tensor(0)
    rank = len(x.shape)
    axis = call.axis(call.attr("axis", -1), rank)
    count = int(call.number(1)) if call.version >= 10 else int(call.required("k"))
    size = static_size(x.shape[axis]) if rank else 1
    if not rank or count < 0 or (size is not None and count > size):
        raise call.error(f"the first {count} of {size} elements of a tensor of rank {rank}")
    call.at_least(x.shape[axis], count)
    largest = bool(call.attr("largest", 1)) if call.version >= 11 else True
    compiled = PLAIN.get(held_in(x.elem)) == x.elem and count > 0 and 0 not in (static_size(n) for n in x.shape)
    ranks = size is not None and size <= LONGEST_RANKED and count > MOST_WALKS
    short = size is not None and size * count <= MOST_WALKED and count <= WALKS
    if compiled and (count <= MOST_WALKS or ranks or short):
        order = Order(call.node(0), axis, largest)
        places = ranked(order, count) if ranks else walked(order, count)
        values = chosen(order, places)
        return [Tensor(x.elem, values.shape, made=values), Tensor(INT64, places.shape, made=places)]
    shape = [count if d == axis else n for d, n in enumerate(x.shape)]

    def run(a: Any) -> Any:
        keys = a if a.dtype.kind in "fiub" else a.astype(np.float32)
        keys = np.where(np.isnan(keys), np.inf, keys) if keys.dtype.kind == "f" else keys
        places = np.moveaxis(first_places(np.moveaxis(keys, axis, -1), count, largest), -1, axis)
        return [np.take_along_axis(a, places, axis), places]

    return on_host(call, run, [(x.elem, shape), (INT64, shape)], "sorting many elements", inputs=[0])


def first_places(keys: Any, count: int, largest: bool) -> Any:
    """The positions of the ``count`` largest or smallest elements of each row, in order; among equals the first comes
    first.

    Only candidates, those not beyond the last selected element, are sorted.
    """
    rows = keys.reshape(-1, keys.shape[-1])
    places = np.empty((rows.shape[0], count), np.int64)
    for row, found in zip(rows, places, strict=True):
        candidates = np.arange(len(row))
        if 0 < count < len(row) // 4:
            at = len(row) - count if largest else count - 1
            last = np.partition(row, at)[at]
            candidates = np.flatnonzero(row >= last if largest else row <= last)
        part = row[candidates]
        if largest:
            order = (len(part) - 1 - np.argsort(part[::-1], kind="stable"))[::-1]
        else:
            order = np.argsort(part, kind="stable")
        found[:] = candidates[order[:count]]
    return places.reshape(*keys.shape[:-1], count)


@dataclass(frozen=True, slots=True, eq=False)
class Order:
    """The order of the elements of ``x`` along ``axis``: by value, with NaN as infinity; among equals the first
    comes first."""

    x: Node
    axis: int
    largest: bool

    @property
    def size(self) -> Dim:
        """The number of elements along the axis."""
        return self.x.shape[self.axis]

    @property
    def place_type(self) -> DType:
        """The type of places while they are compared: as wide as the keys where that suffices, so that a vector of
        places has as many lanes as one of keys."""
        size = static_size(self.size)
        narrow = size is not None and size < 1 << 31 and compute_type(self.x.dtype).bits <= 32
        return i32 if narrow else i64

    @property
    def reduced(self) -> list[Dim]:
        """The shape with one element along the axis."""
        return [1 if d == self.axis else n for d, n in enumerate(self.x.shape)]

    def key(self, f: Buffer, axes: Sequence[Expr], place: Expr) -> Expr:
        """The key by which the element at ``place`` is compared."""
        element = cast(load(f, self.moved(axes, place)), compute_type(self.x.dtype))
        if not element.dtype.is_float:
            return element
        return select(function_call("isnan", element, dtype=boolean), const(math.inf, element.dtype), element)

    def moved(self, axes: Sequence[Expr], place: Expr) -> tuple[Expr, ...]:
        """The position with ``place`` along the axis."""
        return tuple(place if d == self.axis else a for d, a in enumerate(axes))

    def before(self, a: Expr, i: Expr, b: Expr, j: Expr) -> Expr:
        """The condition that key a at i comes before key b at j."""
        return compare("gt" if self.largest else "lt", a, b) | (eq(a, b) & compare("lt", i, j))

    def last(self) -> Expr:
        """A key that no other key comes after."""
        dtype = compute_type(self.x.dtype)
        if dtype.is_float:
            return const(-math.inf if self.largest else math.inf, dtype)
        signed = dtype.kind == "i"
        low = -(1 << (dtype.bits - 1)) if signed else 0
        return const(low if self.largest else low + (1 << dtype.bits) - 1, dtype)


def walked(order: Order, count: int) -> Node:
    """The positions of the first ``count`` elements; each walk looks only at elements after the previous one."""
    found: list[Node] = []
    places: list[Node] = []
    for _ in range(count):
        key = _next_key(order, found)
        place = _next_place(order, key, found)
        found = [key, place]
        places.append(place)
    return to_dtype(cat(places, order.axis), i64)


def _next_key(order: Order, found: Sequence[Node]) -> Node:
    """The first key after those ``found``, which are the key and the place of the last one."""

    def element(f: Buffer, *last: Buffer) -> Callable[..., Any]:
        def at(*axes: Expr) -> Expr:
            i = Var("i")
            here, place = order.key(f, axes, i), cast(i, order.place_type)
            kept = select(order.before(last[0][axes], last[1][axes], here, place), here, order.last()) if last else here
            return reduce("max" if order.largest else "min", [(i, order.size)], kept)

        return at

    return define("top_key", [order.x, *found], order.reduced, element, compute_type(order.x.dtype))


def _next_place(order: Order, key: Node, found: Sequence[Node]) -> Node:
    """The first place of that key after the ones found."""

    def element(f: Buffer, k: Buffer, *last: Buffer) -> Callable[..., Any]:
        def at(*axes: Expr) -> Expr:
            i = Var("i")
            here, place = order.key(f, axes, i), cast(i, order.place_type)
            is_it = eq(here, k[axes])
            if last:
                is_it = is_it & order.before(last[0][axes], last[1][axes], here, place)
            return reduce("min", [(i, order.size)], select(is_it, place, cast(index(order.size) - 1, order.place_type)))

        return at

    return define("top_place", [order.x, key, *found], order.reduced, element, order.place_type)


def ranked(order: Order, count: int) -> Node:
    """The positions of the first ``count`` elements: an element's rank is the number of elements before it."""

    def rank(f: Buffer) -> Callable[..., Any]:
        def at(*axes: Expr) -> Expr:
            j, i = Var("j"), axes[order.axis]
            there, here = (cast(place, order.place_type) for place in (j, i))
            comes = order.before(order.key(f, axes, j), there, order.key(f, axes, i), here)
            return reduce("sum", [(j, order.size)], select(comes, const(1, i32), const(0, i32)))

        return at

    def place(r: Buffer) -> Callable[..., Any]:
        def at(*axes: Expr) -> Expr:
            i = Var("i")
            is_it = eq(load(r, order.moved(axes, i)), cast(axes[order.axis], i32))
            return reduce("sum", [(i, order.size)], select(is_it, cast(i, i32), const(0, i32)))

        return at

    ranks = define("rank", [order.x], order.x.shape, rank, i32)
    shape = [count if d == order.axis else n for d, n in enumerate(order.x.shape)]
    return to_dtype(define("ranked_place", [ranks], shape, place, i32), i64)


def chosen(order: Order, places: Node) -> Node:
    """The elements at these places."""

    def element(f: Buffer, p: Buffer) -> Callable[..., Any]:
        def at(*axes: Expr) -> Expr:
            return load(f, order.moved(axes, wrapped(p[axes], order.size)))

        return at

    return define("chosen", [order.x, places], places.shape, element, order.x.dtype)
