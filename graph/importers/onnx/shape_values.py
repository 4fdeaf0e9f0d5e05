"""Arithmetic on sizes while a model is read: Shape, Gather, Concat, Mul ... on arrays whose entries may be expressions
of symbolic sizes, and on small arrays of integers that are known.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskmap.graph.importers.onnx.call import Call
from taskmap.graph.importers.onnx.elements import MASKS, NARROW_FLOATS, NARROW_INTEGERS, STRING, numpy_type
from taskmap.graph.importers.onnx.values import Tensor
from taskmap.ir.construct import binary, compare, constant_dim, index, maximum, minimum, value_of
from taskmap.ir.nodes import Expr

Array = NDArray[Any]
INT64, INT32, BOOL = 7, 6, 9
SMALL = 4096


def fold_symbolic(call: Call) -> Tensor | None:
    """The result, where all inputs are known, small, and integers or symbolic sizes; None where it is not folded.

    Results are those of the operator: integers wrap in 64 bits only where they are computed by numpy, so nothing that
    could overflow is folded.
    """
    if call.domain != "" or len(call.proto.output) != 1:
        return None
    if call.op in ("Shape", "Size"):
        return _sizes(call)
    rule = _RULES.get(call.op)
    if rule is None or not call.inputs:
        return None
    known: list[Array] = []
    for value in call.inputs:
        if value is None:
            continue
        if not isinstance(value, Tensor) or value.known is None or value.known.size > SMALL:
            return None
        if value.elem not in (INT64, INT32, BOOL) and call.op != "Cast":
            return None
        if value.elem in (STRING, *MASKS, *NARROW_FLOATS, *NARROW_INTEGERS, 16):
            return None
        known.append(value.known)
    try:
        result = rule(call, known)
    except _NotFoldedError:
        return None
    if result is None:
        return None
    array, elem = result
    array = _plain(np.asarray(array), elem)
    return Tensor(elem, tuple(array.shape), known=array)


class _NotFoldedError(Exception):
    pass


def _plain(array: Array, elem: int) -> Array:
    """Without expressions where all are numbers, in the type that is meant."""
    if array.dtype != object:
        return array.astype(numpy_type(elem), copy=False)
    values = [value_of(v) if isinstance(v, Expr) else v for v in array.reshape(-1)]
    if any(v is None for v in values):
        if elem != INT64:
            raise _NotFoldedError
        return array
    return np.array(values, numpy_type(elem)).reshape(array.shape)


def _sizes(call: Call) -> Tensor | None:
    value = call.value(0)
    if not isinstance(value, Tensor):
        return None
    shape = value.shape
    if call.op == "Size":
        total: Any = 1
        for n in shape:
            total = total * n
        return _tensor(np.array(total, object), INT64)
    rank = len(shape)
    start, end = (_clamped(call.attr(k, d), rank) for k, d in (("start", 0), ("end", rank)))
    return _tensor(_objects(shape[start : max(start, end)]), INT64)


def _clamped(value: int, rank: int) -> int:
    return min(max(value + rank if value < 0 else value, 0), rank)


def _tensor(array: Array, elem: int) -> Tensor:
    array = _plain(array, elem)
    return Tensor(elem, tuple(array.shape), known=array)


def _objects(values: Any) -> Array:
    array = np.empty(len(values), object)
    array[:] = list(values)
    return array


Result = tuple[Any, int]


def _elem(call: Call) -> int:
    return call.elem(0)


def _each(function: Callable[..., Any]) -> Callable[[Call, list[Array]], Result | None]:
    def rule(call: Call, known: list[Array]) -> Result | None:
        arrays = np.broadcast_arrays(*(k.astype(object) for k in known))
        flat = [function(*parts) for parts in zip(*(a.reshape(-1) for a in arrays), strict=True)]
        result = np.empty(arrays[0].shape, object)
        result.reshape(-1)[:] = flat
        if call.elem(0) in (INT64, INT32):
            _refuse_overflow(flat, call.elem(0))
        return result, call.elem(0)

    return rule


def _refuse_overflow(values: list[Any], elem: int) -> None:
    limit = 1 << (63 if elem == INT64 else 31)
    if any(isinstance(v, (int, np.integer)) and not -limit <= v < limit for v in values):
        raise _NotFoldedError


def _compared(op: str) -> Callable[[Call, list[Array]], Result | None]:
    def function(a: Any, b: Any) -> Any:
        if not isinstance(a, Expr) and not isinstance(b, Expr):
            return bool(_COMPARE[op](a, b))
        decided = _decided(op, a, b)
        if decided is None:
            raise _NotFoldedError
        return decided

    def rule(call: Call, known: list[Array]) -> Result | None:
        array, _ = _each_any(function, known)
        return array, BOOL

    return rule


def _each_any(function: Callable[..., Any], known: list[Array]) -> tuple[Array, None]:
    arrays = np.broadcast_arrays(*(k.astype(object) for k in known))
    result = np.empty(arrays[0].shape, object)
    result.reshape(-1)[:] = [function(*parts) for parts in zip(*(a.reshape(-1) for a in arrays), strict=True)]
    return result, None


def _decided(op: str, a: Any, b: Any) -> bool | None:
    """A comparison of sizes that holds whatever they are: they are not negative."""
    if isinstance(a, Expr) and isinstance(b, Expr):
        known = value_of(compare(op, a, b))
        return None if known is None else bool(known)
    number = b if isinstance(a, Expr) else a
    if int(number) < 0:
        if op in ("eq", "ne"):
            return op == "ne"
        symbol_first = isinstance(a, Expr)
        return (op in ("gt", "ge")) == symbol_first
    return None


_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}


def _quotient(a: Any, b: Any) -> Any:
    if isinstance(a, Expr) or isinstance(b, Expr):
        known = constant_dim(b)
        if known is not None and known <= 0:
            raise _NotFoldedError
        return binary("floordiv", index(a), index(b))  # sizes are not negative
    if int(b) == 0:
        raise _NotFoldedError
    quotient = abs(int(a)) // abs(int(b))
    return quotient if (int(a) < 0) == (int(b) < 0) else -quotient


def _remainder(a: Any, b: Any) -> Any:
    if not isinstance(b, Expr) and int(b) == 0:
        raise _NotFoldedError
    return binary("mod", index(a), index(b)) if isinstance(a, Expr) or isinstance(b, Expr) else int(a) % int(b)


def _modulo(call: Call, known: list[Array]) -> Result | None:
    return None if call.attr("fmod", 0) else _each(_remainder)(call, known)


def _largest(a: Any, *rest: Any) -> Any:
    for b in rest:
        a = maximum(a, b) if isinstance(a, Expr) or isinstance(b, Expr) else max(a, b)
    return a


def _smallest(a: Any, *rest: Any) -> Any:
    for b in rest:
        a = minimum(a, b) if isinstance(a, Expr) or isinstance(b, Expr) else min(a, b)
    return a


def _numeric(rule: Callable[[Call, list[Array]], Result | None]) -> Callable[[Call, list[Array]], Result | None]:
    """The rule for integers only: bools are left to the operator."""

    def checked(call: Call, known: list[Array]) -> Result | None:
        return None if call.elem(0) == BOOL else rule(call, known)

    return checked


def _axes(call: Call, known: list[Array]) -> list[int]:
    return [int(v) for v in known[1].reshape(-1)] if len(known) > 1 else list(call.attr("axes", []))


def _unsqueeze(call: Call, known: list[Array]) -> Result:
    axes = _axes(call, known)
    rank = known[0].ndim + len(axes)
    return np.expand_dims(known[0], tuple(call.axis(a, rank) for a in axes)), _elem(call)


def _squeeze(call: Call, known: list[Array]) -> Result:
    axes = _axes(call, known)
    return np.squeeze(known[0], tuple(axes) if axes else None), _elem(call)


def _gather(call: Call, known: list[Array]) -> Result | None:
    if known[1].dtype == object:
        return None
    axis = call.axis(call.attr("axis", 0), known[0].ndim)
    size = known[0].shape[axis]
    if known[1].size and (known[1].min() < -size or known[1].max() >= size):
        raise call.error("an index lies outside the tensor", f"its values lie in a dimension of size {size}.")
    return np.take(known[0], known[1], axis), _elem(call)


def _slice(call: Call, known: list[Array]) -> Result | None:
    if any(k.dtype == object for k in known[1:]) or not call.has(1):
        return None
    if call.version < 10:
        return None
    starts, ends = known[1].reshape(-1), known[2].reshape(-1)
    axes = known[3].reshape(-1) if call.has(3) else np.arange(len(starts))
    steps = known[-1].reshape(-1) if call.has(4) else np.ones(len(starts), np.int64)
    result = known[0]
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        place = [slice(None)] * result.ndim
        place[call.axis(int(axis), result.ndim)] = _python_slice(
            int(start), int(end), int(step), result.shape[int(axis)]
        )
        result = result[tuple(place)]
    return result, _elem(call)


def _python_slice(start: int, end: int, step: int, size: int) -> slice:
    if step < 0 and end < -size:
        return slice(min(start, size - 1) if start >= 0 else start, None, step)
    return slice(start, end, step)


def _concat(call: Call, known: list[Array]) -> Result:
    return np.concatenate([k.astype(object) for k in known], call.axis(call.required("axis"), known[0].ndim)), _elem(
        call
    )


def _reshape(call: Call, known: list[Array]) -> Result | None:
    if len(known) < 2 or known[1].dtype == object or 0 in known[1]:
        return None
    return known[0].reshape([int(v) for v in known[1]]), _elem(call)


def _cast(call: Call, known: list[Array]) -> Result | None:
    to = int(call.required("to"))
    if known[0].dtype == object:
        return (known[0], INT64) if to == INT64 else None
    if to not in (INT64, INT32, BOOL) or (known[0].dtype.kind == "f" and not np.isfinite(known[0]).all()):
        return None
    if known[0].dtype.kind == "f" and known[0].size and np.abs(known[0]).max() >= 2**31:
        return None
    return known[0].astype(numpy_type(to)), to


def _where(call: Call, known: list[Array]) -> Result | None:
    if known[0].dtype == object:
        return None
    return np.where(known[0], known[1].astype(object), known[2].astype(object)), call.elem(1)


def _reduce(function: Callable[[Array], Any]) -> Callable[[Call, list[Array]], Result | None]:
    def rule(call: Call, known: list[Array]) -> Result | None:
        if known[0].ndim != 1 or call.elem(0) == BOOL or (len(known) > 1 and list(known[1].reshape(-1)) != [0]):
            return None
        if list(call.attr("axes", [0])) not in ([0], [-1]):
            return None
        value = np.array(function(known[0].astype(object)), object)
        _refuse_overflow([value.item()], call.elem(0))
        return (value.reshape(1) if call.attr("keepdims", 1) else value), _elem(call)

    return rule


def _range(call: Call, known: list[Array]) -> Result | None:
    if any(k.dtype == object for k in known) or int(known[2].item()) == 0:
        return None
    count = max(-(-(int(known[1].item()) - int(known[0].item())) // int(known[2].item())), 0)
    if count > SMALL:
        return None
    return int(known[0].item()) + np.arange(count) * int(known[2].item()), _elem(call)


def _identity(call: Call, known: list[Array]) -> Result:
    return known[0], _elem(call)


def _expand(call: Call, known: list[Array]) -> Result | None:
    if known[1].dtype == object or math.prod(int(v) for v in known[1]) > SMALL:
        return None
    shape = np.broadcast_shapes(known[0].shape, tuple(int(v) for v in known[1]))
    return np.broadcast_to(known[0], shape), _elem(call)


_RULES: dict[str, Callable[[Call, list[Array]], Result | None]] = {
    "Add": _numeric(_each(lambda a, b: a + b)),
    "Sub": _numeric(_each(lambda a, b: a - b)),
    "Mul": _numeric(_each(lambda a, b: a * b)),
    "Div": _numeric(_each(_quotient)),
    "Mod": _numeric(_modulo),
    "Max": _numeric(_each(_largest)),
    "Min": _numeric(_each(_smallest)),
    "Neg": _numeric(_each(lambda a: -a)),
    "Abs": _numeric(_each(lambda a: a if isinstance(a, Expr) else abs(a))),
    "Equal": _compared("eq"),
    "Less": _compared("lt"),
    "LessOrEqual": _compared("le"),
    "Greater": _compared("gt"),
    "GreaterOrEqual": _compared("ge"),
    "Where": _where,
    "Cast": _cast,
    "Identity": _identity,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Gather": _gather,
    "Slice": _slice,
    "Concat": _concat,
    "Reshape": _reshape,
    "Expand": _expand,
    "Range": _range,
    "ReduceProd": _reduce(lambda a: math.prod(a.tolist())),
    "ReduceSum": _reduce(lambda a: sum(a.tolist())),
    "ReduceMax": _reduce(lambda a: _largest(*a.tolist())),
    "ReduceMin": _reduce(lambda a: _smallest(*a.tolist())),
}
