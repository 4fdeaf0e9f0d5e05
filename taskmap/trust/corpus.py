"""The kernels of a C compiler's trial: small ones of every kind, element type and vector width that the code generator
writes.

They come from the operators' own definitions, the real schedules and the real code generator, so a change of these
changes the trial. Sizes leave a remainder after the vectors: compiler bugs show in tails and short reductions. Values
are integers and small multiples of 1/4, whose sums and products are the same in every order of evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskmap.backend.cpu.codegen import generate
from taskmap.backend.store.key import KernelSource
from taskmap.graph.analysis.placement import Placement
from taskmap.graph.fusion.tasks import build_task
from taskmap.graph.nodes import InputNode, Node, topological
from taskmap.graph.ops import (
    activations,
    arithmetic,
    attention,
    convolution,
    gather,
    join,
    logic,
    matmul,
    norms,
    pooling,
    reductions,
    scatter,
    softmax,
    views,
)
from taskmap.graph.ops import pointwise as pointwise_ops
from taskmap.ir.interp.definitions import convert, evaluate, size_of
from taskmap.ir.lower.flatten import row_major_strides
from taskmap.ir.lower.pipeline import lower
from taskmap.ir.nodes import Dim, Kernel, Var
from taskmap.ir.target import Target
from taskmap.ir.task import Compute, Task
from taskmap.ir.types import DType, bf16, boolean, f16, f32, f64, i8, i16, i32, i64, u8
from taskmap.schedules import schedule

Array = NDArray[Any]
Program = Callable[[DType], Sequence[Node]]

INTEGERS = (u8, i8, i16, i32, i64)
FLOATS = (f32, f64, f16, bf16)
EVERY = (*INTEGERS, *FLOATS, boolean)


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """A kernel with its arguments and expected results."""

    kernel: Kernel
    source: KernelSource
    arrays: tuple[Array, ...]
    dims: dict[Var, int]
    expected: tuple[Array, ...]

    @property
    def has_halves(self) -> bool:
        """True if it computes with f16, which gcc supports from version 12 and clang from 15."""
        return any("f16" in part.replace("bf16", "") for part in (self.source.text, *self.source.prelude))


def samples(target: Target, *, integers: bool) -> Iterator[Sample]:
    """The kernels for ``target``: with ``integers``, those with integers that compilers are known to get wrong, which
    come first; without, the others."""
    for number, (name, program, dtypes) in enumerate(_WITH_INTEGERS if integers else _FLOATS_ALONE):
        for dtype in dtypes:
            task = _task(f"{name}_{dtype.name}", program(dtype))
            yield _sample(task, target, np.random.default_rng(number))


def _task(name: str, outputs: Sequence[Node]) -> Task:
    nodes = topological(outputs)
    read = [n for n in nodes if not n.is_compute]
    places = {n: Placement(n, row_major_strides(n.shape), 0) for n in dict.fromkeys((*read, *outputs))}
    return build_task(name, [n for n in nodes if n.is_compute], read, outputs, places, None)


def _sample(task: Task, target: Target, chance: np.random.Generator) -> Sample:
    kernel = schedule(task, target)
    dims = dict.fromkeys(task.dims, _LENGTH)
    arrays = tuple(_values(chance, b.dtype, tuple(size_of(d, dims) for d in b.shape)) for b in task.inputs)
    source = generate(lower(kernel, target=target), target.vector_bytes)
    return Sample(kernel, source, arrays, dims, tuple(_expected(task, arrays, dims)))


def _values(chance: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> Array:
    if dtype.is_bool:
        return np.asarray(chance.random(shape) < 0.5)
    if dtype.is_float:
        return convert(np.asarray(chance.integers(-8, 9, shape) / 4), dtype)
    return convert(np.asarray(chance.integers(0, 8, shape)), dtype)


def _expected(task: Task, arrays: Sequence[Array], dims: dict[Var, int]) -> list[Array]:
    known = {b: convert(a, b.dtype) for b, a in zip(task.inputs, arrays, strict=True)}
    for stage in task.stages:
        inputs = tuple(known)
        definition = Compute(stage.label, inputs, stage.shape, stage.out.dtype, stage.axes, stage.body)
        known[stage.out] = evaluate(definition, [known[b] for b in inputs], dims)
    return [known[b] for b in task.outputs]


_LENGTH = 37
_N = Var("n")


def _tensor(dtype: DType, *shape: Dim) -> Node:
    return InputNode((), shape, dtype)


def _compared(dtype: DType) -> list[Node]:
    """A product of comparisons as numbers, which gcc 12.2 -O3 compiles wrongly for narrow integers."""
    b = pointwise_ops.to_dtype(logic.comparison("gt", _tensor(dtype, 33, 16), 3), dtype)
    return [matmul.mm(b, views.transpose(b, 0, 1))]


def _product(dtype: DType) -> list[Node]:
    return [matmul.mm(_tensor(dtype, 3, 5), _tensor(dtype, 5, 19))]


def _mixed(dtype: DType) -> list[Node]:
    x, y = _tensor(dtype, 3, _LENGTH), _tensor(dtype, _LENGTH)
    total = arithmetic.sub(arithmetic.add(arithmetic.mul(x, y), x), y)
    chosen = logic.where(logic.comparison("lt", x, y), total, arithmetic.smaller_of(x, y))
    return [total, arithmetic.greater_of(chosen, arithmetic.mul(y, 2))]


def _casts(dtype: DType) -> list[Node]:
    x = _tensor(dtype, _LENGTH)
    return [pointwise_ops.to_dtype(x, other) for other in EVERY if other not in (dtype, f16)]


def _halves(dtype: DType) -> list[Node]:
    """Conversions from every type."""
    return [pointwise_ops.to_dtype(_tensor(other, _LENGTH), dtype) for other in EVERY if other != dtype]


def _divided(dtype: DType) -> list[Node]:
    x, y = _tensor(dtype, _LENGTH), arithmetic.add(_tensor(dtype, _LENGTH), 1)
    bits = logic.bitwise("xor", logic.bitwise("and", x, y), 5)
    return [arithmetic.floor_divide(x, 3), arithmetic.remainder(x, 3), logic.bitwise("or", bits, logic.bitwise_not(y))]


def _truth(dtype: DType) -> list[Node]:
    x = _tensor(dtype, 5, _LENGTH)
    return [reductions.any_(x, 1), reductions.all_(x, 1), reductions.sum_(x, 1)]


def _rows(dtype: DType) -> list[Node]:
    x = _tensor(dtype, 5, _LENGTH)
    return [reductions.sum_(x, 1, dtype=dtype), reductions.amax(x, 1), reductions.argmax(x, 1)]


def _sums(dtype: DType) -> list[Node]:
    """Sums, also of comparisons, as floats."""
    x = _tensor(dtype, 5, _LENGTH)
    counted = pointwise_ops.to_dtype(logic.comparison("gt", x, 1), dtype)
    return [reductions.sum_(x, 1), reductions.amin(x, 1), reductions.sum_(arithmetic.mul(counted, x), 1)]


def _columns(dtype: DType) -> list[Node]:
    x = _tensor(dtype, _LENGTH, 21)
    return [reductions.sum_(x, 0, dtype=dtype)]


def _free(dtype: DType) -> list[Node]:
    """Kernels of any length."""
    x = _tensor(dtype, 3, _N)
    return [reductions.sum_(arithmetic.mul(x, x), 1, dtype=dtype)]


def _moved(dtype: DType) -> list[Node]:
    x = _tensor(dtype, 19, 23)
    return [views.copy(views.transpose(x, 0, 1))]


def _joined(dtype: DType) -> list[Node]:
    x, places = _tensor(dtype, 8, 19), _tensor(i64, 6)
    return [join.cat([x, gather.embedding(x, places)], 0)]


def _running(dtype: DType) -> list[Node]:
    return [reductions.cumsum(_tensor(dtype, 3, _LENGTH), 1, dtype)]


def _functions(dtype: DType) -> list[Node]:
    x = _tensor(dtype, _LENGTH)
    names = ("exp", "tanh", "erf", "sin", "floor")
    return [*(pointwise_ops.math_function(name, x) for name in names), activations.gelu(x), activations.silu(x)]


def _softmax(dtype: DType) -> list[Node]:
    return [softmax.softmax(_tensor(dtype, 3, _LENGTH), 1)]


def _normed(dtype: DType) -> list[Node]:
    return [norms.layer_norm(_tensor(dtype, 3, _LENGTH), (_LENGTH,), _tensor(dtype, _LENGTH), None, 1e-5)[0]]


def _convolved(dtype: DType) -> list[Node]:
    x, w = _tensor(dtype, 1, 2, 3, 5), _tensor(dtype, 5, 2, 2, 2)
    return [activations.relu(convolution.convolution(x, w, (1, 1), (0, 1), (1, 1)))]


def _attended(dtype: DType) -> list[Node]:
    q, k, v = (_tensor(dtype, 1, 1, n, 8) for n in (5, 19, 19))
    return [attention.attention(q, k, v, None, False, None)]


def _scattered(dtype: DType) -> list[Node]:
    return [scatter.index_add(_tensor(dtype, 8, 5), 0, _tensor(i64, 6), _tensor(dtype, 6, 5))]


def _pooled(dtype: DType) -> list[Node]:
    return [pooling.max_pool(_tensor(dtype, 1, 3, 9, 11), 2, (3, 3), (2, 2), (1, 1))[0]]


def _long(dtype: DType) -> list[Node]:
    """Kernels with enough work to be shared by threads."""
    return [arithmetic.mul(_tensor(dtype, 160, 131), _tensor(dtype, 131))]


_Programs = Sequence[tuple[str, Program, Sequence[DType]]]
_WITH_INTEGERS: _Programs = (
    ("compared", _compared, INTEGERS),
    ("rows", _rows, (*INTEGERS, *FLOATS)),
    ("columns", _columns, INTEGERS),
    ("product", _product, INTEGERS),
    ("mixed", _mixed, INTEGERS),
    ("casts", _casts, EVERY),
    ("halves", _halves, (f16,)),
    ("truth", _truth, (boolean, u8, i64)),
    ("divided", _divided, INTEGERS),
    ("free", _free, INTEGERS),
    ("running", _running, INTEGERS),
    ("moved", _moved, (u8, i16)),
    ("joined", _joined, (u8, i16, f32, f64)),
    ("scattered", _scattered, (f32,)),
    ("long", _long, (u8,)),
)
_FLOATS_ALONE: _Programs = (
    ("sums", _sums, FLOATS),
    ("columns", _columns, FLOATS),
    ("product", _product, FLOATS),
    ("mixed", _mixed, FLOATS),
    ("free", _free, FLOATS),
    ("running", _running, FLOATS),
    ("moved", _moved, (f32, f64)),
    ("functions", _functions, (f32, f64)),
    ("softmax", _softmax, FLOATS),
    ("normed", _normed, FLOATS),
    ("convolved", _convolved, (f32,)),
    ("pooled", _pooled, (f32,)),
    ("attended", _attended, (f32,)),
    ("long", _long, (f32,)),
)
