"""Models with 3×3 convolutions: values, the option, the report, weights that change, symbolic sizes, archives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from torch import nn

import taskmap
from tests.onnx.models import FLOAT, model


class Block(nn.Module):
    """Two convolutions that minimal filtering suits, with a residual connection."""

    def __init__(self, channels: int = 64) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.norm(self.first(x)))
        return torch.relu(self.second(y) + x)


@pytest.fixture
def block() -> nn.Module:
    torch.manual_seed(0)
    return Block().eval()


def schedules(report: taskmap.Report) -> list[str]:
    return [g.code.schedule for g in report.groups if g.roles.anchor and not g.once]


def check(got: torch.Tensor, module: nn.Module, x: torch.Tensor) -> None:
    want = module.double()(x.double())
    module.float()
    torch.testing.assert_close(got.double(), want, rtol=2e-5, atol=2e-5)


@torch.no_grad()
def test_values_and_algorithm(block: nn.Module) -> None:
    x = torch.randn(1, 64, 28, 30)
    report = taskmap.explain(block, x)
    assert [s.split("(")[0] for s in schedules(report)] == ["cpu.winograd"] * 2
    reasons = [g.code.why for g in report.groups if g.code.why]
    assert len(reasons) == 2
    assert all("million cycles by the cost model: direct " in why for why in reasons)
    assert reasons[0].partition(":")[0] in str(report)
    assert "million cycles" in str(report)
    check(torch.compile(block, backend="taskmap")(x), block, x)


@torch.no_grad()
def test_the_option_switches_it_off(block: nn.Module) -> None:
    x = torch.randn(1, 64, 28, 30)
    report = taskmap.explain(block, x, options={"winograd": False})
    assert [s.split("(")[0] for s in schedules(report)] == ["cpu.convolution"] * 2
    check(torch.compile(block, backend="taskmap", options={"winograd": False})(x), block, x)


@torch.no_grad()
def test_weights_that_change_are_transformed_again(block: nn.Module) -> None:
    x = torch.randn(1, 64, 28, 30)
    compiled = torch.compile(block, backend="taskmap")
    check(compiled(x), block, x)
    for p in block.parameters():
        p.mul_(0.5)
    check(compiled(x), block, x)


def test_weights_that_are_not_constant_are_convolved_directly(block: nn.Module) -> None:
    x = torch.randn(1, 64, 28, 30)
    with torch.no_grad():
        report = taskmap.explain(block, x, options={"freeze": False})
    assert [s.split("(")[0] for s in schedules(report)] == ["cpu.convolution"] * 2
    assert {g.code.why for g in report.groups if g.code.why} == {"direct: its weights may change from call to call"}


@torch.no_grad()
def test_symbolic_sizes(block: nn.Module) -> None:
    compiled = torch.compile(block, backend="taskmap", dynamic=True)
    for n, h, w in ((1, 28, 30), (3, 9, 57), (2, 33, 5)):
        x = torch.randn(n, 64, h, w)
        check(compiled(x), block, x)


def test_an_archive_holds_transformed_weights(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    w, x = (rng.standard_normal(shape).astype(np.float32) for shape in ((64, 64, 3, 3), (2, 64, 12, 14)))
    node = helper.make_node("Conv", ["x", "w"], ["y"], kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    onnx.save(model([node], {"x": (FLOAT, ["n", 64, 12, 14])}, ["y"], {"w": w}), tmp_path / "conv.onnx")
    taskmap.compile_onnx(tmp_path / "conv.onnx", tmp_path / "conv.taskmap")
    (got,) = taskmap.load(tmp_path / "conv.taskmap")(x)
    want = nn.functional.conv2d(torch.from_numpy(x).double(), torch.from_numpy(w).double(), padding=1)
    torch.testing.assert_close(torch.from_numpy(got).double(), want, rtol=1e-4, atol=1e-3)
