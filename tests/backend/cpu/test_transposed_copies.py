"""Squares of words that exchange rows and columns: found among strided vectors, and equal to separate copies."""

from __future__ import annotations

import numpy as np
import pytest

from taskmap.backend.counters import Counters
from taskmap.backend.cpu.codegen import generate
from taskmap.backend.cpu.compile import compile_kernels
from taskmap.backend.cpu.host import detect_host
from taskmap.backend.cpu.toolchain import find_toolchain
from taskmap.backend.store.objects import KernelStore
from taskmap.ir.builder import Builder
from taskmap.ir.construct import ramp
from taskmap.ir.interp.definitions import NUMPY_TYPES
from taskmap.ir.interp.run import interpret
from taskmap.ir.lower.pipeline import lower
from taskmap.ir.nodes import Buffer, Kernel
from taskmap.ir.target import cpu_target
from taskmap.ir.types import DType, bf16, f32, i8, i32, u8
from tests.schedules.running import Array, call_kernel

TARGET = cpu_target("avx512", 1)
SIDE = 16
CALL = "tm_transpose_u32x16("


def square(
    dtype: DType, rows: int, step: int, *, words: int = SIDE, apart: int = 1, first: int = 0, again: bool = False
) -> Kernel:
    """Element t of each of 16 rows that begin ``rows`` elements apart, stored as words of 32 bits: those of one column
    lie together, and columns ``step`` elements apart. apart: of the elements; again: the last vector is stored twice.
    """
    size = 4 // dtype.bytes
    x = Buffer("x", dtype, (15 * rows + first + apart * words * size,))
    y = Buffer("y", dtype, (words * step + 16 * size,))
    out = Builder()
    for t in range(words * size):
        value = out.let("value", x[ramp(first + t * apart, rows, SIDE)])
        out.store(y, (ramp(t // size * step + t % size, size, SIDE),), value)
    if again:
        out.store(y, (ramp(0, size, SIDE),), value)
    return Kernel("square", (x, y), (y,), (), out.body())


def text(kernel: Kernel, isa: str = "avx512") -> str:
    target = cpu_target(isa, 1)
    return generate(lower(kernel, target=target), target.vector_bytes).text


@pytest.mark.skipif("avx512f" not in detect_host().features, reason="this CPU has no AVX-512")
@pytest.mark.parametrize("dtype", [bf16, f32, i32, i8, u8], ids=str)
@pytest.mark.parametrize(("extra", "first"), [(0, 0), (3, 1), (40, 5)])
def test_a_square_is_transposed(dtype: DType, extra: int, first: int) -> None:
    """At addresses and with distances of rows that are no multiples of a word, too."""
    size = 4 // dtype.bytes
    kernel = square(dtype, SIDE * size + extra, SIDE * size + 4 * size, first=first)
    lowered = lower(kernel, target=TARGET)
    source = generate(lowered, TARGET.vector_bytes)
    assert source.text.count(CALL) == 1
    assert "strided" not in source.text
    numbers = np.random.default_rng().integers(0, 100, int(str(kernel.buffers[0].shape[0])))
    x: Array = numbers.astype(NUMPY_TYPES[dtype.name])
    before: Array = np.full(int(str(kernel.buffers[1].shape[0])), 101).astype(x.dtype)
    loaded = compile_kernels([source], find_toolchain(isa="avx512"), KernelStore(), Counters())
    (got,) = call_kernel(kernel, source, loaded[source.symbol], [x], {})
    flat, out = lowered.buffers
    want = interpret(lowered, {flat: x, out: before})[out]
    written = np.zeros(before.size, bool)
    for j in range(SIDE):
        written[j * (SIDE + 4) * size : j * (SIDE + 4) * size + SIDE * size] = True
    np.testing.assert_array_equal(got[written], want[written])


def test_a_row_becomes_a_column() -> None:
    """The interpreter's account of the statements that a square replaces."""
    kernel = square(f32, SIDE, SIDE)
    lowered = lower(kernel, target=TARGET)
    x, y = lowered.buffers
    rows = np.arange(SIDE * SIDE, dtype=np.float32)
    got = interpret(lowered, {x: rows, y: np.zeros(SIDE * SIDE + SIDE, np.float32)})[y]
    np.testing.assert_array_equal(got[: SIDE * SIDE].reshape(SIDE, SIDE), rows.reshape(SIDE, SIDE).T)


@pytest.mark.parametrize(
    "kernel",
    [
        square(bf16, 40, 32, words=SIDE - 1),
        square(bf16, 80, 32, apart=2),
        square(bf16, 40, 33),
        square(f32, 20, 16, again=True),
    ],
    ids=["fifteen columns", "elements apart", "columns that begin within a word", "a vector used again"],
)
def test_others_are_copied_one_by_one(kernel: Kernel) -> None:
    assert CALL not in text(kernel)


def test_other_registers_have_no_square() -> None:
    assert CALL in text(square(f32, 20, 16))
    assert CALL not in text(square(f32, 20, 16), "avx2")
