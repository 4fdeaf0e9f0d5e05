"""A GPU as a target: kernels in CUDA C++, compiled by NVRTC, launched through the driver on PyTorch's stream."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from taskmap.backend.cuda.compile import SUFFIX, CudaCompiler
from taskmap.backend.cuda.driver import Driver, open_driver
from taskmap.backend.cuda.launch import CudaLauncher, DeviceKernel, LaunchContext, Memory
from taskmap.backend.cuda.nvrtc import nvrtc_version
from taskmap.backend.cuda.toolchain import CudaToolchain, find_cuda_toolchain
from taskmap.backend.program.executable import Executable
from taskmap.backend.store.objects import KernelStore
from taskmap.ir.target import GpuTarget
from taskmap.options import Options
from taskmap.targets.choose import gpu_target
from taskmap.targets.gpu_base import GpuCode
from taskmap.targets.gpu_options import with_options
from taskmap.targets.platform import Capturer, LoadedPrograms, ProgramBuilder, Programs, Show
from taskmap.targets.torch_capturer import TorchCapturer
from taskmap.util.dump import Dump
from taskmap.util.metrics import COUNTERS


@dataclass(frozen=True, slots=True)
class CudaPlatform(GpuCode):
    """One GPU, one CUDA compiler, one kernel store."""

    options: Options
    target: GpuTarget
    toolchain: CudaToolchain
    store: KernelStore
    driver: Driver
    device: torch.device
    surroundings: LaunchContext

    def capturer(self) -> Capturer | None:
        """CUDA graphs, if the options ask for them; not when steps are timed one by one."""
        return TorchCapturer(self.device) if self.options.cuda_graphs and not self.options.profile else None

    def builder(self) -> CudaBuilder:
        """A builder that compiles and loads the kernels of one graph."""
        return CudaBuilder(self, CudaCompiler(self.toolchain, self.store, COUNTERS.kernels))


@dataclass(frozen=True, slots=True)
class CudaBuilder(ProgramBuilder):
    """Compiles kernels and loads them into the driver."""

    platform: CudaPlatform
    compiler: CudaCompiler

    def finish(self, programs: Programs, prepares: bool, dump: Dump, show: Show) -> LoadedPrograms:
        """The programs with their kernels loaded."""
        platform = self.platform
        driver, compiled_by = platform.driver, f"{platform.toolchain.identity} for {platform.toolchain.architecture}"
        binaries = self.compiler.finish((), show)
        kernels = {
            symbol: DeviceKernel(binary.source, driver.load(binary.image, symbol, compiled_by))
            for symbol, binary in binaries.items()
        }
        index = platform.device.index or 0
        executables = {
            program: Executable(
                program,
                places,
                CudaLauncher(program, kernels, driver, index, platform.surroundings),
                single=platform.options.profile,
            )
            for program, places in programs.items()
        }
        return LoadedPrograms(executables, None, {symbol: binary.resources for symbol, binary in binaries.items()})


def cuda_platform(options: Options, device: torch.device, driver: Driver | None = None) -> CudaPlatform:
    """The GPU ``device``. Raises NoDeviceError, CompilerNotFoundError, UnsupportedError and KernelStoreError."""
    driver = driver or open_driver()
    target = with_options(gpu_target(options, driver.device(device.index or 0)), options)
    toolchain = find_cuda_toolchain(target.isa, fast_math=options.fast_math)
    if toolchain.compiler == "nvrtc":
        driver.refuse_newer(toolchain.identity, nvrtc_version())
    store = KernelStore(None if options.cache_dir is None else Path(options.cache_dir), suffix=SUFFIX)
    surroundings = LaunchContext(partial(_allocate, device), _stream_of(device))
    return CudaPlatform(options, target, toolchain, store, driver, device, surroundings)


def _allocate(device: torch.device, size: int) -> Memory:
    """Memory from PyTorch's allocator, which reuses it for later work on the same stream."""
    block = torch.empty(size, dtype=torch.uint8, device=device)
    return block.data_ptr(), block


def _stream_of(device: torch.device) -> Callable[[], int]:
    index = device.index or 0
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # a tenth of the cost of torch.cuda.current_stream
    if raw is not None:
        return partial(raw, index)
    return lambda: int(torch.cuda.current_stream(index).cuda_stream)
