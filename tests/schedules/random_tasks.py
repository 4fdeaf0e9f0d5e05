"""Random tasks of element-wise stages over many types, layouts and ways of indexing, with inputs to run them on.

Everything follows from a seed. Comparisons, casts to integers and choices use only values that every correct
evaluation gives exactly, so a result never depends on a rounding error.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from taskmap.ir.construct import (
    binary,
    call,
    cast,
    compare,
    const,
    index,
    maximum,
    minimum,
    product,
    reduce,
    select,
    unary,
)
from taskmap.ir.interp.definitions import convert, size_of
from taskmap.ir.nodes import Buffer, Dim, Expr, Var
from taskmap.ir.task import Stage, Task
from taskmap.ir.types import (
    ALL_DTYPES,
    DType,
    bf16,
    boolean,
    compute_type,
    f16,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    u8,
)
from tests.schedules.running import Case

SIZES = (1, 2, 3, 5, 7, 8, 13, 16, 17, 31, 33, 64)
FLOATS = (f64, f32, f16, bf16)
INTEGERS = (i64, i32, i16, i8, u8)
_LARGEST = 4096


@dataclass
class Value:
    """A tensor that stages may read; ``exact``: every correct evaluation yields the same bits."""

    buffer: Buffer
    exact: bool


def random_array(
    chance: random.Random, dtype: DType, shape: Sequence[int], special: bool = False
) -> np.ndarray[Any, Any]:
    """Values of moderate size; for narrow integers, any; with ``special``, some NaN and infinities."""
    rng = np.random.default_rng(chance.randrange(1 << 32))
    if dtype.is_bool:
        return np.asarray(rng.random(shape) < 0.5)
    if dtype.is_float:
        x = np.asarray(rng.uniform(-2, 2, shape))
        if special:
            holes = np.asarray(rng.random(shape))
            for k, v in enumerate((np.nan, np.inf, -np.inf, 0.0, -0.0)):
                x = np.where((holes > 0.05 * k) & (holes < 0.05 * (k + 1)), v, x)
        return convert(x, dtype)
    if dtype == i64:
        return np.asarray(rng.integers(-1000, 1000, shape))
    low, high = (0, 255) if dtype == u8 else (-(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1)
    return convert(np.asarray(rng.integers(low, high, shape, endpoint=True)), dtype)


def random_layout(chance: random.Random, name: str, dtype: DType, shape: Sequence[Dim], sizes: Sequence[int]) -> Buffer:
    """A buffer of ``shape`` with dense, permuted, padded or offset storage; ``sizes`` are the values of the shape."""
    order = list(range(len(shape)))
    if chance.random() < 0.4:
        chance.shuffle(order)
    padding = chance.choice((0, 0, 0, 1, 3))
    offset = chance.choice((0, 0, 0, 5))
    if order == sorted(order) and not padding and not offset:
        return Buffer(name, dtype, tuple(shape))
    strides: list[Dim] = [1] * len(shape)
    step: Dim = chance.choice((1, 1, 1, 2)) if padding else 1
    for d in reversed(order):
        strides[d] = step
        step = product([step, shape[d]]) + padding
    return Buffer(name, dtype, tuple(shape), strides=tuple(strides), offset=offset)


@dataclass
class Maker:
    """One random task under construction."""

    chance: random.Random
    symbolic: bool = False
    special: bool = False
    dtypes: Sequence[DType] = ALL_DTYPES
    largest: int = _LARGEST
    dims: dict[Var, int] = field(default_factory=dict)
    inputs: list[Buffer] = field(default_factory=list)
    arrays: list[np.ndarray[Any, Any]] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)

    def shape(self) -> tuple[Dim, ...]:
        rank = self.chance.choice((0, 1, 1, 2, 2, 2, 3, 3, 4))
        shape: list[Dim] = []
        room = self.largest
        for _ in range(rank):
            size = self.chance.choice([s for s in SIZES if s <= room])
            room //= size
            if self.symbolic and size > 1 and self.chance.random() < 0.5:
                var = Var(f"n{len(self.dims)}")
                self.dims[var] = size
                shape.append(var)
            else:
                shape.append(size)
        return tuple(shape)

    def sizes(self, shape: Sequence[Dim]) -> tuple[int, ...]:
        return tuple(size_of(d, self.dims) for d in shape)

    def input(self, dtype: DType, shape: Sequence[Dim], array: np.ndarray[Any, Any] | None = None) -> Buffer:
        sizes = self.sizes(shape)
        buffer = random_layout(self.chance, f"x{len(self.inputs)}", dtype, shape, sizes)
        self.inputs.append(buffer)
        self.arrays.append(random_array(self.chance, dtype, sizes, self.special) if array is None else array)
        return buffer

    def read_input(self, axes: Sequence[Expr], shape: Sequence[Dim]) -> tuple[Expr, bool]:
        """A load of a new input at a position that depends on ``axes``."""
        dtype = self.chance.choice(self.dtypes)
        way = self.chance.choice(("plain", "plain", "broadcast", "broadcast", "permuted", "flipped", "strided",
        "reshaped",
                                  "gathered", "shifted"))  # fmt: skip
        if not shape:
            way = "plain"
        d = self.chance.randrange(len(shape)) if shape else 0
        where, mine = list(axes), list(shape)
        if way == "broadcast":
            for k in range(len(shape)):
                if self.chance.random() < 0.5:
                    where[k], mine[k] = index(0), 1
            drop = self.chance.randrange(len(shape) + 1) if all(m == 1 for m in mine) else 0
            where, mine = where[drop:], mine[drop:]
        elif way == "permuted":
            order = list(range(len(shape)))
            self.chance.shuffle(order)
            where, mine = [where[k] for k in order], [mine[k] for k in order]
        elif way == "flipped":
            where[d] = index(shape[d]) - 1 - axes[d]
        elif way == "strided":
            step, start = self.chance.choice((1, 2, 3)), self.chance.choice((0, 1, 4))
            where[d], mine[d] = axes[d] * step + start, product([shape[d], step]) + start
        elif way == "shifted":
            by = self.chance.choice((-3, -1, 1, 2))
            where[d] = maximum(minimum(axes[d] + by, index(shape[d]) - 1), 0)
        elif way == "reshaped" and len(shape) > 1:
            flat = index(0)
            for a, n in zip(axes, shape, strict=True):
                flat = flat * n + a
            split = self.chance.randrange(1, len(shape))
            rows, columns = product(shape[:split]), product(shape[split:])
            mine = [columns, rows]  # the flat order of another shape
            where = [flat // rows, flat % rows]
        elif way == "gathered":
            size = self.chance.choice((1, 3, 10))
            positions = self.input(i64, (shape[d],))
            count = self.sizes([shape[d]])[0]
            self.arrays[-1] = np.random.default_rng(self.chance.randrange(1 << 32)).integers(-size, size, count)
            where[d], mine[d] = call("checked_index", positions[axes[d]], index(size)), size
        return self.input(dtype, mine)[tuple(where)], True

    def read_value(self, axes: Sequence[Expr], shape: Sequence[Dim]) -> tuple[Expr, bool]:
        if not self.values or self.chance.random() < 0.4:
            return self.read_input(axes, shape)
        value = self.chance.choice(self.values)
        return value.buffer[tuple(axes)], value.exact

    def operand(self, axes: Sequence[Expr], shape: Sequence[Dim], kind: str) -> tuple[Expr, bool]:
        """A value of a kind: float (computed in at least f32), int, or bool."""
        for _ in range(6):
            e, exact = self.read_value(axes, shape)
            if e.dtype.is_float and kind == "float":
                return cast(e, compute_type(e.dtype)), exact
            if (e.dtype.is_int and kind == "int") or (e.dtype.is_bool and kind == "bool"):
                return e, exact
            if kind == "float" and not e.dtype.is_float:
                return cast(e, self.chance.choice((f32, f64))) * 0.01, False
            if kind == "bool" and (exact or not e.dtype.is_float):
                return cast(e, boolean), True
            if kind == "int" and e.dtype.is_bool:
                return cast(e, self.chance.choice(INTEGERS)), True
            if kind == "int" and exact and not self.special:
                return cast(cast(e, compute_type(e.dtype)) * 30.0, self.chance.choice((i64, i32, i16))), True
        dtype = {"float": f32, "int": i32, "bool": boolean}[kind]
        return self.input(dtype, shape)[tuple(axes)], True

    def body(self, axes: Sequence[Expr], shape: Sequence[Dim]) -> tuple[Expr, bool]:
        kind = self.chance.choice(("float", "float", "float", "int", "int", "bool", "select", "select"))
        if kind == "select":
            test, _ = self.operand(axes, shape, "bool")
            other = self.chance.choice(("float", "int", "bool"))
            a, first = self.operand(axes, shape, other)
            b, second = self.operand(axes, shape, other)
            return select(test, a, b), first and second
        a, first = self.operand(axes, shape, kind)
        b, second = self.operand(axes, shape, kind)
        exact = first and second
        if kind == "float":
            return self.float_body(a, b, exact)
        if kind == "int":
            return self.int_body(a, b), True
        op = self.chance.choice(("and", "or", "xor", "not", "eq", "lt", "le", "max", "min"))
        if op == "not":
            return unary("not", a), True
        return (compare(op, a, b) if op in ("eq", "lt", "le") else binary(op, a, b)), True

    def float_body(self, a: Expr, b: Expr, exact: bool) -> tuple[Expr, bool]:
        if exact and self.chance.random() < 0.3:
            return compare(self.chance.choice(("lt", "le", "gt", "ge", "eq", "ne")), a, b), True
        op = self.chance.choice(("add", "sub", "mul", "div", "min", "max", "neg", "abs", "call", "half"))
        if op in ("add", "sub", "mul", "min", "max"):
            return binary(op, a, b), exact and op in ("min", "max")
        if op == "div":
            return a / (unary("abs", b) + 1.0), False
        if op in ("neg", "abs"):
            return unary(op, a), exact
        if op == "half":
            return cast(a, self.chance.choice((f16, bf16))), exact
        return call(self.chance.choice(("exp", "tanh", "sigmoid", "erf", "sin", "floor", "sign")), cast(a, f32)), False

    def int_body(self, a: Expr, b: Expr) -> Expr:
        op = self.chance.choice(("add", "sub", "mul", "min", "max", "neg", "and", "or", "xor", "not", "floordiv", "mod",
                                 "lt", "eq", "cast"))  # fmt: skip
        if op in ("neg", "not"):
            return unary(op, a)
        if op in ("lt", "eq"):
            return compare(op, a, b)
        if op == "cast":
            return cast(a, self.chance.choice(INTEGERS))
        if op in ("floordiv", "mod"):
            by = self.chance.choice((1, 2, 3, 7, 16, 100))
            divisor = const(by, a.dtype) if self.chance.random() < 0.6 else binary("or", binary("and", b, 7), 1)
            return binary(op, a, divisor)
        if op == "mul" and a.dtype == b.dtype == i64:  # no i64 here overflows
            return binary("mul", binary("mod", a, 100), binary("mod", b, 100))
        return binary(op, a, b)

    def windowed(self, axes: Sequence[Expr], shape: Sequence[Dim]) -> tuple[Expr, bool]:
        """A reduction over a window or over a whole axis of its own."""
        if self.chance.random() < 0.25:
            dtype, op = boolean, self.chance.choice(("any", "all"))
        else:
            dtype = self.chance.choice((f64, f32, i64, i32, i16, u8))
            op = self.chance.choice(("sum", "max", "min"))
        var, extent = Var("r"), self.chance.choice((1, 2, 3, 5, 40))
        if shape and self.chance.random() < 0.6:
            d, stride = self.chance.randrange(len(shape)), self.chance.choice((1, 2))
            mine, where = list(shape), list(axes)
            mine[d], where[d] = product([shape[d], stride]) + (extent - 1), axes[d] * stride + var
        else:
            place = self.chance.randrange(len(shape) + 1)
            mine, where = [*shape[:place], extent, *shape[place:]], [*axes[:place], var, *axes[place:]]
        return reduce(op, [(var, extent)], self.input(dtype, mine)[tuple(where)]), not (dtype.is_float and op == "sum")

    def case(self, isa: str | None = None) -> Case:
        """A task of a few stages over one domain, some of them outputs."""
        shape = self.shape()
        for number in range(self.chance.choice((1, 2, 3, 5))):
            axes = tuple(Var(f"i{d}") for d in range(len(shape)))
            body, exact = self.windowed(axes, shape) if self.chance.random() < 0.15 else self.body(axes, shape)
            out = random_layout(self.chance, f"t{number}", body.dtype, shape, self.sizes(shape))
            self.stages.append(Stage(out, axes, body, f"stage{number}"))
            self.values.append(Value(out, exact))
        outputs = [s.out for s in self.stages[:-1] if self.chance.random() < 0.3] + [self.stages[-1].out]
        used = {e for s in self.stages for e in _loaded(s)}
        kept = [(b, a) for b, a in zip(self.inputs, self.arrays, strict=True) if b in used]
        task = Task("random", tuple(b for b, _ in kept), tuple(self.stages), tuple(outputs), tuple(self.dims))
        return Case(task, [a for _, a in kept], self.dims, isa)


def _loaded(stage: Stage) -> set[Buffer]:
    from taskmap.ir.nodes import Load
    from taskmap.ir.visit import walk_exprs

    return {e.buffer for e in walk_exprs(stage.body) if isinstance(e, Load)}


def elementwise_case(seed: int, isa: str | None = None, **options: Any) -> Case:
    """The random task of element-wise stages for ``seed``."""
    return Maker(random.Random(seed), **options).case(isa)


__all__ = ["Maker", "elementwise_case", "math", "random_array"]
