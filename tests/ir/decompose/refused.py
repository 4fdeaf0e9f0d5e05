"""Decompositions that are refused. test_refusals.py runs each, and compares the messages with a golden file."""

from __future__ import annotations

from collections.abc import Callable

from taskmap.decompose import (
    BLOCK,
    CLUSTER,
    CORE,
    FRAGMENT,
    GLOBAL,
    KERNEL,
    LANES,
    LOCAL,
    QUAD_PAIR,
    REGISTER,
    SHARED,
    THREAD,
    WARP,
    WARPGROUP,
    Compute,
    MatMul,
    Move,
    Reduce,
    Scope,
    Strategy,
    Task,
    dim,
    reduced,
    stage,
    tensor,
)
from taskmap.ir import repeat, spatial
from taskmap.ir.types import f16, f32

M, N, K = dim("m"), dim("n"), dim("k")
X = tensor("x", f32[M, N])
HIGHEST = stage("highest", (M,), lambda i: reduced("max", N, lambda j: X[i, j]))
LESS = stage("less", (M, N), lambda i, j: X[i, j] - HIGHEST[i])
ROWS = Task.of("rows", HIGHEST, LESS)


def block() -> Strategy:
    """The tile of a block, summed in registers."""
    return MatMul(M, N, K).tile(64, 64).to(BLOCK).accumulate_in(REGISTER)


def threads() -> Strategy:
    """A part of the sum, in the hands of threads."""
    return block().split(8).move("a", SHARED).move("b", SHARED).tile(4, 4).to(THREAD)


def halves(store: Callable[[Strategy], Strategy] | None = None) -> Strategy:
    """The tile of a block, of f16, summed in fragments."""
    return MatMul(M, N, K, a=f16, b=f16).tile(64, 64).to(BLOCK).accumulate_in(FRAGMENT, store=store)


def tile_of_wrong_rank() -> None:
    MatMul(M, N, K).tile(64)


def conversion_on_the_way_to_shared_memory() -> None:
    block().split(8).move("a", SHARED, dtype=f16)


def conversion_to_the_type_that_it_has() -> None:
    threads().split(1).move("a", REGISTER).move("a", REGISTER, dtype=f32)


def tile_of_no_size() -> None:
    MatMul(M, N, K).tile(0, 64)


def tile_larger_than_the_spec() -> None:
    block().tile(128, 32)


def tile_that_does_not_divide() -> None:
    block().tile(48, 32)


def pieces_that_overlap() -> None:
    block().tile((4, 6), 32)


def pieces_of_a_symbolic_size() -> None:
    MatMul(M, N, K).tile((4, 16), 32)


def level_without_a_tile() -> None:
    block().to(WARP)


def blocks_twice() -> None:
    block().tile(32, 32).to(BLOCK)


def level_above() -> None:
    block().tile(32, 32).to(KERNEL)


def tiles_given_twice() -> None:
    MatMul(M, N, K).tile(64, 64).to(BLOCK).to(WARP)


def warps_of_a_kernel() -> None:
    MatMul(M, N, K).tile(4, 4).to(WARP)


def threads_of_a_loop() -> None:
    Compute(ROWS).tile(1, 64).tile(1, 4).to(THREAD)


def too_many_threads_in_a_group() -> None:
    MatMul(M, N, K).tile(4, 4).to(THREAD).group(2048)


def cores_of_a_block() -> None:
    block().tile(4, 4).to(CORE)


def blocks_in_a_loop() -> None:
    MatMul(M, N, K).tile(256, 256).tile(64, 64).to(BLOCK)


def warps_of_a_cluster() -> None:
    MatMul(M, N, K).tile(256, 256).to(CLUSTER).tile(32, 32).to(WARP)


def too_many_blocks_of_a_cluster() -> None:
    MatMul(M, N, K).tile(256, 256).to(CLUSTER).tile(64, 64).to(BLOCK)


def cluster_of_a_cluster() -> None:
    MatMul(M, N, K).tile(256, 256).to(CLUSTER).tile(128, 128).to(CLUSTER)


def multicast_without_a_cluster() -> None:
    block().split(8).move("a", SHARED).prefetch(2).multicast(CLUSTER)


def multicast_of_what_no_other_block_uses() -> None:
    tree = MatMul(M, N, K, a=f16, b=f16).tile(128, 64).to(CLUSTER).tile(64, 64).to(BLOCK)
    tree = tree.specialize(WARPGROUP, "fetch").accumulate_in(REGISTER).split(64)
    tree.move("a", SHARED).prefetch(2).multicast(CLUSTER)


def multicast_of_too_few_rows() -> None:
    tree = MatMul(M, N, K, a=f16, b=f16).tile(512, 64).to(CLUSTER).tile(64, 64).to(BLOCK)
    tree = tree.specialize(WARPGROUP, "fetch").accumulate_in(REGISTER).split(32)
    tree.move("b", SHARED).prefetch(2).multicast(CLUSTER)


def too_many_registers_of_a_block() -> None:
    tree = MatMul(M, N, K).tile(512, 128).to(BLOCK).accumulate_in(REGISTER).split(8)
    tree.tile(8, 8).to(THREAD).split(1).tile(1, 1).done().kernel()


def too_many_lanes() -> None:
    MatMul(M, N, K).tile(33, 64).to(BLOCK).tile(33, 64).to(WARP).tile(1, 64).to(THREAD)


def too_many_threads() -> None:
    block().tile(1, 1).to(THREAD)


def split_without_a_sum() -> None:
    Move(f32[M, N]).tile(32, 32).to(BLOCK).split(8)


def split_that_does_not_divide() -> None:
    block().split(8).split(3)


def split_of_no_size() -> None:
    block().split(0)


def move_of_a_stranger() -> None:
    block().move("x", SHARED)


def move_of_the_result() -> None:
    block().move("c", SHARED)


def move_to_where_it_is() -> None:
    threads().move("a", SHARED)


def move_out_of_sight() -> None:
    MatMul(64, 64, 64).move("a", SHARED)


def shared_memory_of_a_warp() -> None:
    block().split(8).tile(32, 32).to(WARP).move("a", SHARED)


def move_to_global_memory() -> None:
    block().split(8).move("a", GLOBAL)


def move_of_a_symbolic_size() -> None:
    block().move("a", SHARED)


def copy_left_unfinished() -> None:
    block().split(8).move("a", SHARED, lambda copy: copy.tile(8, 8))


def copy_of_something_else() -> None:
    block().split(8).move("a", SHARED, lambda copy: Move(f32[8, 8]).tile(8, 8).to(BLOCK).done())


def mapping_that_does_not_divide() -> None:
    block().split(8).move("a", SHARED, by=repeat(3, 1) * spatial(32, 8))


def mapping_and_function() -> None:
    block().split(8).move("a", SHARED, lambda copy: copy.done(), by=repeat(2, 1) * spatial(32, 8))


def accumulate_twice() -> None:
    block().accumulate_in(REGISTER)


def accumulate_in_shared_memory() -> None:
    MatMul(M, N, K).tile(64, 64).to(BLOCK).accumulate_in(SHARED)


def accumulate_after_a_split() -> None:
    MatMul(M, N, K).tile(64, 64).to(BLOCK).split(8).accumulate_in(REGISTER)


def accumulate_nothing() -> None:
    Move(f32[M, N]).tile(32, 32).to(BLOCK).accumulate_in(REGISTER)


def accumulate_too_early() -> None:
    MatMul(M, N, K).accumulate_in(REGISTER)


def no_instruction() -> None:
    block().split(16).tile(32, 32).to(WARP).move("a", REGISTER).move("b", REGISTER).tile(16, 8).done()


def nearest_instruction() -> None:
    product = MatMul(M, N, K, a=f16, b=f16).tile(64, 64).to(BLOCK).accumulate_in(REGISTER).split(16)
    product.tile(32, 32).to(WARP).move("a", REGISTER).move("b", REGISTER).tile(16, 16).done()


def instruction_on_memory() -> None:
    product = MatMul(M, N, K, a=f16, b=f16).tile(64, 64).to(BLOCK).accumulate_in(REGISTER).split(16)
    product.tile(32, 32).to(WARP).tile(16, 8).done()


def done_in_memory() -> None:
    MatMul(M, N, K).tile(64, 64).to(BLOCK).tile(4, 4).to(THREAD).split(1).tile(1, 1).done()


def done_by_a_block() -> None:
    block().split(8).done()


def done_by_a_kernel() -> None:
    MatMul(64, 64, 64).done()


def done_with_a_symbolic_sum() -> None:
    block().tile(4, 4).to(THREAD).tile(1, 1).done()


def after_the_end() -> None:
    threads().split(1).tile(1, 1).done().tile(1, 1)


def unroll_without_a_loop() -> None:
    block().unroll()


def unroll_of_one_part() -> None:
    threads().split(1).unroll(1)


def unroll_of_tiles_by_parts() -> None:
    threads().split(1).tile(2, 2).unroll(2)


def no_order() -> None:
    MatMul(M, N, K).tile(64, 64).to(BLOCK).layout("diagonal")


def group_of_warps() -> None:
    block().tile(32, 32).to(WARP).group(8)


def pad_registers() -> None:
    threads().split(1).move("a", REGISTER).pad(4)


def prefetch_once() -> None:
    block().split(8).move("a", SHARED).prefetch(1)


def prefetch_without_a_split() -> None:
    block().split(8).move("a", SHARED).move("b", SHARED).prefetch(2)


def scope_of_a_cpu() -> None:
    block().split(16).tile(32, 32).to(WARP).move("a", Scope.LOCAL)


def fragment_of_registers() -> None:
    block().split(16).tile(64, 64).to(WARP).move("a", REGISTER).move("a", FRAGMENT)


def fragments_in_memory() -> None:
    halves().split(16).tile(64, 64).to(WARP).move("a", FRAGMENT).tile(16, 16).done()


def fragments_of_another_size() -> None:
    halves().split(16).tile(64, 64).to(WARP).move("a", FRAGMENT).move("b", FRAGMENT).tile(16, 8).done()


def quad_pairs_of_a_block() -> None:
    halves().tile(32, 32).to(QUAD_PAIR)


def quad_pairs_by_rows() -> None:
    warp = MatMul(M, N, K, a=f16, b=f16).tile(16, 16).to(BLOCK).accumulate_in(REGISTER).split(4).tile(16, 16).to(WARP)
    warp.move("a", REGISTER).move("b", REGISTER).tile(8, 8).to(QUAD_PAIR).done()


def registers_of_quad_pairs() -> None:
    warp = MatMul(M, N, K, a=f16, b=f16).tile(16, 16).to(BLOCK).accumulate_in(REGISTER).split(4).tile(16, 16).to(WARP)
    warp.tile(8, 8).to(QUAD_PAIR).layout("column").move("a", REGISTER)


def pieces_of_an_instruction() -> None:
    tree = MatMul(M, N, K, a=f16, b=f16).tile(32, 32).to(BLOCK).accumulate_in(REGISTER).split(16)
    tree = tree.tile((8, 16), 16).to(WARP).move("a", REGISTER).move("b", REGISTER)
    tree.tile(16, 8).done().kernel()


def specialized_threads() -> None:
    block().split(8).tile(32, 32).to(WARP).specialize(WARPGROUP, "fetch")


def unknown_role() -> None:
    MatMul(M, N, K).tile(64, 64).to(BLOCK).specialize(WARPGROUP, "store")


def nothing_is_fetched() -> None:
    tree = MatMul(M, N, K).tile(64, 64).to(BLOCK).specialize(WARPGROUP, "fetch").accumulate_in(REGISTER)
    tree.tile(4, 4).to(THREAD).split(1).tile(1, 1).done().kernel()


def no_warpgroup_multiplies() -> None:
    tree = MatMul(M, N, K).tile(64, 64).to(BLOCK).specialize(WARPGROUP, "fetch").accumulate_in(REGISTER).split(8)
    tree.move("a", SHARED).prefetch(2).tile(4, 4).to(THREAD).split(1).tile(1, 1).done().kernel()


def stages_of_wgmma_that_are_padded() -> None:
    tree = MatMul(M, N, K, a=f16, b=f16).tile(64, 64).to(BLOCK).specialize(WARPGROUP, "fetch")
    tree = tree.accumulate_in(REGISTER).split(64).move("a", SHARED).prefetch(2).pad(8).move("b", SHARED).prefetch(2)
    tree.tile(64, 64).to(WARPGROUP).split(16).done().kernel()


def results_shared_by_some_warpgroups() -> None:
    tree = MatMul(M, N, K, a=f16, b=f16).tile(64, 64).to(BLOCK).specialize(WARPGROUP, "fetch")
    tree = tree.accumulate_in(REGISTER, store=lambda store: store.move("src", SHARED).done()).split(64)
    tree = tree.move("a", SHARED).prefetch(2).move("b", SHARED).prefetch(2)
    tree.tile(64, 64).to(WARPGROUP).split(16).done().kernel()


def lines_that_are_too_short() -> None:
    tree = MatMul(M, N, K, a=f16, b=f16).tile(64, 32).to(BLOCK).specialize(WARPGROUP, "fetch")
    tree = tree.accumulate_in(REGISTER).split(64).move("a", SHARED).prefetch(2).move("b", SHARED).prefetch(2)
    tree.tile(64, 32).to(WARPGROUP).split(16).done().kernel()


def wgmma_of_registers() -> None:
    tree = MatMul(M, N, K, a=f16, b=f16).tile(64, 64).to(BLOCK).accumulate_in(REGISTER).split(16)
    tree.tile(64, 64).to(WARPGROUP).move("a", REGISTER).done()


def wgmma_without_a_wait() -> None:
    tree = MatMul(M, N, K, a=f16, b=f16).tile(64, 64).to(BLOCK).accumulate_in(REGISTER).split(16)
    tree.move("a", SHARED).move("b", SHARED).tile(64, 64).to(WARPGROUP).done().kernel()


def fragments_stored_by_other_warps() -> None:
    tree = halves(lambda store: store.move("src", SHARED, lambda copy: copy.tile(64, 32).to(WARP).done()).done())
    tree = tree.split(16).tile(32, 64).to(WARP).move("a", FRAGMENT).move("b", FRAGMENT)
    tree.tile(16, 16).done().kernel()


def lanes_of_a_block() -> None:
    block().split(8).tile(1, 1).to(LANES).done()


def kernel_of_an_unfinished_tree() -> None:
    block().kernel()


def kernel_without_workers() -> None:
    Move(f32[4, 4]).tile(2, 2).kernel()


def kernel_with_an_unknown_size() -> None:
    threads().split(1).tile(1, 1).done().kernel(rows=64)


def copy_by_too_many_threads() -> None:
    copied = block().split(8).move("a", SHARED, lambda copy: copy.tile(1, 1).to(THREAD).done()).move("b", SHARED)
    copied.tile(4, 4).to(THREAD).split(1).tile(1, 1).done().kernel()


def too_much_shared_memory() -> None:
    copied = block().split(1024).move("a", SHARED).move("b", SHARED)
    copied.tile(4, 4).to(THREAD).split(1).tile(1, 1).done().kernel()


def too_many_registers() -> None:
    copied = MatMul(M, N, K).tile(256, 256).to(BLOCK).accumulate_in(REGISTER).split(8)
    copied.tile(32, 16).to(THREAD).split(1).tile(1, 1).done().kernel()


def init_by_others() -> None:
    total = (
        MatMul(M, N, K)
        .tile(64, 64)
        .to(BLOCK)
        .accumulate_in(REGISTER, init=lambda first: first.tile(1, 16).to(THREAD).done())
    )
    total.split(8).move("a", SHARED).move("b", SHARED).tile(4, 4).to(THREAD).split(1).tile(1, 1).done().kernel()


def store_by_others() -> None:
    total = (
        MatMul(M, N, K)
        .tile(64, 64)
        .to(BLOCK)
        .accumulate_in(REGISTER, store=lambda copy: copy.tile(1, 16).to(THREAD).done())
    )
    total.split(8).move("a", SHARED).move("b", SHARED).tile(4, 4).to(THREAD).split(1).tile(1, 1).done().kernel()


def sum_in_no_memory() -> None:
    Compute(ROWS).tile(4, 32).to(BLOCK).tile(1, 1).to(THREAD).done()


def sum_of_a_part() -> None:
    part = Compute(ROWS).tile(4, 32).to(BLOCK).tile(1, 32).to(WARP).move("x", REGISTER)
    part.move("highest", REGISTER)


def stage_in_registers_of_a_block() -> None:
    more = Task.of("more", stage("y", (M, N), lambda i, j: X[i, j] + 1))
    Compute(more).tile(4, 32).to(BLOCK).move("x", REGISTER).done()


def stage_by_a_mapping() -> None:
    twice = stage("twice", (M, N), lambda i, j: X[i, j] * 2)
    spec = Compute(Task.of("more", twice, stage("y", (M, N), lambda i, j: twice[i, j] + 1)))
    spec.tile(4, 32).to(BLOCK).move("twice", SHARED, by=spatial(4, 32))


def product_by_a_mapping() -> None:
    block().split(8).done(by=spatial(32, 8))


def leaf_by_a_mapping_that_does_not_divide() -> None:
    Compute(ROWS, "less").tile(4, 32).to(BLOCK).done(by=spatial(3, 32))


def registers_by_a_mapping() -> None:
    MatMul(M, N, K).tile(4, 32).to(BLOCK).accumulate_in(REGISTER, store=lambda c: c.done(by=spatial(4, 32)))


def leaf_of_too_many_threads() -> None:
    Compute(ROWS, "less").tile(64, 64).to(BLOCK).done(by=spatial(64, 32))


def prefetch_of_a_stage() -> None:
    twice = stage("twice", (M, N), lambda i, j: X[i, j] * 2)
    spec = Compute(Task.of("more", twice, stage("y", (M, N), lambda i, j: twice[i, j] + 1)))
    spec.tile(4, 32).to(BLOCK).move("twice", SHARED).prefetch(2)


def operand_at_other_axes() -> None:
    spec = Compute(Task.of("shift", stage("y", (M, N), lambda i, j: X[j, i] + X[i, j])))
    spec.tile(4, 32).to(BLOCK).move("x", SHARED)


def sum_of_a_block() -> None:
    Reduce(ROWS, "highest").tile(1).to(BLOCK).accumulate_in(REGISTER).split(32).done()


def sums_of_a_warp() -> None:
    Reduce(ROWS, "highest").tile(4).to(BLOCK).tile(4).to(WARP).accumulate_in(REGISTER).split(32).done()


def sum_in_memory() -> None:
    Reduce(ROWS, "highest").tile(4).to(BLOCK).tile(1).to(THREAD).split(1).done()


def tiles_of_a_lane() -> None:
    more = Compute(Task.of("more", stage("y", (M, N), lambda i, j: X[i, j] + 1)))
    more.tile(2, 16).to(CORE).tile(1, 16).to(LANES).done()


def local_memory_of_a_thread() -> None:
    threads().split(1).move("a", LOCAL)


def stage_in_registers_by_workers_of_its_own() -> None:
    twice = stage("twice", (M, N), lambda i, j: X[i, j] * 2)
    spec = Compute(Task.of("more", twice, stage("y", (M, N), lambda i, j: twice[i, j] + 1)))
    warp = spec.tile(4, 32).to(BLOCK).tile(1, 32).to(WARP)
    warp.move("twice", REGISTER, lambda part: part.tile(1, 1).to(THREAD).done()).done().kernel()


def accumulate_an_init() -> None:
    MatMul(M, N, K).tile(64, 64).to(BLOCK).accumulate_in(REGISTER, init=lambda first: first.accumulate_in(REGISTER))


def move_of_an_init() -> None:
    MatMul(M, N, K).tile(64, 64).to(BLOCK).accumulate_in(REGISTER, init=lambda first: first.move("dst", SHARED))


def sum_shared_by_one_block() -> None:
    MatMul(M, N, K).tile(64, 64).to(BLOCK).split_sum(1)


def sum_of_a_copy_shared() -> None:
    Move(f32[M, N]).tile(32, 32).to(BLOCK).split_sum(2)


def sum_shared_by_tiles_in_order() -> None:
    block().split(8).tile(32, 32).split_sum(2)


def sum_shared_by_threads_of_a_warp() -> None:
    block().split(8).tile(32, 64).to(WARP).tile(8, 8).to(THREAD).split_sum(2)


def sum_shared_without_registers() -> None:
    MatMul(M, N, K).tile(64, 64).to(BLOCK).split(16).tile(32, 32).to(WARP).split_sum(2)


def sum_shared_in_fragments() -> None:
    MatMul(M, N, K, a=f16, b=f16).tile(64, 64).to(BLOCK).split_sum(2).accumulate_in(FRAGMENT)


def sum_of_odd_parts_shared() -> None:
    block().split(9).tile(32, 32).to(WARP).split_sum(2)


def sum_of_a_symbolic_size_shared() -> None:
    block().tile(32, 32).to(WARP).split_sum(2)


def sum_shared_by_too_many_threads() -> None:
    block().split(8).tile(4, 2).to(THREAD).split_sum(4)


def sum_shared_in_the_wrong_place() -> None:
    MatMul(M, N, K).tile(64, 64).to(BLOCK).split_sum(2).tile(32, 32).to(WARP).accumulate_in(REGISTER)


def sum_shared_without_parts() -> None:
    tree = MatMul(M, N, 16, a=f16, b=f16).tile(16, 8).to(BLOCK).split_sum(2).accumulate_in(REGISTER)
    tree.tile(16, 8).to(WARP).split(16).move("a", REGISTER).move("b", REGISTER).done().kernel(m=16, n=8)


def sum_of_symbolic_tiles_shared() -> None:
    tree = MatMul(M, 64, K).tile(64, 64).to(BLOCK).split_sum(2).accumulate_in(REGISTER)
    tree.split(8).tile(4, 4).to(THREAD).split(1).tile(1, 1).done().kernel()


def sum_shared_by_warpgroups_that_are_fed() -> None:
    tree = MatMul(M, N, K, a=f16, b=f16).tile(64, 64).to(BLOCK).specialize(WARPGROUP, "fetch")
    tree = tree.accumulate_in(REGISTER).split(64).move("a", SHARED).prefetch(2).move("b", SHARED).prefetch(2)
    tree.tile(64, 64).to(WARPGROUP).split_sum(2).split(16).done().kernel()


def persistent_warps() -> None:
    block().split(8).tile(32, 32).to(WARP).persistent()


def persistent_blocks_that_share_sums() -> None:
    MatMul(M, N, K).tile(64, 64).to(BLOCK).split_sum(2).persistent()


def sums_of_persistent_blocks_shared() -> None:
    MatMul(M, N, K).tile(64, 64).to(BLOCK).persistent().split_sum(2)
