"""Gradients of convolution weights: geometries, groups, depthwise, transposed, symbolic sizes, layouts."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from taskmap.graph.nodes import Node
from taskmap.graph.ops.convolution import convolution
from taskmap.graph.ops.gradients.convolution import weight_gradient
from taskmap.ir.interp.definitions import size_of
from taskmap.ir.nodes import Dim, Var
from taskmap.ir.types import bf16, f16, f32, f64
from taskmap.schedules import schedule
from tests.schedules.graph_tasks import channels_last, fused, tensor
from tests.schedules.interpreting import check_every_pass
from tests.schedules.random_tasks import random_array
from tests.schedules.running import ISAS, Case, check, isas, run_cases, target

LOOSE = {"f32": 2e-4, "f16": 2e-2, "bf16": 1e-1}


def gradient(chance: random.Random, symbolic: bool, most: int) -> tuple[Node, dict[Var, int]]:
    dims: dict[Var, int] = {}

    def size(name: str, value: int) -> Dim:
        if not symbolic:
            return value
        symbol = Var(name)
        dims[symbol] = value
        return symbol

    rank = chance.choice((1, 2, 2, 3))
    dtype = chance.choice((f32, f32, f32, f64, f16, bf16))
    kind = chance.choice(("dense", "dense", "grouped", "depthwise"))
    groups = (
        1
        if kind == "dense"
        else chance.choice((2, 3))
        if kind == "grouped"
        else chance.choice([n for n in (3, 5, 17, 40) if n <= most])
    )
    inner = groups * (1 if kind == "depthwise" else chance.choice([n for n in (1, 3, 7, 20) if n <= most]))
    outer = groups * (1 if kind == "depthwise" else chance.choice([n for n in (1, 3, 5, 33, 50) if n <= most]))
    transposed = chance.random() < 0.3
    image = [chance.choice([n for n in (3, 5, 8, 17, 150) if n <= most]) if rank < 3 else 5 for _ in range(rank)]
    kernel, stride, dilation, padding = ([chance.choice(c) for _ in range(rank)] for c in (
        (1, 2, 3), (1, 1, 2, 3), (1, 1, 2), (0, 1, 2)))  # fmt: skip
    for d in range(rank):
        reach = (kernel[d] - 1) * dilation[d]
        if transposed:
            padding[d] = min(padding[d], ((image[d] - 1) * stride[d] + reach) // 2)
        while not transposed and image[d] + 2 * padding[d] <= reach:
            padding[d] += 1
    extents = [size(f"n{d}", n) for d, n in enumerate(image)]
    x = tensor(size("batch", chance.choice((1, 2, 3))), inner, *extents, dtype=dtype)
    shape = (inner, outer // groups) if transposed else (outer, inner // groups)
    w = tensor(*shape, *kernel, dtype=dtype)
    how = (stride, padding, dilation, transposed)
    y = convolution(x, w, *how, [0], groups)
    return weight_gradient(tensor(*y.shape, dtype=dtype), x, w, *how, groups), dims


def random_case(seed: int, isa: str, most: int = 150) -> Case:
    chance = random.Random(seed)
    node, dims = gradient(chance, seed % 4 == 1, most)
    strides = {n: channels_last(*n.shape) for n in node.inputs if chance.random() < 0.5}
    task = fused([node], node, strides)
    arrays = [random_array(chance, b.dtype, [size_of(d, dims) for d in b.shape]) for b in task.inputs]
    return Case(task, arrays, dims, isa)


def test_random_gradients_on_the_machine() -> None:
    cases = [random_case(seed, isas()[seed % len(isas())]) for seed in range(30)]
    for case in cases:
        assert schedule(case.task, target(case.isa)).note.startswith("cpu.correlation")
    check(cases, LOOSE)


@pytest.mark.parametrize("isa", ISAS)
def test_random_gradients_in_the_interpreter(isa: str) -> None:
    for seed in range(ISAS.index(isa), 9, 3):
        check_every_pass(random_case(300 + seed, isa, 5), {**LOOSE, "f64": 1e-9})


@pytest.mark.parametrize("channels_per_group", [1, 8])
def test_long_sums_keep_their_digits(channels_per_group: int) -> None:
    """12,544 positive products for each element: added one after another they had four times this error."""
    channels = 16
    x, w = tensor(4, channels, 56, 56), tensor(channels, channels_per_group, 3, 3)
    groups = channels // channels_per_group
    how = ([1, 1], [1, 1], [1, 1], False)
    node = weight_gradient(tensor(4, channels, 56, 56), x, w, *how, groups)
    images = [torch.rand(4, channels, 56, 56) for _ in node.inputs]
    grad, image = (t.double() for t in images)
    weight = torch.zeros([int(str(n)) for n in w.shape], dtype=torch.float64, requires_grad=True)
    result = torch.nn.functional.conv2d(image, weight, padding=1, groups=groups)
    exact = torch.autograd.grad(result, weight, grad)[0].numpy()
    for isa in isas():
        ((found,),) = run_cases([Case(fused([node], node), [t.numpy() for t in images], isa=isa)])
        assert np.abs(found / exact - 1).max() < 1.5e-6
