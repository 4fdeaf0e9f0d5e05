"""Register tiles of dot products in assembly compute what they compute in C, bit by bit."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from taskmap.backend.counters import Counters
from taskmap.backend.cpu.codegen import generate
from taskmap.backend.cpu.compile import compile_kernels
from taskmap.backend.cpu.host import detect_host
from taskmap.backend.cpu.toolchain import find_toolchain
from taskmap.backend.store.objects import KernelStore
from taskmap.ir.construct import binary, cast, const, load
from taskmap.ir.lower.pipeline import lower
from taskmap.ir.nodes import Buffer, Cast, Expr, Kernel, Load
from taskmap.ir.target import CpuTarget, cpu_target
from taskmap.ir.task import Task
from taskmap.ir.types import bf16, i8, i32, u8
from taskmap.ir.visit import map_expr
from taskmap.schedules import packed_width, schedule
from tests.backend.cpu.test_tile_assembly import in_c
from tests.schedules.bf16_products import bf16_array
from tests.schedules.cpu import test_matmul_bytes as of_bytes
from tests.schedules.cpu import test_matmul_dots as of_bf16
from tests.schedules.disassembly import hot_loop, spills
from tests.schedules.running import Array, call_kernel

SIZES = [(70, 96, 64), (33, 50, 37), (29, 65, 255), (300, 33, 102), (1, 500, 128)]
WIDE = cpu_target("avx512", 2, features=["avx512_vnni"])
NARROW = cpu_target("avx2", 2, features=["avx_vnni"])
CUT = cpu_target("avx512", 2, l2=1 << 13, features=["avx512_vnni"])
"""A small cache, for which long sums are cut into parts."""
PAIRS = cpu_target("avx512", 2, features=["avx512_bf16"])


def on(target: CpuTarget) -> pytest.MarkDecorator:
    lacks = not frozenset(target.features) <= frozenset(detect_host().features)
    return pytest.mark.skipif(lacks, reason=f"this CPU lacks some of {target.features}")


BYTES = [
    pytest.param(target, marks=on(target), id=name)
    for name, target in (("avx512_vnni", WIDE), ("avx_vnni", NARROW), ("small cache", CUT))
]


def of_signed(task: Task) -> Task:
    """The same product of a signed operand, whose highest bits are flipped as they are read."""
    first, *others = task.inputs
    signed = Buffer(first.name, i8, first.shape)

    def flipped(e: Expr) -> Expr | None:
        if not isinstance(e, Cast) or not isinstance(e.a, Load) or e.a.buffer is not first:
            return None
        return cast(cast(binary("xor", load(signed, e.a.indices), const(128, i8)), u8), i32)

    (stage,) = task.stages
    body = map_expr(stage.body, flipped)
    return replace(task, inputs=(signed, *others), stages=(replace(stage, body=body),))


def results(kernel: Kernel, target: CpuTarget, arrays: list[Array], mnemonic: str) -> tuple[Array, Array]:
    """The results of a kernel with its tiles in assembly and in C."""
    lowered = lower(kernel, target=target)
    sources = [generate(lowered, target.vector_bytes)]
    with in_c():
        sources.append(generate(lowered, target.vector_bytes))
    assembled, plain = sources
    instruction = re.compile(rf'"(%\{{vex%\}} )?{mnemonic} ')
    assert instruction.search(assembled.text), kernel.note
    assert not instruction.search(plain.text)
    assert assembled.kind.features == plain.kind.features != ()
    loaded = compile_kernels(sources, find_toolchain(isa=target.isa), KernelStore(), Counters())
    (got,), (same,) = (call_kernel(kernel, s, loaded[s.symbol], arrays, {}) for s in sources)
    return np.asarray(got), np.asarray(same)


@pytest.mark.parametrize("target", BYTES)
@pytest.mark.parametrize("signed", [False, True], ids=["u8", "s8"])
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_bytes(m: int, n: int, k: int, signed: bool, target: CpuTarget) -> None:
    width = packed_width(m, n, i32, target)
    task = of_bytes.product(m, n, k, width)
    a, b = of_bytes.operands(m, n, k, np.random.default_rng())
    read = (a ^ 128).view(np.int8) if signed else a
    kernel = schedule(of_signed(task) if signed else task, target)
    got, same = results(kernel, target, [read, of_bytes.packed(b, width)], "vpdpbusd")
    np.testing.assert_array_equal(got, same)
    np.testing.assert_array_equal(got, a.astype(np.int32) @ b.astype(np.int32))


@on(PAIRS)
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_bf16(m: int, n: int, k: int) -> None:
    width = packed_width(m, n, bf16, PAIRS)
    kernel = schedule(of_bf16.product(m, n, k, width), PAIRS)
    a, b = (bf16_array(shape, np.random.default_rng()) for shape in ((m, k), (k, n)))
    got, same = results(kernel, PAIRS, [a, of_bf16.packed(b, width)], "vdpbf16ps")
    np.testing.assert_array_equal(got, same)


@pytest.mark.parametrize("target", [WIDE, NARROW], ids=["avx512_vnni", "avx_vnni"])
def test_a_signed_operand_is_flipped_in_registers(target: CpuTarget, tmp_path: Path) -> None:
    """With AVX-512 by the instruction that broadcasts it."""
    width = packed_width(512, 512, i32, target)
    loop = hot_loop(schedule(of_signed(of_bytes.product(512, 512, 512, width)), target), target, "vpdpbusd", tmp_path)
    assert not spills(loop)
    rows = len([line for line in loop if "vpxor" in line])
    assert rows > 1
    assert len([line for line in loop if "broadcast" in line]) == (0 if target is WIDE else rows)
