"""Products of narrow types whose B is no packed weight: its columns are copied in groups, for dot products."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from taskmap.backend.cpu.codegen import generate
from taskmap.backend.cpu.host import detect_host
from taskmap.ir.construct import cast, index
from taskmap.ir.interp.run import interpret
from taskmap.ir.lower.pipeline import lower
from taskmap.ir.nodes import Allocate, Buffer, Kernel, Reduce, Var
from taskmap.ir.target import CpuTarget, cpu_target
from taskmap.ir.task import Stage, Task
from taskmap.ir.types import DType, bf16, f32, i8, i32, u8
from taskmap.ir.visit import walk_stmts
from taskmap.schedules import problem, schedule
from taskmap.schedules.cpu.matmul.config import MatmulConfig
from taskmap.schedules.cpu.matmul.microkernel import Tile
from taskmap.schedules.cpu.matmul.template import schedule_matmul
from tests.schedules import bf16_products
from tests.schedules.bf16_products import bf16_array, check
from tests.schedules.cpu.matmul.test_column_copies import elements_read
from tests.schedules.disassembly import hot_loop, spills
from tests.schedules.running import Array

TARGET = cpu_target("avx512", 2, features=["avx512_bf16", "avx512_vnni"])
needs_bf16 = pytest.mark.skipif("avx512_bf16" not in detect_host().features, reason="this CPU has no avx512_bf16")
orders = pytest.mark.parametrize("order", ["n", "k"])


def product(
    batch: int, m: int, n: int, k: int, order: str = "n", types: tuple[DType, DType, DType] = (bf16, bf16, bf16)
) -> Task:
    """out[z] = a[z] @ b[z]; ``order``: the axis along which b is contiguous."""
    sums = i32 if types[2] == i32 else f32
    a, out = Buffer("a", types[0], (batch, m, k)), Buffer("out", types[2], (batch, m, n))
    b = Buffer("b", types[1], (batch, k, n), strides=(k * n, 1, k) if order == "k" else None)
    z, i, j, s = Var("z"), Var("i"), Var("j"), Var("s")
    terms = cast(a[z, i, s], sums) * cast(b[z, s, j], sums)
    body = cast(Reduce("sum", ((s, index(k)),), terms, sums), types[2])
    return Task("matmul", (a, b), (Stage(out, (z, i, j), body, "matmul"),), (out,), (), 0)


def copies(kernel: Kernel) -> bool:
    return any(isinstance(s, Allocate) and s.buffer.name == "columns" for s in walk_stmts(kernel.body))


def stored(b: Array, order: str) -> Array:
    """The elements of b in memory."""
    return np.ascontiguousarray(b.swapaxes(1, 2) if order == "k" else b).ravel()


def run(kernel: Kernel, a: Array, b: Array, target: CpuTarget = TARGET) -> Array:
    return bf16_products.run(kernel, target, ("avx512_bf16",), [a, b], {})


def check_each(got: Array, a: Array, b: Array) -> None:
    for one, left, right in zip(got.reshape(a.shape[0], a.shape[1], -1), a, b, strict=True):
        check(one, left, right)


@needs_bf16
@orders
@pytest.mark.parametrize(
    ("batch", "m", "n", "k"),
    [(3, 70, 96, 64), (2, 49, 49, 32), (2, 33, 50, 37), (1, 8, 17, 99), (2, 31, 1, 64), (2, 9, 130, 2), (5, 29, 65, 5)],
)
def test_products(batch: int, m: int, n: int, k: int, order: str) -> None:
    rng = np.random.default_rng()
    kernel = schedule(product(batch, m, n, k, order), TARGET)
    assert "by=vdpbf16ps_16" in kernel.note
    assert copies(kernel)
    a, b = bf16_array((batch, m, k), rng), bf16_array((batch, k, n), rng)
    check_each(run(kernel, a, b), a, b)


@needs_bf16
@orders
@pytest.mark.parametrize(("k", "parts"), [(255, 2), (128, 3), (66, 2), (11, 4)])
def test_a_sum_in_parts(k: int, parts: int, order: str) -> None:
    """The last part is shorter than the others, and a last term stands alone."""
    rng = np.random.default_rng()
    kernel = schedule_matmul(product(2, 40, 70, k, order), TARGET, MatmulConfig(Tile(6, 4), 24, parts))
    assert kernel is not None
    assert f"k_blocks={parts}, by=vdpbf16ps_16" in kernel.note
    a, b = bf16_array((2, 40, k), rng), bf16_array((2, k, 70), rng)
    check_each(run(kernel, a, b), a, b)


@orders
@pytest.mark.parametrize(("n", "k"), [(96, 64), (50, 37), (49, 36), (1, 70)])
def test_each_element_of_b_is_read_once(n: int, k: int, order: str) -> None:
    """On one core: others copy for their own rows."""
    kernel = schedule(product(1, 40, n, k, order), cpu_target("avx512", 1, features=["avx512_bf16"]))
    assert copies(kernel)
    assert elements_read(kernel.body, kernel.buffers[1], {}) == n * k


@orders
@pytest.mark.parametrize(("m", "n", "k"), [(9, 20, 7), (5, 33, 34), (10, 16, 32)])
def test_the_interpreter_agrees_with_the_definition(m: int, n: int, k: int, order: str) -> None:
    """The verifier and the interpreter see uninitialised reads, and such beyond an end."""
    rng = np.random.default_rng()
    kernel = schedule(product(2, m if order == "k" else max(m, 8), n, k, order), TARGET)
    assert copies(kernel)
    m = m if order == "k" else max(m, 8)
    lowered = lower(kernel, target=TARGET, verify=True)
    a, b = bf16_array((2, m, k), rng), bf16_array((2, k, n), rng)
    arrays = dict(zip(lowered.buffers, [a.ravel(), stored(b, order)], strict=False))
    check_each(interpret(lowered, arrays)[lowered.outputs[0]].reshape(2, m, n), a, b)


@needs_bf16
@orders
def test_values_beside_an_edge_stay_out(order: str) -> None:
    """Terms are odd in number, and neither rows nor columns fill tiles: infinities are neighbours of all edges."""
    rng = np.random.default_rng()
    a, b = bf16_array((2, 20, 31), rng), bf16_array((2, 31, 49), rng)
    a[0, 3:, 0], b[1, 0, 1::2] = np.inf, np.nan
    got = run(schedule(product(2, 20, 49, 31, order), TARGET), a, b).reshape(2, 20, 49)
    check(got[0, :3], a[0, :3], b[0])
    check(got[1, :, ::2], a[1], b[1][:, ::2])
    assert not np.isfinite(got[0, 3:]).any()
    assert np.isnan(got[1, :, 1::2]).all()


@pytest.mark.parametrize("order", ["n", "k"])
@pytest.mark.parametrize(("m", "n", "k"), [(20, 40, 64), (9, 33, 67)])
def test_bytes_are_copied_in_fours(m: int, n: int, k: int, order: str) -> None:
    rng = np.random.default_rng()
    kernel = schedule(product(2, m, n, k, order, (u8, i8, i32)), TARGET)
    assert "by=vpdpbusd_16" in kernel.note
    a, b = rng.integers(0, 256, (2, m, k), np.uint8), rng.integers(-128, 128, (2, k, n), np.int8)
    lowered = lower(kernel, target=TARGET, verify=True)
    arrays = dict(zip(lowered.buffers, [a.ravel(), stored(b, order)], strict=False))
    got = interpret(lowered, arrays)[lowered.outputs[0]].reshape(2, m, n)
    np.testing.assert_array_equal(got, a.astype(np.int32) @ b.astype(np.int32))


@orders
def test_the_hot_loop_is_dot_products_without_conversions(order: str, tmp_path: Path) -> None:
    loop = hot_loop(schedule(product(12, 128, 512, 64, order), TARGET), TARGET, "vdpbf16ps", tmp_path)
    assert sum("vdpbf16ps" in line for line in loop) == 6 * 4
    assert not any(name in line for line in loop for name in ("vcvt", "vpmovzx", "vpsll", "vfmadd"))
    assert not spills(loop)


def test_columns_that_lie_apart_are_transposed_in_squares() -> None:
    def source(order: str) -> str:
        return generate(lower(schedule(product(2, 40, 64, 64, order), TARGET), target=TARGET), 64).text

    assert source("k").count("tm_transpose_u32x16(") == 1
    assert "tm_load_strided" not in source("k")
    assert "tm_transpose_" not in source("n")
    assert "tm_store_pairs_bf16x16(" in source("n")


@pytest.mark.parametrize(("types", "k"), [((bf16, bf16, bf16), 1), ((u8, i8, i32), 3)])
def test_a_sum_shorter_than_a_group_is_none_of_groups(types: tuple[DType, DType, DType], k: int) -> None:
    assert "by=" not in schedule(product(2, 40, 64, k, types=types), TARGET).note


def test_few_rows_read_contiguous_columns_in_place() -> None:
    assert not copies(schedule(product(2, 7, 64, 64), TARGET))
    assert copies(schedule(product(2, 8, 64, 64), TARGET))
    assert copies(schedule(product(2, 1, 64, 64, "k"), TARGET))


def test_other_types_and_targets_do_not_copy_groups() -> None:
    plain = cpu_target("avx512", 2)
    assert "by=" not in schedule(product(2, 40, 64, 64), plain).note
    for types in ((f32, bf16, f32), (bf16, f32, f32), (i8, i8, i32)):
        assert "by=" not in schedule(product(2, 40, 64, 64, types=types), TARGET).note


def test_a_product_on_dot_products_is_no_problem_of_tuning() -> None:
    assert problem(product(2, 40, 64, 64), TARGET) is None
    assert problem(product(2, 40, 64, 64), cpu_target("avx512", 2)) is not None
