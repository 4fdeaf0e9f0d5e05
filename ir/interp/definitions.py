"""The meaning of a compute definition: its value in numpy, over all indices at once.

Every variable in scope owns one axis of a grid. A subexpression is an array that broadcasts over the grid, with extent
one along each axis that it does not depend on. A reduction appends its axes and reduces over them. bf16 and the floats
of tensor instructions are stored in float32 arrays. Sums and products of floats are accumulated in float64 and rounded
once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskmap.ir import nodes as ir
from taskmap.ir.errors import GraphError, VerifyError
from taskmap.ir.functions import FUNCTIONS
from taskmap.ir.isa.float_rounding import convert_float8, round_operand
from taskmap.ir.recurrence import Recurrence
from taskmap.ir.task import Compute
from taskmap.ir.types import FLOAT8, OPERAND_DTYPES, DType, bf16, i64

Array = NDArray[Any]

NUMPY_TYPES: dict[str, type[np.generic]] = {
    "f64": np.float64,
    "f32": np.float32,
    "f16": np.float16,
    "bf16": np.float32,
    "tf32": np.float32,
    "e4m3": np.float32,
    "e5m2": np.float32,
    "i64": np.int64,
    "i32": np.int32,
    "i16": np.int16,
    "i8": np.int8,
    "u8": np.uint8,
    "bool": np.bool_,
}


def round_bf16(x: Array) -> Array:
    """float32 values rounded to the nearest bf16 (ties to even), as float32."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    values = np.where(np.isnan(x), np.float32(np.nan), rounded.view(np.float32).reshape(x.shape))
    return np.asarray(values, dtype=np.float32)


def convert(x: Array, dtype: DType) -> Array:
    """``x`` converted to the numpy form of ``dtype``."""
    if dtype == bf16:
        return round_bf16(x.astype(np.float32))
    if dtype in FLOAT8:
        return convert_float8(x, dtype)
    if dtype in OPERAND_DTYPES:
        return round_operand(x, dtype)
    return np.asarray(x.astype(NUMPY_TYPES[dtype.name]))


def size_of(dim: ir.Dim, dims: Mapping[ir.Var, int]) -> int:
    """The value of a size, given the symbolic sizes."""
    if isinstance(dim, int):
        return dim
    value = _Grid({}, [], dims).value(dim)
    return int(value.reshape(()))


def evaluate(compute: Compute, arrays: Sequence[Array], dims: Mapping[ir.Var, int] | None = None) -> Array:
    """The output of ``compute`` on ``arrays``, one for each formal input; ``dims`` gives the symbolic sizes.

    Raises GraphError for an array whose shape differs from its formal's, and VerifyError if the body loads outside an
    input.
    """
    dims = dims or {}
    shape = tuple(size_of(d, dims) for d in compute.shape)
    if len(arrays) != len(compute.inputs):
        raise GraphError(f"{compute.name} takes {len(compute.inputs)} tensors, not {len(arrays)}")
    for formal, array in zip(compute.inputs, arrays, strict=True):
        expected = tuple(size_of(d, dims) for d in formal.shape)
        if expected != array.shape:
            raise GraphError(f"{compute.name} takes {formal.name} of shape {expected}, not {array.shape}")
    grid = _Grid(dict(zip(compute.inputs, arrays, strict=True)), list(zip(compute.axes, shape, strict=True)), dims)
    with np.errstate(all="ignore"):
        value = grid.value(compute.body)
    return np.array(np.broadcast_to(value, shape))


class _Grid:
    """Expressions over the variables in scope; axis d of every value belongs to the d-th of them."""

    def __init__(
        self, arrays: Mapping[ir.Buffer, Array], axes: list[tuple[ir.Var, int]], dims: Mapping[ir.Var, int]
    ) -> None:
        self.arrays = arrays
        self.axes = axes
        self.dims = dims
        self.place = {var: d for d, (var, _) in enumerate(axes)}
        self.memo: dict[int, Array] = {}

    def value(self, e: ir.Expr) -> Array:
        if id(e) not in self.memo:
            self.memo[id(e)] = self._value(e)
        return self.memo[id(e)]

    def _value(self, e: ir.Expr) -> Array:
        if isinstance(e, ir.Const):
            return self._scalar(convert(np.asarray(e.value), e.dtype))
        if isinstance(e, ir.Var):
            return self._variable(e)
        if isinstance(e, ir.Load):
            return self._load(e)
        if isinstance(e, ir.Reduce):
            return self._reduce(e)
        if isinstance(e, ir.Scatter):
            return self._scatter(e)
        if isinstance(e, Recurrence):
            return self._recurrence(e)
        if isinstance(e, ir.Cast):
            return convert(self.value(e.a), e.dtype)
        if isinstance(e, ir.Select):
            return np.where(self.value(e.cond), self.value(e.a), self.value(e.b))
        if isinstance(e, ir.Compare):
            return np.asarray(_COMPARE[e.op](self.value(e.a), self.value(e.b)))
        if isinstance(e, ir.Unary):
            return self._unary(e)
        if isinstance(e, ir.Binary):
            return self._rounded(_BINARY[e.op](self.value(e.a), self.value(e.b)), e.dtype)
        if isinstance(e, ir.Call):
            return self._rounded(FUNCTIONS[e.name].reference(*map(self.value, e.args)), e.dtype)
        raise VerifyError(f"{type(e).__name__} does not belong in a compute definition")

    def _rounded(self, x: Array, dtype: DType) -> Array:
        return convert(np.asarray(x), dtype) if dtype == bf16 else np.asarray(x)

    def _scalar(self, x: Array) -> Array:
        return x.reshape((1,) * len(self.axes))

    def _variable(self, var: ir.Var) -> Array:
        if var not in self.place:
            if var not in self.dims:
                raise VerifyError(f"{var!r} is neither an index of the definition nor a symbolic size")
            return self._scalar(np.asarray(self.dims[var], dtype=np.int64))
        d = self.place[var]
        return np.arange(self.axes[d][1]).reshape([-1 if k == d else 1 for k in range(len(self.axes))])

    def _unary(self, e: ir.Unary) -> Array:
        x = self.value(e.a)
        if e.op == "neg":
            return np.negative(x)
        if e.op == "abs":
            return np.abs(x)
        return np.logical_not(x) if e.dtype.is_bool else np.invert(x)

    def _load(self, e: ir.Load) -> Array:
        array = self.arrays[e.buffer]
        positions = [self.value(i) for i in e.indices]
        for d, position in enumerate(positions):
            if position.size and (position.min() < 0 or position.max() >= array.shape[d]):
                raise VerifyError(
                    f"{e.buffer!r} is loaded out of bounds",
                    why=f"index {d} runs from {position.min()} to {position.max()}, the size is {array.shape[d]}",
                )
        if not positions:
            return self._scalar(array)
        return self._transposed(e, array) if self._is_plain(e, array) else np.asarray(array[tuple(positions)])

    def _is_plain(self, e: ir.Load, array: Array) -> bool:
        """True if the load reads the whole tensor, each dimension by its own variable, so that it is a transpose."""
        places = [self.place.get(i) if isinstance(i, ir.Var) else None for i in e.indices]
        return (
            None not in places
            and len(set(places)) == len(places)
            and all(p is not None and self.axes[p][1] == n for p, n in zip(places, array.shape, strict=True))
        )

    def _transposed(self, e: ir.Load, array: Array) -> Array:
        places = [self.place[i] for i in e.indices if isinstance(i, ir.Var)]
        shape = [1] * len(self.axes)
        for place, size in zip(places, array.shape, strict=True):
            shape[place] = size
        return np.asarray(array.transpose(np.argsort(places)).reshape(shape))

    def _reduce(self, e: ir.Reduce) -> Array:
        reduced = [(var, size_of(extent, self.dims)) for var, extent in e.axes]
        inner = _Grid(self.arrays, [*self.axes, *reduced], self.dims)
        if e.op == "sum" and isinstance(e.body, ir.Binary) and e.body.op == "mul" and e.dtype.is_float:
            return self._contraction(inner, e.body, len(reduced), e.dtype)
        body = inner.value(e.body)
        outer = body.shape[: len(self.axes)]
        body = np.broadcast_to(body, (*outer, *(n for _, n in reduced)))
        axis = tuple(range(len(self.axes), body.ndim))
        if e.op in ("argmax", "argmin"):
            return np.asarray(getattr(np, e.op)(body, axis=axis[0]))
        if e.op in ("sum", "prod") and e.dtype.is_float:
            return convert(getattr(np, e.op)(body, axis=axis, dtype=np.float64), e.dtype)
        return np.asarray(getattr(np, e.op)(body, axis=axis)).astype(NUMPY_TYPES[e.dtype.name])

    def _scatter(self, e: ir.Scatter) -> Array:
        if tuple(e.here) != tuple(var for var, _ in self.axes):
            raise VerifyError("a scatter is part of a larger definition", why="it must be a definition of its own.")
        inner = _Grid(self.arrays, [(var, size_of(extent, self.dims)) for var, extent in e.axes], self.dims)
        shape = tuple(n for _, n in inner.axes)
        out = np.array(np.broadcast_to(self.value(e.initial), tuple(n for _, n in self.axes)))
        out = out.astype(np.float64) if e.dtype.is_float else out
        at = tuple(np.broadcast_to(inner.value(i), shape).reshape(-1) for i in e.at)
        body = np.broadcast_to(inner.value(e.body), shape).reshape(-1)
        if e.op == "last":
            out[at] = body
        else:
            _SCATTER[e.op].at(out, at, body)
        return convert(out, e.dtype)

    def _recurrence(self, e: Recurrence) -> Array:
        if tuple(e.here) != tuple(var for var, _ in self.axes):
            raise VerifyError("a recurrence is part of a larger definition", why="it must be one of its own.")
        axes = [(var, size_of(extent, self.dims)) for var, extent in e.axes]
        shape, steps = tuple(n for _, n in axes), size_of(e.steps, self.dims)

        def whole(value: ir.Expr, dtype: DType, known: Mapping[ir.Buffer, Array], dims: Mapping[ir.Var, int]) -> Array:
            return convert(np.broadcast_to(_Grid(known, axes, dims).value(value), shape), dtype)

        out = np.zeros((steps + len(e.states), *shape), NUMPY_TYPES[e.dtype.name])
        states = [whole(i, s.dtype, self.arrays, self.dims) for i, s in zip(e.initial, e.states, strict=True)]
        place = np.indices(shape, sparse=True)
        for step in range(steps):
            known, dims = {**self.arrays, **dict(zip(e.states, states, strict=True))}, {**self.dims, e.step: step}
            for phase, value in zip(e.phases, e.values, strict=True):
                known[phase] = whole(value, phase.dtype, known, dims)
            states = [known[e.phases[k]] for k in e.after]
            position = (whole(e.row, i64, self.arrays, dims), *place)
            out[position] = convert(states[0], e.dtype)
        for k, state in enumerate(states):
            out[steps + k] = convert(state, e.dtype)
        return out

    def _contraction(self, inner: _Grid, product: ir.Binary, count: int, dtype: DType) -> Array:
        """sum(a * b) without forming a * b: each factor drops its axes of extent one, then einsum reduces."""
        a, b = inner.value(product.a), inner.value(product.b)
        rank = len(inner.axes)
        letters = range(rank)
        terms: list[Any] = []
        for factor in (a, b):
            kept = [d for d in letters if factor.shape[d] != 1]
            terms += [factor.astype(np.float64).reshape([factor.shape[d] for d in kept]), kept]
        outer = [d for d in range(rank - count) if max(a.shape[d], b.shape[d]) != 1]
        total = np.einsum(*terms, outer, optimize=True)
        missing = [inner.axes[d][1] for d in range(rank - count, rank) if a.shape[d] == 1 and b.shape[d] == 1]
        total = np.asarray(total * np.prod([*missing, 1.0]))
        return convert(total.reshape([max(a.shape[d], b.shape[d]) for d in range(rank - count)]), dtype)


def _divide(a: Array, b: Array) -> Array:
    return np.true_divide(a, b)


def _bitwise(name: str) -> Any:
    return getattr(np, f"bitwise_{name}")


_BINARY: dict[str, Any] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": _divide,
    "floordiv": np.floor_divide,
    "mod": np.remainder,
    "tdiv": np.floor_divide,
    "tmod": np.remainder,
    "min": np.minimum,
    "max": np.maximum,
    "and": _bitwise("and"),
    "or": _bitwise("or"),
    "xor": _bitwise("xor"),
    "shl": np.left_shift,
    "shr": np.right_shift,
}

_SCATTER: dict[str, Any] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "any": np.logical_or,
    "all": np.logical_and,
}

_COMPARE: dict[str, Any] = {
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
}
