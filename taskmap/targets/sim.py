"""The simulator as a target: GPU kernels, built for the host and run on CPU tensors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from taskmap.backend.counters import Counters
from taskmap.backend.cuda.compile import SUFFIX, compile_cuda
from taskmap.backend.cuda.resources import Resources
from taskmap.backend.cuda.source import ALLOWANCES, CudaSource
from taskmap.backend.cuda.toolchain import find_cuda_toolchain
from taskmap.backend.program.executable import Executable
from taskmap.backend.sim.building import SimCompiler
from taskmap.backend.sim.launch import SimLauncher
from taskmap.backend.store.objects import KernelStore
from taskmap.ir.errors import CompilerNotFoundError, UnsupportedError
from taskmap.ir.target import GpuTarget
from taskmap.ir.util.lazy import lazily
from taskmap.options import Options
from taskmap.targets.choose import simulated_target
from taskmap.targets.devices import CPU, Device
from taskmap.targets.gpu_base import GpuCode
from taskmap.targets.platform import LoadedPrograms, ProgramBuilder, Programs, Show
from taskmap.targets.threads import planned_threads
from taskmap.util.dump import Dump
from taskmap.util.metrics import COUNTERS

# It needs PyTorch, which only GPUs follow.
if TYPE_CHECKING:
    from taskmap.targets.gpu_options import with_options as _with_options
else:
    _with_options = lazily("taskmap.targets.gpu_options", "with_options")


@dataclass(frozen=True, slots=True)
class SimPlatform(GpuCode):
    """A GPU that is not present."""

    options: Options
    target: GpuTarget
    store: KernelStore
    device: Device = CPU

    def capturer(self) -> None:
        """None: there is no launch queue to record."""

    def builder(self) -> SimBuilder:
        """A builder for the kernels of one graph, for the host."""
        return SimBuilder(self, SimCompiler(self.store, COUNTERS.kernels))


@dataclass(frozen=True, slots=True)
class SimBuilder(ProgramBuilder):
    """Builds kernels with the C++ compiler, several to a unit and several units at once."""

    platform: SimPlatform
    compiler: SimCompiler

    def finish(self, programs: Programs, prepares: bool, dump: Dump, show: Show) -> LoadedPrograms:
        """The programs with their kernels loaded."""
        kernels = self.compiler.finish((), show)
        options = self.platform.options
        workers = options.threads or planned_threads()
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


def sim_platform(options: Options) -> SimPlatform:
    """The simulator. Raises CompilerNotFoundError when a kernel is built without a C++ compiler."""
    store = KernelStore(None if options.cache_dir is None else Path(options.cache_dir))
    return SimPlatform(options, _with_options(simulated_target(options), options), store)
