"""Depthwise convolutions of bf16 by pairs of rows: values at all edges, neighbours without a tap, the work of the
text, and the convolutions that take another form."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest

from taskmap.backend.cpu.codegen import generate
from taskmap.backend.cpu.host import detect_host
from taskmap.graph.nodes import Node
from taskmap.graph.ops import activations
from taskmap.graph.ops.convolution import add_channel_bias, convolution
from taskmap.graph.passes.weight_packing import PackWeights
from taskmap.ir.errors import ScheduleError
from taskmap.ir.interp.definitions import size_of
from taskmap.ir.lower.pipeline import lower
from taskmap.ir.nodes import Dim, Var
from taskmap.ir.target import CpuTarget, cpu_target
from taskmap.ir.types import DType, bf16, f32
from taskmap.ir.verify.rules import LOWERED, RULES, verify
from taskmap.schedules import packed_width, schedule
from taskmap.schedules.cpu.convolution.depthwise_config import DepthwiseConfig
from taskmap.schedules.cpu.convolution.template import schedule_convolution
from tests.schedules import bf16_products
from tests.schedules.bf16_products import bf16_array
from tests.schedules.graph_tasks import channels_last, fused, packed, tensor
from tests.schedules.interpreting import interpreted
from tests.schedules.random_tasks import random_array
from tests.schedules.running import Case, compare_outputs

TARGET = cpu_target("avx512", 2, features=["avx512_bf16"])
PLAIN = cpu_target("avx512", 2)
LOOSE = {"bf16": 2e-2}
needs_bf16 = pytest.mark.skipif("avx512_bf16" not in detect_host().features, reason="this CPU has no avx512_bf16")


def window(
    x: Node,
    kernel: Sequence[int] = (3, 3),
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (1, 1),
    dilation: Sequence[int] = (1, 1),
    transposed: bool = False,
) -> Node:
    """A depthwise convolution with packed weights."""
    channels = x.shape[1]
    assert isinstance(channels, int)
    y = convolution(
        x, tensor(channels, 1, *kernel, dtype=x.dtype), stride, padding, dilation, transposed, [0], channels
    )
    return packed(y, PackWeights(partial(packed_width, target=TARGET)))


def random_case(seed: int, sizes: Sequence[int]) -> Case:
    """Images and windows of all kinds that the form takes, some of sizes that are known only at run time, some with an
    epilogue and an image that is computed."""
    chance = random.Random(seed)
    dims: dict[Var, int] = {}

    def size(name: str, value: int) -> Dim:
        if seed % 3:
            return value
        dims[symbol := Var(name)] = value
        return symbol

    channels = chance.choice((4, 16, 20, 36, 40, 100))
    kernel = [chance.choice((2, 3, 3, 4, 5)), chance.choice((1, 2, 3, 3, 5))]
    padding = [chance.randrange(3), chance.randrange(3)]
    dilation = [1, chance.choice((1, 1, 2))]
    image = [max(chance.choice(sizes), d * (k - 1) + 1) for k, d in zip(kernel, dilation, strict=True)]
    turned = chance.random() < 0.2
    stride = [1, 1] if turned else [chance.choice((1, 1, 2)), chance.choice((1, 2, 3))]
    x = tensor(size("n", chance.choice((1, 2))), channels, size("h", image[0]), size("w", image[1]), dtype=bf16)
    y = window(activations.relu(x) if chance.random() < 0.3 else x, kernel, stride, padding, dilation, turned)
    z = activations.relu(add_channel_bias(y, tensor(channels, dtype=bf16))) if chance.random() < 0.5 else y
    task = fused([z], y, {n: channels_last(*n.shape) for n in (x, z) if chance.random() < 0.8})
    return Case(task, [random_array(chance, b.dtype, [size_of(d, dims) for d in b.shape]) for b in task.inputs], dims)


@needs_bf16
@pytest.mark.parametrize("seed", range(9))
def test_random_convolutions_on_the_machine(seed: int) -> None:
    case = random_case(seed, (5, 6, 7, 12, 19))
    kernel = schedule(case.task, TARGET)
    assert "rows=paired" in kernel.note
    got = bf16_products.run(kernel, TARGET, ("avx512_bf16",), list(case.arrays), dict(case.dims))
    compare_outputs(case, [got], LOOSE)


@pytest.mark.parametrize("seed", range(100, 104))
def test_random_convolutions_in_the_interpreter(seed: int) -> None:
    """Before lowering and after it, without accesses out of bounds, races, or reads of what was not written."""
    case = random_case(seed, (5, 6))
    kernel = schedule(case.task, TARGET)
    lowered = lower(kernel, target=TARGET, verify=True)
    verify(kernel, RULES)
    verify(lowered, LOWERED)
    for stage in (kernel, lowered):
        compare_outputs(case, interpreted(kernel, stage, case.arrays, case.dims), LOOSE)


@needs_bf16
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("rows", "columns", "channels"), [(1, 4, 16), (3, 9, 36), (5, 2, 32), (9, 9, 4)])
def test_blocks_of_rows_columns_and_channels(stride: int, rows: int, columns: int, channels: int) -> None:
    """Odd numbers of rows end within a pair."""
    x = tensor(2, 36, 9 * stride, 9 * stride, dtype=bf16)
    y = window(x, stride=(stride, stride))
    task = fused([y], y, {n: channels_last(*n.shape) for n in (x, y)})
    rng = np.random.default_rng(rows)
    case = Case(task, [bf16_array(tuple(size_of(d, {}) for d in b.shape), rng) for b in task.inputs])
    kernel = schedule_convolution(task, TARGET, DepthwiseConfig(3, rows, columns, channels))
    assert kernel is not None
    got = bf16_products.run(kernel, TARGET, ("avx512_bf16",), list(case.arrays), {})
    compare_outputs(case, [got], LOOSE)


@needs_bf16
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("special", [np.inf, -np.inf, np.nan])
def test_an_infinity_reaches_the_windows_that_contain_it(stride: int, special: float) -> None:
    """And no other: a tap without a partner multiplies its own row alone."""
    x = tensor(1, 16, 11, 7, dtype=bf16)
    y = window(x, stride=(stride, stride))
    task = fused([y], y, {n: channels_last(*n.shape) for n in (x, y)})
    rng = np.random.default_rng(0)
    image, weights = (bf16_array(tuple(size_of(d, {}) for d in b.shape), rng) for b in task.inputs)
    for row in range(11):
        image[0, 0, row, 3] = special
        got = bf16_products.run(schedule(task, TARGET), TARGET, ("avx512_bf16",), [image, weights], {})[0, 0]
        reached = [[abs(r * stride - row) < 2 and abs(q * stride - 3) < 2 for q in range(got.shape[1])]
                   for r in range(got.shape[0])]  # fmt: skip
        np.testing.assert_array_equal(~np.isfinite(got), reached)
        image[0, 0, row, 3] = 0


def text_of(channels: int, size: int, kernel: int, stride: int, target: CpuTarget = TARGET) -> str:
    x = tensor(1, channels, size, size, dtype=bf16)
    y = window(x, (kernel, kernel), (stride, stride), (kernel // 2, kernel // 2))
    task = fused([y], y, {n: channels_last(*n.shape) for n in (x, y)})
    config = DepthwiseConfig(2, 4, size // stride, channels)
    made = schedule_convolution(task, target, config)
    assert made is not None
    return generate(lower(made, target=target), target.vector_bytes, target.features).text


@pytest.mark.parametrize(
    ("kernel", "stride", "products", "outputs"), [(3, 1, 24, 4), (3, 2, 12, 2), (5, 1, 60, 4), (5, 2, 30, 2)]
)
def test_the_work(kernel: int, stride: int, products: int, outputs: int) -> None:
    """Six instructions for nine products, 15 for 25. No element is widened; each is copied once, two rows by one
    store."""
    text = text_of(16, 8, kernel, stride)
    assert text.count("tm_lanes_vdpbf16ps_f32x16(") == products
    assert text.count("tm_vcvtneps2bf16_f32x16(") == outputs
    assert "tm_cast_bf16" not in text
    assert "tm_fma" not in text
    assert "m64x32" not in text  # masks of lanes are constants
    inside = text[text.index("if (") : text.index("else")]
    assert inside.count("tm_load_bf16x16(") == 2
    assert inside.count("tm_store_pairs_bf16x16(") == 1
    assert "tm_store_strided" not in text
    plain = text_of(16, 8, kernel, stride, PLAIN)
    assert plain.count("tm_fma_f32x16(") == kernel * kernel * 2


def form(target: CpuTarget, y: Node, x: Node) -> bool:
    task = fused([y], y, {n: channels_last(*n.shape) for n in (x, y)})
    return "rows=paired" in schedule(task, target).note


def test_convolutions_of_another_form() -> None:
    """Other types and CPUs; rows that are dilated or further apart than two; channels that no vector holds; volumes."""

    def paired(
        channels: int = 16, dtype: DType = bf16, target: CpuTarget = TARGET, rank: int = 2,
        kernel: int = 3, stride: int = 1, dilation: int = 1, transposed: bool = False,
    ) -> bool:  # fmt: skip
        x, w = tensor(1, channels, *[9] * rank, dtype=dtype), tensor(channels, 1, *[kernel] * rank, dtype=dtype)
        y = convolution(x, w, [stride], [kernel // 2], [dilation], transposed, [0], channels)
        return form(target, y, x)

    assert paired()
    assert paired(stride=2)
    assert paired(channels=12)
    assert not paired(dtype=f32)
    assert not paired(target=PLAIN)
    assert not paired(channels=18)
    assert not paired(rank=1)
    assert not paired(rank=3)
    assert not paired(kernel=1)
    assert not paired(stride=3)
    assert not paired(dilation=2)
    assert paired(transposed=True)
    assert not paired(transposed=True, stride=2)


def test_a_chunk_of_channels_is_whole_vectors() -> None:
    x = tensor(1, 40, 9, 9, dtype=bf16)
    y = window(x)
    with pytest.raises(ScheduleError, match="6 channels are not whole vectors of pairs"):
        schedule_convolution(fused([y], y), TARGET, DepthwiseConfig(4, 9, 9, 6))
