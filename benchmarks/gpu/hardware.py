"""Kernels on the GPU, called as the simulator is called: so that a test of the simulator is a test of the hardware."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from taskmap.backend import cuda
from taskmap.backend.counters import Counters
from taskmap.backend.cuda.compile import SUFFIX, compile_cuda
from taskmap.backend.cuda.cuda_source import ALLOWANCES, CudaSource
from taskmap.backend.cuda.driver import Driver, LoadedKernel, open_driver
from taskmap.backend.cuda.launch import Frame
from taskmap.backend.cuda.products import MADE
from taskmap.backend.cuda.tensor_map import views_of
from taskmap.backend.cuda.toolchain import find_cuda_toolchain
from taskmap.backend.sim.run import SimReport
from taskmap.backend.sizes import sizes_function
from taskmap.backend.store import KernelStore
from taskmap.ir.instructions import INSTRUCTIONS
from taskmap.ir.nodes import Var
from taskmap.ir.target import Target
from taskmap.options import Options
from taskmap.target import gpu_target

_FIRST = ("base", "portable")
_FILES = sorted({path.stem for path in Path(str(cuda.__file__)).with_name("device").glob("*.cuh")} - {*_FIRST})
_POISON = 0xFF


def run(
    source: CudaSource,
    arrays: Sequence[NDArray[Any]],
    dims: Mapping[Var, int] | Sequence[int] = (),
    *,
    outputs: Sequence[int] = (),
    **_: object,
) -> SimReport:
    """Run a kernel on copies of ``arrays`` on the GPU, and copy them back; see `taskmap.backend.sim.run.run`.

    What only a simulator can do, orders of threads and checks, is passed over.
    """
    source = replace(source, families=_families(source), allow=ALLOWANCES)
    values = tuple(dims[v] for v in source.dims) if isinstance(dims, Mapping) else tuple(dims)
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
    frame = Frame(source, len(pointers), flag, config)
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
    """Everything that a kernel's text may stand on; one written by hand does not name it."""
    made = {i.family for i in INSTRUCTIONS if i.family.startswith(MADE) and re.search(rf"\b{i.text}\b", source.text)}
    return (*_FIRST, *_FILES, *sorted(made))


@dataclass(frozen=True, slots=True)
class Machine:
    """A GPU: its driver and what it is, a store for binaries, where tensors go, and the stream of launches."""

    driver: Driver
    target: Target
    store: KernelStore
    device: str = "cuda:0"
    stream: int = 0


@lru_cache(maxsize=1)
def machine() -> Machine:
    """This machine's first GPU. Raises NoDeviceError."""
    torch.zeros(1, device="cuda:0")  # makes the context current that PyTorch uses
    driver = open_driver()
    return Machine(driver, gpu_target(Options(), driver.device(0)), KernelStore(suffix=SUFFIX))


def is_lost() -> bool:
    """Whether a kernel has ended this process's context on the GPU: nothing runs there any more."""
    try:
        torch.cuda.synchronize()
    except Exception:
        return True
    return False


@lru_cache(maxsize=4096)
def _loaded(source: CudaSource, driver: Driver) -> LoadedKernel:
    target = machine().target
    toolchain = find_cuda_toolchain(target.isa)
    binary = compile_cuda([source], toolchain, machine().store, Counters(), jobs=1)[source.symbol]
    loaded = driver.load(binary.image, source.symbol, f"{toolchain.identity} for {target.isa}")
    driver.allow(loaded, 0, source.shared_bytes, source.cluster)
    return loaded
