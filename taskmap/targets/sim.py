"""The simulator as a target: GPU kernels, built for the host and run on CPU tensors."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from taskmap.backend.counters import Counters
from taskmap.backend.cuda.compile import SUFFIX, compile_cuda
from taskmap.backend.cuda.resources import Resources
from taskmap.backend.cuda.source import ALLOWANCES, CudaSource
from taskmap.backend.cuda.toolchain import find_cuda_toolchain
from taskmap.backend.program.executable import Executable
from taskmap.backend.sim.building import SimKernel, build_kernels
from taskmap.backend.sim.launch import SimLauncher
from taskmap.backend.store.objects import KernelStore
from taskmap.ir.errors import CompilerNotFoundError, TaskmapError, UnsupportedError
from taskmap.ir.target import Target
from taskmap.ir.util.waiting import each_done
from taskmap.options import Options
from taskmap.targets.choose import simulated_target
from taskmap.targets.devices import CPU
from taskmap.targets.gpu_base import GpuCode
from taskmap.targets.platform import LoadedPrograms, Programs, Show, Source
from taskmap.targets.precision import with_precision
from taskmap.util.dump import Dump
from taskmap.util.metrics import COUNTERS

_TOGETHER = 4
"""Kernels per translation unit: fewer repeat the cost of reading and linking, more leave processors idle."""


@dataclass(frozen=True, slots=True)
class SimPlatform(GpuCode):
    """A GPU that is not present."""

    options: Options
    target: Target
    store: KernelStore
    device: torch.device = CPU

    def capturer(self) -> None:
        """None: there is no launch queue to record."""

    def builder(self) -> SimBuilder:
        """A builder for the kernels of one graph, for the host."""
        return SimBuilder(self)


@dataclass(slots=True)
class SimBuilder:
    """Builds kernels with the C++ compiler, several to a unit and several units at once."""

    platform: SimPlatform
    _executor: ThreadPoolExecutor = field(init=False)
    _wanted: dict[str, CudaSource] = field(init=False, default_factory=dict)
    _waiting: list[CudaSource] = field(init=False, default_factory=list)
    _running: list[Future[list[SimKernel]]] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self._executor = ThreadPoolExecutor(os.cpu_count() or 1, "taskmap-sim")

    def __len__(self) -> int:
        """The number of kernels wanted so far."""
        return len(self._wanted)

    def add(self, source: Source) -> None:
        """Request a kernel."""
        assert isinstance(source, CudaSource)
        if source.symbol in self._wanted:
            return
        self._wanted[source.symbol] = source
        self._waiting.append(source)
        if len(self._waiting) == _TOGETHER:
            self._submit()

    def _submit(self) -> None:
        together, self._waiting = self._waiting, []
        store = self.platform.store
        self._running.append(
            self._executor.submit(build_kernels, together, store, checked=False, counters=COUNTERS.kernels)
        )

    def refused(self, show: Show) -> Mapping[str, TaskmapError]:
        """No refusals: the host has resources for every kernel."""
        return {}

    def finish(self, programs: Programs, prepares: bool, dump: Dump, show: Show) -> LoadedPrograms:
        """The programs with their kernels loaded."""
        if self._waiting:
            self._submit()
        built: dict[str, SimKernel] = {}
        for future in each_done(self._running):
            built |= {kernel.source.symbol: kernel for kernel in future.result()}
            show(len(built), len(self._wanted))
        kernels = {symbol: built[symbol] for symbol in self._wanted}
        options = self.platform.options
        workers = options.threads or torch.get_num_threads()
        executables = {
            program: Executable(program, places, SimLauncher(program, kernels, workers), single=options.profile)
            for program, places in programs.items()
        }
        sources = [kernel.source for kernel in kernels.values()]
        return LoadedPrograms(executables, None, self._resources(sources) if options.profile or dump.wanted else {})

    def _resources(self, sources: list[CudaSource]) -> dict[str, Resources]:
        """The kernels' use of GPU resources, for reports; empty if no CUDA compiler is installed."""
        platform = self.platform
        store = KernelStore(platform.store.path, suffix=SUFFIX)
        try:
            toolchain = find_cuda_toolchain(platform.target.isa, fast_math=platform.options.fast_math)
            allowed = [replace(source, allow=ALLOWANCES) for source in sources]
            made = compile_cuda(allowed, toolchain, store, Counters())
        except (CompilerNotFoundError, UnsupportedError):
            return {}
        return {symbol: binary.resources for symbol, binary in made.items()}

    def close(self) -> None:
        """Drop pending builds."""
        self._executor.shutdown(wait=True, cancel_futures=True)


def sim_platform(options: Options) -> SimPlatform:
    """The simulator. Raises CompilerNotFoundError when a kernel is built without a C++ compiler."""
    store = KernelStore(None if options.cache_dir is None else Path(options.cache_dir))
    return SimPlatform(options, with_precision(simulated_target(options), options), store)
