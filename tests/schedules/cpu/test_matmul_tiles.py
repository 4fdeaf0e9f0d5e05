"""Products of bf16 on tile registers: their values, their edges, their fusion, and the machine code of the hot loop."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from taskmap.backend.cpu.host import detect_host
from taskmap.backend.cpu.tile_model import tile_counts
from taskmap.ir.construct import cast, ceil_div, const, index, maximum
from taskmap.ir.interp.run import interpret
from taskmap.ir.lower.pipeline import lower
from taskmap.ir.nodes import Allocate, Buffer, Dim, Kernel, Reduce, Var
from taskmap.ir.target import CpuTarget, cpu_target
from taskmap.ir.task import Stage, Task
from taskmap.ir.types import DType, bf16, f32
from taskmap.ir.visit import walk_stmts
from taskmap.schedules import packed_filled, packed_together, packed_width, schedule
from tests.schedules import bf16_products
from tests.schedules.bf16_products import bf16_array, check
from tests.schedules.disassembly import hot_loop
from tests.schedules.prefetches import has_prefetches, prefetched

Array = NDArray[Any]
REAL = cpu_target("avx512", 2, l2=2 << 20, features=["avx512_bf16", "amx_tile", "amx_bf16"])
MODEL = cpu_target("generic", 2, l2=2 << 20, features=["amx_sim"])
here = [
    pytest.param(REAL, id="amx", marks=pytest.mark.skipif("amx_bf16" not in detect_host().features, reason="no AMX")),
    pytest.param(MODEL, id="model"),
]
on = pytest.mark.parametrize("target", here)


def product(
    m: Dim,
    n: Dim,
    k: int,
    dims: tuple[Var, ...] = (),
    *,
    packed: bool = True,
    fused: bool = False,
    turned: bool = False,
    stride: int | None = None,
) -> Task:
    """out = a @ b; b in tiles or by rows; fused: out = relu(relu(a) @ b + bias)."""
    a = Buffer("a", bf16, (m, k), strides=(1, m) if turned else None if stride is None else (stride, 1))
    depth = -(-k // 32) * 16
    b = Buffer("b", bf16, (ceil_div(n, 32), depth, 32, 2) if packed else (k, n))
    bias, out = Buffer("bias", f32, (n,)), Buffer("out", bf16, (m, n))
    i, j, s = Var("i"), Var("j"), Var("s")
    left = cast(maximum(a[i, s], const(0.0, bf16)) if fused else a[i, s], f32)
    right = b[j // 32, s // 2, j % 32, s % 2] if packed else b[s, j]
    total = Reduce("sum", ((s, index(k)),), left * cast(right, f32), f32)
    if not fused:
        return Task("matmul", (a, b), (Stage(out, (i, j), cast(total, bf16), "matmul"),), (out,), dims, 0)
    middle = Buffer("middle", f32, (m, n))
    x, y = Var("x"), Var("y")
    after = Stage(out, (x, y), cast(maximum(middle[x, y] + bias[y], const(0.0, f32)), bf16), "relu")
    return Task("matmul", (a, b, bias), (Stage(middle, (i, j), total, "matmul"), after), (out,), dims, 0)


def in_tiles(b: Array) -> Array:
    """[k, n] in panels and pairs, zeros beyond both ends."""
    k, n = b.shape
    whole = np.zeros((-(-k // 32) * 32, -(-n // 32) * 32), np.float32)
    whole[:k, :n] = b
    panels: Array = whole.reshape(-(-k // 32) * 16, 2, -(-n // 32), 32).transpose(2, 0, 3, 1).copy()
    return panels


def run(kernel: Kernel, target: CpuTarget, arrays: list[Array], dims: dict[Var, int]) -> Array:
    return bf16_products.run(
        kernel, target, ("amx_sim",) if target is MODEL else ("amx_bf16", "amx_tile"), arrays, dims
    )


SIZES = [(64, 96, 64), (33, 50, 37), (1, 17, 128), (16, 130, 1), (47, 48, 2), (70, 65, 255), (100, 33, 96), (17, 8, 31)]


@on
@pytest.mark.parametrize("turned", [False, True])
def test_products(target: CpuTarget, turned: bool) -> None:
    rng = np.random.default_rng()
    for m, n, k in SIZES:
        kernel = schedule(product(m, n, k, turned=turned), target)
        assert "tdpbf16ps" in kernel.note
        a, b = bf16_array((m, k), rng), bf16_array((k, n), rng)
        check(run(kernel, target, [a, in_tiles(b)], {}), a, b)


@on
@pytest.mark.parametrize(("k", "stride"), [(1056, 1056), (1040, 1056), (1100, 1100), (1024, 1024), (1, 1100)])
def test_long_sums_are_added_in_parts(target: CpuTarget, k: int, stride: int) -> None:
    """Of rows in memory, with and without an end, and of copied rows."""
    rng = np.random.default_rng()
    m, n = 100, 290
    task = product(m, n, k, stride=stride)
    kernel = schedule(task, target)
    parts = {s.buffer.name for s in walk_stmts(kernel.body) if isinstance(s, Allocate)}
    assert ("sums" in parts) == (k > 1)
    a, b = bf16_array((m, stride), rng), bf16_array((k, n), rng)
    check(run(kernel, target, [a[:, :k], in_tiles(b)], {}), a[:, :k], b)


@on
def test_operands_that_are_copied_on_every_call(target: CpuTarget) -> None:
    rng = np.random.default_rng()
    sizes = [(64, 96, 64, 1), (33, 50, 37, 1), (40, 7, 33, 1), (33, 256, 130, 2), (64, 128, 96, 2), (40, 128, 1100, 2)]
    for m, n, k, together in sizes:
        kernel = schedule(product(m, n, k, packed=False), target)
        assert "tdpbf16ps" in kernel.note
        copies = [s.buffer.shape for s in walk_stmts(kernel.body) if isinstance(s, Allocate)]
        assert (together, -(-k // 32) * 16, 32, 2) in copies
        a, b = bf16_array((m, k), rng), bf16_array((k, n), rng)
        check(run(kernel, target, [a, b], {}), a, b)


@on
def test_symbolic_sizes(target: CpuTarget) -> None:
    rng, rows, columns = np.random.default_rng(), Var("m"), Var("n")
    kernel = schedule(product(rows, columns, 45, (rows, columns)), target)
    assert "tdpbf16ps" in kernel.note
    for m, n in [(1, 1), (31, 64), (32, 33), (61, 100)]:
        a, b = bf16_array((m, 45), rng), bf16_array((45, n), rng)
        check(run(kernel, target, [a, in_tiles(b)], {rows: m, columns: n}), a, b)


@on
def test_fused_stages(target: CpuTarget) -> None:
    rng = np.random.default_rng()
    for m, n, k in [(64, 96, 64), (35, 40, 50)]:
        kernel = schedule(product(m, n, k, fused=True), target)
        assert "tdpbf16ps" in kernel.note
        a, b, bias = bf16_array((m, k), rng), bf16_array((k, n), rng), rng.standard_normal(n).astype(np.float32)
        got = run(kernel, target, [a, in_tiles(b), bias], {})
        want = np.maximum(np.maximum(a, 0).astype(np.float64) @ b.astype(np.float64) + bias, 0)
        np.testing.assert_allclose(got, want, rtol=2.0**-7, atol=1e-4)


@on
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("packed", [True, False])
def test_values_beside_an_edge_stay_out(target: CpuTarget, bad: float, packed: bool) -> None:
    """Beyond the last term of a row lies the next row, beyond the last row other memory."""
    rng = np.random.default_rng()
    m, n, k = 50, 40, 45
    a, b = bf16_array((m, k), rng), bf16_array((k, n), rng)
    a[1::3, 0] = bad
    b[:, 5::7] = bad
    kernel = schedule(product(m, n, k, packed=packed), target)
    got = run(kernel, target, [a, in_tiles(b) if packed else b], {})
    rows, columns = np.isfinite(a).all(axis=1), np.isfinite(b).all(axis=0)
    assert not np.isfinite(got[~rows]).any()
    assert not np.isfinite(got[:, ~columns]).any()
    check(got[np.ix_(rows, columns)], a[rows], b[:, columns])


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("sizes", [(33, 20, 7), (33, 33, 64), (40, 40, 40), (32, 128, 70)])
def test_the_interpreter_agrees_with_the_definition(sizes: tuple[int, int, int], packed: bool) -> None:
    """It also finds reads of memory that was not written, and accesses outside of buffers."""
    rng, (m, n, k) = np.random.default_rng(), sizes
    kernel = lower(schedule(product(m, n, k, packed=packed), REAL), target=REAL, verify=True)
    a, b = bf16_array((m, k), rng), bf16_array((k, n), rng)
    arrays = [a.ravel(), (in_tiles(b) if packed else b).ravel()]
    got = interpret(kernel, dict(zip(kernel.buffers, arrays, strict=False)))[kernel.outputs[0]]
    check(got.reshape(m, n), a, b)


def test_every_configuration_is_released_and_products_are_counted() -> None:
    rng = np.random.default_rng()
    a, b = bf16_array((96, 70), rng), bf16_array((70, 80), rng)
    before = tile_counts()
    run(schedule(product(96, 80, 70), MODEL), MODEL, [a, in_tiles(b)], {})
    after = tile_counts()
    assert after.configure - before.configure == after.release - before.release > 0
    assert after.product - before.product == 6 * 6 * 3  # 16 × 16 tiles of three steps: 96 rows, 96 columns


@pytest.mark.parametrize("types", [(f32, bf16), (bf16, f32), (f32, f32)])
def test_operands_of_other_types_are_not_rounded(types: tuple[DType, DType]) -> None:
    """An f32 operand never reaches a unit for bf16."""
    assert packed_together(*types, REAL) == packed_filled(*types, REAL) == 1


def test_the_packed_form_follows_the_features() -> None:
    dots = cpu_target("avx512", 2, features=["avx512_bf16"])
    for target, together, filled in ((REAL, 2, 32), (MODEL, 2, 32), (dots, 2, 2), (cpu_target("avx512", 2), 1, 1)):
        assert packed_together(bf16, bf16, target) == together
        assert packed_filled(bf16, bf16, target) == filled
    assert packed_width(512, 512, bf16, REAL, factors=(bf16, bf16)) == 32
    assert packed_width(512, 512, f32, REAL) == packed_width(512, 512, f32, dots)


def test_a_few_rows_do_not_copy_the_other_operand() -> None:
    assert "tdp" not in schedule(product(8, 96, 64, packed=False), REAL).note


@pytest.mark.parametrize("k", [256, 768])
def test_each_line_of_a_packed_operand_is_prefetched_once_by_a_block_of_rows(k: int) -> None:
    """Of a panel in one part and of one in several: all lines after the first part, and the part behind the last."""
    m, n, alone = 64, 96, cpu_target("avx512", 1, l2=2 << 20, features=["amx_tile", "amx_bf16"])
    kernel = schedule(product(m, n, k), alone)
    parts = {s.buffer.name for s in walk_stmts(kernel.body) if isinstance(s, Allocate)}
    part = 16384 // 2 if "sums" in parts else 32 * k
    line, panels = 32, 3
    assert sorted(prefetched(kernel.body, {})) == list(range(part, part + panels * 32 * k, line))


def test_an_operand_that_is_copied_is_not_prefetched() -> None:
    kernel = schedule(product(64, 96, 256, packed=False), REAL)
    assert not has_prefetches(kernel)


def test_pairs_of_rows_are_zipped_by_one_shuffle_for_each_register(tmp_path: Path) -> None:
    """And not widened and shifted."""
    loop = hot_loop(schedule(product(64, 128, 512, packed=False), REAL), REAL, "vpunpck", tmp_path)
    zips, permutations = (sum(name in line for line in loop) for name in ("vpunpck", "vperm2i128"))
    assert zips == permutations >= 2
    assert not [line for line in loop if "vpmovzx" in line or "vpslld" in line or "%rsp" in line]


def test_the_hot_loop_is_products_of_tiles_without_spills(tmp_path: Path) -> None:
    loop = hot_loop(schedule(product(512, 512, 512), REAL), REAL, "tdpbf16ps", tmp_path)
    counts = {name: sum(name in line for line in loop) for name in ("tdpbf16ps", "tileloadd", "tilestored", "tilezero")}
    rounds = counts["tdpbf16ps"] // 4
    assert counts == {"tdpbf16ps": 4 * rounds, "tileloadd": 4 * rounds, "tilestored": 0, "tilezero": 0}
    assert rounds >= 1
    assert not [line for line in loop if re.search(r"%rsp|%rbp|\bcall", line)]
    registers = re.findall(r"tdpbf16ps +%tmm(\d),%tmm(\d),%tmm(\d)", "\n".join(loop))
    assert {c for *_, c in registers} == {"0", "1", "2", "3"}
