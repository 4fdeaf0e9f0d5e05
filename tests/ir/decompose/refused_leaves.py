"""Leaves and barriers that are refused: micro-kernels of other operands, and barriers left out where threads meet."""

from __future__ import annotations

from taskmap.decompose import (
    BLOCK,
    GLOBAL,
    REGISTER,
    SHARED,
    THREAD,
    WARPGROUP,
    MatMul,
    Move,
    micro_kernel,
)
from taskmap.ir import repeat, spatial
from taskmap.ir.types import f16, f32, tf32
from tests.ir.decompose.micro_scripts import outer_product
from tests.ir.decompose.refused import K, M, N, block, halves, threads

OUTER = micro_kernel(outer_product, MatMul(4, 4, 1), THREAD, (REGISTER, REGISTER, REGISTER))
FROM_SHARED = micro_kernel(
    "c[0] += a[0] * b[0];", MatMul(1, 1, 1), THREAD, (SHARED, SHARED, REGISTER), language="cuda", name="from shared"
)
FROM_GLOBAL = micro_kernel(
    "c[0] += a[0] * b[0];", MatMul(1, 1, 1), THREAD, (GLOBAL, SHARED, REGISTER), language="cuda", name="from global"
)
COPY = micro_kernel(
    "for (int j = 0; j < 8; j++) dst[threadIdx.x * dst_i + j * dst_j] = src[threadIdx.x * src_i + j * src_j];",
    Move(f32[64, 8]), BLOCK, (GLOBAL, SHARED), language="cuda", name="copy",
)  # fmt: skip


def micro_kernel_of_another_size() -> None:
    threads().split(2).move("a", REGISTER).move("b", REGISTER).done(OUTER)


def micro_kernel_of_another_memory() -> None:
    threads().split(1).move("a", REGISTER).done(OUTER)


def micro_kernel_of_another_type() -> None:
    tree = MatMul(M, N, K, a=f16, b=f16).tile(64, 64).to(BLOCK).accumulate_in(REGISTER).split(8).tile(4, 4).to(THREAD)
    tree.split(1).move("a", REGISTER).move("b", REGISTER).done(OUTER)


def micro_kernel_of_another_level() -> None:
    block().split(1).tile(4, 4).done(OUTER)


def micro_kernel_of_a_product_for_a_copy() -> None:
    block().split(8).move("a", SHARED, lambda copy: copy.done(OUTER))


def micro_kernel_and_a_mapping() -> None:
    threads().split(1).move("a", REGISTER).move("b", REGISTER).done(OUTER, by=repeat(4, 4))


def leaf_that_is_no_micro_kernel() -> None:
    threads().split(1).done(outer_product)  # type: ignore[arg-type]  # refused


def micro_kernel_beyond_the_end() -> None:
    tree = block().split(8).move("b", SHARED).tile(4, 4).to(THREAD).split(1).tile(1, 1)
    tree.done(FROM_GLOBAL).kernel()


def micro_kernel_of_swizzled_operands() -> None:
    tree = block().split(8).move("a", SHARED).swizzle(1, 2, 1).move("b", SHARED).tile(4, 4).to(THREAD).split(1)
    tree.tile(1, 1).done(FROM_SHARED).kernel()


def micro_kernel_that_is_to_fetch_ahead() -> None:
    block().split(8).move("a", SHARED, lambda copy: copy.done(COPY)).prefetch(2)


def mapping_of_a_copy_by_a_micro_kernel() -> None:
    whole = MatMul(64, 64, 64).tile(64, 64).to(BLOCK).accumulate_in(REGISTER).split(8)
    tree = whole.move("a", SHARED, lambda copy: copy.done(COPY)).tile(4, 4).to(THREAD).split(1).tile(1, 1).done()
    tree.mapping("a")


def barrier_left_out_between_threads_that_share() -> None:
    tree = block().split(8).move("a", SHARED).storage("column").pad(4).no_sync().move("b", SHARED)
    tree.tile(4, 4).to(THREAD).split(1).tile(1, 1).done().kernel()


def barrier_left_out_of_stages() -> None:
    tree = block().split(8).move("a", SHARED).prefetch(3).no_sync()
    tree.tile(4, 4).to(THREAD).split(1).tile(1, 1).done().kernel()


def barriers_of_registers_left_out() -> None:
    threads().move("a", REGISTER).no_sync()


def barriers_of_a_store_left_out() -> None:
    halves(lambda copy: copy.move("src", SHARED).no_sync().done())


def mbarriers_left_out() -> None:
    tree = MatMul(M, N, K, a=f16, b=f16).tile(64, 64).to(BLOCK).specialize(WARPGROUP, "fetch").accumulate_in(REGISTER)
    tree.split(64).move("a", SHARED).prefetch(2).no_sync()


def shared_memory_of_a_thread() -> None:
    MatMul(M, N, K).tile(4, 4).to(THREAD).split(8).move("a", SHARED)


def lines_of_tf32_across_the_sum() -> None:
    tree = MatMul(M, N, K).tile(64, 64).to(BLOCK).specialize(WARPGROUP, "fetch").accumulate_in(REGISTER).split(32)
    tree = tree.move("a", SHARED, dtype=tf32).prefetch(2).move("b", SHARED, dtype=tf32).prefetch(2)
    tree.tile(64, 64).to(WARPGROUP).split(8).done().kernel()


def asynchronous_copy_of_a_thread() -> None:
    halves(lambda copy: copy.done().asynchronous())


def store_by_other_warpgroups() -> None:
    tree = MatMul(M, N, K, a=f16, b=f16).tile(128, 64).to(BLOCK).specialize(WARPGROUP, "fetch")
    tree = tree.accumulate_in(
        REGISTER, store=lambda c: c.move("src", SHARED).tile(128, 32).to(WARPGROUP).done().asynchronous()
    )
    tree = tree.split(64).move("a", SHARED).prefetch(2).move("b", SHARED).prefetch(2)
    tree.tile(64, 64).to(WARPGROUP).split(16).done().kernel()


def store_by_more_threads_than_a_warpgroup_has() -> None:
    tree = MatMul(M, N, K, a=f16, b=f16).tile(128, 64).to(BLOCK).specialize(WARPGROUP, "fetch")
    by = repeat(8, 2) * spatial(8, 32)
    tree = tree.accumulate_in(REGISTER, store=lambda c: c.move("src", SHARED).tile(64, 64).to(WARPGROUP).done(by=by))
    tree = tree.split(64).move("a", SHARED).prefetch(2).move("b", SHARED).prefetch(2)
    tree.tile(64, 64).to(WARPGROUP).split(16).done().kernel()


def store_of_no_warpgroups() -> None:
    tree = (
        MatMul(M, N, K)
        .tile(64, 64)
        .to(BLOCK)
        .accumulate_in(REGISTER, store=lambda c: c.move("src", SHARED).tile(32, 64).to(WARPGROUP).done().asynchronous())
    )
    tree.tile(4, 4).to(THREAD).split(1).tile(1, 1).done().kernel()
