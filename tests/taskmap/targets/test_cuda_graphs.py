"""Recorded launches: replayed for the sizes and parameters that they were recorded for, and for no others."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from taskmap.compile.cuda_graphs import ReplayedGraph
from taskmap.compile.frozen import FrozenGraph
from taskmap.compile.session import Compilation
from taskmap.errors import IndexOutOfRangeError
from taskmap.targets.platform import Capturer
from tests.taskmap.compare import assert_like, share
from tests.taskmap.targets.test_cuda import Gpu, RecordingPlatform


@dataclass
class Recorder:
    """Behaves like a CUDA graph: a replay works on the recording's memory, whatever is passed later."""

    recordings: int = 0
    replays: int = 0
    fails: str = ""

    def capture(self, function: Callable[[], None]) -> Callable[[], None]:
        if self.fails:
            raise RuntimeError(self.fails)
        self.recordings += 1
        kept = _filled(function)
        function()
        first = list(kept)

        def replay() -> None:
            self.replays += 1
            function()
            for old, new in zip(first, kept, strict=True):
                if isinstance(old, torch.Tensor) and old is not new:
                    old.copy_(new)
            kept[:] = first

        return replay


def _filled(function: Callable[[], None]) -> list[Any]:
    """The table that the recorded function fills."""
    names = function.__code__.co_freevars
    table: list[Any] = (function.__closure__ or ())[names.index("filled")].cell_contents
    return table


@dataclass(frozen=True)
class GraphedPlatform(RecordingPlatform):
    recorder: Recorder = field(default_factory=Recorder)

    def capturer(self) -> Capturer | None:
        return self.recorder


class GraphedGpu(Gpu):
    """A GPU that records."""

    def __init__(self, tmp_path: Path, **options: object) -> None:
        super().__init__(tmp_path, **options)
        made = self.platform
        fields = {name: getattr(made, name) for name in RecordingPlatform.__dataclass_fields__}
        self.session.platform = graphed = GraphedPlatform(**fields)
        self.recorder = graphed.recorder


@pytest.fixture
def gpu(tmp_path: Path) -> GraphedGpu:
    return GraphedGpu(tmp_path)


def test_the_third_call_replays(gpu: GraphedGpu) -> None:
    model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10)).eval()
    with torch.no_grad():
        function = gpu.compiled(model)
        kept = []
        for _ in range(5):
            x = torch.randn(9, 64)
            kept.append((function(x), model(x)))
    assert (gpu.recorder.recordings, gpu.recorder.replays) == (1, 4)
    for got, want in kept:  # no later call has written into the results of an earlier one
        assert_like(got, want, 1e-4, 1e-5)


def test_a_replay_looks_only_at_the_parameters_that_its_steps_read(gpu: GraphedGpu) -> None:
    """A batch norm's parameters make constants; what is left is read in place."""
    model = nn.Sequential(nn.Linear(64, 48), nn.Unflatten(1, (3, 4, 4)), nn.BatchNorm2d(3), nn.ReLU()).eval()
    gpu.session.record = []
    with torch.no_grad():
        gpu.compiled(model)(torch.randn(2, 64))
    (compilation,) = gpu.session.record
    assert isinstance(compilation, Compilation)
    assert isinstance(compilation.call, FrozenGraph)
    graph = compilation.call.main
    assert isinstance(graph, ReplayedGraph)
    assert len(graph._fixed) == 2
    assert len(compilation.call.watched) == 4


def test_each_set_of_sizes_is_recorded(gpu: GraphedGpu) -> None:
    with torch.no_grad():
        function = gpu.compiled(lambda x: (x * 2).softmax(-1), dynamic=True)
        for n in (3, 40, 3, 40, 3, 40, 7):
            x = torch.randn(n, 16)
            assert_like(function(x), (x * 2).softmax(-1), 1e-5, 1e-6)
    assert (gpu.recorder.recordings, gpu.recorder.replays) == (2, 4)


def test_a_moved_parameter_is_recorded_again(gpu: GraphedGpu) -> None:
    model = nn.Linear(16, 8).eval()
    x = torch.randn(5, 16)
    with torch.no_grad():
        function = gpu.compiled(model)
        for _ in range(3):
            function(x)
        model.weight.data = torch.randn(8, 16)
        for _ in range(3):
            assert_like(function(x), model(x), 1e-4, 1e-5)
        model.weight.mul_(3)
        assert_like(function(x), model(x), 1e-4, 1e-5)
    assert gpu.recorder.recordings == 2


def test_results_share_memory_as_they_should(gpu: GraphedGpu) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x + 1
        return y, y.view(-1), x.view(-1)

    with torch.no_grad():
        compiled = gpu.compiled(function)
        for _ in range(4):
            x = torch.randn(4, 8)
            a, b, c = compiled(x)
            assert_like((a, b, c), function(x))
            assert share(a, b)
            assert share(c, x)
    assert gpu.recorder.replays == 3


def test_operators_of_pytorch_are_recorded_with_the_kernels(gpu: GraphedGpu) -> None:
    with torch.no_grad():
        function = gpu.compiled(lambda x: torch.sort(x * 2).values + 1)
        for _ in range(4):
            x = torch.randn(4, 40)
            assert_like(function(x), torch.sort(x * 2).values + 1)
    assert gpu.recorder.replays == 3


def test_what_cannot_be_recorded_runs_as_before(gpu: GraphedGpu, caplog: pytest.LogCaptureFixture) -> None:
    gpu.recorder.fails = "operation not permitted when stream is capturing"
    with torch.no_grad(), caplog.at_level(logging.WARNING):
        function = gpu.compiled(lambda x: x * 2)
        for _ in range(4):
            x = torch.randn(30)
            assert_like(function(x), x * 2)
    assert [r.getMessage() for r in caplog.records] == [
        "taskmap runs a graph without CUDA graphs, because it cannot be recorded: operation not permitted when stream "
        "is capturing"
    ]


def test_an_index_out_of_range_in_a_replay_is_reported(gpu: GraphedGpu) -> None:
    table = nn.Embedding(20, 16).eval()
    with torch.no_grad():
        function = gpu.compiled(table)
        for _ in range(3):
            function(torch.tensor([3, 4]))
        function(torch.tensor([3, 20]))
        with pytest.raises(IndexOutOfRangeError, match="embedding"):
            function(torch.tensor([3, 4]))


def test_training_is_not_recorded(gpu: GraphedGpu) -> None:
    model = nn.Linear(8, 4)
    function = gpu.compiled(model)
    for _ in range(3):
        function(torch.randn(5, 8)).sum().backward()
    assert gpu.recorder.recordings == 0
