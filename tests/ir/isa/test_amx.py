"""Tile products: the instructions and their software model equal the meaning in numpy, bit for bit."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from taskmap.backend.counters import Counters
from taskmap.backend.cpu.codegen import generate
from taskmap.backend.cpu.compile import TranslationUnit, compile_kernels, tile_model_file
from taskmap.backend.cpu.host import detect_host
from taskmap.backend.cpu.tile_model import tile_counts
from taskmap.backend.cpu.toolchain import find_toolchain
from taskmap.backend.store.key import KernelSource
from taskmap.backend.store.objects import KernelStore
from taskmap.ir.builder import Builder, region
from taskmap.ir.construct import index
from taskmap.ir.errors import CodegenError
from taskmap.ir.interp.dot_products import tile_bf16
from taskmap.ir.interp.run import interpret
from taskmap.ir.isa.amx import AMX, TILES, TileInstructions, tile_set
from taskmap.ir.isa.entry import CpuTargets, Instruction
from taskmap.ir.isa.specs import MatMulSpec
from taskmap.ir.lower.pipeline import lower
from taskmap.ir.nodes import Buffer, Kernel, Scope
from taskmap.ir.target import Target, cpu_target
from taskmap.ir.types import DType, bf16, u8
from taskmap.ir.verify.rules import LOWERED, RULES, verify
from tests.ir.isa.same_bits import assert_same_bits
from tests.schedules.running import call_kernel

Array = NDArray[Any]
PRODUCTS = [i for i in AMX if isinstance(i.spec, MatMulSpec)]
every = pytest.mark.parametrize("entry", PRODUCTS, ids=lambda i: i.name)
TIMES = 1 << 20 >> 9
"""Products of one test: 2^20 elements of each operand of bf16."""


def features_of(entry: Instruction) -> tuple[str, ...]:
    """The features that a kernel with the instruction needs."""
    assert isinstance(entry.targets, CpuTargets)
    (feature,) = entry.targets.features
    return (feature,) if feature == "amx_sim" else ("amx_tile", feature)


def target_of(entry: Instruction) -> Target:
    features = features_of(entry)
    return cpu_target("generic" if features == ("amx_sim",) else "avx512", 1, features=features)


def runs_here(entry: Instruction) -> bool:
    return set(features_of(entry)) <= {*detect_host().features, "amx_sim"}


def tiles_of(entry: Instruction) -> TileInstructions:
    tiles = tile_set(entry)
    assert tiles is not None
    return tiles


def kernel_of(entry: Instruction, times: int) -> Kernel:
    """y = c + a · b, ``times`` products of tiles."""
    tiles, spec, out = tiles_of(entry), tiles_of(entry).spec, Builder()
    shapes = ((16, spec.k), (spec.k // tiles.group, spec.n * tiles.group), (16, spec.n))
    types = (spec.a, spec.b, spec.c)
    a, b, c = (Buffer(x, t, (times, *shape)) for x, t, shape in zip("abc", types, shapes, strict=True))
    y = Buffer("y", spec.c, c.shape)
    out.invoke(tiles.configure)
    with out.loop("i", times) as i:
        held = [out.allocate(x.name, x.dtype, x.shape[1:], Scope.FRAGMENT) for x in (a, b, c)]
        loads = (tiles.load_a, tiles.load_b, tiles.load_c)
        for tile, x, load in zip(held, (a, b, c), loads, strict=True):
            part = region(x, (i, 0, 0), (1, *x.shape[1:]))
            out.invoke(load, region(tile, (0, 0), tile.shape), part, index(x.shape[2]))
        left, right, total = (region(tile, (0, 0), tile.shape) for tile in held)
        out.invoke(entry, total, left, right)
        out.invoke(tiles.store_c, total, region(y, (i, 0, 0), (1, *y.shape[1:])), index(spec.n))
    out.invoke(tiles.release)
    return Kernel(entry.name, (a, b, c, y), (y,), (), out.body())


def source_of(entry: Instruction, times: int) -> KernelSource:
    kernel, target = kernel_of(entry, times), target_of(entry)
    verify(kernel, RULES)
    lowered = lower(kernel, target=target, verify=True)
    verify(lowered, LOWERED)
    return generate(lowered, target.vector_bytes)


def random_operand(dtype: DType, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Random bits. Half of the tiles of floats have small values, so that products and sums are denormal; infinities,
    NaN and denormal values are among the others, rarely enough that most sums are numbers; the first value is NaN."""
    if dtype.is_int:
        low, high = (0, 256) if dtype == u8 else (-(1 << dtype.bits - 1), 1 << dtype.bits - 1)
        return rng.integers(low, high, shape).astype(f"{'u' if dtype == u8 else ''}int{dtype.bits}")
    usual = rng.standard_normal(shape).astype(np.float32)
    anything = rng.integers(0, 1 << 32, shape, np.uint32).view(np.float32)
    small = usual * np.float32(2.0**-64 if dtype == bf16 else 2.0**-127)
    tiles = rng.integers(0, 2, (shape[0], *[1] * (len(shape) - 1)), np.bool_)
    values = np.where(rng.random(shape) < 0.002, anything, np.where(tiles, small, usual))
    values.flat[0] = np.nan
    bits = values.astype(np.float32).view(np.uint32)
    return (bits & np.uint32(0xFFFF0000) if dtype == bf16 else bits).view(np.float32)


def operands(entry: Instruction, times: int, rng: np.random.Generator) -> list[Array]:
    kernel = kernel_of(entry, times)
    return [random_operand(b.dtype, tuple(int(str(d)) for d in b.shape), rng) for b in kernel.buffers[:3]]


def meaning(entry: Instruction, a: Array, b: Array, c: Array) -> Array:
    """The results of all products."""
    tiles = tiles_of(entry)
    size, spec = tiles.group, tiles.spec
    plain = b.reshape(len(b), -1, spec.n, size).swapaxes(2, 3).reshape(len(b), spec.k, spec.n)
    if spec.a == bf16:
        with np.errstate(all="ignore"):
            return np.array([tile_bf16(z, x, y) for z, x, y in zip(c, a, plain, strict=True)])
    wrapped: Array = (c.astype(np.int64) + a.astype(np.int64) @ plain.astype(np.int64)).astype(np.int32)
    return wrapped


@every
def test_the_compiled_instruction_equals_its_meaning(entry: Instruction) -> None:
    if not runs_here(entry):
        pytest.skip(f"this CPU has no {features_of(entry)[-1]}, or its system does not grant it")
    times = TIMES // (8 if features_of(entry) == ("amx_sim",) else 1)
    kernel, source = kernel_of(entry, times), source_of(entry, times)
    arrays = operands(entry, times, np.random.default_rng())
    toolchain = find_toolchain(isa=target_of(entry).isa)
    loaded = compile_kernels([source], toolchain, KernelStore(), Counters())
    (got,) = call_kernel(kernel, source, loaded[source.symbol], arrays, {})
    want = meaning(entry, *arrays)
    if want.dtype == np.float32:
        small = np.abs(want[np.isfinite(want)])
        assert np.isfinite(want).mean() > 0.2
        assert np.isnan(want).any()
        assert ((small > 0) & (small < 1e-36)).any()
    assert_same_bits(got, want)


@every
def test_the_interpreter_gives_the_meaning(entry: Instruction) -> None:
    kernel = kernel_of(entry, 3)
    arrays = operands(entry, 3, np.random.default_rng())
    for k in (kernel, lower(kernel, target=target_of(entry))):
        given = [x if k is kernel else x.ravel() for x in arrays]
        results = interpret(k, dict(zip(k.buffers, given, strict=False)))
        assert_same_bits(results[k.outputs[0]].reshape(arrays[2].shape), meaning(entry, *arrays))


@pytest.mark.parametrize("compiler", ["gcc", "clang", "clang-14"])
@pytest.mark.parametrize("entry", [i for i in PRODUCTS if not i.name.startswith("sim_")], ids=lambda i: i.name)
def test_the_text_compiles_to_the_instructions(entry: Instruction, compiler: str, tmp_path: Path) -> None:
    if shutil.which(compiler) is None or shutil.which("objdump") is None:
        pytest.skip(f"{compiler} or objdump is not here")
    if detect_host().machine != "x86_64":
        pytest.skip("not an x86-64 machine")
    text, file = TranslationUnit((source_of(entry, 8),)).text, tmp_path / "unit.o"
    command = [compiler, "-O2", "-Wall", "-Wno-unused", "-c", "-x", "c", "-", "-o", str(file)]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=250, check=False)
    if "no such instruction" in done.stderr or "invalid instruction" in done.stderr:
        pytest.skip(f"{compiler} is older than the instruction")
    assert done.returncode == 0, done.stderr
    listing = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", str(file)], capture_output=True, text=True, timeout=250, check=True
    ).stdout
    found = re.findall(r"\b(ldtilecfg|tilezero|tileloadd|tilestored|tilerelease|tdp\w+)\b", listing)
    step = [*["tileloadd"] * 3, entry.family, "tilestored"]
    assert found == ["ldtilecfg", *step * ((len(found) - 2) // len(step)), "tilerelease"]
    assert len(found) > 2


def test_the_model_counts() -> None:
    entry = next(i for i in PRODUCTS if i.name == "sim_tdpbuud")
    kernel, source = kernel_of(entry, 5), source_of(entry, 5)
    loaded = compile_kernels([source], find_toolchain(isa="generic"), KernelStore(), Counters())
    before = tile_counts()
    call_kernel(kernel, source, loaded[source.symbol], operands(entry, 5, np.random.default_rng()), {})
    after = tile_counts()
    spent = {name: getattr(after, name) - getattr(before, name) for name in before.__slots__}
    assert spent == {"configure": 1, "release": 1, "zero": 0, "load": 15, "store": 5, "product": 5}


MISUSES = {
    "not configured": "lib.tm_sim_tile_zero_1(0)",
    "not configured ": "configure(good); lib.tm_sim_tile_release_1(); lib.tm_sim_tile_zero_1(0)",
    "no content": "configure(good); lib.tm_sim_tile_zero_1(0); lib.tm_sim_tdpbf16ps_1(0, 1, 2)",
    "no such tile": "configure(good); lib.tm_sim_tile_zero_1(8)",
    "not palette 1": "configure(bytes([2]) + good[1:])",
    "no such shape": "configure(good[:48] + bytes([17]) + good[49:])",
    "do not match": "configure(good[:48] + bytes([8]) + good[49:]); "
    "[lib.tm_sim_tile_zero_1(t) for t in range(3)]; lib.tm_sim_tdpbssd_1(0, 1, 2)",
}


@pytest.mark.parametrize("misuse", MISUSES)
def test_the_model_refuses_misuse(misuse: str) -> None:
    """In a process of its own, which a misuse ends."""
    library = tile_model_file(find_toolchain(isa="generic"), KernelStore())
    code = f"""
import ctypes
lib = ctypes.CDLL({str(library)!r})
good = bytes([1] + [0] * 15) + bytes([64, 0] * 8 + [0] * 16) + bytes([16] * 8 + [0] * 8)
def configure(palette): lib.tm_sim_tile_configure_1(palette)
configure(good); lib.tm_sim_tile_release_1()
{MISUSES[misuse]}
print("went on")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode != 0
    assert misuse.strip() in done.stderr
    assert "went on" not in done.stdout


def test_a_kernel_has_eight_tiles() -> None:
    out, tiles = Builder(), tiles_of(PRODUCTS[0])
    held = [out.allocate("t", tiles.spec.c, (16, 16), Scope.FRAGMENT) for _ in range(TILES + 1)]
    for tile in held * 2:
        out.invoke(tiles.zero_c, region(tile, (0, 0), tile.shape))
    y = Buffer("y", tiles.spec.c, (16, 16))
    kernel = lower(Kernel("many", (y,), (y,), (), out.body()), target=target_of(PRODUCTS[0]))
    with pytest.raises(CodegenError, match="has no register"):
        generate(kernel)
