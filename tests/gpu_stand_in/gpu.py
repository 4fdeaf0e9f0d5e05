"""This process on a machine with a GPU, as far as taskmap and `make gpu` can tell: kernels run in the simulator."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from benchmarks.gpu import cases, hardware, timing
from benchmarks.gpu.record import Record
from benchmarks.models import ModelSpec
from benchmarks.models.plain import PLAIN
from taskmap import torch_backend
from taskmap.backend.cuda.compile import SUFFIX, CudaCompiler
from taskmap.backend.cuda.driver import Driver, open_driver
from taskmap.backend.cuda.launch import LaunchContext
from taskmap.backend.cuda.source import CudaSource
from taskmap.backend.store.objects import KernelStore
from taskmap.compile.session import Session
from taskmap.compile.task_store import TaskStore
from taskmap.options import Options
from taskmap.targets.choose import gpu_target
from taskmap.targets.cuda import cuda_platform
from tests.backend.fake_driver import Launched
from tests.gpu_stand_in.library import Stub
from tests.taskmap.targets.test_cuda import execute

CPU = torch.device("cpu")
NETWORKS = ("resnet50", "mobilenet_v2", "inception_v3", "bert_base", "gpt2")
LARGEST = int(os.environ.get("STAND_IN_LARGEST", "192"))
"""The most elements along a dimension of what a case draws: the simulator takes its time."""


def stand_in(folder: Path) -> Stub:
    """Everything in its place. ``folder`` keeps the library, and what the simulator is compiled to."""
    stub = Stub.loaded(folder)
    stub.host_memory()
    driver = open_driver()
    driver.ensure_context(0)
    sources = noted_sources()
    store = KernelStore(folder)
    stub.on_launch(lambda symbol, values: execute(sources, store, launched(symbol, values)))
    _torch_cuda(driver)
    modules: tuple[Any, Any] = torch_backend, hardware
    modules[0].new_session = partial(_session, driver)
    target = gpu_target(Options(), driver.device(0))
    made = hardware.Machine(driver, target, KernelStore(suffix=SUFFIX), "cpu")
    modules[1].machine = lambda: made
    load = hardware._loaded

    def loaded(source: CudaSource, driver: Driver) -> Any:
        sources[source.symbol] = source  # kernels written by hand share names, and others are compiled meanwhile
        return load(source, driver)

    modules[1]._loaded = loaded
    _small_cases()
    _named_cases(stub)
    return stub


def noted_sources() -> dict[str, CudaSource]:
    """The sources of what is compiled from now on, so that the simulator can run what is launched."""
    sources: dict[str, CudaSource] = {}
    add = CudaCompiler.add

    def noted(self: CudaCompiler, source: CudaSource) -> None:
        sources.setdefault(source.symbol, source)
        add(self, source)

    CudaCompiler.add = noted  # type: ignore[method-assign, assignment]
    return sources


def launched(symbol: str, values: list[int]) -> Launched:
    return Launched(symbol, (1, 1, 1), 1, 0, 0, (), values)


def _session(driver: Driver, options: Options, device: torch.device) -> Session:
    """A session for the GPU, whose tensors are the CPU's. Nothing is recorded."""
    platform = cuda_platform(replace(options, cuda_graphs=False), CPU, driver)
    platform = replace(platform, surroundings=LaunchContext(_allocate, lambda: 0))
    return Session(options, platform, TaskStore(platform.store.path / "tasks"))


def _allocate(size: int) -> tuple[int, object]:
    block = torch.empty(size + 256, dtype=torch.uint8)
    return -(-block.data_ptr() // 256) * 256, block


class _Event:
    """An event of a GPU that has done everything at once."""

    def __init__(self, **_: object) -> None:
        self.at = 0.0

    def record(self) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def elapsed_time(self, other: _Event) -> float:
        return 1e3 * max(other.at - self.at, 1e-6)


def _torch_cuda(driver: Driver) -> None:
    """The functions of torch.cuda that `make gpu` calls."""

    def synchronize(*_: object) -> None:
        status = driver.api.cuCtxSynchronize()[0]
        if status != 0:
            raise RuntimeError(f"CUDA error: {status.name}")

    def graph(*_: object, **__: object) -> Any:
        raise RuntimeError("the stand-in records no CUDA graphs")

    made: Any = torch.cuda
    info = driver.device(0)
    made.device_count = driver.device_count
    made.current_device = lambda: 0
    made.synchronize = synchronize
    made.Event = _Event
    made.CUDAGraph = graph
    made.get_device_properties = lambda _: SimpleNamespace(
        name=info.name, major=9, minor=0, multi_processor_count=info.multiprocessors, total_memory=141 << 30
    )


def _small_cases() -> None:
    """The same cases on few numbers, timed hastily."""
    real = torch.randn

    def randn(*shape: int, dtype: torch.dtype = torch.float16, scale: float = 1.0) -> torch.Tensor:
        return (real(*(min(n, LARGEST) for n in shape)) * scale).to(dtype)

    def tiny(small: bool) -> Any:
        return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU()), (torch.randn(1, 64),), {}

    PLAIN.update(dict.fromkeys(NETWORKS, ModelSpec("tiny", tiny, 4160, "")))
    cases.randn = randn
    cases.DEVICE = "cpu"
    timing.WINDOW, timing.SETTLE = 1e-6, 0.0


def _named_cases(stub: Stub) -> None:
    """The driver knows the case that is measured."""
    begin: Callable[[Record, str], None] = Record.begin

    def named(self: Record, name: str) -> None:
        stub.case(name)
        begin(self, name)

    Record.begin = named  # type: ignore[method-assign]
