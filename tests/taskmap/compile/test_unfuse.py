"""A fused group that no schedule accepts is taken apart, and the result stays right.

Each test has a kernel store of its own: a kernel that another test left there would not be scheduled again.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.exc import BackendCompilerFailed

from taskmap.compile import kernels
from taskmap.ir.errors import ScheduleError
from taskmap.ir.target import Target
from taskmap.ir.task import Task
from taskmap.schedules import ScheduledKernel, scheduled
from taskmap.util.metrics import metrics
from tests.taskmap.compare import assert_like, compiled, since


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.relu(self.first(x)) * 2
        z = torch.softmax(self.second(y) + y, -1)
        return torch.cat([z, y.sin()], -1).t(), z.sum(0)


@pytest.mark.parametrize("dynamic", [False, True])
def test_split_groups_compute_the_same(monkeypatch: pytest.MonkeyPatch, absent_cache_dir: Path, dynamic: bool) -> None:
    def unwilling(task: Task, target: Target, attempt: int = 0) -> ScheduledKernel:
        if len(task.stages) > 1:
            raise ScheduleError("one at a time")
        return scheduled(task, target, attempt=attempt)

    monkeypatch.setattr(kernels, "scheduled", unwilling)
    model = Model().eval()
    x = torch.randn(5, 6)
    before = metrics()
    with torch.no_grad():
        assert_like(compiled(model, dynamic=dynamic)(x), model(x), rtol=1e-5, atol=1e-6)
    assert since(before).groups_split > 0


def test_a_single_operator_that_cannot_be_scheduled_is_an_error(
    monkeypatch: pytest.MonkeyPatch, absent_cache_dir: Path
) -> None:
    def refuse(task: Task, target: Target, attempt: int = 0) -> ScheduledKernel:
        raise ScheduleError("nothing doing", why="the test says so.")

    monkeypatch.setattr(kernels, "scheduled", refuse)
    with pytest.raises(BackendCompilerFailed, match=r"nothing doing\n.*test_unfuse.py:\d+  .*x \* 2"):
        compiled(lambda x: x * 2)(torch.ones(3))


def test_a_defect_names_the_group_and_the_line(monkeypatch: pytest.MonkeyPatch, absent_cache_dir: Path) -> None:
    def crash(task: Task, target: Target, attempt: int = 0) -> ScheduledKernel:
        raise KeyError("lost")

    monkeypatch.setattr(kernels, "scheduled", crash)
    with pytest.raises(BackendCompilerFailed, match=r"(?s)cannot compile the fused group.*x \* 2.*KeyError.*dump_dir"):
        compiled(lambda x: x * 2)(torch.ones(3))
