"""Specs of GPU kernels: each becomes the instructions it should, keeps its meaning, or is refused with a reason."""
# mypy: ignore-errors
# pyright: reportInvalidTypeForm=false, reportGeneralTypeIssues=false, reportOperatorIssue=false
# The reason: the parameters of kernels are annotated with tensor types, which are not types to a type checker.

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskmap.ir import repeat, row_major, spatial
from taskmap.ir.algebra.layout import Layout
from taskmap.ir.algebra.mapping import TaskMapping
from taskmap.ir.errors import LoweringError
from taskmap.ir.interp.run import interpret
from taskmap.ir.lower.pipeline import lower, pipeline
from taskmap.ir.lower.specs_gpu import LowerGpuSpecs
from taskmap.ir.nodes import Call, Invoke, Kernel, MatMul, Move
from taskmap.ir.script.read import barrier, instruction, kernel, matmul, move, region, register, shared, thread
from taskmap.ir.target import cuda_target
from taskmap.ir.types import DType, bf16, f16, f32
from taskmap.ir.verify.rules import verify
from taskmap.ir.visit import walk_exprs, walk_stmts
from tests.ir.random_gpu_kernels import gpu_kernels
from tests.ir.random_kernels import COLS, ROWS

SM80, SM75, SM90 = cuda_target("sm_80"), cuda_target("sm_75"), cuda_target("sm_90a")
MMA = instruction("mma_m16n8k16_f16_f32")
M, N, K = 32, 32, 32


def product(
    owner: TaskMapping,
    dtype: DType = f16,
    layout_a: Layout | None = None,
    layout_b: Layout | None = None,
    *,
    asynchronous: bool = False,
    threads: int = 64,
) -> Kernel:
    """c = a @ b, operands staged through shared memory."""
    chunks = repeat(128 // threads, 1) * spatial(threads // 4, 4)

    @kernel(grid=(1,), threads=threads)
    def multiply(a: dtype[M, K], b: dtype[K, N], c: f32[M, N]):
        tile_a, tile_b = shared(dtype[M, K], layout=layout_a), shared(dtype[K, N], layout=layout_b)
        acc = register(f32[M, N], owner=owner, init=0.0)
        move(tile_a, a, by=chunks.on(thread), asynchronous=asynchronous)
        move(tile_b, b, by=chunks.on(thread), asynchronous=asynchronous)
        barrier()
        matmul(acc, tile_a, tile_b)
        move(c, acc)

    return multiply


def names(k: Kernel) -> set[str]:
    return {s.instruction.name for s in walk_stmts(k.body) if isinstance(s, Invoke)}


def check_everywhere(k: Kernel, target=SM80) -> Kernel:
    """The kernel multiplies as it is and after every pass; the lowered one."""
    rng = np.random.default_rng(5)
    kind = np.float16 if k.buffers[0].dtype == f16 else np.float32
    arrays = [rng.integers(-3, 4, (M, K)).astype(kind), rng.integers(-3, 4, (K, N)).astype(kind)]
    expected = arrays[0].astype(np.float32) @ arrays[1].astype(np.float32)
    for step in (None, *pipeline(target)):
        if step is not None:
            k = step.run(k)
            verify(k)
            if step.name not in ("lower-gpu-specs", "name-indices"):
                continue
        flat = k.buffers[0].rank == 1
        given = {b: x.reshape(-1) if flat else x for b, x in zip(k.buffers, arrays, strict=False)}
        result = interpret(k, given)[k.outputs[0]].reshape(M, N)
        np.testing.assert_array_equal(result, expected, err_msg=f"after {step.name if step else 'nothing'}")
    assert not any(isinstance(s, (Move, MatMul)) for s in walk_stmts(k.body))
    return k


SWIZZLED = row_major(32, 32).swizzled(2, 3, 3)


def test_tensor_instructions_with_their_loads() -> None:
    assert MMA.owner_c is not None
    k = product(spatial(2, 1) * repeat(1, 4) * MMA.owner_c, layout_a=SWIZZLED, layout_b=SWIZZLED, asynchronous=True)
    assert names(check_everywhere(k)) == {MMA.name, "ldmatrix_x4", "ldmatrix_x4_trans", "cp_async_16"}


def test_an_operand_that_lies_by_columns_is_loaded_without_transposition() -> None:
    assert MMA.owner_c is not None
    by_columns = row_major(32, 32).swizzled(2, 3, 3).permute(1, 0)
    k = product(spatial(2, 1) * repeat(1, 4) * MMA.owner_c, layout_a=SWIZZLED, layout_b=by_columns)
    assert names(check_everywhere(k)) == {MMA.name, "ldmatrix_x4"}


@pytest.mark.parametrize(("owner", "load"), [(spatial(1, 2) * repeat(2, 2), 4), (spatial(1, 4) * repeat(2, 1), 2)])
def test_as_many_matrices_are_loaded_at_once_as_a_warp_needs(owner: TaskMapping, load: int) -> None:
    assert MMA.owner_c is not None
    narrow = product(owner * MMA.owner_c, threads=owner.num_workers * 32)
    assert f"ldmatrix_x{load}_trans" in names(check_everywhere(narrow))


def test_an_older_target_has_smaller_instructions() -> None:
    assert MMA.owner_c is not None
    lowered = check_everywhere(product(spatial(2, 1) * repeat(1, 4) * MMA.owner_c), SM75)
    assert "mma_m16n8k8_f16_f32" in names(lowered)


def test_types_choose_the_instruction() -> None:
    assert MMA.owner_c is not None
    lowered = lower(product(spatial(2, 1) * repeat(1, 4) * MMA.owner_c, bf16), target=SM80)
    assert "mma_m16n8k16_bf16_f32" in names(lowered)


def test_threads_that_hold_blocks_multiply_and_add_one_by_one() -> None:
    lowered = check_everywhere(product(spatial(8, 8) * repeat(4, 4), f32))
    assert names(lowered) == set()
    assert any(isinstance(e, Call) and e.name == "fma" for e in walk_exprs(lowered.body))


def test_operands_in_registers_are_used_where_they_are() -> None:
    assert MMA.owner_a is not None
    assert MMA.owner_b is not None
    assert MMA.owner_c is not None

    @kernel(grid=(1,), threads=32)
    def in_registers(a: f16[32, 32], b: f16[32, 32], c: f32[32, 32]):
        left = register(f16[32, 32], owner=repeat(2, 2) * MMA.owner_a)
        right = register(f16[32, 32], owner=repeat(2, 4) * MMA.owner_b)
        acc = register(f32[32, 32], owner=repeat(2, 4) * MMA.owner_c, init=0.0)
        move(left, a)
        move(right, b)
        matmul(acc, left, right)
        move(c, acc)

    assert names(check_everywhere(in_registers)) == {MMA.name}


def test_registers_that_fit_no_instruction_are_refused_with_all_reasons() -> None:
    assert MMA.owner_c is not None

    @kernel(grid=(1,), threads=32)
    def wrong(a: f16[32, 32], c: f32[32, 32]):
        left = register(f16[32, 32], owner=spatial(8, 4) * repeat(4, 8), init=0.0)
        acc = register(f32[32, 32], owner=repeat(2, 4) * MMA.owner_c, init=0.0)
        matmul(acc, left, a)
        move(c, acc)

    with pytest.raises(LoweringError, match="no instruction multiplies") as caught:
        lower(wrong, target=SM80)
    assert "is held by spatial(8, 4) * repeat(4, 8)" in str(caught.value)


def test_fragments_are_stored_by_stmatrix_where_there_is_one() -> None:
    assert MMA.owner_a is not None

    @kernel(grid=(1,), threads=32)
    def through_shared(a: f16[16, 16], c: f16[16, 16]):
        held = register(f16[16, 16], owner=MMA.owner_a)
        tile = shared(f16[16, 16])
        move(held, a)
        move(tile, held)
        barrier()
        move(c, tile, by=spatial(16, 2).on(thread))

    for target, stores in ((SM80, set()), (SM90, {"stmatrix_x4"})):
        lowered = lower(through_shared, target=target)
        assert names(lowered) == stores
        a = np.arange(256, dtype=np.float16)
        assert interpret(lowered, {lowered.buffers[0]: a})[lowered.outputs[0]].tolist() == a.tolist()


def test_a_copy_that_its_mapping_does_not_divide_is_refused() -> None:
    @kernel(grid=(1,), threads=32)
    def odd(a: f32[10, 8], c: f32[10, 8]):
        move(c, a, by=spatial(4, 8).on(thread))

    with pytest.raises(LoweringError, match="cannot divide a copy") as caught:
        lower(odd, target=SM80)
    assert "test_specs_gpu.py" in str(caught.value)


@pytest.mark.parametrize(("rows", "reason"), [(2, "chunks of 64 bytes"), (32, "chunks of 4 bytes")])
def test_asynchronous_copies_are_of_4_8_or_16_bytes(rows: int, reason: str) -> None:
    @kernel(grid=(1,), threads=32)
    def copy(a: f32[2, 16], c: f32[2, 16]):
        tile = shared(f32[2, 16])
        move(tile, a, by=(repeat(1, 1) * spatial(2, rows // 2)).on(thread % rows), asynchronous=True)
        barrier()
        move(c, tile, by=spatial(2, 16).on(thread))

    if rows == 32:
        assert names(lower(copy, target=SM80)) == {"cp_async_4"}
    else:
        with pytest.raises(LoweringError, match=reason):
            lower(copy, target=SM80)


def test_an_asynchronous_copy_to_memory_is_refused() -> None:
    @kernel(grid=(1,), threads=32)
    def wrong(a: f32[32], c: f32[32]):
        move(c, a, by=spatial(32).on(thread), asynchronous=True)

    with pytest.raises(LoweringError, match=r"cp\.async copies from global to shared memory"):
        lower(wrong, target=SM80)


def test_a_part_of_a_distributed_tile_cannot_be_moved() -> None:
    @kernel(grid=(1,), threads=32)
    def part(c: f32[8, 4]):
        acc = register(f32[16, 4], owner=repeat(2, 1) * spatial(8, 4), init=0.0)
        move(c, region(acc, (8, 0), (8, 4)))

    with pytest.raises(LoweringError, match="for the whole tile"):
        LowerGpuSpecs(SM80).run(part)


@settings(max_examples=15)
@given(gpu_kernels(), st.integers(0, 3))
def test_every_pass_preserves_the_semantics_of_random_kernels(k: Kernel, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.integers(-9, 10, (ROWS, COLS)).astype(np.float32)
    dims = dict.fromkeys(k.dims, 5)
    expected = interpret(k, {k.buffers[0]: x}, dims, seed=seed)[k.outputs[0]]
    for step in pipeline(SM80):
        before, k = k, step.run(k)
        if k is before:
            continue
        verify(k)
        given = {k.buffers[0]: x.reshape(-1) if k.buffers[0].rank == 1 else x}
        result = interpret(k, given, dims, seed=seed)[k.outputs[0]].reshape(expected.shape)
        np.testing.assert_array_equal(result, expected, err_msg=f"after {step.name}")
