"""Convolution by minimal filtering: edges, paddings, symbolic sizes, layouts, prologues, epilogues, and its work."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from taskmap.graph.nodes import Node, OperatorNode
from taskmap.graph.ops import activations
from taskmap.graph.ops.convolution import add_channel_bias, convolution
from taskmap.graph.passes.winograd import reading
from taskmap.ir.construct import static_size
from taskmap.ir.interp.definitions import size_of
from taskmap.ir.nodes import Dim, Var
from taskmap.ir.target import cpu_target
from taskmap.ir.task import Task
from taskmap.ir.winograd import FORMS, TAPS, WinogradForm, weight_shape
from taskmap.schedules import problem, schedule
from taskmap.schedules.common.stack_limit import STACK_BYTES, local_bytes
from taskmap.schedules.cpu.winograd.choice import default
from taskmap.schedules.cpu.winograd.config import FilterSizes, transformed_bytes
from tests.schedules.counting import products
from tests.schedules.graph_tasks import channels_last, fused, random_epilogue, tensor
from tests.schedules.interpreting import check_every_pass
from tests.schedules.running import ISAS, Array, Case, check, expected, isas, run_cases, run_task, target

LOOSE = {"f32": 2e-4}


def transformed(w: Array, form: WinogradForm, width: int) -> Array:
    """Weights as the graph pass transforms them."""
    out_channels, channels = w.shape[:2]
    matrix = np.array([[float(x) for x in row] for row in form.of_taps])
    filters = np.einsum("ia,ocab,jb->oijc", matrix, w.astype(np.float64), matrix)
    made = np.zeros(weight_shape(form, channels, out_channels, width), np.float32)
    for o in range(out_channels):
        made[o // width, ..., o % width] = filters[o]
    return made


def filtered(x: Node, out_channels: int, form: WinogradForm, width: int, padding: Sequence[int] = (1,)) -> Node:
    """The convolution of ``x`` with new transformed weights."""
    channels = static_size(x.shape[1])
    assert channels is not None
    y = convolution(x, tensor(out_channels, channels, TAPS, TAPS), [1], padding, [1])
    return reading(y, tensor(*weight_shape(form, channels, out_channels, width)), form)


def arrays_of(task: Task, form: WinogradForm, sizes: tuple[int, int], seed: int, dims: dict[Var, int]) -> list[Array]:
    """Random inputs; transformed weights of ``sizes`` (out, in) channels are those of random weights."""
    rng = np.random.default_rng(seed)
    made: list[Array] = []
    for buffer in task.inputs:
        shape = [size_of(d, dims) for d in buffer.shape]
        if len(shape) == 5:
            w = rng.standard_normal((*sizes, TAPS, TAPS)).astype(np.float32)
            made.append(transformed(w, form, shape[-1]))
        else:
            made.append(rng.standard_normal(shape).astype(np.float32))
    return made


def random_case(seed: int, isa: str, most: int = 11) -> Case:
    chance = random.Random(seed)
    form = FORMS[chance.choice((2, 4))]
    dims: dict[Var, int] = {}

    def size(name: str, value: int) -> Dim:
        if seed % 3 != 1 or chance.random() < 0.3:
            return value
        symbol = Var(name)
        dims[symbol] = value
        return symbol

    padding = [chance.choice((0, 1, 1, 2, 3)) for _ in range(2)]
    image = [max(chance.randint(1, most), TAPS - 2 * p) for p in padding]
    channels, out_channels = chance.choice((1, 3, 16, 20)), chance.choice((1, 5, 16, 20))
    width = chance.choice((1, 2, 4)) * target(isa).lanes(4)
    x = tensor(size("batch", chance.choice((1, 2, 3))), channels, *(size(f"n{d}", n) for d, n in enumerate(image)))
    read = activations.relu(x) if chance.random() < 0.3 else x
    y = filtered(read, out_channels, form, width, padding)
    outputs, strides = random_epilogue(chance, x, y, out_channels, activations.relu)
    task = fused(outputs, y, strides)
    return Case(task, arrays_of(task, form, (out_channels, channels), seed, dims), dims, isa)


def test_random_convolutions_on_the_machine() -> None:
    check([random_case(seed, isas()[seed % len(isas())]) for seed in range(12)], LOOSE)


@pytest.mark.parametrize("isa", ISAS)
def test_random_convolutions_in_the_interpreter(isa: str) -> None:
    check_every_pass(random_case(100 + ISAS.index(isa), isa, 5), LOOSE)


SIZES = {
    "blocks of rows": (1, 64, 56, 56, 64),
    "blocks of images": (8, 32, 7, 7, 48),
    "parts of a row": (1, 48, 9, 530, 16),
    "sums in several parts": (1, 300, 6, 10, 40),
    "a last panel": (2, 32, 13, 13, 150),
}


@pytest.mark.parametrize("outputs", FORMS)
def test_known_sizes(outputs: int) -> None:
    form, rng = FORMS[outputs], np.random.default_rng(outputs)
    cases, wanted = [], []
    for n, c, h, w, oc in SIZES.values():
        image, filters = (rng.standard_normal(s).astype(np.float32) for s in ((n, c, h, w), (oc, c, 3, 3)))
        bias, width = rng.standard_normal(oc).astype(np.float32), 2 * target().lanes(4)
        x = tensor(n, c, h, w)
        y = filtered(x, oc, form, width)
        z = activations.relu(add_channel_bias(y, tensor(oc)))
        task = fused([z], y, {k: channels_last(*k.shape) for k in (x, z)})
        assert schedule(task, target()).note.startswith(f"cpu.winograd({form}, ")
        cases.append(Case(task, [image, transformed(filters, form, width), bias]))
        given, taps, added = (torch.from_numpy(a).double() for a in (image, filters, bias))
        wanted.append(torch.nn.functional.conv2d(given, taps, added, padding=1).relu().numpy())
    for (got,), want in zip(run_cases(cases), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-4, atol=1e-3)


def test_values_equal_those_of_the_plain_convolution() -> None:
    rng = np.random.default_rng(5)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 20, 11, 10), (24, 20, 3, 3)))
    plain = convolution(tensor(*x.shape), tensor(*w.shape), [1], [1], [1])
    (want,) = expected(fused([plain], plain), [x, w])
    for form in FORMS.values():
        width = 2 * target().lanes(4)
        y = filtered(tensor(*x.shape), 24, form, width)
        (got,) = run_task(fused([y], y), [x, transformed(w, form, width)])
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_it_has_no_configurations_to_tune() -> None:
    y = filtered(tensor(1, 16, 8, 8), 16, FORMS[2], 16)
    assert problem(fused([y], y), target()) is None


def test_weights_in_another_order_are_not_taken() -> None:
    form = FORMS[2]
    y = filtered(tensor(1, 16, 8, 8), 16, form, 16)
    assert isinstance(y, OperatorNode)
    other = replace(y, attrs={**y.attrs, "winograd": 4})
    assert not schedule(fused([other], other), target()).note.startswith("cpu.winograd")


@pytest.mark.parametrize("outputs", FORMS)
def test_products(outputs: int) -> None:
    """The kernel makes (m + 2)² products for m² outputs and each pair of channels."""
    form, size = FORMS[outputs], 56
    y = filtered(tensor(1, 64, size, size), 64, form, 64)
    kernel = schedule(fused([y], y), cpu_target("avx512", 2))
    assert products(kernel) == (size // outputs * form.inputs) ** 2 * 64 * 64
    plain = convolution(tensor(1, 64, size, size), tensor(64, 64, 3, 3), [1], [1], [1])
    direct = products(schedule(fused([plain], plain), cpu_target("avx512", 2)))
    assert direct / products(kernel) == (9 / 4 if outputs == 2 else 4)


@pytest.mark.parametrize("outputs", FORMS)
@pytest.mark.parametrize("isa", ISAS)
def test_transformed_inputs_stay_in_the_second_level_cache(outputs: int, isa: str) -> None:
    on = cpu_target(isa, 2, l2=1 << 20)
    for batch in (None, 1, 8):
        for rows, columns in ((None, None), (7, 7), (30, 30), (13, 57), (224, 224), (9, 700)):
            for channels in (16, 64, 200, 512):
                sizes = FilterSizes(FORMS[outputs], batch, channels, channels, rows, columns, 2 * on.lanes(4))
                config = default(sizes, on)
                if config is not None:
                    assert transformed_bytes(config.tiles, sizes) <= on.l2
                else:
                    assert channels * FORMS[outputs].inputs ** 2 * 4 * 8 > on.l2 // 2


def test_local_memory_is_bounded() -> None:
    for form in FORMS.values():
        for shape in ((1, 512, 14, 14, 512), (1, 16, 30, 300, 16), (8, 256, 7, 7, 256)):
            n, c, h, w, oc = shape
            y = filtered(tensor(n, c, h, w), oc, form, 64)
            kernel = schedule(fused([y], y), cpu_target("avx512", 2, l2=2 << 20))
            assert kernel.note.startswith("cpu.winograd")
            assert local_bytes(kernel) <= STACK_BYTES
