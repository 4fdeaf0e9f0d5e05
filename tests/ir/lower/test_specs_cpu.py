"""Specs lowered: Move and MatMul compute the same before and after, in any size, type and scope."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskmap.ir.algebra.layout import column_major
from taskmap.ir.algebra.mapping import TaskMapping, repeat, spatial
from taskmap.ir.builder import Builder, region
from taskmap.ir.errors import LoweringError
from taskmap.ir.interp.definitions import convert
from taskmap.ir.interp.run import interpret
from taskmap.ir.lower.pipeline import lower, pipeline
from taskmap.ir.lower.registers import SpillRegisters, WidenRegisters
from taskmap.ir.nodes import Buffer, Dim, Intrinsic, Kernel, Load, LoopKind, Scope, Var
from taskmap.ir.printer import print_body
from taskmap.ir.target import Target, cpu_target
from taskmap.ir.types import DType, bf16, boolean, f16, f32, f64, i32, i64, u8
from taskmap.ir.verify.rules import LOWERED, RULES, verify
from taskmap.ir.visit import walk_exprs
from tests.ir.isa.instruction_kernels import Array, random_array
from tests.schedules.running import host_isa, run_kernel

TARGETS = [cpu_target(isa, 1) for isa in ("avx512", "avx2", "generic")]
SIZES = ("m", "n", "k")


def same_before_and_after(kernel: Kernel, arrays: list[Array], dims: dict[Var, int], target: Target | None) -> Array:
    """The result of a kernel, which every pass of the pipeline keeps exactly."""
    (wanted,) = interpret(kernel, dict(zip(kernel.buffers, arrays, strict=False)), dims).values()
    stages: list[Kernel] = []
    lower(kernel, lambda step: stages.append(step.after), target, verify=True)
    for stage in stages:
        verify(stage, RULES)
        storages = [a if b.rank == a.ndim else a.ravel() for b, a in zip(stage.buffers, arrays, strict=False)]
        (got,) = interpret(stage, dict(zip(stage.buffers, storages, strict=False)), dims).values()
        np.testing.assert_array_equal(got.ravel(), wanted.ravel())
    verify(stages[-1], LOWERED)
    return wanted


def matmul_kernel(
    shape: tuple[Dim, Dim, Dim], types: tuple[DType, DType, DType], batch: tuple[int, ...] = ()
) -> Kernel:
    """y = 0 + a @ b, the sum in memory."""
    m, n, k = shape
    a, b = Buffer("a", types[0], (*batch, m, k)), Buffer("b", types[1], (*batch, k, n))
    y = Buffer("y", types[2], (*batch, m, n))
    out = Builder()
    out.fill(y, 0)
    out.matmul(y, a, b)
    return Kernel("matmul", (a, b, y), (y,), tuple(d for d in shape if isinstance(d, Var)), out.body())


@settings(max_examples=15)
@given(
    st.tuples(st.integers(1, 9), st.integers(1, 37), st.integers(1, 3)),
    st.tuples(*[st.booleans()] * 3),
    st.sampled_from([(f32, f32, f32), (f64, f64, f64), (f16, f16, f32), (bf16, f32, f32), (u8, i32, i32), (f16,) * 3]),
    st.sampled_from(TARGETS),
)
def test_matmul_in_memory(
    sizes: tuple[int, int, int],
    symbolic: tuple[bool, bool, bool],
    types: tuple[DType, DType, DType],
    target: Target,
) -> None:
    variables = [Var(name) for name in SIZES]
    m, n, k = (v if is_symbolic else size for v, size, is_symbolic in zip(variables, sizes, symbolic, strict=True))
    kernel = matmul_kernel((m, n, k), types)
    rng = np.random.default_rng(sum(sizes))
    arrays = [random_array(types[0], (sizes[0], sizes[2]), rng), random_array(types[1], (sizes[2], sizes[1]), rng)]
    dims = {v: size for v, size in zip(variables, sizes, strict=True) if v in kernel.dims}
    got = same_before_and_after(kernel, arrays, dims, target)
    wide = np.float64 if types[2].is_float else np.int64
    limit = {"f16": 1e-1}.get(types[2].name, 1e-4)
    np.testing.assert_allclose(got, arrays[0].astype(wide) @ arrays[1].astype(wide), rtol=limit, atol=limit)


def test_matmul_in_memory_uses_the_widest_instruction() -> None:
    kernel = lower(matmul_kernel((9, 41, 3), (f32, f32, f32)), target=TARGETS[0])
    used = {e.instruction.name for e in walk_exprs(kernel.body) if isinstance(e, Intrinsic)}
    assert used == {"fma_f32x16", "fma_f32x8"}


def test_a_batch_of_products_and_one_that_serves_all() -> None:
    kernel = matmul_kernel((3, 5, 2), (f32, f32, f32), (2, 3))
    rng = np.random.default_rng(0)
    a, b = random_array(f32, (2, 3, 3, 2), rng), random_array(f32, (2, 3, 2, 5), rng)
    got = same_before_and_after(kernel, [a, b], {}, None)
    np.testing.assert_allclose(got, a.astype(np.float64) @ b, rtol=1e-5, atol=1e-5)

    x, w, y = Buffer("x", f32, (4, 3, 2)), Buffer("w", f32, (1, 2, 5)), Buffer("y", f32, (4, 3, 5))
    out = Builder()
    out.fill(y, 0)
    out.matmul(y, x, w)
    shared = Kernel("shared", (x, w, y), (y,), (), out.body())
    a, b = random_array(f32, (4, 3, 2), rng), random_array(f32, (1, 2, 5), rng)
    got = same_before_and_after(shared, [a, b], {}, None)
    np.testing.assert_allclose(got, a.astype(np.float64) @ b, rtol=1e-5, atol=1e-5)


def test_more_matrices_than_the_result_has_are_refused() -> None:
    a, b, y = Buffer("a", f32, (2, 3, 4)), Buffer("b", f32, (4, 5)), Buffer("y", f32, (3, 5))
    out = Builder()
    out.matmul(y, a, b)
    with pytest.raises(LoweringError, match="more matrices"):
        lower(Kernel("k", (a, b, y), (y,), (), out.body()))


def tile_kernel(rows: int, columns: int, owner: TaskMapping | None, n: Dim = 64) -> Kernel:
    """A product in a register tile that is filled, scaled element by element, and stored."""
    a, b, y = Buffer("a", f32, (rows, 7)), Buffer("b", f32, (7, n)), Buffer("y", f32, (rows, columns))
    out = Builder()
    tile = out.allocate("tile", f32, (rows, columns), Scope.REGISTER, owner=owner, init=0.5)
    with out.loop("k", 7) as k:
        out.matmul(tile, region(a, (0, k), (rows, 1)), region(b, (k, 3), (1, columns)))
    with out.grid(["i", "j"], tile.shape, LoopKind.UNROLLED) as at:
        out.store(tile, at, tile[at] * 2.0)
    out.move(y, tile)
    return Kernel("tile", (a, b, y), (y,), (n,) if isinstance(n, Var) else (), out.body())


@pytest.mark.parametrize("target", [None, *TARGETS], ids=str)
@pytest.mark.parametrize(
    ("rows", "columns", "owner"),
    [
        (4, 32, None),
        (3, 20, repeat(3, 5) * repeat(1, 4)),
        (2, 7, repeat(2, 7)),
        (2, 1, None),
        (2, 16, repeat(2, 16, order=(1, 0))),
    ],
    ids=str,
)
def test_a_register_tile(rows: int, columns: int, owner: TaskMapping | None, target: Target | None) -> None:
    kernel = tile_kernel(rows, columns, owner)
    rng = np.random.default_rng(rows)
    a, b = random_array(f32, (rows, 7), rng), random_array(f32, (7, 64), rng)
    got = same_before_and_after(kernel, [a, b], {}, target)
    want = 2 * (a.astype(np.float64) @ b[:, 3 : 3 + columns] + 0.5)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    if target is TARGETS[0]:
        (run,) = run_kernel(kernel, [a, b], {}, host_isa())
        np.testing.assert_allclose(run, want, rtol=1e-5, atol=1e-5)


def test_a_tile_in_order_stays_in_vectors_from_fill_to_store() -> None:
    kernel = lower(tile_kernel(2, 20, repeat(2, 20)), target=TARGETS[0])
    loads = [e for e in walk_exprs(kernel.body) if isinstance(e, Load) and e.buffer.name == "tile"]
    assert {e.lanes for e in loads} == {16, 4}
    assert {e.buffer.scope for e in loads} == {Scope.REGISTER}


def test_a_symbolic_tile_is_refused() -> None:
    n = Var("n")
    a, b = Buffer("a", f32, (4, 1)), Buffer("b", f32, (1, n))
    out = Builder()
    tile = out.allocate("tile", f32, (4, 8), Scope.REGISTER)
    out.matmul(region(tile, (0, 0), (4, n)), a, b)
    with pytest.raises(LoweringError, match="in registers and has a symbolic size"):
        lower(Kernel("k", (a, b), (), (n,), out.body()))


@settings(max_examples=25)
@given(
    st.integers(1, 40),
    st.booleans(),
    st.sampled_from([(f32, f32), (f32, f16), (f64, i32), (boolean, boolean), (u8, f32), (bf16, f32), (i64, i64)]),
    st.sampled_from(TARGETS),
    st.sampled_from(["plain", "strided source", "strided target", "column-major", "registers between"]),
)
def test_move(n: int, is_symbolic: bool, types: tuple[DType, DType], target: Target, form: str) -> None:
    size: Dim = Var("n") if is_symbolic and form not in ("registers between", "column-major") else n
    x, y = Buffer("x", types[1], (3, size)), Buffer("y", types[0], (3, size))
    if form == "strided source":
        x = replace(x, strides=(1, 3))
    elif form == "strided target":
        y = replace(y, strides=(1, 3))
    elif form == "column-major":
        x = replace(x, layout=column_major(3, n))
    out = Builder()
    if form == "registers between":
        tile = out.allocate("tile", types[0], (3, n), Scope.REGISTER)
        out.move(tile, x)
        out.move(y, tile)
    else:
        out.move(y, x)
    kernel = Kernel("move", (x, y), (y,), (size,) if isinstance(size, Var) else (), out.body())
    source = random_array(types[1], (3, n), np.random.default_rng(n))
    flat = source.T.ravel() if form in ("strided source", "column-major") else source.ravel()
    stages = [kernel]
    lower(kernel, lambda step: stages.append(step.after), target, verify=True)
    for stage in stages:
        verify(stage, RULES)
        (got,) = interpret(stage, {stage.buffers[0]: flat}, {size: n} if isinstance(size, Var) else {}).values()
        logical = got.reshape(n, 3).T if got.ndim == 1 and form == "strided target" else got.reshape(3, n)
        np.testing.assert_array_equal(logical, convert(source, types[0]))
    verify(stages[-1], LOWERED)


def test_moves_between_ranks() -> None:
    """Extents of one do not count: a row of a matrix is moved to a vector."""
    x, y = Buffer("x", f32, (3, 8)), Buffer("y", f32, (8,))
    out = Builder()
    out.move(y, region(x, (1, 0), (1, 8)))
    array = random_array(f32, (3, 8), np.random.default_rng(0))
    got = same_before_and_after(Kernel("row", (x, y), (y,), (), out.body()), [array], {}, None)
    np.testing.assert_array_equal(got, array[1])


def test_regions_of_different_rank_are_refused() -> None:
    x, y = Buffer("x", f32, (3, 8)), Buffer("y", f32, (8,))
    out = Builder()
    out.move(y, x)
    with pytest.raises(LoweringError, match="differ in shape"):
        lower(Kernel("k", (x, y), (y,), (), out.body()))


def test_how_widened_registers_read() -> None:
    a, b = Buffer("a", f32, (1, 1)), Buffer("b", f32, (1, 20))
    out = Builder()
    tile = out.allocate("tile", f32, (1, 20), Scope.REGISTER, init=0.0)
    out.matmul(tile, a, b)
    widened = WidenRegisters(TARGETS[0]).run(Kernel("k", (a, b), (), (), out.body()))
    assert print_body(widened.body) == (
        "tile = register(f32[1, 20])\n"
        "for lane in vector(16):\n"
        "    tile[0, lane] = 0.0\n"
        "for lane_1 in vector(4):\n"
        "    tile[0, lane_1 + 16] = 0.0\n"
        "tile[0 .. +1, 0 .. +20] += a[0 .. +1, 0 .. +1] @ b[0 .. +1, 0 .. +20]"
    )


@pytest.mark.parametrize("form", ["running sum", "same element", "part of the columns", "rows", "other type"])
def test_loops_whose_lanes_would_depend_on_each_other_are_left_alone(form: str) -> None:
    a, b, y = Buffer("a", f32, (16, 1)), Buffer("b", f32, (1, 16)), Buffer("y", f32, (16,))
    out = Builder()
    tile = out.allocate("tile", f32, (16, 16), Scope.REGISTER)
    wide = out.allocate("wide", f64, (16, 16), Scope.REGISTER)
    out.matmul(tile, a, b)
    out.matmul(wide, a, b)
    with out.loop("j", 8 if form == "part of the columns" else 16, LoopKind.UNROLLED) as j:
        if form == "running sum":
            out.store(y, j, y[j - 1] + tile[0, j])
        elif form == "same element":
            out.store(y, 0, tile[0, j])
        elif form == "rows":
            out.store(tile, (j, 0), 0.0)
        elif form == "other type":
            out.store(tile, (0, j), wide[0, j])
        else:
            out.store(tile, (0, j), 0.0)
    kernel = Kernel("k", (a, b, y), (y,), (), out.body())
    assert WidenRegisters(TARGETS[0]).run(kernel).body == kernel.body


def test_registers_in_two_widths_live_in_memory() -> None:
    a, b, y = Buffer("a", f32, (1, 1)), Buffer("b", f32, (1, 16)), Buffer("y", f32, (1,))
    out = Builder()
    tile = out.allocate("tile", f32, (1, 16), Scope.REGISTER, init=0.0)
    other = out.allocate("other", f32, (1,), Scope.REGISTER, init=1.0)
    out.matmul(tile, a, b)
    out.store(y, 0, tile[0, 5] + other[0])
    kernel = Kernel("k", (a, b, y), (y,), (), out.body())
    rng = np.random.default_rng(1)
    arrays = [random_array(f32, (1, 1), rng), random_array(f32, (1, 16), rng)]
    got = same_before_and_after(kernel, arrays, {}, TARGETS[0])
    scopes = {b.name: b.scope for b in _loaded(lower(kernel, target=TARGETS[0]))}
    assert (scopes["tile"], scopes["other"]) == (Scope.LOCAL, Scope.REGISTER)
    (run,) = run_kernel(kernel, arrays, {}, host_isa())
    np.testing.assert_allclose(run, got, rtol=1e-5)


def _loaded(kernel: Kernel) -> set[Buffer]:
    return {e.buffer for e in walk_exprs(kernel.body) if isinstance(e, Load)}


def test_spilling_leaves_a_kernel_without_registers_alone() -> None:
    kernel = Kernel("k", (), (), (), ())
    assert SpillRegisters().run(kernel) is kernel


def test_a_mapped_loop_on_a_cpu_worker() -> None:
    """The tasks of parallel workers, as a loop nest."""
    x, y = Buffer("x", f32, (6, 8)), Buffer("y", f32, (6, 8))
    mapping = repeat(3, 1) * spatial(2, 2) * repeat(1, 4)
    out = Builder()
    with out.loop("worker", 4, LoopKind.PARALLEL) as w, out.mapped(["i", "j"], mapping, w) as at:
        out.store(y, at, x[at] + 1.0)
    array = random_array(f32, (6, 8), np.random.default_rng(2))
    kernel = Kernel("mapped", (x, y), (y,), (), out.body())
    got = same_before_and_after(kernel, [array], {}, None)
    np.testing.assert_array_equal(got, array + 1)
    np.testing.assert_array_equal(run_kernel(kernel, [array], {}, host_isa())[0], array + 1)


def test_the_pipeline_says_why_each_pass_stands_where_it_stands() -> None:
    assert all(step.name and step.why_here for step in pipeline())
    assert [s.target for s in pipeline(TARGETS[1]) if isinstance(s, WidenRegisters)] == [TARGETS[1]]
