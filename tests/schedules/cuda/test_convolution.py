"""Convolutions on a GPU: implicit matrix products on channels-last images, and the rule for those with groups."""

from __future__ import annotations

import random

import pytest

from taskmap.graph.ops import activations
from taskmap.graph.ops.convolution import add_channel_bias, convolution
from taskmap.ir.interp.definitions import size_of
from taskmap.ir.types import DType, f16, f32
from taskmap.schedules import schedule
from tests.schedules.cpu.test_convolution import LOOSE, random_case
from tests.schedules.cuda_running import check_kernel, cuda
from tests.schedules.graph_tasks import channels_last, fused, tensor
from tests.schedules.random_tasks import random_array
from tests.schedules.running import Case


@pytest.mark.parametrize("seed", range(24))
def test_random_convolutions(seed: int) -> None:
    case = random_case(seed, "generic", (1, 3, 5, 8))
    check_kernel(case, schedule(case.task, cuda()), LOOSE)


def image(dtype: DType, channels: int, filters: int, *, stride: int = 1, kernel: int = 3) -> str:
    """The text of the kernel of a convolution with bias and activation, after its result was checked."""
    x, w = tensor(2, channels, 7, 6, dtype=dtype), tensor(filters, channels, kernel, kernel, dtype=dtype)
    y = convolution(x, w, [stride], [kernel // 2], [1])
    y = activations.relu(add_channel_bias(y, tensor(filters, dtype=dtype)))
    strides = {n: channels_last(*n.shape) for n in (x, w, y)}
    task = fused([y], strides=strides)
    chance = random.Random(0)
    arrays = [random_array(chance, b.dtype, [size_of(n, {}) for n in b.shape]) for b in task.inputs]
    return check_kernel(Case(task, arrays), schedule(task, cuda()), LOOSE).text


@pytest.mark.parametrize(("kernel", "stride"), [(1, 1), (3, 1), (3, 2), (5, 1)])
def test_images_of_channels_go_asynchronously_to_tensor_cores(kernel: int, stride: int) -> None:
    text = image(f16, 32, 16, kernel=kernel, stride=stride)
    assert "tm_mma_" in text
    assert "zfill_16" in text or kernel == 1


def test_few_channels_and_single_precision() -> None:
    text = image(f16, 3, 16)
    assert "tm_mma_" in text
    image(f32, 16, 8)


@pytest.mark.parametrize(("channels", "filters", "groups"), [(32, 32, 4), (24, 48, 3), (16, 16, 16)], ids=str)
def test_groups_are_products_of_a_batch(channels: int, filters: int, groups: int) -> None:
    x, w = tensor(2, channels, 7, 6, dtype=f16), tensor(filters, channels // groups, 3, 3, dtype=f16)
    y = activations.relu(add_channel_bias(convolution(x, w, [1], [1], [1], groups=groups), tensor(filters, dtype=f16)))
    task = fused([y], strides={n: channels_last(*n.shape) for n in (x, w, y)})
    chance = random.Random(0)
    arrays = [random_array(chance, b.dtype, [size_of(n, {}) for n in b.shape]) for b in task.inputs]
    kernel = schedule(task, cuda())
    assert ("cuda.matmul" in kernel.note) == (groups < channels)
    check_kernel(Case(task, arrays), kernel, LOOSE)
