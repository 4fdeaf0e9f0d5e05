"""Convolutions with few output channels: vectors along the input channels, against the definitions in float64."""

from __future__ import annotations

import random
from functools import partial

import pytest

from taskmap.graph.ops import activations
from taskmap.graph.ops.convolution import add_channel_bias, convolution
from taskmap.graph.passes.weight_packing import PackWeights
from taskmap.ir.interp.definitions import size_of
from taskmap.ir.nodes import Dim, Var
from taskmap.ir.types import DType, bf16, f16, f32, f64
from taskmap.schedules import packed_width
from taskmap.schedules.cpu.convolution.config import by_dots, space, validity
from taskmap.schedules.cpu.convolution.template import schedulable, schedule_convolution
from tests.schedules.graph_tasks import channels_last, fused, packed, tensor
from tests.schedules.interpreting import check_every_pass
from tests.schedules.random_tasks import random_array
from tests.schedules.running import Case, check, isas, target

LIMITS = {"f64": 1e-11, "f32": 2e-5, "f16": 1e-2, "bf16": 6e-2}
GEOMETRIES = {
    "detector head": (1, 64, 16, 16, 5, 3, 1, 1, 1),
    "one output channel": (2, 32, 9, 11, 1, 3, 1, 1, 1),
    "half a vector": (1, 16, 7, 13, 8, 3, 2, 1, 1),
    "dilated": (1, 32, 12, 12, 3, 3, 1, 2, 1),
    "grouped": (1, 64, 8, 8, 10, 3, 1, 1, 2),
    "5x5": (1, 16, 10, 10, 2, 5, 1, 2, 1),
    "transposed": (2, 32, 5, 6, 3, 4, 2, 1, 1),
    "transposed by three": (1, 16, 4, 5, 2, 5, 3, 1, 1),
    "transposed, grouped": (1, 32, 4, 4, 6, 4, 2, 1, 2),
}


def has_dots(made: Case) -> bool:
    conv = schedulable(made.task)
    return conv is not None and by_dots(conv, target(made.chosen_isa))


def case(name: str, isa: str, dtype: DType = f32, *, symbolic: bool = False, last: bool = True) -> Case:
    batch, inner, rows, columns, outer, window, stride, padding, groups = GEOMETRIES[name]
    dims: dict[Var, int] = {}
    extents: list[Dim] = [batch, rows, columns]
    if symbolic:
        for d, (label, size) in enumerate((("batch", batch), ("rows", rows), ("columns", columns))):
            extents[d] = Var(label)
            dims[extents[d]] = size  # type: ignore[index]
    dilation = padding if name == "dilated" else 1
    x = tensor(extents[0], inner, *extents[1:], dtype=dtype)
    turned = name.startswith("transposed")
    w = tensor(*((inner, outer // groups) if turned else (outer, inner // groups)), window, window, dtype=dtype)
    y = convolution(x, w, (stride,) * 2, (padding,) * 2, (dilation,) * 2, turned, (0, 0), groups)
    y = packed(y, PackWeights(partial(packed_width, target=target(isa))))
    z = activations.relu(add_channel_bias(y, tensor(outer, dtype=dtype)))
    task = fused([z], y, {n: channels_last(*n.shape) for n in (x, z)} if last else {})
    chance = random.Random(name)
    arrays = [random_array(chance, b.dtype, [size_of(d, dims) for d in b.shape]) for b in task.inputs]
    return Case(task, arrays, dims, isa)


@pytest.mark.parametrize("symbolic", [False, True])
def test_results(symbolic: bool) -> None:
    cases = [case(name, isa, symbolic=symbolic) for name in GEOMETRIES for isa in isas()]
    check(cases, LIMITS)
    assert sum(map(has_dots, cases)) >= 6


@pytest.mark.parametrize("dtype", [f64, f16, bf16], ids=str)
def test_types(dtype: DType) -> None:
    cases = [case(name, isa, dtype) for name in ("dilated", "5x5") for isa in isas()]
    check(cases, LIMITS)
    assert dtype == bf16 or any(has_dots(c) for c in cases)


def test_an_image_whose_columns_are_contiguous() -> None:
    check([case("detector head", isa, last=False) for isa in isas()], LIMITS)


def test_in_the_interpreter_after_every_pass() -> None:
    made = case("5x5", "avx2")
    assert has_dots(made)
    check_every_pass(made, LIMITS)


def test_the_sum_runs_along_vectors() -> None:
    """No lane of a multiply-add is wasted, and the weights have one column per panel."""
    made = case("detector head", "avx512")
    conv = schedulable(made.task)
    assert conv is not None
    assert by_dots(conv, target("avx512"))
    kernel = schedule_convolution(made.task, target("avx512"))
    assert kernel is not None
    assert kernel.note == "cpu.convolution(tile=4x16, block=8x16, chunks=1)"


def test_a_transposed_convolution_sums_along_vectors_too() -> None:
    """A generator's last layer, from 32 channels to 3 colours: thirteen lanes of sixteen would be wasted."""
    made = case("transposed", "avx512")
    conv = schedulable(made.task)
    assert conv is not None
    assert by_dots(conv, target("avx512"))
    (weights,) = (x for x in made.task.inputs if len(x.shape) == 5)
    assert weights.shape == (3, 4, 4, 32, 1)  # whole vectors of 16 would hold 16 columns
    assert not has_dots(case("transposed, grouped", "avx512"))


def test_every_configuration_of_the_space_is_right() -> None:
    made = case("detector head", isas()[-1])
    conv, here = schedulable(made.task), target(made.isa)
    assert conv is not None
    found = space(conv, here)
    assert len(found) > 3
    assert all(validity(config, conv, here) is None for config in found)
    assert {config.tile.vectors for config in found} == {1}


def test_wide_outputs_and_odd_channels_keep_panels_of_vectors() -> None:
    t = target("avx512")
    assert packed_width(32, 5, f32, t, channels=64) == 1
    assert packed_width(32, 9, f32, t, channels=64) == 16
    assert packed_width(32, 5, f32, t, channels=60) == 16
    assert packed_width(32, 5, f32, t) == 16
    assert packed_width(32, 4, f64, t, channels=8) == 1
    assert packed_width(32, 5, f32, t, channels=2048) == 16
