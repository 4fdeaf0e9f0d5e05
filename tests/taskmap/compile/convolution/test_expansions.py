"""Models with inverted residual blocks: values, kernels and their memory, the report, weights that change, sizes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import taskmap
from taskmap.compile import kernels
from taskmap.ir.errors import ScheduleError
from taskmap.ir.target import Target
from taskmap.ir.task import Task
from taskmap.schedules import ScheduledKernel, scheduled
from taskmap.util.metrics import metrics
from tests.schedules.running import isas
from tests.taskmap.compare import compiled, since


def block(
    channels: int, wide: int, kernel: int = 3, stride: int = 1, act: type[nn.Module] = nn.ReLU6, dilation: int = 1
) -> nn.Sequential:
    """An expansion and a depthwise convolution, each normalised and limited."""
    torch.manual_seed(0)
    padding = dilation * (kernel // 2)
    window = nn.Conv2d(wide, wide, kernel, stride, padding, dilation, groups=wide, bias=False)
    made = nn.Sequential(
        *(nn.Conv2d(channels, wide, 1, bias=False), nn.BatchNorm2d(wide), act()),
        *(window, nn.BatchNorm2d(wide), act()),
    ).eval()
    for norm in made:
        if isinstance(norm, nn.BatchNorm2d):
            nn.init.uniform_(norm.bias, -1, 1)
            norm.running_mean = torch.rand(wide) - 0.5
            norm.running_var = torch.rand(wide) + 0.5
    return made


def check(got: Tensor, module: nn.Module, x: Tensor) -> None:
    want = module.double()(x.double())
    module.float()
    torch.testing.assert_close(got.double(), want, rtol=2e-5, atol=2e-5)


def main_groups(report: taskmap.Report) -> list[taskmap.GroupReport]:
    return [g for g in report.groups if not g.once]


SIZES = {
    "primes": (7, 53, 3, 1, (2, 13, 17)),
    "stride 2": (16, 96, 3, 2, (1, 57, 29)),
    "window of 5": (24, 72, 5, 2, (1, 31, 28)),
    "window of 7": (11, 40, 7, 1, (3, 14, 14)),
    "many terms": (130, 136, 3, 1, (1, 19, 23)),
}


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("name", SIZES)
@torch.no_grad()
def test_values(name: str, isa: str) -> None:
    channels, wide, kernel, stride, (n, h, w) = SIZES[name]
    module = block(channels, wide, kernel, stride, dilation=2 if name == "primes" else 1)
    x = torch.randn(n, channels, h, w)
    check(torch.compile(module, backend="taskmap", options={"isa": isa})(x), module, x)


@pytest.mark.parametrize("act", [nn.SiLU, nn.Hardswish, nn.Identity])
@torch.no_grad()
def test_activations(act: type[nn.Module]) -> None:
    module, x = block(16, 96, act=act), torch.randn(1, 16, 28, 28).to(memory_format=torch.channels_last)
    groups = main_groups(taskmap.explain(module, x))
    assert ["expands" in g.code.schedule for g in groups] == [True]
    check(torch.compile(module, backend="taskmap")(x), module, x)


@torch.no_grad()
def test_the_wide_image_is_in_no_memory() -> None:
    """One kernel reads the image and the weights, and writes the result: 2.4 MB less than two kernels, twice."""
    module, x = block(16, 96, stride=2), torch.randn(1, 16, 112, 112).to(memory_format=torch.channels_last)
    report = taskmap.explain(module, x)
    (group,) = main_groups(report)
    assert "expands=16" in group.code.schedule
    assert group.code.why.startswith("together: million cycles by the cost model: ")
    assert [name.split(" ")[0] for name in group.roles.prologue] == ["convolution", "add", "hardtanh"]
    assert group.roles.anchor.startswith("convolution 3×3, 96→96, 56×56")
    assert group.work.outputs == ("f32[1, 96, 56, 56]",)
    floats = 16 * 112 * 112 + 96 * 56 * 56 + 16 * 96 + 9 * 96 + 2 * 96
    assert group.work.bytes == 4 * floats


@torch.no_grad()
def test_a_second_reader_needs_the_wide_image() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            whole = block(16, 96)
            self.first, self.second = whole[:3], whole[3:]

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            wide = self.first(x)
            return self.second(wide), wide.mean((2, 3))

    module, x = Both().eval(), torch.randn(1, 16, 28, 28)
    groups = main_groups(taskmap.explain(module, x))
    assert not any("expands" in g.code.schedule for g in groups)
    got, want = torch.compile(module, backend="taskmap")(x), module(x)
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_weights_that_change_are_packed_again() -> None:
    module, x = block(16, 96), torch.randn(1, 16, 28, 28)
    fast = torch.compile(module, backend="taskmap")
    check(fast(x), module, x)
    for p in module.parameters():
        p.mul_(0.5)
    check(fast(x), module, x)


@torch.no_grad()
def test_weights_that_are_not_constant_have_two_kernels() -> None:
    module, x = block(16, 96), torch.randn(1, 16, 28, 28)
    groups = main_groups(taskmap.explain(module, x, options={"freeze": False}))
    assert not any("expands" in g.code.schedule for g in groups)


@torch.no_grad()
def test_symbolic_sizes_have_two_kernels_and_say_why() -> None:
    module = block(16, 96)
    fast = torch.compile(module, backend="taskmap", dynamic=True)
    for n, h, w in ((1, 28, 30), (3, 9, 57)):
        x = torch.randn(n, 16, h, w)
        check(fast(x), module, x)
    torch._dynamo.mark_dynamic(x, 2)
    report = taskmap.explain(module, x)
    assert "apart: the image's size is known only when the kernel runs" in {g.code.why for g in report.groups}


@torch.no_grad()
def test_a_symbolic_batch() -> None:
    module = block(16, 96)
    fast = torch.compile(module, backend="taskmap")
    for n in (2, 5, 3):
        x = torch.randn(n, 16, 28, 30)
        torch._dynamo.mark_dynamic(x, 0)
        check(fast(x), module, x)


@torch.no_grad()
def test_bf16_has_two_kernels() -> None:
    module, x = block(16, 96).bfloat16(), torch.randn(1, 16, 28, 28).bfloat16()
    assert not any("expands" in g.code.schedule for g in taskmap.explain(module, x).groups)
    torch.testing.assert_close(torch.compile(module, backend="taskmap")(x), module(x), rtol=0.1, atol=0.1)


@torch.no_grad()
def test_a_group_that_is_taken_apart(monkeypatch: pytest.MonkeyPatch, absent_cache_dir: Path) -> None:
    """Both anchors keep their templates."""
    names: list[str] = []

    def unwilling(task: Task, target: Target, attempt: int = 0) -> ScheduledKernel:
        if sum(s.label == "convolution" for s in task.stages) > 1:
            raise ScheduleError("one at a time")
        made = scheduled(task, target, attempt=attempt)
        names.append(made.template)
        return made

    monkeypatch.setattr(kernels, "scheduled", unwilling)
    module, x = block(16, 96), torch.randn(1, 16, 28, 28)
    before = metrics()
    check(compiled(module)(x), module, x)
    assert since(before).groups_split == 1
    assert {"cpu.matmul", "cpu.convolution"} <= {*names}
