"""Products of bf16 on dot products of neighbours: their values, their edges, and the machine code of the hot loop."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from taskmap.backend.cpu.codegen import generate
from taskmap.backend.cpu.host import detect_host
from taskmap.ir.construct import cast, ceil_div, index
from taskmap.ir.interp.run import interpret
from taskmap.ir.lower.pipeline import lower
from taskmap.ir.nodes import Buffer, Dim, Kernel, Reduce, Var
from taskmap.ir.target import CpuTarget, cpu_target
from taskmap.ir.task import Stage, Task
from taskmap.ir.types import DType, bf16, f32
from taskmap.schedules import packed_together, packed_width, schedule
from tests.schedules import bf16_products
from tests.schedules.bf16_products import bf16_array, check
from tests.schedules.disassembly import hot_loop, spills

Array = NDArray[Any]
TARGET = cpu_target("avx512", 2, features=["avx512_bf16"])
needs_bf16 = pytest.mark.skipif("avx512_bf16" not in detect_host().features, reason="this CPU has no avx512_bf16")


def product(m: Dim, n: int, k: int, width: int, dims: tuple[Var, ...] = (), dtype: DType = bf16) -> Task:
    """out = a @ b with b packed in panels of ``width`` columns and in pairs."""
    a, b = Buffer("a", dtype, (m, k)), Buffer("b", bf16, (ceil_div(n, width), ceil_div(k, 2), width, 2))
    out = Buffer("out", bf16, (m, n))
    i, j, s = Var("i"), Var("j"), Var("s")
    terms = cast(a[i, s], f32) * cast(b[j // width, s // 2, j % width, s % 2], f32)
    body = cast(Reduce("sum", ((s, index(k)),), terms, f32), bf16)
    return Task("matmul", (a, b), (Stage(out, (i, j), body, "matmul"),), (out,), dims, 0)


def packed(b: Array, width: int) -> Array:
    """[k, n] in panels and pairs, zeros beyond both ends."""
    k, n = b.shape
    whole = np.zeros((-(-k // 2) * 2, -(-n // width) * width), np.float32)
    whole[:k, :n] = b
    panels: Array = whole.reshape(-(-k // 2), 2, -(-n // width), width).transpose(2, 0, 3, 1).copy()
    return panels


def run(kernel: Kernel, target: CpuTarget, arrays: list[Array], dims: dict[Var, int]) -> Array:
    return bf16_products.run(kernel, target, ("avx512_bf16",), arrays, dims)


@needs_bf16
@pytest.mark.parametrize(
    ("m", "n", "k"),
    [(70, 96, 64), (33, 50, 37), (1, 17, 128), (7, 130, 1), (64, 48, 2), (29, 65, 255), (300, 33, 100)],
)
@pytest.mark.parametrize("l2", [1 << 20, 1 << 13])
def test_products(m: int, n: int, k: int, l2: int) -> None:
    target = cpu_target("avx512", 2, l2=l2, features=["avx512_bf16"])
    rng = np.random.default_rng()
    width = packed_width(m, n, bf16, target)
    kernel = schedule(product(m, n, k, width), target)
    assert "vdpbf16ps_16" in kernel.note
    if (l2, k) in {(1 << 13, 255), (1 << 13, 128)}:
        assert "k_blocks=1," not in kernel.note
    a, b = bf16_array((m, k), rng), bf16_array((k, n), rng)
    check(run(kernel, target, [a, packed(b, width)], {}), a, b)


@needs_bf16
@pytest.mark.parametrize("m", [1, 8, 61])
def test_a_symbolic_number_of_rows(m: int) -> None:
    rng, rows = np.random.default_rng(), Var("m")
    width = packed_width(rows, 40, bf16, TARGET)
    kernel = schedule(product(rows, 40, 19, width, (rows,)), TARGET)
    a, b = bf16_array((m, 19), rng), bf16_array((19, 40), rng)
    check(run(kernel, TARGET, [a, packed(b, width)], {rows: m}), a, b)


@needs_bf16
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_values_beside_an_edge_stay_out(bad: float) -> None:
    """With an odd number of terms, the next row's first element is beside the last term."""
    rng = np.random.default_rng()
    m, n, k = 20, 48, 31
    width = packed_width(m, n, bf16, TARGET)
    a, b = bf16_array((m, k), rng), bf16_array((k, n), rng)
    a[1::3, 0] = bad
    got = run(schedule(product(m, n, k, width), TARGET), TARGET, [a, packed(b, width)], {})
    fine = np.isfinite(a).all(axis=1)
    assert not np.isfinite(got[~fine]).any()
    check(got[fine], a[fine], b)


def test_the_interpreter_agrees_with_the_definition() -> None:
    rng = np.random.default_rng()
    width = packed_width(5, 20, bf16, TARGET)
    kernel = lower(schedule(product(5, 20, 7, width), TARGET), target=TARGET, verify=True)
    a, b = bf16_array((5, 7), rng), bf16_array((7, 20), rng)
    arrays = [a.ravel(), packed(b, width).ravel()]
    got = interpret(kernel, dict(zip(kernel.buffers, arrays, strict=False)))[kernel.outputs[0]]
    check(got.reshape(5, 20), a, b)


def test_operands_of_other_types_are_not_rounded() -> None:
    """An f32 operand never reaches a unit for bf16."""
    kernel = schedule(product(16, 48, 32, 48, dtype=f32), TARGET)
    assert "by=" not in kernel.note
    assert packed_together(f32, bf16, TARGET) == packed_together(f32, f32, TARGET) == 1
    assert packed_together(bf16, bf16, TARGET) == 2


def test_without_the_feature_there_is_no_such_product() -> None:
    plain = cpu_target("avx512", 2)
    assert packed_together(bf16, bf16, plain) == 1
    kernel = schedule(product(16, 48, 32, 48), plain)
    assert "by=" not in kernel.note
    assert generate(lower(kernel, target=plain), plain.vector_bytes).kind.features == ()


def test_the_hot_loop_is_dot_products_without_spills(tmp_path: Path) -> None:
    width = packed_width(512, 512, bf16, TARGET)
    kernel = schedule(product(512, 512, 512, width), TARGET)
    found = re.search(r"tile=(\d+)x(\d+)", kernel.note)
    assert found is not None
    products = int(found[1]) * int(found[2]) // 16
    loop = hot_loop(kernel, TARGET, "vdpbf16ps", tmp_path)
    assert sum("vdpbf16ps" in line for line in loop) >= products
    assert not spills(loop)
