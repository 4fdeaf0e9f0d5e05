"""Every operation, function and cast of every element type in CUDA C++: compiled, and run by the simulator."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from taskmap.backend.cuda.codegen import generate
from taskmap.backend.sim import run as sim
from taskmap.ir.builder import Builder
from taskmap.ir.construct import binary, call, cast, compare, index, select, unary
from taskmap.ir.functions import FUNCTIONS
from taskmap.ir.interp.definitions import NUMPY_TYPES, round_bf16
from taskmap.ir.interp.run import interpret
from taskmap.ir.lower.pipeline import lower
from taskmap.ir.nodes import Buffer, Expr, GpuLaunch, Kernel, LoopKind
from taskmap.ir.target import cuda_target
from taskmap.ir.types import ALL_DTYPES, DType, bf16
from taskmap.ir.workers import THREAD
from tests.backend.cuda_nvrtc import compiles

COUNT = 128
SM80 = cuda_target("sm_80")
TOLERANCE = {"f64": 1e-13, "f32": 3e-6, "f16": 2e-3, "bf16": 2e-2}
LOOSE = ("sin", "cos", "tan", "lgamma", "digamma", "erfinv")
"""Functions with zeros at nonzero arguments: there, only an absolute error is meaningful."""

Array = NDArray[np.generic]
Case = tuple[str, Callable[[Expr, Expr], Expr]]


def cases(t: DType) -> Iterator[Case]:
    """Every operation that takes two values of a type, or one."""
    if t.is_float:
        for name, f in FUNCTIONS.items():
            if name != "checked_index":
                yield name, lambda a, b, n=name, f=f: call(n, *(a, b, a)[: f.arity], dtype=f.result_type(t))  # type: ignore[misc]
    floats, bools = ("add", "sub", "mul", "div", "floordiv", "mod", "min", "max"), ("and", "or", "xor", "min", "max")
    integers = ("add", "sub", "mul", "floordiv", "mod", "min", "max", "and", "or", "xor")
    for op in floats if t.is_float else bools if t.is_bool else integers:
        yield op, lambda a, b, op=op: binary(op, a, b)  # type: ignore[misc]
    if t.is_int:
        for op in ("shl", "shr"):
            yield op, lambda a, b, op=op: binary(op, a, b & cast(index(t.bits - 1), t))  # type: ignore[misc]
    for op in ("lt", "le", "gt", "ge", "eq", "ne"):
        yield op, lambda a, b, op=op: compare(op, a, b)  # type: ignore[misc]
    for op in ("not",) if t.is_bool else ("neg", "abs") if t.is_float else ("neg", "abs", "not"):
        yield f"unary_{op}", lambda a, b, op=op: unary(op, a)  # type: ignore[misc]
    for to in ALL_DTYPES:
        yield f"to_{to}", lambda a, b, to=to: cast(a, to)  # type: ignore[misc]
    yield "select", lambda a, b: select(compare("lt", a, b), a, b)


def all_of(t: DType, lanes: int) -> Kernel:
    """A kernel with an output for each operation."""
    x, y = Buffer("x", t, (COUNT,)), Buffer("y", t, (COUNT,))
    outputs: list[Buffer] = []
    b = Builder()

    def body(i: Expr) -> None:
        for name, operation in cases(t):
            value = operation(x[i], y[i])
            outputs.append(Buffer(f"o_{name}", value.dtype, (COUNT,)))
            b.store(outputs[-1], (i,), value)

    if lanes == 1:
        body(THREAD)
    else:
        with b.loop("l", lanes, LoopKind.VECTOR) as lane:
            body(THREAD * lanes + lane)
    return Kernel(f"all_{t}", (x, y, *outputs), tuple(outputs), (), b.body(), GpuLaunch((1,), COUNT // lanes))


def values(t: DType, seed: int) -> Array:
    """Numbers of a type, the awkward ones first; divisors are not 0."""
    rng = np.random.default_rng(seed)
    kind = NUMPY_TYPES[t.name]
    if t.is_bool:
        return rng.integers(0, 2, COUNT).astype(kind)
    if t.is_int:
        limits = np.iinfo(kind)  # type: ignore[type-var]
        every = rng.integers(limits.min, limits.max, COUNT, dtype=kind, endpoint=True)
        every[:4] = limits.max, limits.min, 1, 2
        every[4::3] = rng.integers(1, 20, len(every[4::3]))
        return np.where(every == 0, kind(3), every)
    numbers = (rng.standard_normal(COUNT) * 3).astype(np.float32)
    numbers[:8] = np.nan, np.inf, -np.inf, 0, -0.0, 1, -1, 0.5
    return round_bf16(numbers) if t == bf16 else numbers.astype(kind)


def stored(x: Array, t: DType) -> Array:
    """An array in its memory format: bf16 as its bits."""
    return (x.view(np.uint32) >> 16).astype(np.uint16) if t == bf16 else x.copy()


def read(x: Array, t: DType) -> Array:
    return (x.astype(np.uint32) << 16).view(np.float32) if t == bf16 else x


def agrees(name: str, got: Array, want: Array, t: DType) -> bool:
    if not t.is_float:
        return bool((got == want).all())
    a, b = got.astype(np.float64), want.astype(np.float64)
    limit = TOLERANCE[t.name]
    with np.errstate(all="ignore"):
        near = np.abs(a - b) <= limit * np.maximum(1e-30, np.abs(b))
        if name in LOOSE:
            near |= np.abs(a - b) <= 20 * limit * np.maximum(1, np.abs(b))
    return bool((near | (a == b) | (np.isnan(a) & np.isnan(b))).all())


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("t", ALL_DTYPES, ids=str)
def test_every_operation_of_a_type(t: DType, lanes: int) -> None:
    k = all_of(t, lanes)
    source = generate(lower(k, target=SM80), SM80)
    assert compiles(source, "sm_80") == ""
    x, y = values(t, 0), values(t, 1)
    with np.errstate(all="ignore"):
        expected = interpret(k, {k.buffers[0]: x, k.buffers[1]: y})
    results = [np.zeros(COUNT, np.uint16 if o.dtype == bf16 else NUMPY_TYPES[o.dtype.name]) for o in k.outputs]
    sim.run(source, [stored(x, t), stored(y, t), *results])
    wrong = [
        name
        for (name, _), o, got in zip(cases(t), k.outputs, results, strict=True)
        if not agrees(name, read(got, o.dtype), expected[o], o.dtype)
    ]
    assert wrong == []
