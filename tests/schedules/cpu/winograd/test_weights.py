"""The kernel that transforms weights: its values, its last panel, scaled weights, and the tasks that it refuses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from taskmap.graph.ops import arithmetic
from taskmap.graph.passes.winograd import transformed
from taskmap.ir.interp.definitions import size_of
from taskmap.ir.task import Task
from taskmap.ir.winograd import FORMS
from taskmap.schedules import schedule
from tests.schedules.graph_tasks import fused, tensor
from tests.schedules.interpreting import check_every_pass
from tests.schedules.running import Case, check, isas, target


def task_of(out_channels: int, channels: int, outputs: int, width: int, *, scaled: bool = False) -> Task:
    weight = tensor(out_channels, channels, 3, 3)
    given = arithmetic.mul(weight, tensor(out_channels, 1, 1, 1)) if scaled else weight
    return fused([transformed(given, FORMS[outputs], width)])


def case(task: Task, isa: str) -> Case:
    rng = np.random.default_rng(len(task.stages))
    shapes = [[size_of(d, {}) for d in b.shape] for b in task.inputs]
    return Case(task, [rng.standard_normal(shape).astype(np.float32) for shape in shapes], isa=isa)


@pytest.mark.parametrize("outputs", FORMS)
def test_values(outputs: int) -> None:
    tasks = [
        task_of(*sizes, outputs, 16, scaled=scaled) for sizes in ((16, 5), (37, 3), (5, 7)) for scaled in (False, True)
    ]
    assert all(schedule(t, target()).note.startswith("cpu.winograd_weights(") for t in tasks)
    check([case(task, isa) for task in tasks for isa in isas()])


def test_every_pass() -> None:
    check_every_pass(case(task_of(20, 2, 2, 16), "avx2"), {"f32": 1e-5})


def test_another_transformation_is_not_taken() -> None:
    task = task_of(16, 4, 4, 16)
    (stage,) = task.stages
    other = replace(task, stages=(replace(stage, attrs=(("winograd", 2),)),))
    assert schedule(other, target()).note.startswith("cpu.pointwise(")
