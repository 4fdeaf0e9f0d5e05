"""Products of bytes on tile registers: of any signs, exact, with the machine code of the hot loop."""

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
from taskmap.ir.construct import cast, ceil_div, const, index, maximum
from taskmap.ir.interp.run import interpret
from taskmap.ir.lower.pipeline import lower
from taskmap.ir.nodes import Buffer, Dim, Reduce, Var
from taskmap.ir.target import CpuTarget, cpu_target
from taskmap.ir.task import Stage, Task
from taskmap.ir.types import DType, f32, i8, i32, i64, u8
from taskmap.schedules import packed_filled, packed_together, packed_width, packed_with_signs, schedule
from tests.schedules.disassembly import hot_loop
from tests.schedules.running import call_kernel

Array = NDArray[Any]
HOST = detect_host()
REAL = cpu_target("avx512", 2, l2=2 << 20, features=["avx512_vnni", "amx_tile", "amx_int8"])
MODEL = cpu_target("generic", 2, l2=2 << 20, features=["amx_sim"])
on = pytest.mark.parametrize(
    "target",
    [
        pytest.param(REAL, id="amx", marks=pytest.mark.skipif("amx_int8" not in HOST.features, reason="no AMX")),
        pytest.param(MODEL, id="model"),
    ],
)
NUMPY = {u8: np.uint8, i8: np.int8}
SIGNS = {(u8, u8): "uu", (u8, i8): "us", (i8, u8): "su", (i8, i8): "ss"}
SIZES = [
    (64, 96, 64),
    (33, 50, 37),
    (1, 17, 128),
    (16, 130, 1),
    (47, 48, 2),
    (70, 65, 255),
    (100, 33, 192),
    (70, 300, 2100),
]


def product(
    m: Dim,
    n: Dim,
    k: int,
    a: DType = i8,
    b: DType = i8,
    dims: tuple[Var, ...] = (),
    *,
    fused: bool = False,
    packed: bool = True,
) -> Task:
    """out = a @ b with b packed in tiles, or by rows; fused: out = max(a, 0) @ b scaled per column, as floats."""
    left = Buffer("a", a, (m, k))
    right = Buffer("b", b, (ceil_div(n, 32), -(-k // 64) * 16, 32, 4) if packed else (k, n))
    i, j, s, x, y = map(Var, "ijsxy")
    factor = maximum(left[i, s], const(0, a)) if fused else left[i, s]
    term = right[j // 32, s // 4, j % 32, s % 4] if packed else right[s, j]
    terms = cast(factor, i32) * cast(term, i32)
    total = Reduce("sum", ((s, index(k)),), terms, i32)
    if not fused:
        out = Buffer("out", i32, (m, n))
        return Task("matmul", (left, right), (Stage(out, (i, j), total, "matmul"),), (out,), dims, 0)
    sums, scale, out = Buffer("sums", i32, (m, n)), Buffer("scale", f32, (n,)), Buffer("out", f32, (m, n))
    after = Stage(out, (x, y), cast(sums[x, y], f32) * scale[y], "scale")
    return Task("matmul", (left, right, scale), (Stage(sums, (i, j), total, "matmul"), after), (out,), dims, 0)


def in_tiles(b: Array) -> Array:
    """[k, n] in panels and fours, zeros beyond both ends."""
    k, n = b.shape
    whole = np.zeros((-(-k // 64) * 64, -(-n // 32) * 32), b.dtype)
    whole[:k, :n] = b
    panels: Array = whole.reshape(-(-k // 64) * 16, 4, -(-n // 32), 32).transpose(2, 0, 3, 1).copy()
    return panels


def some(dtype: DType, *shape: int) -> Array:
    """Bytes of the whole range, the ends of it more often."""
    rng, limits = np.random.default_rng(), np.iinfo(NUMPY[dtype])
    drawn = rng.integers(limits.min, limits.max + 1, 5)
    return rng.choice(np.array([limits.min, limits.max, 0, *drawn], NUMPY[dtype]), shape)


def exact(a: Array, b: Array) -> Array:
    return (a.astype(np.int64) @ b.astype(np.int64)).astype(np.int32)


def run(task: Task, target: CpuTarget, arrays: list[Array], dims: dict[Var, int] | None = None) -> Array:
    kernel = schedule(task, target)
    assert "tdpb" in kernel.note
    source = generate(lower(kernel, target=target), target.vector_bytes)
    loaded = compile_kernels([source], find_toolchain(isa=target.isa), KernelStore(), Counters())
    (got,) = call_kernel(kernel, source, loaded[source.symbol], arrays, dims or {})
    return np.asarray(got)


@on
@pytest.mark.parametrize(("types", "signs"), SIGNS.items(), ids=SIGNS.values())
def test_products_of_any_signs(target: CpuTarget, types: tuple[DType, DType], signs: str) -> None:
    for m, n, k in SIZES:
        task = product(m, n, k, *types)
        assert f"tdpb{signs}d" in schedule(task, target).note
        a, b = some(types[0], m, k), some(types[1], k, n)
        np.testing.assert_array_equal(run(task, target, [a, in_tiles(b)]), exact(a, b))


@on
def test_operands_that_are_copied_on_every_call(target: CpuTarget) -> None:
    for m, n, k in [(64, 96, 64), (33, 50, 37), (40, 256, 130), (64, 512, 192), (32, 128, 2100)]:
        a, b = some(i8, m, k), some(i8, k, n)
        np.testing.assert_array_equal(run(product(m, n, k, packed=False), target, [a, b]), exact(a, b))


@on
def test_symbolic_sizes(target: CpuTarget) -> None:
    rows, columns = Var("m"), Var("n")
    for m, n in [(1, 1), (31, 64), (32, 33), (61, 100)]:
        a, b = some(i8, m, 45), some(i8, 45, n)
        task = product(rows, columns, 45, dims=(rows, columns))
        np.testing.assert_array_equal(run(task, target, [a, in_tiles(b)], {rows: m, columns: n}), exact(a, b))


@on
def test_fused_stages(target: CpuTarget) -> None:
    a, b, scale = some(i8, 35, 70), some(i8, 70, 40), np.random.default_rng().random(40).astype(np.float32)
    got = run(product(35, 40, 70, fused=True), target, [a, in_tiles(b), scale])
    np.testing.assert_array_equal(got, exact(np.maximum(a, 0), b).astype(np.float32) * scale)


@on
def test_sums_wrap(target: CpuTarget) -> None:
    """A sum beyond i32 wraps, like one of eager's integers."""
    k = 40_000
    a, b = np.full((3, k), 255, np.uint8), np.full((k, 20), 255, np.uint8)
    np.testing.assert_array_equal(run(product(3, 20, k, u8, u8), target, [a, in_tiles(b)]), exact(a, b))


@on
@pytest.mark.parametrize("channels", [32, 24, 12, 3])
def test_windows_are_copied_by_runs_of_channels(target: CpuTarget, channels: int) -> None:
    """A vector of terms that spans positions of a window would be gathered, byte by byte."""
    size, k = 9, 9 * channels
    image, right = Buffer("x", i8, (size + 2, size + 2, channels)), Buffer("b", i8, (2, -(-k // 64) * 16, 32, 4))
    y, x, j, s = map(Var, "yxjs")
    pixel = image[y + s // (3 * channels), x + s // channels % 3, s % channels]
    terms = cast(pixel, i32) * cast(right[j // 32, s // 4, j % 32, s % 4], i32)
    out = Buffer("out", i32, (size, size, 40))
    stage = Stage(out, (y, x, j), Reduce("sum", ((s, index(k)),), terms, i32), "matmul")
    task = Task("matmul", (image, right), (stage,), (out,), (), 0)
    pixels, weights = some(i8, size + 2, size + 2, channels), some(i8, k, 40)
    windows = np.lib.stride_tricks.sliding_window_view(pixels, (3, 3), (0, 1)).transpose(0, 1, 3, 4, 2)
    expected = exact(windows.reshape(size * size, k), weights).reshape(size, size, 40)
    assert np.array_equal(run(task, target, [pixels, in_tiles(weights)]), expected)
    text = generate(lower(schedule(task, target), target=target), target.vector_bytes).text
    assert "tdpbssd" in text
    assert "gather" not in text


@on
def test_rows_found_by_a_symbolic_size(target: CpuTarget) -> None:
    n, i, j, s = map(Var, "nijs")
    left, right, out = Buffer("a", i8, (3, n, 64)), Buffer("b", i8, (2, 16, 32, 4)), Buffer("out", i32, (3 * n, 40))
    terms = cast(left[i // n, i % n, s], i32) * cast(right[j // 32, s // 4, j % 32, s % 4], i32)
    stage = Stage(out, (i, j), Reduce("sum", ((s, index(64)),), terms, i32), "matmul")
    task = Task("matmul", (left, right), (stage,), (out,), (n,), 0)
    for size in (1, 14):
        a, b = some(i8, 3, size, 64), some(i8, 64, 40)
        got = run(task, target, [a, in_tiles(b)], {n: size})
        np.testing.assert_array_equal(got, exact(a.reshape(3 * size, 64), b))


@pytest.mark.parametrize("sizes", [(5, 20, 7), (33, 33, 64)])
def test_the_interpreter_agrees_with_the_definition(sizes: tuple[int, int, int]) -> None:
    m, n, k = sizes
    kernel = lower(schedule(product(m, n, k), REAL), target=REAL, verify=True)
    a, b = some(i8, m, k), some(i8, k, n)
    arrays = [a.ravel(), in_tiles(b).ravel()]
    got = interpret(kernel, dict(zip(kernel.buffers, arrays, strict=False)))[kernel.outputs[0]]
    np.testing.assert_array_equal(got.reshape(m, n), exact(a, b))


def test_the_packed_form_follows_the_features() -> None:
    dots = cpu_target("avx512", 2, features=["avx512_vnni"])
    for target, filled, signs in ((REAL, 64, True), (MODEL, 64, True), (dots, 4, False)):
        for types in SIGNS:
            assert packed_together(*types, target) == 4
            assert packed_filled(*types, target) == filled
            assert packed_with_signs(*types, target) is signs
    assert packed_width(512, 512, i32, REAL, factors=(i8, i8)) == 32
    assert packed_width(512, 512, i32, REAL) == packed_width(512, 512, i32, dots, factors=(u8, i8))


def test_sums_of_another_type_do_not_reach_the_unit() -> None:
    """Sums of 64 bits would wrap at 32."""
    a, b, out = Buffer("a", i8, (64, 64)), Buffer("b", i8, (64, 64)), Buffer("out", i64, (64, 64))
    i, j, s = map(Var, "ijs")
    total = Reduce("sum", ((s, index(64)),), cast(cast(a[i, s], i32) * cast(b[s, j], i32), i64), i64)
    task = Task("matmul", (a, b), (Stage(out, (i, j), total, "matmul"),), (out,), (), 0)
    assert "tdp" not in schedule(task, REAL).note


def test_the_hot_loop_is_products_of_tiles_without_spills(tmp_path: Path) -> None:
    loop = hot_loop(schedule(product(512, 512, 512), REAL), REAL, "tdpbssd", tmp_path)
    counts = {name: sum(name in line for line in loop) for name in ("tdpbssd", "tileloadd", "tilestored", "tilezero")}
    rounds = counts["tdpbssd"] // 4
    assert counts == {"tdpbssd": 4 * rounds, "tileloadd": 4 * rounds, "tilestored": 0, "tilezero": 0}
    assert rounds >= 1
    assert not [line for line in loop if re.search(r"%rsp|%rbp|\bcall", line)]


def test_fours_of_rows_are_zipped_by_one_shuffle_for_each_register(tmp_path: Path) -> None:
    """And not widened and shifted."""
    loop = hot_loop(schedule(product(64, 128, 512, packed=False), REAL), REAL, "vpunpck", tmp_path)
    bytes_, pairs = (sum(name in line for line in loop) for name in ("bw", "wd"))
    assert bytes_ == pairs >= 4
    assert not [line for line in loop if "vpmovzx" in line or "vpslld" in line or "%rsp" in line]
