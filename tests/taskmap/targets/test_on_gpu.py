"""Several GPUs, and exhausted memory: with a PyTorch that only reports its current GPU."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from taskmap.backend.cuda.source import CudaSource
from taskmap.compile.runtime import CompiledGraph
from taskmap.errors import DeviceMemoryError
from taskmap.kernels import build_gpu as gpu_building
from taskmap.targets.on_gpu import on_gpu
from taskmap.util.dump import new_dump

GPUS = [torch.device("cuda", n) for n in range(3)]


class Chosen:
    """Replaces torch.cuda.device."""

    current = 0

    def __init__(self, device: torch.device) -> None:
        self.index, self.before = device.index, 0

    def __enter__(self) -> None:
        self.before, Chosen.current = Chosen.current, self.index

    def __exit__(self, *_: object) -> None:
        Chosen.current = self.before


@pytest.fixture(autouse=True)
def several(monkeypatch: pytest.MonkeyPatch) -> None:
    Chosen.current = 0
    monkeypatch.setattr(torch.cuda, "device", Chosen)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: Chosen.current)


def graph(device: torch.device, work: Callable[[], list[Any]]) -> CompiledGraph:
    made = object.__new__(CompiledGraph)
    made.device = device
    vars(made)["_run"] = lambda values, constants: work()
    return made


@pytest.mark.parametrize("device", GPUS)
def test_a_graph_runs_on_the_gpu_of_its_tensors(device: torch.device) -> None:
    seen: list[Any] = graph(device, lambda: [Chosen.current]).run([], np.empty(0))  # type: ignore[arg-type]
    assert seen == [device.index]
    assert Chosen.current == 0


@pytest.mark.parametrize("device", GPUS)
def test_a_kernel_runs_on_the_gpu_that_it_was_built_for(device: torch.device) -> None:
    seen: list[int] = []

    class Builder:
        def add(self, source: CudaSource) -> None:
            pass

        def finish(self, programs: dict[Any, Any], *_: object) -> Any:
            (program,) = programs
            return SimpleNamespace(executables={program: lambda *_: seen.append(Chosen.current)}, resources={})

        def close(self) -> None:
            pass

    platform: Any = SimpleNamespace(device=device, builder=Builder)
    source = CudaSource("k", "", (), False, (1,), 32, 0, ())
    run, _ = gpu_building.load_kernel(platform, source, 1, new_dump(None, "k"))
    run([4096], [])
    assert seen == [device.index]
    assert Chosen.current == 0


def test_no_memory_left_is_an_error_of_ours_and_of_pytorch() -> None:
    def work() -> list[Any]:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nGPU 2 has ...")

    message = "no memory left\n  cuda:2\n  CUDA out of memory. Tried to allocate 20.00 GiB.\n"
    with pytest.raises(DeviceMemoryError, match=re.escape(message)) as caught:
        graph(GPUS[2], work).run([], np.empty(0))  # type: ignore[arg-type]
    assert "smaller batch" in str(caught.value)
    assert isinstance(caught.value, torch.OutOfMemoryError)
    assert Chosen.current == 0


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(KeyError), on_gpu(GPUS[1]):
        raise KeyError
    assert Chosen.current == 0
