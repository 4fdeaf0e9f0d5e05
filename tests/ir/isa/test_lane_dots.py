"""Dot products of two vectors, lane by lane: the compiled instruction equals its meaning in numpy bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from taskmap.backend.counters import Counters
from taskmap.backend.cpu.codegen import generate
from taskmap.backend.cpu.compile import compile_kernels
from taskmap.backend.cpu.host import detect_host
from taskmap.backend.cpu.toolchain import find_toolchain
from taskmap.backend.store.objects import KernelStore
from taskmap.ir.builder import Builder
from taskmap.ir.construct import ramp
from taskmap.ir.interp.dot_products import dot_bf16
from taskmap.ir.interp.instructions import execute
from taskmap.ir.interp.run import interpret
from taskmap.ir.isa.dots import LANE_DOTS
from taskmap.ir.isa.entry import Instruction
from taskmap.ir.lower.pipeline import lower
from taskmap.ir.nodes import Buffer, Intrinsic, Kernel
from taskmap.ir.target import cpu_target
from taskmap.ir.types import bf16, f32
from taskmap.ir.verify.rules import LOWERED, verify
from tests.ir.isa.same_bits import assert_same_bits
from tests.ir.isa.test_dots import random_operand
from tests.schedules.running import call_kernel

Array = NDArray[Any]
TARGET = cpu_target("avx512", 1, features=["avx512_bf16"])
needs_bf16 = pytest.mark.skipif("avx512_bf16" not in detect_host().features, reason="this CPU has no avx512_bf16")
every = pytest.mark.parametrize("entry", LANE_DOTS, ids=lambda i: i.name)


def kernel_of(entry: Instruction, times: int) -> Kernel:
    """y = c plus the dot products of a and b, ``times`` instructions."""
    n = entry.columns
    a, b = (Buffer(name, bf16, (times * n * 2,)) for name in "ab")
    c, y = Buffer("c", f32, (times * n,)), Buffer("y", f32, (times * n,))
    out = Builder()
    with out.loop("i", times) as i:
        pairs = ramp(i * (2 * n), 1, 2 * n)
        args = (c[ramp(i * n, 1, n)], a[pairs], b[pairs])
        out.store(y, (ramp(i * n, 1, n),), Intrinsic(entry, args, f32, n))
    return Kernel(entry.name, (a, b, c, y), (y,), (), out.body())


def operands(entry: Instruction, times: int) -> list[Array]:
    rng, n = np.random.default_rng(), times * entry.columns
    return [random_operand(bf16, 2 * n, rng), random_operand(bf16, 2 * n, rng), random_operand(f32, n, rng)]


def meaning(a: Array, b: Array, c: Array) -> Array:
    with np.errstate(all="ignore"):
        return dot_bf16(c, a.reshape(-1, 2), b.reshape(-1, 2))


@every
@needs_bf16
def test_the_compiled_instruction_equals_its_meaning(entry: Instruction) -> None:
    kernel = kernel_of(entry, (1 << 18) // entry.columns)
    lowered = lower(kernel, target=TARGET)
    verify(lowered, LOWERED)
    source = generate(lowered, TARGET.vector_bytes)
    assert source.kind.features == ("avx512_bf16",)
    arrays = operands(entry, (1 << 18) // entry.columns)
    loaded = compile_kernels([source], find_toolchain(isa="avx512"), KernelStore(), Counters())
    (got,) = call_kernel(kernel, source, loaded[source.symbol], arrays, {})
    assert_same_bits(got, meaning(*arrays))


@every
def test_the_interpreter_gives_the_meaning(entry: Instruction) -> None:
    kernel = lower(kernel_of(entry, 9), target=TARGET)
    arrays = operands(entry, 9)
    results = interpret(kernel, dict(zip(kernel.buffers, arrays, strict=False)))
    assert_same_bits(results[kernel.outputs[0]], meaning(*arrays))


@every
def test_one_instruction_is_its_meaning(entry: Instruction) -> None:
    a, b, c = arrays = operands(entry, 1)
    assert_same_bits(execute(entry, c[None], a[None], b[None])[0], meaning(*arrays))
    assert entry.work == 2 * entry.columns
