"""Weights that differ in their sizes alone are packed, or transformed, by one kernel; the sizes are its arguments."""

from __future__ import annotations

import numpy as np
import pytest

from taskmap.graph.analysis.placement import Placement
from taskmap.graph.fusion.tasks import build_task
from taskmap.graph.nodes import InputNode
from taskmap.graph.passes.pack_classes import SizeClass, size_class
from taskmap.graph.passes.weight_packing import PackOrder, pack
from taskmap.graph.passes.winograd import transformed
from taskmap.ir.analysis.key import task_key
from taskmap.ir.interp.definitions import size_of
from taskmap.ir.lower.flatten import row_major_strides
from taskmap.ir.lower.specs_cpu import PORTABLE
from taskmap.ir.task import Task
from taskmap.ir.types import DType, f16, f32, f64
from taskmap.ir.winograd import FORMS
from taskmap.schedules import scheduled
from tests.schedules.running import Case, expected, run_cases

CASES: list[
    tuple[tuple[int, ...], int, tuple[int, ...], int, int]
] = [  # shape, axis, order of the others, columns of a group, panel width
    ((48, 24), 0, (1,), 48, 16),
    ((64, 9), 0, (1,), 64, 32),
    ((40, 33), 0, (1,), 40, 16),  # the last panel has a remainder
    ((7, 5), 0, (1,), 7, 16),
    ((33, 96), 1, (0,), 96, 48),
    ((33, 50), 1, (0,), 50, 48),
    ((96, 24, 1, 1), 0, (2, 3, 1), 96, 32),
    ((64, 24, 3, 3), 0, (2, 3, 1), 64, 32),
    ((50, 24, 3, 3), 0, (2, 3, 1), 50, 32),
    ((32, 4, 9, 9), 0, (2, 3, 1), 32, 16),  # more taps than belong to a class
    ((36, 1, 3, 3), 0, (1, 2, 3), 36, 36),  # depthwise: channels become adjacent
    ((64, 5, 3, 1), 0, (2, 3, 1), 16, 16),  # four groups
    ((40, 5, 1, 3), 0, (2, 3, 1), 20, 16),  # two groups with remainders
    ((12, 32, 2, 2), 1, (2, 3, 0), 32, 16),  # transposed
    ((16, 1), 0, (1,), 16, 16),
]


def pack_task(
    shape: tuple[int, ...], axis: int, others: tuple[int, ...], columns: int, width: int, dtype: DType = f32
) -> Task:
    weight = InputNode((), shape, dtype)
    node = pack(weight, PackOrder(axis, others, columns, width))
    places = {n: Placement(n, tuple(row_major_strides(n.shape)), 0) for n in (weight, node)}
    return build_task("pack", [node], [weight], [node], places, None)


def class_of(task: Task) -> SizeClass:
    found = size_class(task)
    assert found is not None
    return found


@pytest.mark.parametrize("dtype", [f32, f16, f64])
def test_the_kernel_of_a_class_packs_each_member(dtype: DType) -> None:
    rng = np.random.default_rng()
    tasks = [pack_task(*case, dtype) for case in CASES]
    classes = [class_of(task) for task in tasks]
    weights = [rng.standard_normal(case[0]).astype(dtype.name.replace("f", "float")) for case in CASES]
    cases: list[Case] = []
    for of, weight in zip(classes, weights, strict=True):
        dims = dict(zip(of.task.dims, of.sizes, strict=True))
        shape = [size_of(d, dims) for d in of.task.inputs[0].shape]
        cases.append(Case(of.task, [weight.reshape(shape)], dims))
    for task, weight, (got,) in zip(tasks, weights, run_cases(cases), strict=True):
        (want,) = expected(task, [weight])
        np.testing.assert_array_equal(got.reshape(want.shape), want)


def keys(*tasks: Task) -> set[str]:
    return {task_key(class_of(task).task) for task in tasks}


def test_sizes_do_not_tell_classes_apart() -> None:
    assert len(keys(*(pack_task((n, k), 0, (1,), n, 16) for n, k in [(16, 3), (48, 24), (64, 2048)]))) == 1
    assert len(keys(*(pack_task((n, k, 3, 3), 0, (2, 3, 1), n, 32) for n, k in [(32, 8), (64, 24)]))) == 1
    assert len(keys(*(pack_task((n, k, 1, 1), 0, (2, 3, 1), n, 32) for n, k in [(32, 8), (64, 24)]))) == 1
    assert keys(pack_task((64, 24, 1, 1), 0, (2, 3, 1), 64, 32)) == keys(pack_task((96, 8), 0, (1,), 96, 32))


def test_everything_else_does() -> None:
    other = [
        pack_task((48, 24), 0, (1,), 48, 16),
        pack_task((48, 24), 0, (1,), 48, 48),
        pack_task((50, 24), 0, (1,), 50, 16),
        pack_task((24, 48), 1, (0,), 48, 16),
        pack_task((48, 24), 0, (1,), 48, 16, f64),
        pack_task((48, 24, 3, 3), 0, (2, 3, 1), 48, 16),
        pack_task((48, 24, 5, 5), 0, (2, 3, 1), 48, 16),
        pack_task((48, 24), 0, (1,), 24, 12),
    ]
    assert len(keys(*other)) == len(other)


def test_only_dense_weights_have_a_class() -> None:
    weight = InputNode((), (48, 24), f32)
    node = pack(weight, PackOrder(0, (1,), 48, 16))
    for strides, offset in [((1, 48), 0), ((25, 1), 0), ((24, 1), 3)]:
        places = {
            weight: Placement(weight, strides, offset),
            node: Placement(node, tuple(row_major_strides(node.shape)), 0),
        }
        assert size_class(build_task("pack", [node], [weight], [node], places, None)) is None


def transform_task(out_channels: int, channels: int, outputs: int, width: int) -> Task:
    weight = InputNode((), (out_channels, channels, 3, 3), f32)
    node = transformed(weight, FORMS[outputs], width)
    places = {n: Placement(n, tuple(row_major_strides(n.shape)), 0) for n in (weight, node)}
    return build_task("transform_weights", [node], [weight], [node], places, None)


TRANSFORMED = [(64, 5, 4, 64), (128, 3, 4, 64), (32, 4, 2, 32), (96, 7, 2, 32), (40, 3, 4, 16), (7, 6, 2, 16)]


def test_the_kernel_of_a_class_transforms_each_member() -> None:
    rng = np.random.default_rng()
    tasks = [transform_task(*case) for case in TRANSFORMED]
    classes = [class_of(task) for task in tasks]
    weights = [rng.standard_normal((n, c, 3, 3)).astype(np.float32) for n, c, _, _ in TRANSFORMED]
    made = run_cases(
        [
            Case(of.task, [weight], dict(zip(of.task.dims, of.sizes, strict=True)))
            for of, weight in zip(classes, weights, strict=True)
        ]
    )
    apart = run_cases([Case(task, [weight]) for task, weight in zip(tasks, weights, strict=True)])
    for (got,), (want,) in zip(made, apart, strict=True):
        np.testing.assert_array_equal(got, want)  # bit for bit: it is the same arithmetic


def test_the_classes_of_transformed_weights() -> None:
    assert len(keys(*(transform_task(n, c, 4, 64) for n, c in [(64, 64), (128, 32), (512, 512)]))) == 1
    assert len(keys(*(transform_task(n, c, 4, 64) for n, c in [(96, 64), (160, 32)]))) == 1
    apart = [(64, 8, 4, 64), (64, 8, 2, 64), (64, 8, 4, 32), (72, 8, 4, 64)]
    assert len(keys(*(transform_task(*case) for case in apart))) == len(apart)
    assert scheduled(class_of(transform_task(96, 8, 4, 64)).task, PORTABLE).choice.template == "cpu.winograd_weights"
