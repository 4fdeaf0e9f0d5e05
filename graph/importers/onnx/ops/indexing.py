"""Operators that read or write at data-dependent positions, and those whose result's size depends on data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import TensorProto

from taskmap.graph.build import define
from taskmap.graph.importers.onnx.ops.numpy_vision import non_max_suppression
from taskmap.graph.importers.onnx.read.call import HostStep, OnnxCall
from taskmap.graph.importers.onnx.read.elements import PLAIN, held_in
from taskmap.graph.importers.onnx.read.host import concrete, on_host, step
from taskmap.graph.importers.onnx.read.table import lowering
from taskmap.graph.importers.onnx.read.values import Tensor, of_array
from taskmap.graph.nodes import Node
from taskmap.graph.ops.gather import checked, wrapped
from taskmap.graph.ops.pointwise import pointwise, to_dtype
from taskmap.graph.ops.scatter import Place, scattered
from taskmap.graph.ops.views import reshape
from taskmap.ir.construct import compare, const, eq, index, load, select, static_size
from taskmap.ir.errors import IndexOutOfRangeError, InputError
from taskmap.ir.nodes import Buffer, Expr
from taskmap.ir.types import i64

INT64 = int(TensorProto.INT64)


@lowering("Gather")
def _gather(call: OnnxCall) -> Node:
    x, places = call.node(0), call.node(1)
    axis = call.axis(call.attr("axis", 0), len(x.shape))
    rank = len(places.shape)
    shape = [*x.shape[:axis], *places.shape, *x.shape[axis + 1 :]]

    def element(f: Buffer, p: Buffer) -> Callable[..., Any]:
        def at(*axes: Expr) -> Expr:
            here = wrapped(p[axes[axis : axis + rank]], x.shape[axis])
            return load(f, (*axes[:axis], here, *axes[axis + rank :]))

        return at

    return define("gather", [x, places], shape, element)


@lowering("GatherElements")
def _gather_elements(call: OnnxCall) -> Node:
    x, places = call.node(0), call.node(1)
    rank = len(x.shape)
    axis = call.axis(call.attr("axis", 0), rank)
    if len(places.shape) != rank:
        raise call.error("the rank of the indices differs from that of the data")
    for d, (n, m) in enumerate(zip(places.shape, x.shape, strict=True)):
        a, b = static_size(n), static_size(m)
        if d != axis and a is not None and b is not None and a > b:
            raise call.error(f"indices of shape {list(places.shape)} do not fit data of shape {list(x.shape)}")
        if d != axis:
            call.at_least(m, n)

    def element(f: Buffer, p: Buffer) -> Callable[..., Any]:
        def at(*axes: Expr) -> Expr:
            here = wrapped(p[axes], x.shape[axis])
            return f[tuple(here if d == axis else a for d, a in enumerate(axes))]

        return at

    return define("gather_elements", [x, places], places.shape, element)


@lowering("GatherND")
def _gather_nd(call: OnnxCall) -> Node:
    x, places = call.node(0), call.node(1)
    batch = int(call.attr("batch_dims", 0))
    depth = static_size(places.shape[-1]) if places.shape else None
    if depth is None or not 1 <= depth <= len(x.shape) - batch:
        raise call.error(f"indices of shape {list(places.shape)} do not fit data of shape {list(x.shape)}")
    outer = len(places.shape) - 1
    pairs = list(zip(places.shape[:batch], x.shape[:batch], strict=False))
    if not 0 <= batch <= outer or any(
        static_size(a) != static_size(b) for a, b in pairs if None not in (static_size(a), static_size(b))
    ):
        raise call.error(f"{batch} batch dimensions of shapes {list(x.shape)} and {list(places.shape)}")
    for a, b in pairs:
        call.same(a, b)
    shape = [*places.shape[:-1], *x.shape[batch + depth :]]

    def element(f: Buffer, p: Buffer) -> Callable[..., Any]:
        def at(*axes: Expr) -> Expr:
            chosen = [wrapped(load(p, (*axes[:outer], index(k))), x.shape[batch + k]) for k in range(depth)]
            return load(f, (*axes[:batch], *chosen, *axes[outer:]))

        return at

    return define("gather_nd", [x, places], shape, element)


_HOW = {"none": "last", "add": "sum", "mul": "prod", "max": "max", "min": "min"}
_COMBINE: dict[str, Any] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def combined(target: Any, places: Any, updates: Any, how: str) -> None:
    """target[places] = updates, or combined with them one after another."""
    if how == "none":
        target[places] = updates
    else:
        _COMBINE[how].at(target, places, updates)


def _in_range(places: Any, size: int) -> Any:
    if places.size and (places.min() < -size or places.max() >= size):
        raise IndexOutOfRangeError(f"an index lies outside a dimension of size {size}")
    return np.where(places < 0, places + size, places)


def _is_compiled(call: OnnxCall, how: str) -> bool:
    """True if the type that holds the elements combines them as the standard requires."""
    x = call.tensor(0)
    whole = all(static_size(n) != 0 for i in (0, 2) for n in call.tensor(i).shape)
    return whole and bool(x.shape) and (how == "none" or PLAIN.get(held_in(x.elem)) == x.elem)


@lowering("ScatterElements", "Scatter")
def _scatter_elements(call: OnnxCall) -> Any:
    x, index, source = (call.tensor(i) for i in range(3))
    rank = len(x.shape)
    axis, how = call.axis(call.attr("axis", 0), rank), call.attr("reduction", "none")
    if how not in _HOW or not len(index.shape) == len(source.shape) == rank:
        raise call.error(f"indices of shape {list(index.shape)} and updates of shape {list(source.shape)}, by {how}")
    for d in range(rank):
        call.same(index.shape[d], source.shape[d])
        sizes = static_size(index.shape[d]), static_size(x.shape[d])
        if d != axis and None not in sizes and (sizes[0] or 0) > (sizes[1] or 0):
            raise call.error(f"indices of shape {list(index.shape)} do not fit data of shape {list(x.shape)}")
        if d != axis:
            call.at_least(x.shape[d], index.shape[d])
    if _is_compiled(call, how):
        return _scattered_elements(call, axis, how)

    def run(data: Any, places: Any, updates: Any) -> Any:
        result = data.copy()
        grid = list(np.indices(places.shape))
        grid[axis] = _in_range(places, data.shape[axis])
        combined(result, tuple(grid), updates, how)
        return result

    return on_host(call, run, [(x.elem, x.shape)], "elements that are held in another type")


def _scattered_elements(call: OnnxCall, axis: int, how: str) -> Tensor:
    x, index, source = call.nodes()

    def place(i: Buffer, s: Buffer) -> Place:
        def at(*r: Expr) -> tuple[list[Any], Expr]:
            here = wrapped(i[r], x.shape[axis])
            return [here if d == axis else a for d, a in enumerate(r)], s[r]

        return at

    made = scattered("scatter_elements", _HOW[how], x, [index, source], index.shape, place)
    return Tensor(call.elem(0), made.shape, made=made)


@lowering("ScatterND")
def _scatter_nd(call: OnnxCall) -> Any:
    x, index, source = (call.tensor(i) for i in range(3))
    how = call.attr("reduction", "none")
    depth = static_size(index.shape[-1]) if index.shape else None
    if how not in _HOW or depth is None or depth > len(x.shape):
        raise call.error(f"indices of shape {list(index.shape)} in data of shape {list(x.shape)}, by {how}")
    wanted = [*index.shape[:-1], *x.shape[depth:]]
    if len(wanted) != len(source.shape):
        raise call.error(f"updates of shape {list(source.shape)}", f"they should have the shape {wanted}.")
    for a, b in zip(wanted, source.shape, strict=True):
        call.same(a, b)
    if _is_compiled(call, how) and depth > 0:
        return _scattered_slices(call, depth, how)

    def run(data: Any, places: Any, updates: Any) -> Any:
        result = data.copy()
        chosen = tuple(_in_range(places[..., k], data.shape[k]) for k in range(places.shape[-1]))
        combined(result, chosen, updates, how)
        return result

    return on_host(call, run, [(x.elem, x.shape)], "elements that are held in another type")


def _scattered_slices(call: OnnxCall, depth: int, how: str) -> Tensor:
    x, index_node, source = call.nodes()
    outer = len(index_node.shape) - 1

    def place(i: Buffer, s: Buffer) -> Place:
        def at(*r: Expr) -> tuple[list[Any], Expr]:
            chosen = [wrapped(load(i, (*r[:outer], index(k))), x.shape[k]) for k in range(depth)]
            return [*chosen, *r[outer:]], s[r]

        return at

    made = scattered("scatter_nd", _HOW[how], x, [index_node, source], source.shape, place)
    return Tensor(call.elem(0), made.shape, made=made)


@lowering("TensorScatter")
def _tensor_scatter(call: OnnxCall) -> Any:
    past = call.tensor(0)
    axis = call.axis(call.attr("axis", -2), len(past.shape))
    circular = call.attr("mode", "linear") == "circular"

    update = call.tensor(1)
    if axis == 0 or len(update.shape) != len(past.shape):
        raise call.error(f"an update of shape {list(update.shape)} of a cache of shape {list(past.shape)}")
    for d, (n, m) in enumerate(zip(update.shape, past.shape, strict=True)):
        if d != axis:
            call.same(n, m)
    held_in(past.elem)
    size = past.shape[axis]

    def place(u: Buffer, *starts: Buffer) -> Place:
        def at(*r: Expr) -> tuple[list[Any], Expr]:
            position = load(starts[0], (r[0],)) + r[axis] if starts else r[axis]
            if circular:
                position = position % size
            here = checked(position, size)
            return [here if d == axis else a for d, a in enumerate(r)], u[r]

        return at

    sources = [call.node(1), *([call.node(2)] if call.has(2) else [])]
    made = scattered("tensor_scatter", "last", call.node(0), sources, update.shape, place)
    return Tensor(past.elem, made.shape, made=made)


@lowering("OneHot")
def _one_hot(call: OnnxCall) -> Node:
    places, values = call.node(0), call.node(2)
    depth = int(call.number(1))
    if not 0 <= depth < 1 << 31:
        raise call.error(f"the depth {depth} is out of range")
    if len(values.shape) != 1 or static_size(values.shape[0]) != 2:
        raise call.error(f"values of shape {list(values.shape)} instead of two elements")
    rank = len(places.shape) + 1
    axis = call.axis(call.attr("axis", -1), rank)
    shape = [*places.shape[:axis], depth, *places.shape[axis:]]
    whole = to_dtype(places, i64)

    def element(p: Buffer, v: Buffer) -> Callable[..., Any]:
        def at(*axes: Expr) -> Expr:
            place = load(p, (*axes[:axis], *axes[axis + 1 :]))
            place = select(compare("lt", place, 0), place + depth, place)
            return v[(select(eq(place, axes[axis]), const(1, i64), const(0, i64)),)]

        return at

    return define("one_hot", [whole, values], shape, element)


@lowering("NonZero")
def _non_zero(call: OnnxCall) -> Any:
    known, rank = call.maybe(0), len(call.tensor(0).shape)

    def run(a: Any) -> Any:
        return np.array(np.nonzero(a) if a.ndim else np.nonzero(a.reshape(1)), np.int64).reshape(a.ndim, -1)

    return of_array(run(known), INT64) if known is not None else step(call, run, INT64, shapes=((rank, None),))


@lowering("Compress")
def _compress(call: OnnxCall) -> HostStep:
    axis = call.attr("axis")
    return step(call, lambda a, c: np.compress(c, a, axis=axis), call.elem(0))


@lowering("Unique")
def _unique(call: OnnxCall) -> HostStep:
    axis, ordered = call.attr("axis"), bool(call.attr("sorted", 1))

    def run(a: Any) -> tuple[Any, ...]:
        if axis is not None and not -a.ndim <= axis < a.ndim:
            raise IndexOutOfRangeError(f"the axis {axis} lies outside a tensor of rank {a.ndim}")
        values, first, inverse, counts = np.unique(
            a, return_index=True, return_inverse=True, return_counts=True, axis=axis
        )
        inverse = inverse.reshape(-1)
        if not ordered:
            order = np.argsort(first, kind="stable")
            back = np.empty_like(order)
            back[order] = np.arange(len(order))
            values = np.take(values, order, 0 if axis is None else axis)
            first, counts, inverse = first[order], counts[order], back[inverse]
        found = (values, *(v.astype(np.int64) for v in (first, inverse, counts)))
        return found[: len(elems)]

    elems = (call.elem(0), INT64, INT64, INT64)[: max(call.outputs, 1)]
    return step(call, run, *elems)


@lowering("NonMaxSuppression")
def _nms(call: OnnxCall) -> HostStep:
    center = bool(call.attr("center_point_box", 0))

    def run(boxes: Any, scores: Any, most: Any = None, overlap: Any = None, least: Any = None) -> Any:
        def one(value: Any, default: Any) -> Any:
            return default if value is None else value.reshape(-1)[0]

        most, overlap = int(one(most, 0)), float(one(overlap, 0))
        if not 0 <= overlap <= 1:
            raise InputError(f"an overlap of {overlap}, which is not between 0 and 1")
        return non_max_suppression(boxes, scores, most, overlap, one(least, None), center)

    return step(call, run, INT64, shapes=((None, 3),))


@lowering("ArrayFeatureExtractor", domain="ai.onnx.ml")
def _features(call: OnnxCall) -> Any:
    x, places = call.tensor(0), call.tensor(1)
    count = concrete(places.shape, "a feature extractor")[-1]
    rows = x.shape[:-1] if len(x.shape) > 1 else (1,)
    if len(places.shape) > 1 and any(static_size(n) != 1 for n in places.shape[:-1]):
        raise call.error(f"positions of shape {list(places.shape)} instead of a single row")
    data, listed = call.node(0), reshape(call.node(1), [count])

    def element(f: Buffer, p: Buffer) -> Callable[..., Any]:
        def at(*axes: Expr) -> Expr:
            here = checked(p[(axes[-1],)], x.shape[-1])
            return load(f, (*axes[:-1], here) if len(x.shape) > 1 else (here,))

        return at

    made = define("features", [data, listed], [*rows, count], element)
    return Tensor(x.elem, made.shape, made=made)


@lowering("Binarizer", domain="ai.onnx.ml")
def _binarizer(call: OnnxCall) -> Node:
    limit = call.attr("threshold", 0.0)
    x = call.node(0)
    one = 1.0 if x.dtype.is_float else 1
    return pointwise("binarizer", (x,), lambda a: select(a > limit, const(one, a.dtype), const(0, a.dtype)), x.dtype)
