"""Convolutions: one to three dimensions, stride, padding, dilation, groups, layouts, packed weights, epilogues."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from taskmap.graph.nodes import Node
from taskmap.graph.ops import activations, arithmetic
from taskmap.graph.ops.convolution import add_channel_bias, convolution
from taskmap.graph.passes.weight_packing import PackWeights
from taskmap.ir.construct import static_size
from taskmap.ir.interp.definitions import size_of
from taskmap.ir.nodes import Dim, MatMul, Var
from taskmap.ir.types import bf16, f16, f32, f64
from taskmap.ir.visit import walk_stmts
from taskmap.schedules import packed_width, schedule
from tests.schedules.graph_tasks import channels_last, fused, packed, tensor
from tests.schedules.interpreting import check_every_pass
from tests.schedules.random_tasks import random_array
from tests.schedules.running import ISAS, Case, check, isas, target

LOOSE = {"f32": 1e-4, "f16": 1e-2, "bf16": 6e-2}


def channels(chance: random.Random) -> tuple[int, int, int]:
    """(input channels, output channels, groups): dense, grouped, depthwise, or with a channel multiplier."""
    kind = chance.choice(("dense", "dense", "grouped", "depthwise", "multiplied"))
    if kind == "dense":
        return chance.choice((1, 2, 3, 16, 20)), chance.choice((1, 5, 16, 33, 70)), 1
    if kind == "grouped":
        groups = chance.choice((2, 3, 8))
        return groups * chance.choice((2, 3, 5)), groups * chance.choice((1, 2, 17)), groups
    groups = chance.choice((3, 16, 17, 40))
    return groups, groups * (1 if kind == "depthwise" else chance.choice((2, 3))), groups


def random_case(seed: int, isa: str, sizes: tuple[int, ...] = (1, 3, 5, 8, 14, 17)) -> Case:
    chance = random.Random(seed)
    dims: dict[Var, int] = {}
    rank = chance.choice((1, 2, 2, 2, 2, 3))
    symbolic = seed % 4 == 1

    def size(name: str, value: int) -> Dim:
        if not symbolic:
            return value
        symbol = Var(name)
        dims[symbol] = value
        return symbol

    batch = size("batch", chance.choice((1, 1, 2, 3)))
    dtype = chance.choice((f32, f32, f32, f64, f16, bf16))
    inner, outer, groups = channels(chance)
    transposed = chance.random() < 0.3
    image, kernel, stride, dilation, padding = ([chance.choice(c) for _ in range(rank)] for c in (
        sizes, (1, 1, 2, 3, 5), (1, 1, 2, 3), (1, 1, 2), (0, 1, 2, 3)))  # fmt: skip
    for d in range(rank):
        reach = (kernel[d] - 1) * dilation[d]
        if transposed:
            padding[d] = min(padding[d], ((image[d] - 1) * stride[d] + reach) // 2)
        while not transposed and image[d] + 2 * padding[d] <= reach:
            padding[d] += 1
    extra = [chance.randrange(max(stride[d], dilation[d])) if transposed else 0 for d in range(rank)]
    extents = [size(f"n{d}", n) if chance.random() < 0.7 else n for d, n in enumerate(image)]
    x = tensor(batch, inner, *extents, dtype=dtype)
    shape = (inner, outer // groups) if transposed else (outer, inner // groups)
    y = convolution(x, tensor(*shape, *kernel, dtype=dtype), stride, padding, dilation, transposed, extra, groups)
    if chance.random() < 0.5:
        y = packed(y, PackWeights(partial(packed_width, target=target(isa))))
    outputs = epilogue(y, chance)
    strides = {n: channels_last(*n.shape) for n in (x, *outputs) if chance.random() < 0.5}
    task = fused(outputs, y, strides)
    arrays = [random_array(chance, b.dtype, [size_of(d, dims) for d in b.shape]) for b in task.inputs]
    return Case(task, arrays, dims, isa)


def epilogue(y: Node, chance: random.Random) -> list[Node]:
    z = y
    if chance.random() < 0.6:
        z = add_channel_bias(z, tensor(y.shape[1], dtype=y.dtype))
    if chance.random() < 0.5:
        z = activations.relu(z)
    if chance.random() < 0.3:
        z = arithmetic.add(z, tensor(*y.shape, dtype=y.dtype))
    return [z] if chance.random() < 0.8 or z is y else [y, z]


def test_random_convolutions_on_the_machine() -> None:
    check([random_case(seed, isas()[seed % len(isas())]) for seed in range(60)], LOOSE)


@pytest.mark.parametrize("isa", ISAS)
def test_random_convolutions_in_the_interpreter(isa: str) -> None:
    for seed in range(ISAS.index(isa), 18, 3):
        check_every_pass(random_case(200 + seed, isa, (1, 3, 5)), {**LOOSE, "f64": 1e-9})


GEOMETRIES = {
    "first layer": (1, 3, 32, 32, 64, 7, 2, 3, 1, 1),
    "kernel larger than the image": (1, 4, 3, 3, 8, 5, 1, 2, 1, 1),
    "image larger than a strip": (1, 40, 70, 260, 33, 3, 1, 1, 1, 1),
    "many channels": (1, 300, 6, 6, 200, 3, 1, 1, 1, 1),
    "dilated": (2, 8, 20, 20, 16, 3, 1, 4, 4, 1),
    "depthwise": (1, 70, 30, 30, 70, 3, 2, 1, 1, 70),
    "one output channel": (1, 16, 9, 9, 1, 3, 1, 1, 1, 1),
    "grouped": (1, 32, 14, 14, 64, 3, 1, 1, 1, 4),
    "pointwise": (2, 48, 7, 7, 96, 1, 1, 0, 1, 1),
    "pointwise with stride": (1, 16, 15, 15, 24, 1, 2, 0, 1, 1),
}


def test_known_geometries() -> None:
    cases = []
    for number, geometry in enumerate(GEOMETRIES.values()):
        n, c, h, w, oc, k, stride, padding, dilation, groups = geometry
        rng = np.random.default_rng(number)
        x, weight = tensor(n, c, h, w), tensor(oc, c // groups, k, k)
        y = convolution(x, weight, [stride], [padding], [dilation], False, [0], groups)
        z = activations.relu(add_channel_bias(y, tensor(oc)))
        last = {x: channels_last(*x.shape), z: channels_last(*z.shape)}
        for strides in ({}, last):
            task = fused([z], y, strides)
            arrays = [rng.standard_normal([size_of(d, {}) for d in b.shape]).astype(np.float32) for b in task.inputs]
            cases.append(Case(task, arrays, isa=isas()[number % len(isas())]))
    check(cases, {"f32": 5e-4})


def test_which_template_takes_what() -> None:
    def note(rank: int, kernel: int, groups: int, transposed: bool = False) -> str:
        x, w = tensor(1, 16, *[9] * rank), tensor(16, 16 // groups, *[kernel] * rank)
        y = convolution(x, w, [1], [kernel // 2], [1], transposed, [0], groups)
        return schedule(fused([y], y), target()).note.split("(")[0]

    assert note(2, 3, 1) == "cpu.convolution"
    assert note(1, 3, 1) == "cpu.convolution"
    assert note(2, 3, 16) == "cpu.depthwise"
    assert note(2, 1, 1) == "cpu.matmul"
    assert note(3, 3, 1) == "cpu.convolution"
    assert note(3, 3, 4) == "cpu.convolution"
    assert note(3, 3, 16) == "cpu.depthwise"
    assert note(2, 3, 1, transposed=True) == "cpu.convolution"
    assert note(1, 3, 16, transposed=True) == "cpu.depthwise"


def test_the_tile_runs_along_the_dimension_that_has_positions() -> None:
    rng = np.random.default_rng(0)
    cases = []
    for shape, kernel in (((1, 20, 60, 1), (5, 1)), ((2, 20, 60, 1), (5, 3)), ((1, 20, 1, 60, 1), (1, 5, 1))):
        x, w = tensor(*shape), tensor(70, 20, *kernel)
        y = convolution(x, w, [1], [n // 2 for n in kernel], [1], False, [0], 1)
        for strides in ({}, {x: channels_last(*x.shape)}):
            task = fused([y], y, strides)
            note = schedule(task, target()).note
            assert "tile=1x" not in note
            assert "block=1x60" in note
            arrays = [rng.standard_normal([size_of(d, {}) for d in b.shape]).astype(np.float32) for b in task.inputs]
            cases += [Case(task, arrays, isa=isa) for isa in isas()]
    check(cases, LOOSE)


def test_a_batch_of_unknown_size_may_be_one() -> None:
    """Then the channels must be divided among the cores, or only one core works."""
    n = Var("n")
    y = convolution(tensor(n, 64, 60), tensor(256, 64, 3), [1], [1], [1])
    two = replace(target(), cores=2)
    assert "chunks=1)" not in schedule(fused([y], y), two).note


@pytest.mark.parametrize(("filters", "transposed"), [(9, False), (9, True), (41, False)])
def test_filters_that_fill_no_vector_are_computed_once(filters: int, transposed: bool) -> None:
    # Zeros fill the last packed panel: 9 filters are one vector of 16, not one of 8 and one of 1.
    x = tensor(1, 64, 9, 20)
    w = tensor(*((64, filters) if transposed else (filters, 64)), 3, 3)
    pack = PackWeights(partial(packed_width, target=target("avx512")))
    y = packed(convolution(x, w, [1], [1], [1], transposed), pack)
    sums = [s.c for s in walk_stmts(schedule(fused([y], y), target("avx512")).body) if isinstance(s, MatMul)]
    assert sums
    assert all((static_size(c.shape[-1]) or 1) % 16 == 0 for c in sums)
