"""Kernels on the GPU, called like the simulator, so that tests of the simulator also test the hardware."""

from __future__ import annotations

import ctypes
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from taskmap.backend import cuda
from taskmap.backend.cuda.compile import SUFFIX, CudaBinary, compile_cuda
from taskmap.backend.cuda.driver import Driver, LoadedKernel, open_driver
from taskmap.backend.cuda.launch import LaunchArguments
from taskmap.backend.cuda.products import MADE
from taskmap.backend.cuda.source import ALLOWANCES, CudaSource
from taskmap.backend.cuda.tensor_map import views_of
from taskmap.backend.cuda.toolchain import find_cuda_toolchain
from taskmap.backend.program.sizes import sizes_function
from taskmap.backend.sim.run import SimReport
from taskmap.backend.store.objects import KernelStore
from taskmap.ir.isa.table import INSTRUCTIONS
from taskmap.ir.nodes import Var
from taskmap.ir.target import GpuTarget
from taskmap.options import Options
from taskmap.targets.choose import gpu_target
from taskmap.util.metrics import COUNTERS

_FIRST = ("base", "portable")
_FILES = sorted({path.stem for path in Path(str(cuda.__file__)).with_name("device").glob("*.cuh")} - {*_FIRST})
_POISON = 0xFF
_COMPILING = ContextVar("compiling", default=False)

Check = Callable[[], Any]
"""Runs kernels and compares."""


def run(
    source: CudaSource,
    arrays: Sequence[NDArray[Any]],
    dims: Mapping[Var, int] | Sequence[int] = (),
    *,
    outputs: Sequence[int] = (),
    **_: object,
) -> SimReport:
    """Run a kernel on copies of ``arrays`` on the GPU, and copy them back; see `taskmap.backend.sim.run.run`.

    Requests that only a simulator can serve, orders of threads and checks, are ignored.
    """
    source = replace(source, families=_families(source), allow=ALLOWANCES)
    values = tuple(dims[v] for v in source.dims) if isinstance(dims, Mapping) else tuple(dims)
    if _COMPILING.get():
        _compiled(source)
        raise CompiledOnly
    driver = machine().driver
    driver.ensure_context(0)  # of this thread
    loaded = _loaded(source, driver)
    held = [_on_device(a, poisoned=n in outputs) for n, a in enumerate(arrays)]
    own = [_on_device(np.empty(size, np.uint8), poisoned=True) for size in source.workspace]
    own += [_on_device(np.zeros(size, np.uint8), poisoned=False) for size in source.counters]
    pointers = [t.data_ptr() for t in held]
    flag = pointers.pop() if source.needs_error else 0
    config = driver.launch_config(source.threads, source.shared_bytes, source.cluster)
    grid = sizes_function(source.grid, source.dims)(values)
    config.gridDimX, config.gridDimY, config.gridDimZ = (*grid, 1, 1)[:3]
    config.hStream = driver.api.CUstream(machine().stream)
    frame = LaunchArguments(source, len(pointers), flag, config)
    frame.fill([*pointers, *(t.data_ptr() for t in own)], values)
    if source.maps:
        frame.map(views_of(source.maps, source.dims)(pointers, values), lambda v: driver.tensor_map(v, source.symbol))
    if 0 not in grid:
        driver.launch(loaded, config, frame.parameters)
        driver.synchronize(machine().stream, source.symbol)
    for t, a in zip(held, arrays, strict=True):
        back = t.cpu().numpy()
        ctypes.memmove(a.ctypes.data, back.ctypes.data, a.nbytes)
    return SimReport(source.symbol, (), {})


def _on_device(values: NDArray[Any], *, poisoned: bool) -> torch.Tensor:
    raw = np.frombuffer(np.ascontiguousarray(values).tobytes(), np.uint8).copy()
    if poisoned:
        raw[:] = _POISON
    return torch.from_numpy(raw).to(machine().device)


def _families(source: CudaSource) -> tuple[str, ...]:
    """Every helper that a kernel's text may use; a hand-written one does not name them."""
    made = {i.family for i in INSTRUCTIONS if i.family.startswith(MADE) and re.search(rf"\b{i.text}\b", source.text)}
    return (*_FIRST, *_FILES, *sorted(made))


@dataclass(frozen=True, slots=True)
class Machine:
    """A GPU: its driver and properties, a store for binaries, the device of tensors, and the stream of launches."""

    driver: Driver
    target: GpuTarget
    store: KernelStore
    device: str = "cuda:0"
    stream: int = 0


@lru_cache(maxsize=1)
def machine() -> Machine:
    """This machine's first GPU. Raises NoDeviceError."""
    torch.zeros(1, device="cuda:0")  # makes the context current that PyTorch uses
    driver = open_driver()
    return Machine(driver, gpu_target(Options(), driver.device(0)), KernelStore(suffix=SUFFIX))


class CompiledOnly(BaseException):
    """Ends a check whose first kernel was to be compiled but not run. Checks catch exceptions, but not this."""


def compiled_only(check: Callable[[], object]) -> None:
    """Compile the first kernel that a check runs, for the store; any thread may do so."""
    token = _COMPILING.set(True)
    try:
        with suppress(CompiledOnly, Exception):  # what is wrong with it shows when it is run
            check()
    finally:
        _COMPILING.reset(token)


def compiled_ahead(cases: Iterable[tuple[str, Check]], workers: int | None = None) -> Iterator[tuple[str, Check]]:
    """The same cases in order, while other threads compile their kernels, several at once."""
    workers = workers or max(1, min(12, (os.cpu_count() or 2) - 1))
    waiting: deque[tuple[str, Check, Future[None]]] = deque()
    with ThreadPoolExecutor(workers, "taskmap-ahead") as pool:
        try:
            for name, check in cases:
                waiting.append((name, check, pool.submit(compiled_only, check)))
                if len(waiting) >= 3 * workers:
                    yield _ready(waiting)
            while waiting:
                yield _ready(waiting)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _ready(waiting: deque[tuple[str, Check, Future[None]]]) -> tuple[str, Check]:
    name, check, future = waiting.popleft()
    future.result()
    return name, check


def is_lost() -> bool:
    """True if a kernel has ended this process's context on the GPU: nothing can run there any more."""
    try:
        torch.cuda.synchronize()
    except Exception:
        return True
    return False


def _compiled(source: CudaSource) -> CudaBinary:
    found = machine()
    toolchain = find_cuda_toolchain(found.target.isa)
    return compile_cuda([source], toolchain, found.store, COUNTERS.kernels, jobs=1)[source.symbol]


@lru_cache(maxsize=4096)
def _loaded(source: CudaSource, driver: Driver) -> LoadedKernel:
    binary, toolchain, target = _compiled(source), find_cuda_toolchain(machine().target.isa), machine().target
    loaded = driver.load(binary.image, source.symbol, f"{toolchain.identity} for {target.isa}")
    driver.allow(loaded, 0, source.shared_bytes, source.cluster)
    return loaded
