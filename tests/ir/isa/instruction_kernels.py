"""Kernels that each execute one entry of the instruction table, and arrays to run them on."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskmap.ir.algebra.mapping import TaskMapping, repeat
from taskmap.ir.builder import Builder
from taskmap.ir.interp.definitions import convert
from taskmap.ir.isa.table import INSTRUCTIONS, Instruction, MatMulSpec, MoveSpec
from taskmap.ir.lower.pipeline import lower
from taskmap.ir.nodes import Buffer, Intrinsic, Kernel, Load, Scope
from taskmap.ir.target import Target
from taskmap.ir.types import DType
from taskmap.ir.visit import walk_exprs

Array = NDArray[Any]

ROWS, VECTORS, DEPTH = 3, 2, 5


def table_for(entry: Instruction) -> tuple[Instruction, ...]:
    """The entry, and moves of as many elements, so that nothing else can be chosen."""
    moves = (i for i in INSTRUCTIONS if isinstance(i.spec, MoveSpec) and i.columns == entry.columns)
    return entry, *(i for i in moves if i is not entry)


def kernel_of(entry: Instruction) -> Kernel:
    """The kernel of a MatMul on tiles, or of a Move, a few instructions large."""
    spec = entry.spec
    assert isinstance(spec, MatMulSpec | MoveSpec)
    return _product(entry, spec) if isinstance(spec, MatMulSpec) else _copy(entry, spec)


def _owner(entry: Instruction) -> TaskMapping:
    assert entry.owner_c is not None
    return entry.owner_c


def _product(entry: Instruction, spec: MatMulSpec) -> Kernel:
    """y = c + a @ b, the sum in a register tile that is made of the instruction's own."""
    m, n, k = ROWS * spec.m, VECTORS * spec.n, DEPTH * spec.k
    a, b = Buffer("a", spec.a, (m, k)), Buffer("b", spec.b, (k, n))
    c, y = Buffer("c", spec.c, (m, n)), Buffer("y", spec.c, (m, n))
    out = Builder()
    owner = repeat(ROWS, VECTORS) * _owner(entry)
    tile = out.allocate("tile", spec.c, owner.task_shape, Scope.REGISTER, owner=owner)
    out.move(tile, c)
    out.matmul(tile, a, b)
    out.move(y, tile)
    return Kernel(entry.name, (a, b, c, y), (y,), (), out.body())


def _copy(entry: Instruction, spec: MoveSpec) -> Kernel:
    """y = x through registers."""
    owner = repeat(VECTORS) * _owner(entry)
    x, y = Buffer("x", spec.dtype, owner.task_shape), Buffer("y", spec.dtype, owner.task_shape)
    out = Builder()
    tile = out.allocate("tile", spec.dtype, owner.task_shape, Scope.REGISTER, owner=owner)
    out.move(tile, x)
    out.move(y, tile)
    return Kernel(entry.name, (x, y), (y,), (), out.body())


def lowered_with(entry: Instruction, target: Target) -> Kernel:
    """The entry's kernel, lowered with no other choice. AssertionError when the entry was not chosen."""
    kernel = lower(kernel_of(entry), target=target, table=table_for(entry))
    found = list(walk_exprs(kernel.body))
    if isinstance(entry.spec, MatMulSpec):
        assert {e.instruction for e in found if isinstance(e, Intrinsic)} == {entry}
    else:
        assert {e.lanes for e in found if isinstance(e, Load)} == {entry.columns}
    return kernel


def random_array(dtype: DType, shape: tuple[int, ...], rng: np.random.Generator, *, whole: bool = False) -> Array:
    """Values of a type, in the interpreter's representation; ``whole``: integers, whose sums are exact."""
    if dtype.is_bool:
        return rng.integers(0, 2, shape).astype(np.bool_)
    if whole or not dtype.is_float:
        return convert(rng.integers(0 if dtype.kind == "u" else -4, 5, shape), dtype)
    return convert(rng.standard_normal(shape), dtype)


def arguments(entry: Instruction, rng: np.random.Generator) -> list[Array]:
    """An array for each input of the entry's kernel."""
    kernel = kernel_of(entry)
    return [random_array(b.dtype, tuple(map(int, b.shape)), rng) for b in kernel.buffers if b not in kernel.outputs]  # type: ignore[arg-type]  # their sizes are ints


def reference(entry: Instruction, arrays: list[Array]) -> Array:
    """The expected result of the entry's kernel; for floats in float64."""
    if not isinstance(entry.spec, MatMulSpec):
        return arrays[0]
    wide: type[Any] = np.float64 if entry.spec.c.is_float else np.int64
    a, b, c = (x.astype(wide) for x in arrays)
    result = c + a @ b
    return result if entry.spec.c.is_float else convert(result, entry.spec.c)
