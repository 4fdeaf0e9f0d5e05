"""Kernels of trees, run by the interpreter before and after lowering: values, barriers, edges, types."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from taskmap.decompose import (
    BLOCK,
    CORE,
    FRAGMENT,
    GLOBAL,
    LANES,
    QUAD_PAIR,
    REGISTER,
    SHARED,
    THREAD,
    WARP,
    WARPGROUP,
    Compute,
    MatMul,
    Strategy,
    Task,
    dim,
    stage,
    tensor,
)
from taskmap.decompose import Move as Copy
from taskmap.ir import TaskMapping, repeat, spatial
from taskmap.ir.interp.run import interpret
from taskmap.ir.isa.float_rounding import round_operand
from taskmap.ir.lower.pipeline import lower
from taskmap.ir.nodes import Barrier, For, Kernel, Let, LoopKind, Move, Var
from taskmap.ir.printer import print_kernel
from taskmap.ir.target import cpu_target, gpu_named
from taskmap.ir.types import f16, f32, f64, i32, tf32
from taskmap.ir.verify.rules import verify
from taskmap.ir.visit import walk_stmts
from tests.schedules.cuda_running import source_of

M, N, K = dim("m"), dim("n"), dim("k")
NUMPY = {"f16": "float16", "f32": "float32", "f64": "float64", "i32": "int32"}


def simt(tree: MatMul) -> Strategy:
    """Threads of a block of 16×16, each with 2×2 elements in two pieces."""
    return simt_of(tree.tile(16, 16).to(BLOCK))


def simt_of(block: Strategy) -> Strategy:
    return (
        block.accumulate_in(REGISTER)
        .split(4)
        .move("a", SHARED).storage("column").pad(1)
        .move("b", SHARED)
        .tile((1, 8), 2).to(THREAD)
        .split(1).unroll()
        .move("a", REGISTER)
        .tile(1, 1).done()
    )  # fmt: skip


def ring(tree: MatMul) -> Strategy:
    """One warp of 16×16, with three stages."""
    return (
        tree.tile(16, 16).to(BLOCK)
        .accumulate_in(REGISTER)
        .split(16)
        .move("a", SHARED).prefetch(3).asynchronous()
        .move("b", SHARED).prefetch(3).asynchronous()
        .tile(16, 16).to(WARP)
        .move("a", REGISTER)
        .move("b", REGISTER)
        .tile(16, 8).done()
    )  # fmt: skip


def buffered(tree: MatMul) -> Strategy:
    """Two stages, by way of registers, in groups of two rows of blocks."""
    return (
        tree.tile(16, 16).to(BLOCK).group(2)
        .accumulate_in(REGISTER)
        .split(4)
        .move("a", SHARED, by=spatial(16, 4)).prefetch(2)
        .move("b", SHARED).prefetch(2)
        .tile(2, 2).to(THREAD)
        .split(1)
        .tile(1, 1).done()
    )  # fmt: skip


def staged_store(tree: MatMul) -> Strategy:
    """Results go to global memory by way of padded shared memory."""
    return (
        tree.tile(16, 16).to(BLOCK)
        .accumulate_in(REGISTER, store=lambda copy: copy.move("src", SHARED).pad(4).done())
        .split(4)
        .move("a", SHARED)
        .move("b", SHARED)
        .tile(2, 2).to(THREAD)
        .split(1)
        .tile(1, 1).done()
    )  # fmt: skip


def fragments(tree: MatMul) -> Strategy:
    """Two warps with opaque fragments, loaded from global memory where it is aligned."""
    return (
        tree.tile(16, 32).to(BLOCK)
        .accumulate_in(FRAGMENT)
        .split(16)
        .tile(16, 16).to(WARP)
        .move("a", FRAGMENT)
        .move("b", FRAGMENT)
        .tile(16, 16).done()
    )  # fmt: skip


def cores(tree: MatMul) -> Strategy:
    """A CPU's tile of 3×8 for each core."""
    return tree.tile(3, 8).to(CORE).accumulate_in(REGISTER).split(1).done()


def run(kernel: Kernel, arrays: list[NDArray[Any]], sizes: dict[Var, int]) -> NDArray[Any]:
    """The result, equal before and after lowering; every pass verified."""
    verify(kernel)
    target = gpu_named("H200") if kernel.launch else cpu_target("avx2", 2)
    results = []
    for k in (kernel, lower(kernel, target=target, verify=True)):
        given = {b: x.ravel() for b, x in zip(k.buffers, arrays, strict=False)}
        results.append(interpret(k, given, sizes)[k.outputs[0]].reshape(-1))
    np.testing.assert_array_equal(results[0], results[1])
    return results[0]


def multiply(tree: Strategy, shape: tuple[int, ...], *, kernel: Kernel | None = None) -> None:
    """Run a product and compare it with numpy's; integers and halves are small enough to be exact."""
    *batch, m, n, k = shape
    rng = np.random.default_rng(m * n + k)
    types = [np.dtype(NUMPY[o.dtype.name]) for o in tree.root.operands]
    a, b = (rng.integers(-8, 8, s).astype(t) for s, t in zip(((*batch, m, k), (*batch, k, n)), types, strict=False))
    made = kernel or tree.kernel()
    values = {"m": m, "n": n, "k": k, "z": batch[0] if batch else 0}
    found = run(made, [a, b], {v: values[v.name] for v in made.dims})
    np.testing.assert_array_equal(found, (a.astype(np.float64) @ b.astype(np.float64)).ravel())


@pytest.mark.parametrize("strategy", [simt, buffered, staged_store])
@pytest.mark.parametrize("shape", [(16, 16, 8), (17, 19, 5), (3, 33, 1)])
def test_products(strategy: Any, shape: tuple[int, ...]) -> None:
    multiply(strategy(MatMul(M, N, K)), shape)


@pytest.mark.parametrize("shape", [(32, 16, 64), (16, 16, 16), (24, 40, 24)])
def test_tensor_cores_and_a_ring(shape: tuple[int, int, int]) -> None:
    multiply(ring(MatMul(*shape, a=f16, b=f16)), shape)


def test_specialized_warpgroups() -> None:
    """One warpgroup fetches, by TMA if rows are aligned; the other multiplies from shared memory."""

    def hopper(m: Any, n: Any, k: Any) -> Strategy:
        tree = MatMul(m, n, k, a=f16, b=f16).tile(64, 64).to(BLOCK).specialize(WARPGROUP, "fetch")
        tree = tree.accumulate_in(REGISTER).split(64).move("a", SHARED).prefetch(2).move("b", SHARED).prefetch(2)
        return tree.tile(64, 64).to(WARPGROUP).split(16).done()

    def maps(tree: Strategy) -> list[str]:
        launch = tree.kernel().launch
        assert launch is not None
        return [m.name for m in launch.maps]

    assert maps(hopper(64, 64, 64)) == ["map_a", "map_b"]
    assert maps(hopper(M, 64, 60)) == ["map_b"]
    assert maps(hopper(M, N, K)) == []
    assert hopper(64, 64, 64).mapping("a").num_workers == 128
    multiply(hopper(64, 64, 64), (64, 64, 64))


@pytest.mark.parametrize("pieces", [(8, 8), ((4, 8), (4, 8))])
def test_quad_pairs(pieces: Any) -> None:
    """Blocks of 8×8, or of four pieces each, by the quad-pairs of a warp."""
    tree = MatMul(17, 19, 9, a=f16, b=f16).tile(16, 32).to(BLOCK).accumulate_in(REGISTER).split(4)
    tree = tree.tile(16, 16).to(WARP).move("a", REGISTER).move("b", REGISTER)
    finished = tree.tile(*pieces).to(QUAD_PAIR).layout("column").done()
    assert finished.mapping("c").num_workers == 64
    multiply(finished, (17, 19, 9))


@pytest.mark.parametrize("shape", [(16, 32, 32), (17, 9, 35), (2, 16, 32, 16)])
def test_fragments(shape: tuple[int, ...]) -> None:
    """Straight from memory if it is aligned, else by way of shared memory."""
    *batch, m, n, k = shape
    tree = fragments(MatMul(m, n, k, a=f16, b=f16, batch=batch))
    multiply(tree, shape)
    loaded = [s for s in walk_stmts(tree.kernel().body) if isinstance(s, Move) and s.dst.buffer.scope is FRAGMENT]
    assert {s.src.buffer.scope for s in loaded} == {SHARED if n % 16 else GLOBAL}


def test_fragments_of_columns() -> None:
    """The layout of a fragment is that of the memory it comes from."""
    tree = fragments(MatMul(16, 32, 16, a=f16[16, 16].strided(1, 16), b=f16[16, 32].strided(1, 16)))
    assert "wmma_mma_m16n16k16_f16_f32(1, 1, " in print_kernel(tree.kernel())
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-8, 8, s).astype(np.float16) for s in ((16, 16), (16, 32)))
    found = run(tree.kernel(), [np.ascontiguousarray(a.T), np.ascontiguousarray(b.T)], {})
    np.testing.assert_array_equal(found, (a.astype(np.float64) @ b).ravel())


def test_a_ring_of_symbolic_sizes() -> None:
    multiply(ring(MatMul(M, N, K, a=f16, b=f16)), (17, 9, 35))


@pytest.mark.parametrize("shape", [(6, 16, 4), (7, 13, 3), (1, 1, 1)])
def test_cores(shape: tuple[int, int, int]) -> None:
    multiply(cores(MatMul(M, N, K)), shape)


@pytest.mark.parametrize("shape", [(9, 5, 1), (1, 17, 1), (17, 1, 5)])
def test_edges_of_operands_read_from_global_memory(shape: tuple[int, int, int]) -> None:
    """Also of those with a single row or column, at sizes known when the kernel is made."""
    tree = MatMul(*shape).tile(8, 16).to(BLOCK).accumulate_in(REGISTER).split(4)
    multiply(tree.tile(2, 2).to(THREAD).split(2).tile(1, 1).split(1).done(), shape)


@pytest.mark.parametrize("dtype", [f64, i32])
def test_other_types(dtype: Any) -> None:
    multiply(simt(MatMul(M, N, K, a=dtype, b=dtype, c=dtype)), (9, 17, 6))


def rounded(product: MatMul, *, at_once: bool) -> Strategy:
    """Four warps on tensor cores, which take f32 rounded to tf32: where it is loaded, or afterwards."""
    tree = product.tile(32, 32).to(BLOCK).accumulate_in(REGISTER).split(16).move("a", SHARED).swizzle(2, 2, 3)
    tree = tree.move("b", SHARED).storage("column").swizzle(2, 2, 3).tile(16, 16).to(WARP).split(8).unroll(2)
    tree = tree if at_once else tree.move("a", REGISTER).move("b", REGISTER)
    return tree.move("a", REGISTER, dtype=tf32).move("b", REGISTER, dtype=tf32).tile(16, 8).done()


@pytest.mark.parametrize("at_once", [True, False])
def test_operands_are_rounded_where_they_are_moved(at_once: bool) -> None:
    tree = rounded(MatMul(M, N, K), at_once=at_once)
    multiply(tree, (33, 7, 19))
    assert "move('a', REGISTER, dtype=tf32)" in str(tree)
    kernel, rng = tree.kernel(m=32, n=32, k=32), np.random.default_rng(0)
    a, b = (rng.standard_normal((32, 32)).astype(np.float32) for _ in range(2))
    found = run(kernel, [a, b], {}).reshape(32, 32)
    x, y = (round_operand(v, tf32).astype(np.float64) for v in (a, b))
    np.testing.assert_allclose(found, x @ y, rtol=0, atol=1e-5)
    assert np.abs(found - a.astype(np.float64) @ b).max() > 1e-4
    text = source_of(kernel).text
    assert text.count("tm_round_tf32") == 2
    assert ("tm_ldmatrix" in text) != at_once


def test_cores_round_operands_where_they_are_moved() -> None:
    tree = MatMul(M, N, K).tile(4, 16).to(CORE).accumulate_in(REGISTER).split(1)
    tree = tree.move("b", REGISTER).move("a", REGISTER, dtype=f16).done()
    multiply(tree, (9, 35, 7))


def test_operands_with_strides() -> None:
    turned = MatMul(9, 10, 6, a=f32[9, 6].strided(1, 9))
    tree = simt(turned)
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-8, 8, s).astype(np.float32) for s in ((9, 6), (6, 10)))
    found = run(tree.kernel(), [np.ascontiguousarray(a.T), b], {})
    np.testing.assert_array_equal(found, (a @ b).ravel())


@pytest.mark.parametrize("strategy", [simt, cores])
def test_batches(strategy: Any) -> None:
    multiply(strategy(MatMul(M, N, K, batch=(dim("z"),))), (3, 5, 17, 2))


def test_sizes_given_to_the_kernel() -> None:
    tree = simt(MatMul(M, N, K))
    kernel = tree.kernel("sized", m=16, k=8)
    assert kernel.name == "sized"
    assert [v.name for v in kernel.dims] == ["n"]
    assert "clipped" in print_kernel(kernel)
    assert "clipped" not in print_kernel(tree.kernel(m=16, n=32, k=8))
    multiply(tree, (16, 20, 8), kernel=kernel)


def test_barriers_are_derived() -> None:
    def count(tree: Strategy) -> int:
        return sum(isinstance(s, Barrier) for s in walk_stmts(tree.kernel().body))

    assert count(simt(MatMul(32, 32, 32))) == 2
    assert count(buffered(MatMul(32, 32, 32))) == 2
    assert count(ring(MatMul(32, 32, 64, a=f16, b=f16))) == 1
    assert count(simt(MatMul(16, 16, 4))) == 1
    direct = MatMul(32, 32, 32).tile(16, 16).to(BLOCK).accumulate_in(REGISTER).split(1).tile(2, 2).to(THREAD)
    assert count(direct.tile(1, 1).done()) == 0


def test_one_barrier_in_each_step_stands_at_its_end() -> None:
    """And one before the first step: what is fetched for the next one may be in flight from its beginning."""
    kernel = buffered(MatMul(32, 32, 32)).kernel()
    (step,) = (s for s in kernel.body if isinstance(s, For))
    assert isinstance(step.body[-1], Barrier)
    assert sum(isinstance(s, Barrier) for s in walk_stmts(step.body)) == 1
    before = kernel.body[: kernel.body.index(step)]
    assert isinstance(before[-1], Barrier)
    assert sum(isinstance(s, Barrier) for s in walk_stmts(before)) == 1


def test_the_first_index_of_a_tile_has_a_name_where_loops_use_it() -> None:
    """Loops over parts of a sum then have no divisions; what is done once for each tile keeps the tile's number."""

    def names(tree: Strategy) -> set[str]:
        return {s.var.name for s in walk_stmts(tree.kernel().body) if isinstance(s, Let)}

    assert {"first_m", "first_n"} <= names(buffered(MatMul(40, 40, 32)))
    assert not any(n.startswith("first_") for n in names(Copy(f32[64, 64]).tile(32, 32).to(BLOCK).done()))


def test_split_unrolled_in_parts() -> None:
    """Some parts at a time, or all: the loop over 16 parts remains, and that over stages is left as it is."""
    block = MatMul(32, 32, 32).tile(16, 16).to(BLOCK).accumulate_in(REGISTER)
    stages = block.split(16).move("a", SHARED).prefetch(2).move("b", SHARED).prefetch(2).tile(2, 2).to(THREAD).split(1)
    tree = stages.unroll(4).tile(1, 1).done()
    assert ".split(1).unroll(4)" in str(tree)
    outer, inner = (s for s in walk_stmts(tree.kernel().body) if isinstance(s, For) and s.var.name == "step")
    assert (outer.unroll, inner.unroll, inner.kind) == (1, 4, LoopKind.SERIAL)
    multiply(stages.unroll(4).tile(1, 1).done(), (32, 32, 32))


def test_edges_are_tested_where_tiles_end_beyond() -> None:
    """Only rows: columns and the sum are multiples of the tiles', whose numbers nothing bounds in groups."""
    tree = simt_of(MatMul(33, 64, 32).tile(16, 16).to(BLOCK).group(2))
    clipped = [s for s in walk_stmts(tree.kernel().body) if isinstance(s, Move) and s.clipped]
    assert [s.exact for s in clipped] == [(1,), (1,)]  # a and c; b ends nowhere
    source = source_of(tree.kernel()).text
    assert "< 33" in source
    assert "< 64" not in source
    assert "< 32" not in source
    multiply(tree, (33, 64, 32))


def test_columns_are_moved_in_vectors() -> None:
    """Registers that hold a part of a column move it to shared memory with one instruction, where columns lie there."""
    tree = (
        MatMul(32, 64, 24).tile(32, 32).to(BLOCK).accumulate_in(REGISTER).split(8)
        .move("a", SHARED, by=spatial(8, 8)).storage("column").pad(4).prefetch(2).move("b", SHARED).prefetch(2)
        .tile(8, 2).to(THREAD).split(1).tile(1, 1).done()
    )  # fmt: skip
    assert "tm_store(a_shared" in source_of(tree.kernel()).text
    multiply(tree, (32, 64, 24))


def test_threads_of_warps_have_one_number() -> None:
    tree = (
        MatMul(64, 64, 8).tile(64, 64).to(BLOCK).accumulate_in(REGISTER)
        .tile(32, 32).to(WARP).layout("column").tile((2, 16), (4, 16)).to(THREAD).split(1).tile(1, 1).done()
    )  # fmt: skip
    text = print_kernel(tree.kernel())
    assert "thread_m = thread // 32 % 2 * 16 + thread // 4 % 8" in text, text
    assert "thread_n = thread // 32 // 2 * 8 + thread % 4" in text, text
    multiply(tree, (64, 64, 8))


def test_copies_as_kernels() -> None:
    x = np.arange(33 * 9, dtype=np.float32).reshape(33, 9)
    tiled = Copy(f32[M, N]).tile(16, 8).to(BLOCK).tile(4, 1).to(THREAD).tile(1, 1).done()
    np.testing.assert_array_equal(run(tiled.kernel(), [x], {M: 33, N: 9}), x.ravel())


@pytest.mark.parametrize("m", [33, 36])
@pytest.mark.parametrize(
    "chunk", [repeat(2, 1) * spatial(8, 4), spatial(16, 2), spatial(8, 8), repeat(1, 8) * spatial(16, 2)]
)
def test_elements_by_a_mapping(chunk: TaskMapping, m: int) -> None:
    """Tasks are chunks of several lines and columns; a chunk that ends inside the tensor is no vector."""
    x = np.arange(m * 19, dtype=np.float32).reshape(m, 19)
    source = tensor("x", f32[m, N])
    turned = Compute(Task.of("turned", stage("y", (N, m), lambda j, i: source[i, j] * 2)))
    tree = (
        turned.tile(16, 16).to(BLOCK).move("x", SHARED, lambda copy: copy.done(by=spatial(8, 4))).pad(1).done(by=chunk)
    )
    assert f".done(by={chunk})" in str(tree)
    np.testing.assert_array_equal(run(tree.kernel(), [x], {N: 19}), 2 * x.T.ravel())
    vectors = [s for s in walk_stmts(tree.kernel().body) if isinstance(s, For) and s.kind is LoopKind.VECTOR]
    lanes = 16 // chunk.task_shape[1]
    assert bool(vectors) == (lanes > 1 and m % lanes == 0)


def test_copies_by_a_mapping() -> None:
    x = np.arange(33 * 9, dtype=np.float32).reshape(33, 9)
    tree = Copy(f32[M, N]).tile(16, 8).to(BLOCK).done(by=repeat(1, 4) * spatial(16, 2))
    assert tree.mapping("src") == repeat(1, 4) * spatial(16, 2)
    np.testing.assert_array_equal(run(tree.kernel(), [x], {M: 33, N: 9}), x.ravel())


def test_the_order_of_blocks() -> None:
    """Of a batch, one matrix after another in either order; a grid of sizes that may be long has one dimension."""
    batch = MatMul(64, 32, 8, batch=(3,)).tile(16, 16).to(BLOCK)
    rows, columns = simt_of(batch).kernel(), simt_of(batch.layout("column")).kernel()
    assert rows.launch is not None
    assert columns.launch is not None
    assert rows.launch.grid == (2, 4, 3)
    assert columns.launch.grid == (4, 2, 3)
    for size, dims in ((65535, 2), (65536, 1)):
        launch = simt_of(MatMul(16 * size, 32, 8).tile(16, 16).to(BLOCK)).kernel().launch
        assert launch is not None
        assert len(launch.grid) == dims
    launch = simt(MatMul(M, 32, 8)).kernel().launch
    assert launch is not None
    assert len(launch.grid) == 1


def test_lanes_of_a_core() -> None:
    tree = MatMul(4, 16, K).tile(4, 8).to(CORE).accumulate_in(REGISTER).split(1)
    multiply(tree.tile(1, 8).tile(1, 1).to(LANES).done(), (4, 16, 3))


def test_copies_may_be_tiled_to_warps() -> None:
    def by_warps(copy: Strategy) -> Strategy:
        return copy.tile(16, 2).to(WARP).done()

    tree = (
        MatMul(M, N, K).tile(16, 16).to(BLOCK).accumulate_in(REGISTER).split(4)
        .move("a", SHARED, by_warps)
        .move("b", SHARED, by=repeat(1, 1) * spatial(4, 16))
        .tile(2, 2).to(THREAD).split(1).tile(1, 1).done()
    )  # fmt: skip
    multiply(tree, (17, 16, 9))
