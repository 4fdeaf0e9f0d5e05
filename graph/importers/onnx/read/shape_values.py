"""Arithmetic on sizes while a model is read: Shape, Gather, Concat, Mul ... on arrays of symbolic expressions, and on
small known arrays of integers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskmap.graph.importers.onnx.read.call import OnnxCall
from taskmap.graph.importers.onnx.read.elements import MASKS, NARROW_FLOATS, NARROW_INTEGERS, STRING, numpy_type
from taskmap.graph.importers.onnx.read.ratios import (
    DOUBLE,
    FLOAT,
    NotFoldedError,
    Ratio,
    ceil,
    floor,
    over,
    plus,
    ratio,
    times,
    whole,
)
from taskmap.graph.importers.onnx.read.values import Tensor
from taskmap.ir.construct import binary, constant_value, index, maximum, minimum, static_size
from taskmap.ir.nodes import Expr, Var
from taskmap.ir.visit import substitute

Array = NDArray[Any]
INT64, INT32, BOOL = 7, 6, 9
SMALL = 4096


def fold_symbolic(call: OnnxCall) -> Tensor | None:
    """The result, if all inputs are known, small, and integers or symbolic sizes; None if it cannot be folded.

    Results equal the operator's. Only integers that numpy computes wrap in 64 bits, so anything that could overflow is
    not folded.
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
        if value.elem not in (INT64, INT32, BOOL) and call.op != "Cast" and not _scales(call, value):
            return None
        if value.elem in (STRING, *MASKS, *NARROW_FLOATS, *NARROW_INTEGERS, 16):
            return None
        known.append(value.known)
    try:
        result = rule(call, known)
    except NotFoldedError:
        return None
    if result is None:
        return None
    array, elem = result
    array = np.asarray(array)
    if array.dtype == object:
        array, _ = _each_any(lambda v: call.sizes.tidy(v) if isinstance(v, Expr) else v, [array])
    array = _plain(array, elem)
    return Tensor(elem, tuple(array.shape), known=array)


def _scales(call: OnnxCall, value: Tensor) -> bool:
    """True if this is a float in arithmetic with symbolic sizes."""
    inputs = [v for v in call.inputs if isinstance(v, Tensor)]
    return value.elem in (FLOAT, DOUBLE) and any(v.is_symbolic for v in inputs)


def _plain(array: Array, elem: int) -> Array:
    """The array in the type ``elem``, if all its expressions are numbers; else the array with its expressions."""
    if array.dtype != object:
        return array.astype(numpy_type(elem), copy=False)
    values = [constant_value(v) if isinstance(v, Expr) else v for v in array.reshape(-1)]
    if any(v is None or isinstance(v, Ratio) for v in values):
        if elem not in (INT64, INT32, FLOAT, DOUBLE):
            raise NotFoldedError
        return array
    return np.array(values, numpy_type(elem)).reshape(array.shape)


def with_sizes(tensor: Tensor, sizes: Mapping[Var, Expr]) -> Tensor:
    """A known tensor of symbolic sizes with values substituted for some of them; any other tensor unchanged."""
    if not sizes or not tensor.is_symbolic:
        return tensor
    assert tensor.known is not None

    def value(entry: Any) -> Any:
        if isinstance(entry, Ratio):
            top = substitute(entry.top, sizes)
            assert isinstance(top, Expr)
            known = constant_value(top)
            return Ratio(top, entry.bottom) if known is None else known / entry.bottom
        return substitute(entry, sizes) if isinstance(entry, Expr) else entry

    array, _ = _each_any(value, [tensor.known])
    return Tensor(tensor.elem, tensor.shape, known=_plain(array, tensor.elem))


def _sizes(call: OnnxCall) -> Tensor | None:
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


def _elem(call: OnnxCall) -> int:
    return call.elem(0)


Rule = Callable[[OnnxCall, list[Array]], Result | None]


def _each(function: Callable[..., Any]) -> Rule:
    """The rule that applies ``function`` to integers, element by element."""

    def rule(call: OnnxCall, known: list[Array]) -> Result | None:
        if call.elem(0) not in (INT64, INT32):
            return None
        arrays = np.broadcast_arrays(*(k.astype(object) for k in known))
        flat = [function(*parts) for parts in zip(*(a.reshape(-1) for a in arrays), strict=True)]
        result = np.empty(arrays[0].shape, object)
        result.reshape(-1)[:] = flat
        _refuse_overflow(flat, call.elem(0))
        if call.elem(0) == INT32:
            _within_32_bits(call, flat)
        return result, call.elem(0)

    return rule


def _refuse_overflow(values: list[Any], elem: int) -> None:
    limit = 1 << (63 if elem == INT64 else 31)
    if any(isinstance(v, (int, np.integer)) and not -limit <= v < limit for v in values):
        raise NotFoldedError


def _compared(op: str) -> Rule:
    def rule(call: OnnxCall, known: list[Array]) -> Result | None:
        if any(call.elem(i) not in (INT64, INT32) for i in range(len(known))):
            return None

        def function(a: Any, b: Any) -> Any:
            if not isinstance(a, Expr) and not isinstance(b, Expr):
                return bool(_COMPARE[op](a, b))
            decided = call.sizes.holds(op, a if isinstance(a, Expr) else int(a), b if isinstance(b, Expr) else int(b))
            if decided is None:
                raise NotFoldedError
            return decided

        array, _ = _each_any(function, known)
        return array, BOOL

    return rule


def _each_any(function: Callable[..., Any], known: list[Array]) -> tuple[Array, None]:
    arrays = np.broadcast_arrays(*(k.astype(object) for k in known))
    result = np.empty(arrays[0].shape, object)
    result.reshape(-1)[:] = [function(*parts) for parts in zip(*(a.reshape(-1) for a in arrays), strict=True)]
    return result, None


_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}


def _quotient(call: OnnxCall, known: list[Array]) -> Result | None:
    """Integer division, which rounds toward zero. It equals floor division only for operands that are not negative."""

    def function(a: Any, b: Any) -> Any:
        if isinstance(a, Expr) or isinstance(b, Expr):
            call.at_least(index(a), 0)
            call.at_least(index(b), 1)
            if _negative(a, 0) or _negative(b, 1):
                raise NotFoldedError
            return binary("floordiv", index(a), index(b))
        if int(b) == 0:
            raise NotFoldedError
        quotient = abs(int(a)) // abs(int(b))
        return quotient if (int(a) < 0) == (int(b) < 0) else -quotient

    return _each(function)(call, known)


def _negative(value: Any, least: int) -> bool:
    known = static_size(value) if isinstance(value, Expr) else int(value)
    return known is not None and known < least


def _remainder(a: Any, b: Any) -> Any:
    if not isinstance(b, Expr) and int(b) == 0:
        raise NotFoldedError
    return binary("mod", index(a), index(b)) if isinstance(a, Expr) or isinstance(b, Expr) else int(a) % int(b)


def _modulo(call: OnnxCall, known: list[Array]) -> Result | None:
    if call.attr("fmod", 0):
        return None

    def function(a: Any, b: Any) -> Any:
        if isinstance(b, Expr):
            call.at_least(b, 1)
        return _remainder(a, b)

    return _each(function)(call, known)


def _largest(a: Any, *rest: Any) -> Any:
    for b in rest:
        a = maximum(a, b) if isinstance(a, Expr) or isinstance(b, Expr) else max(a, b)
    return a


def _smallest(a: Any, *rest: Any) -> Any:
    for b in rest:
        a = minimum(a, b) if isinstance(a, Expr) or isinstance(b, Expr) else min(a, b)
    return a


def _scaled(function: Callable[..., Any], rule: Rule | None = None) -> Rule:
    """The rule that applies ``function`` to floating-point sizes, and ``rule`` to integers."""

    def checked(call: OnnxCall, known: list[Array]) -> Result | None:
        elem = call.elem(0)
        if elem not in (FLOAT, DOUBLE):
            return None if rule is None else rule(call, known)
        arrays, _ = _each_any(lambda *values: function(*values, elem, call.sizes), known)
        return arrays, elem

    return checked


def _rounded(function: Callable[[Any], Any]) -> Rule:
    """The rule that rounds floating-point sizes to integers, which remain floats."""

    def rule(call: OnnxCall, known: list[Array]) -> Result | None:
        elem = call.elem(0)
        if elem not in (FLOAT, DOUBLE):
            return None

        def one(value: Any) -> Any:
            made = function(value)
            return ratio(made, elem, call.sizes) if isinstance(made, Expr) else float(made)

        return _each_any(one, known)[0], elem

    return rule


def _axes(call: OnnxCall, known: list[Array]) -> list[int]:
    return [int(v) for v in known[1].reshape(-1)] if len(known) > 1 else list(call.attr("axes", []))


def _unsqueeze(call: OnnxCall, known: list[Array]) -> Result:
    axes = _axes(call, known)
    rank = known[0].ndim + len(axes)
    return np.expand_dims(known[0], tuple(call.axis(a, rank) for a in axes)), _elem(call)


def _squeeze(call: OnnxCall, known: list[Array]) -> Result:
    axes = _axes(call, known)
    return np.squeeze(known[0], tuple(axes) if axes else None), _elem(call)


def _gather(call: OnnxCall, known: list[Array]) -> Result | None:
    if known[1].dtype == object:
        return None
    axis = call.axis(call.attr("axis", 0), known[0].ndim)
    size = known[0].shape[axis]
    if known[1].size and (known[1].min() < -size or known[1].max() >= size):
        raise call.error("an index lies outside the tensor", f"the dimension that it indexes has size {size}.")
    return np.take(known[0], known[1], axis), _elem(call)


def _slice(call: OnnxCall, known: list[Array]) -> Result | None:
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


def _concat(call: OnnxCall, known: list[Array]) -> Result:
    return np.concatenate([k.astype(object) for k in known], call.axis(call.required("axis"), known[0].ndim)), _elem(
        call
    )


def _reshape(call: OnnxCall, known: list[Array]) -> Result | None:
    if len(known) < 2 or known[1].dtype == object or 0 in known[1]:
        return None
    return known[0].reshape([int(v) for v in known[1]]), _elem(call)


def _transpose(call: OnnxCall, known: list[Array]) -> Result:
    return np.transpose(known[0], call.attr("perm") or None), _elem(call)


def _cast(call: OnnxCall, known: list[Array]) -> Result | None:
    to = int(call.required("to"))
    if known[0].dtype == object:
        return _cast_sizes(call, known[0], to)
    if to not in (INT64, INT32, BOOL) or (known[0].dtype.kind == "f" and not np.isfinite(known[0]).all()):
        return None
    if known[0].dtype.kind == "f" and known[0].size and np.abs(known[0]).max() >= 2**31:
        return None
    return known[0].astype(numpy_type(to)), to


def _cast_sizes(call: OnnxCall, array: Array, to: int) -> Result | None:
    if to in (FLOAT, DOUBLE):
        return _each_any(lambda v: _as_float(v, to, call), [array])[0], to
    if to not in (INT64, INT32):
        return None
    made = _each_any(whole if call.elem(0) in (FLOAT, DOUBLE) else lambda v: v, [array])[0]
    if to == INT32:
        _within_32_bits(call, list(made.reshape(-1)))
    return made, to


def _within_32_bits(call: OnnxCall, values: list[Any]) -> None:
    """Records the assumption that symbolic sizes stay in the range of int32."""
    for v in values:
        call.at_least((1 << 31) - 1, index(v))
        call.at_least(index(v), -(1 << 31))


def _as_float(value: Any, elem: int, call: OnnxCall) -> Any:
    if isinstance(value, (Expr, Ratio)):
        known = constant_value(value) if isinstance(value, Expr) else None
        return ratio(value, elem, call.sizes) if known is None else float(known)
    return float(numpy_type(elem).type(value))


def _where(call: OnnxCall, known: list[Array]) -> Result | None:
    if known[0].dtype == object:
        return None
    return np.where(known[0], known[1].astype(object), known[2].astype(object)), call.elem(1)


def _reduce(function: Callable[[Array], Any]) -> Callable[[OnnxCall, list[Array]], Result | None]:
    def rule(call: OnnxCall, known: list[Array]) -> Result | None:
        if (
            known[0].ndim != 1
            or call.elem(0) not in (INT64, INT32)
            or (len(known) > 1 and list(known[1].reshape(-1)) != [0])
        ):
            return None
        if list(call.attr("axes", [0])) not in ([0], [-1]):
            return None
        value = np.array(function(known[0].astype(object)), object)
        _refuse_overflow([value.item()], call.elem(0))
        return (value.reshape(1) if call.attr("keepdims", 1) else value), _elem(call)

    return rule


def _range(call: OnnxCall, known: list[Array]) -> Result | None:
    if any(k.dtype == object for k in known) or int(known[2].item()) == 0:
        return None
    count = max(-(-(int(known[1].item()) - int(known[0].item())) // int(known[2].item())), 0)
    if count > SMALL:
        return None
    return int(known[0].item()) + np.arange(count) * int(known[2].item()), _elem(call)


def _identity(call: OnnxCall, known: list[Array]) -> Result:
    return known[0], _elem(call)


def _expand(call: OnnxCall, known: list[Array]) -> Result | None:
    if known[1].dtype == object or math.prod(int(v) for v in known[1]) > SMALL:
        return None
    shape = np.broadcast_shapes(known[0].shape, tuple(int(v) for v in known[1]))
    return np.broadcast_to(known[0], shape), _elem(call)


_RULES: dict[str, Callable[[OnnxCall, list[Array]], Result | None]] = {
    "Add": _scaled(plus, _each(lambda a, b: a + b)),
    "Sub": _each(lambda a, b: a - b),
    "Mul": _scaled(times, _each(lambda a, b: a * b)),
    "Div": _scaled(over, _quotient),
    "Floor": _rounded(floor),
    "Ceil": _rounded(ceil),
    "Mod": _modulo,
    "Max": _each(_largest),
    "Min": _each(_smallest),
    "Neg": _each(lambda a: -a),
    "Abs": _each(lambda a: maximum(a, -a) if isinstance(a, Expr) else abs(a)),
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
    "Transpose": _transpose,
    "Expand": _expand,
    "Range": _range,
    "ReduceProd": _reduce(lambda a: math.prod(a.tolist())),
    "ReduceSum": _reduce(lambda a: sum(a.tolist())),
    "ReduceMax": _reduce(lambda a: _largest(*a.tolist())),
    "ReduceMin": _reduce(lambda a: _smallest(*a.tolist())),
}
