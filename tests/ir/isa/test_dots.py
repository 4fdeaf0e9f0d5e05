"""Dot products of neighbours: the compiled instructions equal their meaning in numpy bit for bit."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from taskmap.backend.counters import Counters
from taskmap.backend.cpu.codegen import generate
from taskmap.backend.cpu.compile import TranslationUnit, compile_kernels
from taskmap.backend.cpu.host import detect_host
from taskmap.backend.cpu.toolchain import find_toolchain
from taskmap.backend.store.key import KernelSource
from taskmap.backend.store.objects import KernelStore
from taskmap.ir.builder import Builder
from taskmap.ir.construct import ramp
from taskmap.ir.interp.dot_products import dot_bf16
from taskmap.ir.interp.instructions import execute
from taskmap.ir.interp.run import interpret
from taskmap.ir.isa.dots import DOT_PRODUCTS
from taskmap.ir.isa.entry import CpuTargets, Instruction
from taskmap.ir.isa.specs import MatMulSpec
from taskmap.ir.isa.table import table_of
from taskmap.ir.lower.pipeline import lower
from taskmap.ir.nodes import Buffer, Intrinsic, Kernel
from taskmap.ir.select.microkernels import choose_for_thread, product_of_rows
from taskmap.ir.target import Target, cpu_target
from taskmap.ir.types import DType, bf16, f32, i8, i16, i32, u8
from taskmap.ir.verify.rules import LOWERED, verify
from tests.ir.isa.same_bits import assert_same_bits
from tests.schedules.running import call_kernel

Array = NDArray[Any]
OPERANDS = 1 << 20
every = pytest.mark.parametrize("entry", DOT_PRODUCTS, ids=lambda i: i.name)


def target_of(entry: Instruction) -> Target:
    """The smallest target with the instruction."""
    assert isinstance(entry.targets, CpuTargets)
    (feature,) = entry.targets.features
    return cpu_target("avx2" if feature == "avx_vnni" else "avx512", 1, features=[feature])


def spec_of(entry: Instruction) -> MatMulSpec:
    assert isinstance(entry.spec, MatMulSpec)
    return entry.spec


def kernel_of(entry: Instruction, times: int) -> Kernel:
    """y = c plus the dot products of a and b, ``times`` instructions."""
    spec = spec_of(entry)
    n, k = spec.n, spec.k
    a, b = Buffer("a", spec.a, (times * k,)), Buffer("b", spec.b, (times * n * k,))
    c, y = Buffer("c", spec.c, (times * n,)), Buffer("y", spec.c, (times * n,))
    out = Builder()
    with out.loop("i", times) as i:
        args = (c[ramp(i * n, 1, n)], a[ramp(i * k, 1, k)], b[ramp(i * (n * k), 1, n * k)])
        out.store(y, (ramp(i * n, 1, n),), Intrinsic(entry, args, spec.c, n))
    return Kernel(entry.name, (a, b, c, y), (y,), (), out.body())


def source_of(entry: Instruction, times: int) -> KernelSource:
    target = target_of(entry)
    lowered = lower(kernel_of(entry, times), target=target)
    verify(lowered, LOWERED)
    return generate(lowered, target.vector_bytes)


def random_operand(dtype: DType, size: int, rng: np.random.Generator) -> Array:
    """Random bits: infinities, NaN and denormal values are among those of floats. Half of the floats are small, so
    that products and sums are denormal, too."""
    if dtype.is_int:
        low, high = (0, 256) if dtype == u8 else (-(1 << dtype.bits - 1), 1 << dtype.bits - 1)
        return rng.integers(low, high, size).astype(f"{'u' if dtype == u8 else ''}int{dtype.bits}")
    bits = rng.integers(0, 1 << 32, size, np.uint32)
    scale = 0x1F000000 if dtype == bf16 else 0
    small = rng.integers(scale, scale + 0x2000000, size, np.uint32) | bits & np.uint32(1 << 31)
    bits = np.where(rng.integers(0, 2, size, np.bool_), bits, small)
    return (bits & np.uint32(0xFFFF0000) if dtype == bf16 else bits).astype(np.uint32).view(np.float32)


def operands(entry: Instruction, times: int, rng: np.random.Generator) -> list[Array]:
    """a, b and c of ``times`` instructions."""
    spec = spec_of(entry)
    sizes = ((spec.a, spec.k), (spec.b, spec.n * spec.k), (spec.c, spec.n))
    return [random_operand(t, times * n, rng) for t, n in sizes]


def meaning(entry: Instruction, a: Array, b: Array, c: Array) -> Array:
    """The results of all instructions at once."""
    spec = spec_of(entry)
    left, total = a.reshape(-1, 1, spec.k), c.reshape(-1, spec.n)
    right = b.reshape(-1, spec.n, spec.k)
    with np.errstate(all="ignore"):
        if spec.a == bf16:
            return dot_bf16(total, left, right).ravel()
        sums = (left.astype(np.int64) * right.astype(np.int64)).sum(-1) + total
    wrapped: Array = sums.astype(np.int32).ravel()
    return wrapped


@every
def test_the_compiled_instruction_equals_its_meaning(entry: Instruction) -> None:
    assert isinstance(entry.targets, CpuTargets)
    if not set(entry.targets.features) <= set(detect_host().features):
        pytest.skip(f"this CPU has no {entry.targets.features[0]}")
    times = OPERANDS // (spec_of(entry).n * spec_of(entry).k)
    kernel, source = kernel_of(entry, times), source_of(entry, times)
    arrays = operands(entry, times, np.random.default_rng())
    loaded = compile_kernels([source], find_toolchain(isa=target_of(entry).isa), KernelStore(), Counters())
    (got,) = call_kernel(kernel, source, loaded[source.symbol], arrays, {})
    want = meaning(entry, *arrays)
    if want.dtype == np.float32:
        small = np.abs(want[np.isfinite(want)])
        assert np.isnan(want).any()
        assert np.isinf(want).any()
        assert ((small > 0) & (small < 1e-36)).any()
    assert_same_bits(got, want)


def test_tiny_results_are_flushed_after_rounding() -> None:
    """Below the smallest normal number, whether a result is zero depends on its rounding to 24 bits."""
    smallest = np.float32(2.0**-126)
    c = np.full(6, smallest)
    a = -np.array([2.0**-75, 2.0**-75, 2.0**-75, 2.0**-75, 1.5 * 2.0**-75, 2.0**-120], np.float32)
    b = np.array([2.0**-74, 2.0**-75, 2.0**-76, 2.0**-77, 2.0**-76, 2.0**-120], np.float32)
    want = np.array([0, 0, smallest, smallest, 0, smallest], np.float32)
    zeros = np.zeros(6, np.float32)
    np.testing.assert_array_equal(dot_bf16(c, np.stack([a, zeros], -1), np.stack([b, zeros], -1)), want)
    entry = next(i for i in DOT_PRODUCTS if i.name == "vdpbf16ps_4")
    if "avx512_bf16" not in detect_host().features:
        return
    source, kernel = source_of(entry, 6), kernel_of(entry, 6)
    pairs = [np.stack([x, zeros], -1) for x in (a, b)]
    arrays = [pairs[0].ravel(), np.repeat(pairs[1], 4, axis=0).ravel(), np.repeat(c, 4)]
    loaded = compile_kernels([source], find_toolchain(isa="avx512"), KernelStore(), Counters())
    (got,) = call_kernel(kernel, source, loaded[source.symbol], arrays, {})
    np.testing.assert_array_equal(got, np.repeat(want, 4))


@every
def test_the_interpreter_gives_the_meaning(entry: Instruction) -> None:
    kernel = lower(kernel_of(entry, 9), target=target_of(entry))
    arrays = operands(entry, 9, np.random.default_rng())
    results = interpret(kernel, dict(zip(kernel.buffers, arrays, strict=False)))
    assert_same_bits(results[kernel.outputs[0]], meaning(entry, *arrays))


@every
def test_one_instruction_is_its_meaning(entry: Instruction) -> None:
    """``execute`` collects registers by their owners."""
    arrays = operands(entry, 1, np.random.default_rng())
    a, b, c = (x.reshape(1, -1) for x in arrays)
    assert_same_bits(execute(entry, c, a, b)[0], meaning(entry, *arrays))


@pytest.mark.parametrize("compiler", ["gcc", "clang", "clang-14"])
@every
def test_the_text_compiles_to_the_instruction(entry: Instruction, compiler: str, tmp_path: Path) -> None:
    if shutil.which(compiler) is None or shutil.which("objdump") is None:
        pytest.skip(f"{compiler} or objdump is not here")
    if detect_host().machine != "x86_64":
        pytest.skip("not an x86-64 machine")
    source = source_of(entry, 8)
    text, file = TranslationUnit((source,)).text, tmp_path / "unit.o"
    command = [compiler, "-O2", *_flags(entry), "-c", "-x", "c", "-", "-o", str(file)]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=200, check=False)
    if "unrecognized" in done.stderr or "unknown argument" in done.stderr:
        pytest.skip(f"{compiler} is older than the instruction")
    assert done.returncode == 0, done.stderr
    listing = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", str(file)], capture_output=True, text=True, timeout=200, check=True
    ).stdout
    register = {16: "zmm", 8: "ymm", 4: "xmm"}[spec_of(entry).n]
    assert re.search(rf"\b{entry.family} +%{register}\d+,%{register}\d+,%{register}\d+", listing)
    assert ("{vex}" in listing) == entry.name.startswith("vex_")


def _flags(entry: Instruction) -> tuple[str, ...]:
    """The toolchain's flags for the instruction's features, on any host."""
    toolchain = find_toolchain(isa="generic")
    isa = target_of(entry).isa
    own = {"avx2": ("-mavx2", "-mfma"), "avx512": ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma")}[isa]
    more = [f for f in toolchain.compile_flags(source_of(entry, 8).kind) if f.startswith("-mavx")]
    assert more
    return (*own, *more)


def test_the_choice_follows_types_lanes_and_features() -> None:
    plain = cpu_target("avx512", 1)
    every_feature = cpu_target("avx512", 1, features=["avx_vnni", "avx512_vnni", "avx512_bf16"])
    client = cpu_target("avx2", 1, features=["avx_vnni"])

    def name(target: Target, *types: DType, lanes: int = 16) -> str | None:
        statement = product_of_rows(types[0], types[1], types[2], lanes)
        found = choose_for_thread(statement, target, table_of(target)).by
        return None if found is None else found.name

    assert name(plain, bf16, bf16, f32) is None
    assert name(every_feature, bf16, bf16, f32) == "vdpbf16ps_16"
    assert name(every_feature, f32, f32, f32) == "fma_f32x16"
    assert name(every_feature, u8, i8, i32) == "vpdpbusd_16"
    assert name(every_feature, i8, i8, i32) is None
    assert name(client, u8, i8, i32) == "vex_vpdpbusd_8"
    assert name(client, u8, i8, i32, lanes=8) == "vex_vpdpbusd_8"
    assert name(every_feature, i16, i16, i32, lanes=8) == "vpdpwssd_8"
