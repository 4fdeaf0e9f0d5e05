"""Products of bytes on dot products of neighbours and without them: equal to integer arithmetic that wraps."""

from __future__ import annotations

import re
from pathlib import Path
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
from taskmap.ir.construct import cast, ceil_div, index
from taskmap.ir.interp.run import interpret
from taskmap.ir.lower.pipeline import lower
from taskmap.ir.nodes import Buffer, Dim, Reduce, Var
from taskmap.ir.target import CpuTarget, cpu_target
from taskmap.ir.task import Stage, Task
from taskmap.ir.types import i8, i32, u8
from taskmap.schedules import packed_together, packed_width, schedule
from tests.schedules.disassembly import hot_loop, spills
from tests.schedules.running import call_kernel

Array = NDArray[Any]
HOST = detect_host()
WIDE, NARROW = cpu_target("avx512", 2, features=["avx512_vnni"]), cpu_target("avx2", 2, features=["avx_vnni"])
PLAIN = cpu_target("avx2", 2)
NAMES = {id(WIDE): "vpdpbusd_16", id(NARROW): "vex_vpdpbusd_8"}


def runs(target: CpuTarget) -> bool:
    return frozenset(target.features) <= frozenset(HOST.features)


TARGETS = [
    pytest.param(t, marks=pytest.mark.skipif(not runs(t), reason=f"this CPU lacks some of {t.features}"), id=name)
    for name, t in (("avx512_vnni", WIDE), ("avx_vnni", NARROW), ("avx2", PLAIN))
]


def product(m: Dim, n: int, k: int, width: int, dims: tuple[Var, ...] = ()) -> Task:
    """out = a @ b with b packed in panels of ``width`` columns and in fours."""
    a, b = Buffer("a", u8, (m, k)), Buffer("b", i8, (ceil_div(n, width), ceil_div(k, 4), width, 4))
    out = Buffer("out", i32, (m, n))
    i, j, s = Var("i"), Var("j"), Var("s")
    terms = cast(a[i, s], i32) * cast(b[j // width, s // 4, j % width, s % 4], i32)
    body = Reduce("sum", ((s, index(k)),), terms, i32)
    return Task("matmul", (a, b), (Stage(out, (i, j), body, "matmul"),), (out,), dims, 0)


def packed(b: Array, width: int) -> Array:
    """[k, n] in panels and fours, zeros beyond both ends."""
    k, n = b.shape
    whole = np.zeros((-(-k // 4) * 4, -(-n // width) * width), np.int8)
    whole[:k, :n] = b
    panels: Array = whole.reshape(-(-k // 4), 4, -(-n // width), width).transpose(2, 0, 3, 1).copy()
    return panels


def operands(m: int, n: int, k: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Bytes of the whole range, the ends of it more often."""
    a = rng.choice(np.array([0, 1, 255, *rng.integers(0, 256, 5)], np.uint8), (m, k))
    b = rng.choice(np.array([-128, -127, 127, *rng.integers(-128, 128, 5)], np.int8), (k, n))
    return a, b


def run(task: Task, target: CpuTarget, arrays: list[Array], dims: dict[Var, int]) -> Array:
    kernel = schedule(task, target)
    assert "cpu.matmul" in kernel.note
    assert (f"by={NAMES[id(target)]}" if id(target) in NAMES else "rows=") in kernel.note
    source = generate(lower(kernel, target=target), target.vector_bytes)
    loaded = compile_kernels([source], find_toolchain(isa=target.isa), KernelStore(), Counters())
    (got,) = call_kernel(kernel, source, loaded[source.symbol], arrays, dims)
    return np.asarray(got)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("m", "n", "k"),
    [(70, 96, 64), (33, 50, 37), (1, 17, 128), (7, 130, 1), (64, 48, 2), (29, 65, 255), (300, 33, 102)],
)
def test_products(m: int, n: int, k: int, target: CpuTarget) -> None:
    rng = np.random.default_rng()
    width = packed_width(m, n, i32, target)
    a, b = operands(m, n, k, rng)
    got = run(product(m, n, k, width), target, [a, packed(b, width)], {})
    np.testing.assert_array_equal(got, a.astype(np.int32) @ b.astype(np.int32))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("m", [1, 8, 61])
def test_a_symbolic_number_of_rows(m: int, target: CpuTarget) -> None:
    rng, rows = np.random.default_rng(), Var("m")
    width = packed_width(rows, 40, i32, target)
    a, b = operands(m, 40, 19, rng)
    got = run(product(rows, 40, 19, width, (rows,)), target, [a, packed(b, width)], {rows: m})
    np.testing.assert_array_equal(got, a.astype(np.int32) @ b.astype(np.int32))


@pytest.mark.parametrize("target", TARGETS)
def test_sums_wrap(target: CpuTarget) -> None:
    """A sum beyond i32 wraps, with and without the instruction."""
    k = 70_000
    width = packed_width(3, 20, i32, target)
    a, b = np.full((3, k), 255, np.uint8), np.full((k, 20), -128, np.int8)
    got = run(product(3, 20, k, width), target, [a, packed(b, width)], {})
    np.testing.assert_array_equal(got, np.full((3, 20), -255 * 128 * k, np.int64).astype(np.int32))


@pytest.mark.parametrize("target", [WIDE, NARROW, PLAIN], ids=["avx512_vnni", "avx_vnni", "avx2"])
def test_the_interpreter_agrees_with_the_definition(target: CpuTarget) -> None:
    width = packed_width(5, 20, i32, target)
    kernel = lower(schedule(product(5, 20, 7, width), target), target=target, verify=True)
    a, b = operands(5, 20, 7, np.random.default_rng())
    arrays = [a.ravel(), packed(b, width).ravel()]
    got = interpret(kernel, dict(zip(kernel.buffers, arrays, strict=False)))[kernel.outputs[0]]
    np.testing.assert_array_equal(got.reshape(5, 20), a.astype(np.int32) @ b.astype(np.int32))


def test_bytes_of_any_sign_are_packed_in_fours() -> None:
    for target in (WIDE, NARROW):
        assert {packed_together(a, b, target) for a in (u8, i8) for b in (u8, i8)} == {4}
    assert {packed_together(a, b, PLAIN) for a in (u8, i8) for b in (u8, i8)} == {1}
    assert packed_together(i32, i32, WIDE) == packed_together(u8, i32, WIDE) == 1


def test_the_hot_loop_is_dot_products_without_spills(tmp_path: Path) -> None:
    width = packed_width(512, 512, i32, WIDE)
    kernel = schedule(product(512, 512, 512, width), WIDE)
    found = re.search(r"tile=(\d+)x(\d+)", kernel.note)
    assert found is not None
    products = int(found[1]) * int(found[2]) // 16
    loop = hot_loop(kernel, WIDE, "vpdpbusd", tmp_path)
    assert sum("vpdpbusd" in line for line in loop) >= products
    assert not spills(loop)
