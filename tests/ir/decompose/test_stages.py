"""The specs of stages: which stages they take, and the operands that they list."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from taskmap.decompose import BLOCK, REGISTER, WARP, Compute, Reduce, Task, dim, reduced, stage, tensor
from taskmap.ir.errors import ScheduleError
from taskmap.ir.types import f32

M, N = dim("m"), dim("n")
X = tensor("x", f32[M, N])
HIGHEST = stage("highest", (M,), lambda i: reduced("max", N, lambda j: X[i, j]))
LESS = stage("less", (M, N), lambda i, j: X[i, j] - HIGHEST[i])
ROWS = Task.of("rows", HIGHEST, LESS)
FIRST = Task.of("first", stage("first", (M,), lambda i: reduced("argmax", N, lambda j: X[i, j])))
MEAN = Task.of("mean", stage("mean", (M,), lambda i: reduced("sum", N, lambda j: X[i, j]) / 2))

REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "a sum as element-wise work": (lambda: Compute(ROWS, "highest"), "Reduce"),
    "element-wise work as a sum": (lambda: Reduce(ROWS), "element-wise work"),
    "another stage": (lambda: Compute(ROWS, "z"), "Its stages are 'highest', 'less'"),
    "an index": (lambda: Reduce(FIRST), "argmax"),
    "a sum inside": (lambda: Compute(MEAN), "a stage of its own"),
    "a sum and more": (lambda: Reduce(MEAN), "sum and more"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    make, says = REFUSED[name]
    with pytest.raises(ScheduleError, match=re.escape(says)):
        make()


def test_operands_and_parameters() -> None:
    spec = Compute(ROWS)
    assert str(spec) == "Compute(m,n)(x:GL,highest:--,less:GL)(Kernel)"
    assert [o.name for o, _ in spec.parameters()] == ["x", "less"]
    assert str(Reduce(ROWS, "highest")) == "Reduce(m,n)(x:GL,highest:GL)(Kernel)"
    assert Compute(ROWS) == Compute(ROWS)
    assert Compute(ROWS).tile(1, 32) == Compute(ROWS).tile(1, 32)


def test_a_stage_belongs_where_it_is_moved() -> None:
    x = tensor("x", f32[M, 64])
    highest = stage("highest", (M,), lambda i: reduced("max", 64, lambda j: x[i, j]))
    task = Task.of("rows", highest, stage("less", (M, 64), lambda i, j: x[i, j] - highest[i]))
    rows = Compute(task).tile(1, 64).to(BLOCK).tile(1, 64).to(WARP).move("highest", REGISTER)
    assert "Reduce(1,64)(x:GL,highest:RF)(Warp)" in str(rows)
    assert str(rows.spec) == "Compute(1,64)(x:GL,highest:RF,less:GL)(Warp)"
