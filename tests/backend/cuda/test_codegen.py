"""CUDA C++ of kernels: its form, that it compiles without headers, and that it agrees with the interpreter."""
# mypy: ignore-errors
# pyright: reportInvalidTypeForm=false, reportGeneralTypeIssues=false, reportIndexIssue=false
# pyright: reportArgumentType=false
# The reason: the parameters of kernels are annotated with tensor types, which are not types to a type checker.

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskmap.backend.cuda.codegen import generate
from taskmap.backend.cuda.source import CudaSource
from taskmap.backend.sim import run as sim
from taskmap.errors import CodegenError
from taskmap.ir.builder import Builder
from taskmap.ir.construct import eq, minimum
from taskmap.ir.interp.run import interpret
from taskmap.ir.lower.pipeline import lower
from taskmap.ir.nodes import Buffer, GpuLaunch, Kernel, LoopKind, Var
from taskmap.ir.script.read import block, dim, kernel, register, shared, thread
from taskmap.ir.target import cuda_target
from taskmap.ir.types import f32, i64
from taskmap.ir.verify.rules import verify
from taskmap.ir.workers import THREAD
from tests.backend.cuda_kernels import (
    EVERY,
    edge_matmul,
    gate,
    hopper_matmul,
    pick,
    row_sum,
    scale,
    simple_matmul,
    tensor_matmul,
)
from tests.backend.cuda_nvrtc import compiles
from tests.ir.random_gpu_kernels import gpu_kernels

ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a")


def source_of(k: Kernel, isa: str = "sm_80") -> CudaSource:
    target = cuda_target(isa)
    lowered = lower(k, target=target)
    verify(lowered)
    return generate(lowered, target)


by_name = pytest.mark.parametrize("k", EVERY, ids=lambda k: k.name)


@by_name
def test_the_text_reads_as_it_did(k: Kernel, golden: Callable[[str, str], None]) -> None:
    golden(f"cuda_{k.name}.cu", source_of(k).text)


@by_name
@pytest.mark.parametrize("isa", ARCHITECTURES)
def test_it_compiles_without_headers_or_warnings(k: Kernel, isa: str) -> None:
    if isa == "sm_75" and k in (tensor_matmul, edge_matmul):
        with pytest.raises(CodegenError, match="does not have"):
            source_of(k, isa)
        return
    assert compiles(source_of(k, isa), isa) == ""


def inputs(k: Kernel, sizes: dict[Var, int]) -> list[np.ndarray]:
    """Random arrays for all buffers of a kernel."""
    rng = np.random.default_rng(7)
    arrays = []
    for b in k.buffers:
        shape = tuple(d if isinstance(d, int) else sizes[d] for d in b.shape)
        kind = {"f16": np.float16, "f32": np.float32, "i64": np.int64}[b.dtype.name]
        values = rng.standard_normal(shape) if b.dtype.is_float else rng.integers(-4, 4, shape)
        arrays.append(values.astype(kind))
    return arrays


CASES = (
    (gate, {"n": 1000}),
    (gate, {"n": 1}),
    (scale, {}),
    (simple_matmul, {"m": 9, "n": 5, "k": 11}),
    (tensor_matmul, {}),
    (edge_matmul, {"m": 33, "n": 40, "k": 48}),
    (row_sum, {"m": 3}),
    (pick, {"m": 4, "n": 40}),
)


@pytest.mark.parametrize(("k", "sizes"), CASES, ids=lambda x: getattr(x, "name", None))
def test_the_simulator_the_interpreter_and_the_lowered_kernel_agree(k: Kernel, sizes: dict[str, int]) -> None:
    dims = {v: sizes[v.name] for v in k.dims}
    arrays = inputs(k, dims)
    given = {b: a for b, a in zip(k.buffers, arrays, strict=True) if b not in k.outputs}
    (output,) = k.outputs
    expected = interpret(k, given, dims)[output]

    lowered = lower(k, target=cuda_target("sm_80"))
    flat = {b: a.reshape(-1) for b, a in zip(lowered.buffers, arrays, strict=True) if b not in lowered.outputs}
    after = interpret(lowered, flat, dims, seed=3)[lowered.outputs[0]]
    np.testing.assert_array_equal(after.reshape(expected.shape), expected)

    run = [a.copy() for a in arrays]
    source = source_of(k)
    extra = [np.zeros(1, np.int32)] if source.needs_error else []
    for policy in ("late", "early"):
        sim.run(source, [*run, *extra], dims, outputs=[k.buffers.index(output)], policy=policy)
        result = run[k.buffers.index(output)].astype(np.float64)
        np.testing.assert_allclose(result, expected.astype(np.float64), rtol=2e-3, atol=2e-3)
    assert not any(e.any() for e in extra)


def test_an_index_out_of_range_sets_the_flag() -> None:
    x, at, y = np.ones(4, np.float32), np.array([0, -1, 9], np.int64), np.empty(3, np.float32)
    error = np.zeros(1, np.int32)
    sim.run(source_of(pick), [x, at, y, error], {v: {"m": 4, "n": 3}[v.name] for v in pick.dims}, outputs=[2])
    assert error[0] == 1


def test_equal_kernels_have_equal_text_and_other_targets_other_symbols() -> None:
    assert source_of(scale) == source_of(scale)
    assert source_of(scale).symbol != source_of(scale, "sm_90a").symbol


def test_names_of_a_model_are_harmless() -> None:
    x, y = Buffer('x"); exit(1); //\\', f32, (32,)), Buffer("template", f32, (32,))
    b = Builder()
    b.store(y, (THREAD,), x[THREAD])
    k = Kernel("a b*/\n#include", (x, y), (y,), (), b.body(), GpuLaunch((1,), 32), note="ends with \\\n*/ ??/")
    text = source_of(k).text
    assert "exit(1)" not in text
    assert "#include" not in re.sub(r"//.*", "", text)
    assert not re.search(r"\\$", text, re.MULTILINE)
    assert compiles(source_of(k), "sm_80") == ""


def test_what_fits_is_computed_in_int_and_what_may_not_in_long_long() -> None:
    @kernel(grid=(1 << 20,), threads=64)
    def small(y: f32[1 << 26]):
        y[block.x * 64 + thread] = 0.0

    @kernel(grid=(1 << 20, 64), threads=64)
    def large(y: f32[1 << 32]):
        y[(block.x * 64 + block.y) * 64 + thread] = 0.0

    assert "long long" not in source_of(small).text
    assert "(long long)" in source_of(large).text


def test_a_vector_is_loaded_as_wide_as_its_address_is_known_to_be_aligned() -> None:
    n = dim("n")
    x, y = Buffer("x", f32, (n, n)), Buffer("y", f32, (32, 4))

    def copy(aligned: bool) -> str:
        b = Builder()

        def row() -> None:
            with b.loop("l", 4, LoopKind.VECTOR) as lane:
                b.store(y, (THREAD, lane), x[THREAD, lane])

        if aligned:
            with b.when(eq(n % 4, 0) & (n >= 32)):
                row()
        else:
            with b.when(n >= 32):
                row()
        return source_of(Kernel("copy", (x, y), (y,), (n,), b.body(), GpuLaunch((1,), 32))).text

    assert "tm_load<4, 1>(" in copy(aligned=False)
    assert "tm_store(" in copy(aligned=False)
    assert "tm_load<4>(" in copy(aligned=True)


def test_a_condition_on_memory_is_forgotten_once_memory_may_have_changed() -> None:
    """A clamp that it makes useless may be needed again after the store."""
    counts, x, y = Buffer("counts", i64, (32,)), Buffer("x", f32, (4,)), Buffer("y", f32, (32,))
    b = Builder()
    b.store(y, (THREAD,), 0.0)
    with b.when(counts[THREAD] < 4):
        b.store(counts, (THREAD,), 10)
        b.store(y, (THREAD,), x[minimum(counts[THREAD], 3)])
    text = source_of(Kernel("k", (counts, x, y), (counts, y), (), b.body(), GpuLaunch((1,), 32))).text
    assert "x[tm_min<long long>(counts[thread], 3)]" in text


def test_registers_indexed_by_what_is_not_known_are_refused() -> None:
    @kernel(grid=(1,), threads=32)
    def wrong(y: f32[32]):
        r = register(f32[4], init=0.0)
        y[thread] = r[thread % 4]

    with pytest.raises(CodegenError, match=r"register buffer 'r' is indexed"):
        source_of(wrong)


def test_more_shared_memory_than_a_block_has_is_refused() -> None:
    @kernel(grid=(1,), threads=32)
    def greedy(y: f32[32]):
        s = shared(f32[20000])
        s[thread] = 1.0
        y[thread] = s[thread]

    with pytest.raises(CodegenError, match="80000 bytes of shared memory"):
        source_of(greedy, "sm_75")
    assert source_of(greedy, "sm_80").shared_bytes == 80000


def test_a_kernel_without_threads_is_refused() -> None:
    with pytest.raises(CodegenError, match="neither blocks nor threads"):
        generate(Kernel("plain", (), (), (), ()))


def test_launch_bounds_and_clusters_reach_the_source() -> None:
    @kernel(grid=(4,), threads=64, cluster=(2,), min_blocks=3)
    def bounded(y: f32[256]):
        y[block.x * 64 + thread] = 1.0

    source = source_of(bounded, "sm_90a")
    assert "__launch_bounds__(64, 3)" in source.text
    assert source.cluster == (2, 1, 1)


def test_blocks_that_may_start_early_first_wait_for_the_grid_before_theirs() -> None:
    @kernel(grid=(4,), threads=64)
    def plain(y: f32[256]):
        y[block.x * 64 + thread] = 1.0

    target = cuda_target("sm_90a")
    early = generate(lower(plain, target=target), replace(target, dependent_launch=True))
    assert early.text.partition("{\n")[2].startswith("  tm_after_previous_grid();\n")
    assert early.waits
    assert not source_of(plain, "sm_90a").waits


def test_the_head_says_which_mapping_does_what_and_lines_say_where_they_come_from() -> None:
    text = source_of(tensor_matmul).text
    assert "acc: f32[32, 32] is held by spatial(2, 1) * repeat(1, 4)" in text
    assert "row_major(32, 32).swizzled(2, 3, 3)" in text
    assert re.search(r"tm_barrier\(\);  // cuda_kernels\.py:\d+", text)


@settings(max_examples=12)
@given(gpu_kernels(), st.integers(0, 3))
def test_random_kernels_compile_and_do_in_the_simulator_what_they_do_in_the_interpreter(k: Kernel, seed: int) -> None:
    x = np.random.default_rng(seed).integers(-9, 10, (6, 8)).astype(np.float32)
    dims = dict.fromkeys(k.dims, 5)
    expected = interpret(k, {k.buffers[0]: x}, dims)[k.outputs[0]]
    source = source_of(k)
    assert compiles(source, "sm_80") == ""
    y = np.empty_like(expected)
    sim.run(source, [x, y], dims, outputs=[1], seed=seed)
    np.testing.assert_array_equal(y, expected)


def test_a_kernel_for_hopper(golden: Callable[[str, str], None]) -> None:
    """TMA, mbarriers and wgmma: the text, compiled, and interpreted before and after lowering."""
    source = source_of(hopper_matmul, "sm_90a")
    golden("cuda_hopper_matmul.cu", source.text)
    assert compiles(source, "sm_90a") == ""
    assert [(p.buffer, p.box, p.swizzle) for p in source.maps] == [(0, (64, 64), 128), (1, (64, 64), 128)]
    with pytest.raises(CodegenError, match="does not have"):
        source_of(hopper_matmul, "sm_80")

    dims = {v: {"m": 70, "n": 64, "k": 136}[v.name] for v in hopper_matmul.dims}
    rng = np.random.default_rng(2)
    a, b = (rng.integers(-3, 4, (rows, 136)).astype(np.float16) for rows in (70, 64))
    expected = a.astype(np.float32) @ b.astype(np.float32).T
    lowered = lower(hopper_matmul, target=cuda_target("sm_90a"))
    for k in (hopper_matmul, lowered):
        given = {x: y if k is hopper_matmul else y.reshape(-1) for x, y in zip(k.buffers, (a, b), strict=False)}
        result = interpret(k, given, dims)[k.outputs[0]]
        np.testing.assert_array_equal(result.reshape(70, 64), expected)
