"""Interleaved stores: found where two vectors fill memory together, and equal to separate ones."""

from __future__ import annotations

import numpy as np
import pytest

from taskmap.backend.counters import Counters
from taskmap.backend.cpu.codegen import generate
from taskmap.backend.cpu.compile import compile_kernels
from taskmap.backend.cpu.host import detect_host
from taskmap.backend.cpu.toolchain import find_toolchain
from taskmap.backend.store.objects import KernelStore
from taskmap.graph.ops.rearrange import constant_pad
from taskmap.ir.builder import Builder
from taskmap.ir.construct import ramp
from taskmap.ir.lower.pipeline import lower
from taskmap.ir.nodes import Buffer, Kernel
from taskmap.ir.target import cpu_target
from taskmap.ir.types import DType, bf16, f16, f32, i8, i16, u8
from taskmap.schedules import schedule
from tests.schedules.graph_tasks import channels_last, fused, tensor
from tests.schedules.running import Array, call_kernel

TARGET = cpu_target("generic", 1)


def zipped(dtype: DType, lanes: int = 8, second: int = 1, *, reads: bool = False) -> Kernel:
    """y[2 · i] = a[i] and y[2 · i + second] = b[i], or y[2 · i] again, in two places."""
    a, b = (Buffer(x, dtype, (2 * lanes,)) for x in "ab")
    y = Buffer("y", dtype, (4 * lanes,))
    out = Builder()
    for start in (0, lanes):
        first = out.let("first", a[ramp(start, 1, lanes)])
        out.store(y, (ramp(2 * start, 2, lanes),), first)
        then = out.let("then", y[ramp(2 * start, 2, lanes)] if reads else b[ramp(start, 1, lanes)])
        out.store(y, (ramp(2 * start + second, 2, lanes),), then)
    return Kernel("zip", (a, b, y), (y,), (), out.body())


def run(kernel: Kernel, arrays: list[Array], isa: str = "generic") -> tuple[str, Array]:
    target = cpu_target(isa, 1)
    source = generate(lower(kernel, target=target), target.vector_bytes)
    loaded = compile_kernels([source], find_toolchain(isa=target.isa), KernelStore(), Counters())
    (got,) = call_kernel(kernel, source, loaded[source.symbol], arrays, {})
    return source.text, got


@pytest.mark.parametrize("dtype", [bf16, i16])
@pytest.mark.parametrize("lanes", [2, 8, 16])
def test_two_vectors_fill_memory(dtype: DType, lanes: int) -> None:
    a, b = (np.arange(k, k + 2 * lanes).astype(np.float32 if dtype == bf16 else np.int16) for k in (0, 100))
    text, got = run(zipped(dtype, lanes), [a, b])
    assert text.count("tm_store_pairs_") == 2
    np.testing.assert_array_equal(got, np.stack([a, b], -1).ravel())


def test_a_value_read_back_is_stored_first() -> None:
    a = np.arange(16).astype(np.float32)
    text, got = run(zipped(bf16, reads=True), [a, a])
    assert "tm_store_pairs_" not in text
    np.testing.assert_array_equal(got, np.repeat(a, 2))


@pytest.mark.parametrize("dtype", [i8, u8])
@pytest.mark.parametrize("lanes", [2, 16])
def test_four_vectors_of_bytes_fill_memory(dtype: DType, lanes: int) -> None:
    sources, y = [Buffer(x, dtype, (lanes,)) for x in "abcd"], Buffer("y", dtype, (4 * lanes,))
    out = Builder()
    for place, x in enumerate(sources):
        out.store(y, (ramp(place, 4, lanes),), x[ramp(0, 1, lanes)])
    limits = np.iinfo(np.int8 if dtype == i8 else np.uint8)
    arrays = [np.random.default_rng().integers(limits.min, limits.max + 1, lanes, limits.dtype) for _ in sources]
    text, got = run(Kernel("zip", (*sources, y), (y,), (), out.body()), arrays)
    assert text.count("tm_store_fours_") == 1
    np.testing.assert_array_equal(got, np.stack(arrays, -1).ravel())


@pytest.mark.parametrize("dtype", [bf16, i16, f16])
@pytest.mark.parametrize("isa", ["generic", *(isa for isa in ("avx2", "avx512") if detect_host().supports(isa))])
@pytest.mark.parametrize("lanes", [2, 4, 8, 16])
def test_four_vectors_of_halves_fill_memory(dtype: DType, isa: str, lanes: int) -> None:
    sources, y = [Buffer(x, dtype, (lanes,)) for x in "abcd"], Buffer("y", dtype, (4 * lanes,))
    out = Builder()
    for place, x in enumerate(sources):
        out.store(y, (ramp(place, 4, lanes),), x[ramp(0, 1, lanes)])
    numbers = np.random.default_rng().integers(-250, 250, (4, lanes))
    arrays = list(numbers.astype({bf16: np.float32, i16: np.int16, f16: np.float16}[dtype]))
    text, got = run(Kernel("zip", (*sources, y), (y,), (), out.body()), arrays, isa)
    assert text.count("tm_store_fours_") == 1
    np.testing.assert_array_equal(got, np.stack(arrays, -1).ravel())


def test_pairs_and_fours_are_not_mixed() -> None:
    x, y = Buffer("x", bf16, (8,)), Buffer("y", bf16, (32,))
    out = Builder()
    for place, stride in ((0, 4), (1, 2)):
        out.store(y, (ramp(place, stride, 8),), x[ramp(0, 1, 8)])
    assert "tm_store_strided_" in generate(lower(Kernel("zip", (x, y), (y,), (), out.body()), target=TARGET), 16).text


def test_three_vectors_of_bytes_are_stored_apart() -> None:
    """Memory between them is not touched."""
    x, y = Buffer("x", i8, (8,)), Buffer("y", i8, (32,))
    out = Builder()
    for place in (0, 1, 2):
        out.store(y, (ramp(place, 4, 8),), x[ramp(0, 1, 8)])
    kernel = Kernel("zip", (x, y), (y,), (), out.body())
    assert "tm_store_fours_" not in generate(lower(kernel, target=TARGET), 16).text


@pytest.mark.parametrize(("dtype", "second"), [(f32, 1), (bf16, 3)])
def test_others_are_stored_apart(dtype: DType, second: int) -> None:
    assert "tm_store_pairs_" not in generate(lower(zipped(dtype, 4, second), target=TARGET), 16).text


@pytest.mark.parametrize("isa", ["avx512", "avx2"])
@pytest.mark.parametrize("channels", [4, 3])
@pytest.mark.parametrize("dtype", [u8, bf16])
def test_the_channels_of_an_image_are_stored_together(isa: str, channels: int, dtype: DType) -> None:
    """Planes that become the channels of pixels: one store for the four of each vector of columns."""
    planes = tensor(1, channels, 5, 40, dtype=dtype)
    pixels = constant_pad(planes, [1, 1, 1, 1, 0, 4 - channels], 7)
    task = fused([pixels], None, {pixels: channels_last(1, 4, 7, 42)})
    target = cpu_target(isa, 1)
    text = generate(lower(schedule(task, target), target=target), target.vector_bytes).text
    assert f"tm_store_fours_{dtype}" in text
    assert "tm_store_strided" not in text
