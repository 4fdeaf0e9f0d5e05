"""Invoked instructions: as written in script, as lowered, as interpreted, and as refused."""
# mypy: ignore-errors
# pyright: reportInvalidTypeForm=false, reportGeneralTypeIssues=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportOperatorIssue=false, reportOptionalMemberAccess=false
# The reason: the parameters of kernels are annotated with tensor types, which are not types to a type checker.

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from taskmap.ir import repeat, row_major, spatial
from taskmap.ir.algebra.fragments import Fragment, fragment, is_held_as, matrices
from taskmap.ir.algebra.layout import Layout
from taskmap.ir.algebra.mapping import TaskMapping
from taskmap.ir.errors import InputError, LoweringError, ScriptError, TaskmapError, VerifyError
from taskmap.ir.interp.run import interpret
from taskmap.ir.lower.instructions import LowerInvokes
from taskmap.ir.lower.pipeline import lower
from taskmap.ir.nodes import Evaluate, If, Intrinsic, Invoke, Kernel, Region
from taskmap.ir.printer import print_kernel
from taskmap.ir.script.read import barrier, instruction, kernel, region, register, shared, thread
from taskmap.ir.target import cuda_target
from taskmap.ir.types import f16, f32, i32, i64
from taskmap.ir.visit import walk_stmts
from taskmap.ir.workers import THREAD

MMA = instruction("mma_m16n8k16_f16_f32")
LDMATRIX, LDMATRIX_2T = instruction("ldmatrix_x4"), instruction("ldmatrix_x2_trans")
SWIZZLED = row_major(16, 64).swizzled(3, 3, 3)


def load_tile(layout: Layout, *, turned: bool = False) -> Kernel:
    """A 16×16 tile of shared memory through ldmatrix into registers and out to memory."""

    @kernel(grid=(1,), threads=32)
    def tile(x: f16[16, 64], y: f16[16, 16]):
        s = shared(f16[16, 64], layout=layout)
        for i, j in (repeat(16, 2) * spatial(1, 32)).on(thread):
            s[i, j] = x[i, j]
        barrier()
        held = register(f16[16, 16], owner=MMA.owner_a)
        LDMATRIX(held, region(s, (0, 32), (16, 16)))
        for i, j in held.owner.on(thread):
            y[i, j] = held[i, j]

    return tile


def run_tile(k: Kernel, lowered: bool) -> np.ndarray:
    x = np.arange(16 * 64).reshape(16, 64).astype(np.float16)
    k = lower(k, target=cuda_target("sm_80")) if lowered else k
    result = interpret(k, {k.buffers[0]: x.reshape(-1) if lowered else x})[k.outputs[0]]
    assert np.array_equal(result.reshape(16, 16), x[:, 32:48])
    return result


@pytest.mark.parametrize("lowered", [False, True])
@pytest.mark.parametrize("layout", [row_major(16, 64), SWIZZLED], ids=["rows", "swizzled"])
def test_ldmatrix_finds_its_rows_in_any_layout(layout: Layout, lowered: bool) -> None:
    run_tile(load_tile(layout), lowered)


def test_each_lane_passes_the_address_of_one_row() -> None:
    lowered = LowerInvokes().run(load_tile(SWIZZLED))
    (invoke,) = [s for s in walk_stmts(lowered.body) if isinstance(s, Invoke)]
    _, row = invoke.operands
    assert isinstance(row, Region)
    assert row.shape == (1, 8)
    assert "lane = thread % 32" in print_kernel(lowered)


def test_a_swizzle_that_tears_a_row_of_a_matrix_apart_is_refused() -> None:
    with pytest.raises(LoweringError, match="ldmatrix_x4 cannot take these operands") as caught:
        lower(load_tile(row_major(16, 64).swizzled(3, 2, 4)), target=cuda_target("sm_80"))
    assert "not a multiple of 8 elements" in str(caught.value)
    assert "2**base" in str(caught.value)


def test_a_layout_of_columns_is_refused_for_rows() -> None:
    with pytest.raises(LoweringError, match="ldmatrix_x4"):
        lower(load_tile(row_major(64, 16).permute(1, 0)), target=cuda_target("sm_80"))


def copy_rows(width: int, *, even_only: bool = False) -> Kernel:
    copy = instruction("cp_async_16")

    @kernel(grid=(1,), threads=32)
    def rows(x: f16[32, width], y: f16[32, 8]):
        s = shared(f16[32, 8])
        for i, j in spatial(32, 1).on(thread):
            if even_only:
                if i % 2 == 0:
                    copy(region(s, (i, j * 8), (1, 8)), region(x, (i, j * 8), (1, 8)))
            else:
                copy(region(s, (i, j * 8), (1, 8)), region(x, (i, j * 8), (1, 8)))
        barrier()
        for j in range(8):
            y[thread, j] = s[thread, j]

    return rows


def test_addresses_that_are_certainly_not_aligned_are_refused() -> None:
    with pytest.raises(LoweringError, match="cp_async_16") as caught:
        lower(copy_rows(12), target=cuda_target("sm_80"))
    assert "is not a multiple of 16 bytes" in str(caught.value)
    lower(copy_rows(16), target=cuda_target("sm_80"))
    lower(copy_rows(12, even_only=True), target=cuda_target("sm_80"))


def product_of(owner_a: TaskMapping) -> Kernel:
    @kernel(grid=(1,), threads=32)
    def product(x: f16[16, 16], y: f16[16, 8], z: f32[16, 8]):
        a = register(f16[16, 16], owner=owner_a)
        b = register(f16[16, 8], owner=MMA.owner_b)
        c = register(f32[16, 8], owner=MMA.owner_c, init=1.0)
        for i, j in a.owner.on(thread):
            a[i, j] = x[i, j]
        for i, j in b.owner.on(thread):
            b[i, j] = y[i, j]
        MMA(c, a, b)
        for i, j in c.owner.on(thread):
            z[i, j] = c[i, j]

    return product


@pytest.mark.parametrize("lowered", [False, True])
def test_a_product_by_a_warp(lowered: bool) -> None:
    assert MMA.owner_a is not None
    k = product_of(MMA.owner_a)
    k = lower(k, target=cuda_target("sm_80")) if lowered else k
    rng = np.random.default_rng(1)
    x, y = rng.integers(-4, 4, (16, 16)).astype(np.float16), rng.integers(-4, 4, (16, 8)).astype(np.float16)
    x_buffer, y_buffer, _ = k.buffers
    given = {x_buffer: x.reshape(-1) if lowered else x, y_buffer: y.reshape(-1) if lowered else y}
    result = interpret(k, given)[k.outputs[0]].reshape(16, 8)
    np.testing.assert_array_equal(result, x.astype(np.float32) @ y.astype(np.float32) + 1)


def test_registers_that_are_held_otherwise_are_refused() -> None:
    with pytest.raises(LoweringError, match="mma_m16n8k16") as caught:
        lower(product_of(spatial(8, 4) * repeat(2, 4)), target=cuda_target("sm_80"))
    assert "Compose the buffer's owner with the instruction's" in str(caught.value)


def test_a_part_that_is_no_whole_tile_is_refused() -> None:
    assert MMA.owner_c is not None

    @kernel(grid=(1,), threads=32)
    def shifted(z: f32[32, 8]):
        a = register(f16[16, 16], owner=MMA.owner_a, init=0.0)
        b = register(f16[16, 8], owner=MMA.owner_b, init=0.0)
        c = register(f32[32, 8], owner=repeat(2, 1) * MMA.owner_c, init=0.0)
        MMA(region(c, (8, 0), (16, 8)), a, b)
        for i, j in c.owner.on(thread):
            z[i, j] = c[i, j]

    with pytest.raises(LoweringError, match="begins at 8"):
        LowerInvokes().run(shifted)


def test_half_a_warp_that_multiplies_is_a_deadlock() -> None:
    """The verifier refuses the condition; the interpreter names who does not come."""
    assert MMA.owner_a is not None
    whole = product_of(MMA.owner_a)
    (invoke,) = [s for s in walk_stmts(whole.body) if isinstance(s, Invoke)]
    body = tuple(If(THREAD < 16, (s,)) if s is invoke else s for s in whole.body)
    broken = replace(whole, body=body)
    x, y, _ = broken.buffers
    arrays = {x: np.zeros((16, 16), np.float16), y: np.zeros((16, 8), np.float16)}
    with pytest.raises(VerifyError, match="never reaches"):
        interpret(broken, arrays)


def test_exchanges_between_lanes() -> None:
    up, vote, ballot = instruction("shuffle_up"), instruction("vote_any"), instruction("ballot")

    @kernel(grid=(1,), threads=64)
    def exchange(x: i32[64], y: i32[64], z: i32[64], w: i32[64]):
        y[thread] = up(32, x[thread], 1)
        z[thread] = i32(vote(x[thread] == 40))
        w[thread] = ballot(x[thread] % 2 == 0)

    x = np.arange(64, dtype=np.int32)
    buffers = dict(zip("xyzw", exchange.buffers, strict=True))
    result = interpret(exchange, {buffers["x"]: x})
    assert result[buffers["y"]].tolist() == [0, *range(31), 32, *range(32, 63)]
    assert result[buffers["z"]].tolist() == [0] * 32 + [1] * 32
    assert (result[buffers["w"]] == 0x55555555).all()


def test_atomics_add_up_and_return_previous_values() -> None:
    add, reduce_add = instruction("atomic_add_i32"), instruction("red_add_i32")

    @kernel(grid=(2,), threads=32)
    def count(total: i32[2], seen: i32[64]):
        before = add(total[0], i32(1))
        reduce_add(total[1], i32(2))
        seen[before] = before

    total, seen = count.buffers
    result = interpret(count, {total: np.zeros(2, np.int32), seen: np.zeros(64, np.int32)}, seed=4)
    assert result[total].tolist() == [64, 128]
    assert result[seen].tolist() == list(range(64))


def test_a_producer_and_a_consumer_synchronise_at_an_mbarrier() -> None:
    init, arrive, wait = (instruction(f"mbarrier_{what}") for what in ("init", "arrive", "wait"))

    @kernel(grid=(1,), threads=64)
    def hand_over(x: f32[32], y: f32[32]):
        full = shared(i64[1])
        data = shared(f32[32])
        if thread == 0:
            init(full, 32)
        barrier()
        if thread < 32:
            data[thread] = x[thread] * 2.0
            arrive(full)
        else:
            wait(full, 0)
            y[thread - 32] = data[63 - thread]

    x = np.arange(32, dtype=np.float32)
    source, target = hand_over.buffers
    for seed in range(3):
        result = interpret(hand_over, {source: x}, seed=seed)[target]
        assert result.tolist() == (x[::-1] * 2).tolist()


def test_waiting_for_an_mbarrier_without_arrivals_is_an_error() -> None:
    init, wait = instruction("mbarrier_init"), instruction("mbarrier_wait")

    @kernel(grid=(1,), threads=32)
    def stuck(y: f32[32]):
        full = shared(i64[1])
        if thread == 0:
            init(full, 1)
        barrier()
        wait(full, 0)
        y[thread] = 0.0

    with pytest.raises(VerifyError, match="waits forever"):
        interpret(stuck, {})


def test_named_barriers_synchronise_some_threads() -> None:
    sync = instruction("barrier_sync")

    @kernel(grid=(1,), threads=96)
    def some(x: f32[64], y: f32[64]):
        data = shared(f32[64])
        if thread < 64:
            data[thread] = x[thread]
            sync(1, 64)
            y[thread] = data[63 - thread]

    x = np.arange(64, dtype=np.float32)
    source, target = some.buffers
    assert interpret(some, {source: x})[target].tolist() == x[::-1].tolist()


def test_instructions_that_the_interpreter_refuses() -> None:
    arrive = instruction("mbarrier_arrive_remote")

    @kernel(grid=(2,), threads=32, cluster=(2,))
    def tell(y: f32[32]):
        full = shared(i64[1])
        arrive(full, 1)
        y[thread] = 0.0

    with pytest.raises(TaskmapError, match="does not execute mbarrier_arrive_remote"):
        interpret(tell, {})


def test_script_refuses_wrong_operands_at_the_line() -> None:
    with pytest.raises(ScriptError, match="2 operands, not 1"):

        @kernel(grid=(1,), threads=32)
        def few(y: f32[32]):
            LDMATRIX(y)

    with pytest.raises(ScriptError, match="registers is an element, a region or a buffer"):

        @kernel(grid=(1,), threads=32)
        def number(y: f32[32]):
            LDMATRIX(3, y)

    with pytest.raises(InputError, match="there is no instruction"):
        instruction("ldmatrix_x3")


def test_a_result_that_is_not_used_is_evaluated_for_its_effect() -> None:
    add = instruction("atomic_add_i32")

    @kernel(grid=(1,), threads=32)
    def count(total: i32[1]):
        add(total[0], i32(1))

    assert any(isinstance(s, Evaluate) and isinstance(s.value, Intrinsic) for s in count.body)
    (total,) = count.buffers
    assert interpret(count, {total: np.zeros(1, np.int32)})[total][0] == 32


class TestFragments:
    def test_tiles_of_a_composition_lie_alike(self) -> None:
        assert MMA.owner_c is not None
        owner = spatial(2, 2) * repeat(2, 4) * MMA.owner_c
        held = fragment(owner, (16, 8), 32)
        assert isinstance(held, Fragment)
        assert held.count == 4
        assert is_held_as(held, (16, 8), MMA.owner_c)
        assert not is_held_as(held, (16, 8), spatial(8, 4) * repeat(2, 2))

    def test_why_tiles_do_not(self) -> None:
        assert "whole tiles" in str(fragment(repeat(3, 1) * spatial(8, 4), (16, 4), 32))
        assert "groups of 32" in str(fragment(spatial(4, 4), (4, 4), 32))
        assert "not neighbours" in str(fragment(repeat(2, 2, order=(1, 0)) * spatial(8, 4), (8, 8), 32))

    def test_matrices_are_found_in_operands(self) -> None:
        assert MMA.owner_a is not None
        expected = LDMATRIX.owner_c
        assert expected is not None
        held = fragment(MMA.owner_a, (16, 16), 32)
        assert isinstance(held, Fragment)
        found = matrices(held, expected, 4)
        assert found is not None
        assert found.origins == ((0, 0), (8, 0), (0, 8), (8, 8))
        assert (found.down, found.along) == (0, 1)

    def test_the_transposed_operand_is_found_along_its_columns(self) -> None:
        assert MMA.owner_b is not None
        plain, turned = instruction("ldmatrix_x2").owner_c, LDMATRIX_2T.owner_c
        assert plain is not None
        assert turned is not None
        held = fragment(MMA.owner_b, (16, 8), 32)
        assert isinstance(held, Fragment)
        by_columns, by_rows = matrices(held, plain, 2), matrices(held, turned, 2)
        assert by_columns is not None
        assert by_columns.along == 0
        assert by_rows is not None
        assert by_rows.along == 1
