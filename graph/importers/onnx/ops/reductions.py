"""Reductions, positions of extrema, running sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from taskmap.graph.importers.onnx.ops.elementwise import UINT64, truncated
from taskmap.graph.importers.onnx.read.call import OnnxCall
from taskmap.graph.importers.onnx.read.elements import numpy_type
from taskmap.graph.importers.onnx.read.host import concrete, on_host
from taskmap.graph.importers.onnx.read.table import lowering
from taskmap.graph.importers.onnx.read.values import is_empty, of_array
from taskmap.graph.nodes import Node
from taskmap.graph.ops import reductions
from taskmap.graph.ops.pointwise import pointwise, to_dtype
from taskmap.graph.ops.rearrange import constant_pad, flip
from taskmap.ir.construct import call as function_call
from taskmap.ir.construct import const, index, static_size, unary
from taskmap.ir.errors import UnsupportedError
from taskmap.ir.nodes import Expr
from taskmap.ir.types import compute_type, f32, i64

AXES_INPUT = {"ReduceSum": 13}


def axes_of(call: OnnxCall, x: Node) -> tuple[int, ...] | None:
    """The reduced dimensions; None if there are none."""
    rank = len(x.shape)
    since = AXES_INPUT.get(call.op, 18)
    given = call.attr("axes") if call.version < since else (call.ints(1) if call.has(1) else None)
    if not given:
        return None if call.attr("noop_with_empty_axes", 0) else tuple(range(rank))
    axes = tuple(call.axis(int(a), rank) for a in given)
    if len(set(axes)) != len(axes):
        raise call.error(f"the axes {list(given)} name a dimension twice")
    return tuple(sorted(axes))


def _square(x: Node) -> Node:
    wide = compute_type(x.dtype)
    return pointwise("square", (x,), lambda a: a * a, wide, wide)


def _sum(x: Node, axes: tuple[int, ...], keep: bool) -> Node:
    return reductions.sum_(x, axes, keep, x.dtype)


def _prod(x: Node, axes: tuple[int, ...], keep: bool) -> Node:
    return reductions.prod(x, axes, keep, x.dtype)


def _mean(x: Node, axes: tuple[int, ...], keep: bool) -> Node:
    if x.dtype.is_float:
        return reductions.mean(x, axes, keep)
    count = static_size(reductions.count(x, axes))
    if count is None:
        raise UnsupportedError("the mean of integers over a symbolic size")
    total = reductions.sum_(x, axes, keep, i64)
    return pointwise("mean", (total,), lambda s: truncated(s, const(count, s.dtype)), x.dtype, i64)


def _l1(x: Node, axes: tuple[int, ...], keep: bool) -> Node:
    absolute = pointwise("abs", (x,), lambda a: a if a.dtype.kind == "u" else unary("abs", a), x.dtype, x.dtype)
    return _sum(absolute, axes, keep)


def _l2(x: Node, axes: tuple[int, ...], keep: bool) -> Node:
    if not x.dtype.is_float:
        total = reductions.sum_(_square(to_dtype(x, f32)), axes, keep, f32)
        return pointwise("l2", (total,), lambda s: function_call("sqrt", s), x.dtype, f32)
    return reductions.vector_norm(x, 2, axes, keep)


def _sum_square(x: Node, axes: tuple[int, ...], keep: bool) -> Node:
    return reductions.sum_(_square(x), axes, keep, x.dtype)


def _log_sum(x: Node, axes: tuple[int, ...], keep: bool) -> Node:
    wide = compute_type(x.dtype) if x.dtype.is_float else f32
    total = reductions.sum_(to_dtype(x, wide), axes, keep, wide)
    return pointwise("log", (total,), lambda s: function_call("log", s), x.dtype, wide)


def _log_sum_exp(x: Node, axes: tuple[int, ...], keep: bool) -> Node:
    result = reductions.logsumexp(x if x.dtype.is_float else to_dtype(x, f32), axes, keep)
    return to_dtype(result, x.dtype)


def _max(x: Node, axes: tuple[int, ...], keep: bool) -> Node:
    return reductions.amax(x, axes, keep)


def _min(x: Node, axes: tuple[int, ...], keep: bool) -> Node:
    return reductions.amin(x, axes, keep)


_REDUCTIONS: dict[str, Callable[[Node, tuple[int, ...], bool], Node]] = {
    "ReduceSum": _sum,
    "ReduceProd": _prod,
    "ReduceMean": _mean,
    "ReduceL1": _l1,
    "ReduceL2": _l2,
    "ReduceSumSquare": _sum_square,
    "ReduceLogSum": _log_sum,
    "ReduceLogSumExp": _log_sum_exp,
    "ReduceMax": _max,
    "ReduceMin": _min,
}
_OF_ONE: dict[str, Callable[[Expr], Expr]] = {
    "ReduceL1": lambda a: unary("abs", a),
    "ReduceL2": lambda a: unary("abs", a),
    "ReduceSumSquare": lambda a: a * a,
    "ReduceLogSum": lambda a: function_call("log", a),
}


@lowering(*_REDUCTIONS)
def _reduce(call: OnnxCall) -> Any:
    x = call.node(0)
    axes = axes_of(call, x)
    keep = bool(call.attr("keepdims", 1))
    if not axes:
        # Nothing is reduced; what remains is the operator's effect on a single element.
        return pointwise(call.op, (x,), _OF_ONE[call.op], x.dtype, x.dtype) if call.op in _OF_ONE else x
    if is_empty(x.shape):
        return _of_nothing(call, x, axes, keep)
    if call.elem(0) == UINT64 and call.op in ("ReduceMax", "ReduceMin"):
        shape = [1 if d in axes else n for d, n in enumerate(x.shape) if keep or d not in axes]
        function = np.max if call.op == "ReduceMax" else np.min
        return on_host(call, lambda a: function(a, axis=axes, keepdims=keep), [(UINT64, shape)], "uint64", inputs=[0])
    return _REDUCTIONS[call.op](x, axes, keep)


def _of_nothing(call: OnnxCall, x: Node, axes: tuple[int, ...], keep: bool) -> Any:
    """The value of a reduction over no elements, if the standard defines one."""
    shape = [1 if d in axes else n for d, n in enumerate(x.shape) if keep or d not in axes]
    dtype = numpy_type(call.elem(0))
    values: dict[str, Any] = {
        "ReduceProd": 1,
        "ReduceLogSum": -np.inf,
        "ReduceLogSumExp": -np.inf,
        "ReduceMean": np.nan,
    }
    value = values.get(call.op, 0)
    if call.op in ("ReduceMax", "ReduceMin"):
        low = call.op == "ReduceMax"
        if x.dtype.is_float:
            value = -np.inf if low else np.inf
        elif x.dtype.is_bool:
            value = not low
        else:
            value = np.iinfo(dtype).min if low else np.iinfo(dtype).max
    if not x.dtype.is_float and isinstance(value, float):
        raise UnsupportedError(f"{call.op} of an empty integer tensor")
    return of_array(np.full(concrete(shape, call.op), value, dtype), call.elem(0))


@lowering("ArgMax", "ArgMin")
def _arg(call: OnnxCall) -> Any:
    x = call.node(0)
    axis = call.axis(call.attr("axis", 0), len(x.shape))
    keep = bool(call.attr("keepdims", 1))
    if call.elem(0) == UINT64:
        raise UnsupportedError("positions of uint64")
    function = reductions.argmax if call.op == "ArgMax" else reductions.argmin
    if not call.attr("select_last_index", 0):
        return function(x, axis, keep)
    size = x.shape[axis]
    found = function(flip(x, [axis]), axis, keep)
    return pointwise("last", (found,), lambda p: _minus(size, p), i64, i64)


def _minus(size: Any, place: Expr) -> Expr:
    return index(size) - 1 - place


@lowering("CumSum", "CumProd")
def _cumulative(call: OnnxCall) -> Any:
    x = call.node(0)
    axis = call.axis(int(call.number(1)), len(x.shape))
    exclusive, reverse = bool(call.attr("exclusive", 0)), bool(call.attr("reverse", 0))
    size = static_size(x.shape[axis])
    if size is None or size > reductions.LONGEST_PREFIX:
        function = np.cumsum if call.op == "CumSum" else np.cumprod
        neutral = 0 if call.op == "CumSum" else 1

        def run(a: Any) -> Any:
            a = np.flip(a, axis) if reverse else a
            total = function(a, axis=axis, dtype=a.dtype)
            if exclusive:
                total = np.roll(total, 1, axis)
                first = [slice(None)] * a.ndim
                first[axis] = slice(0, 1)
                total[tuple(first)] = neutral
            return np.flip(total, axis) if reverse else total

        return on_host(call, run, [(call.elem(0), x.shape)], "a long running sum", inputs=[0])
    x = flip(x, [axis]) if reverse else x
    made = (reductions.cumsum if call.op == "CumSum" else reductions.cumprod)(x, axis, x.dtype)
    if exclusive:
        border = [0] * (2 * (len(x.shape) - 1 - axis)) + [1, -1]
        made = constant_pad(made, border, 0 if call.op == "CumSum" else 1)
    return flip(made, [axis]) if reverse else made
