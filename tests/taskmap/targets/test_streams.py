"""Several streams and a user's own CUDA graph: other streams wait for constants that one stream packs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from taskmap.errors import UnsupportedError
from taskmap.targets import streams
from taskmap.targets.streams import OnStream, refuse_capture
from tests.taskmap.targets.test_cuda_graphs import GraphedGpu

GPU = torch.device("cuda", 0)


@dataclass
class Stream:
    """A stream that records its calls."""

    cuda_stream: int
    told: list[str] = field(default_factory=list)

    def wait_event(self, event: Event) -> None:
        self.told.append(f"wait for {event.at}")


@dataclass
class Event:
    """An event that the test triggers."""

    at: int = -1
    happened: bool = False

    def record(self, stream: Stream) -> None:
        self.at = stream.cuda_stream

    def query(self) -> bool:
        return self.happened


@dataclass
class Tensor:
    """A tensor that records the streams that use it."""

    used: list[int] = field(default_factory=list)

    def record_stream(self, stream: Stream) -> None:
        self.used.append(stream.cuda_stream)


@dataclass
class Gpu:
    """The current stream, the events, and whether a graph is captured."""

    current: Stream = field(default_factory=lambda: Stream(0))
    events: list[Event] = field(default_factory=list)
    capturing: bool = False

    def event(self) -> Event:
        self.events.append(Event())
        return self.events[-1]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    made = Gpu()
    monkeypatch.setattr(streams, "_current", lambda device: made.current)
    monkeypatch.setattr(streams, "_new_event", made.event)
    monkeypatch.setattr(streams, "_is_capturing", lambda: made.capturing)
    return made


def ready(tensor: Tensor) -> OnStream:
    tensors: Any = [tensor]
    return OnStream(GPU, tensors)


def test_another_stream_waits_for_what_one_has_computed(gpu: Gpu) -> None:
    tensor, first, second = Tensor(), Stream(7), Stream(8)
    gpu.current = first
    made = ready(tensor)
    made.wait()
    assert (first.told, tensor.used) == ([], [])  # in order on its own stream
    gpu.current = second
    made.wait()
    assert second.told == ["wait for 7"]
    assert tensor.used == [8]  # the memory is not given to others before that stream is done with it
    gpu.events[0].happened = True
    made.wait()
    third = gpu.current = Stream(9)
    made.wait()
    assert (second.told, third.told) == (["wait for 7"], [])  # there is nothing left to wait for
    assert tensor.used == [8, 9]


def test_a_capture_waits_for_nothing_from_outside(gpu: Gpu) -> None:
    """Waiting would be an error; torch.cuda.graph waits for all work before it begins."""
    made = ready(Tensor())
    gpu.current, gpu.capturing = Stream(8), True
    made.wait()
    assert gpu.current.told == []
    gpu.capturing = False
    made.wait()
    assert gpu.current.told == ["wait for 0"]


def test_a_first_call_in_a_capture_is_refused(gpu: Gpu) -> None:
    refuse_capture(GPU, "it is compiled")
    gpu.capturing = True
    with pytest.raises(
        UnsupportedError, match=r"is being captured(.*\n)*.*once with such arguments before the capture"
    ):
        refuse_capture(GPU, "it is compiled")
    refuse_capture(torch.device("cpu"), "it is compiled")


def test_a_users_graph_holds_the_steps_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A warm function in a user's capture neither replays a graph of its own there nor records one."""
    made = GraphedGpu(tmp_path)
    model = nn.Sequential(nn.Linear(16, 8), nn.ReLU()).eval()
    with torch.no_grad():
        function = made.compiled(model)
        x = torch.randn(3, 16)
        for _ in range(3):
            function(x)
        before, launched = made.recorder.replays, len(made.api.launches)
        assert before > 0
        monkeypatch.setattr("taskmap.compile.cuda_graphs.is_capturing", lambda device: True)
        torch.testing.assert_close(function(x), model(x), rtol=1e-4, atol=1e-5)
    assert made.recorder.replays == before
    assert len(made.api.launches) > launched


def test_prepared_constants_are_ordered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The packed weights of a frozen model know the stream that packs them."""
    waited: list[int] = []

    class Counted:
        def __init__(self, device: torch.device, tensors: Any) -> None:
            self.count = len(tensors)

        def wait(self) -> None:
            waited.append(self.count)

    made = GraphedGpu(tmp_path, freeze=True)
    monkeypatch.setattr("taskmap.compile.frozen.OnStream", Counted)
    monkeypatch.setattr("taskmap.compile.frozen._on_gpu", lambda device: True)
    model = nn.Conv2d(8, 8, 3).eval()
    with torch.no_grad():
        function = made.compiled(model)
        for _ in range(3):
            x = torch.randn(1, 8, 6, 6)
            torch.testing.assert_close(function(x), model(x), rtol=1e-3, atol=1e-4)
    assert len(waited) == 3
    assert all(waited)
