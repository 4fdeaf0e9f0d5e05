"""Single kernels on a GPU, or in the simulator: a program of one launch."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext

from taskmap.backend.cuda.resources import Resources
from taskmap.backend.cuda.source import CudaSource
from taskmap.backend.program.memory_plan import plan_memory
from taskmap.backend.program.structure import BufferKind, Launch, Program, ProgramBuffer
from taskmap.options import Options
from taskmap.targets.cuda import CudaPlatform, cuda_platform
from taskmap.targets.on_gpu import on_gpu
from taskmap.targets.sim import SimPlatform, sim_platform
from taskmap.targets.torch_devices import current_gpu, torch_device
from taskmap.util.dump import Dump


def gpu_platform(options: Options) -> CudaPlatform | SimPlatform:
    """The platform of the option "target", cuda or cuda-sim; with several GPUs, the one that PyTorch works on now.

    Raises NoDeviceError.
    """
    if options.target == "cuda-sim":
        return sim_platform(options)
    return cuda_platform(options, current_gpu())


def load_kernel(
    platform: CudaPlatform | SimPlatform, source: CudaSource, pointers: int, dump: Dump
) -> tuple[Callable[[Sequence[int], Sequence[int]], None], Resources | None]:
    """A function that runs a kernel on ``pointers`` addresses and its sizes, and the kernel's use of GPU resources, if
    known.
    """
    buffers = tuple(ProgramBuffer(BufferKind.INPUT, 0) for _ in range(pointers))
    launch = Launch(source.symbol, tuple(range(pointers)), source.dims, source.needs_error, source.symbol)
    program = Program(buffers, (launch,), source.dims)
    with closing(platform.builder()) as builder:
        builder.add(source)
        ready = builder.finish({program: plan_memory(program)}, False, dump, lambda *_: None)
    executable = ready.executables[program]

    def run(addresses: Sequence[int], sizes: Sequence[int]) -> None:
        with on_gpu(torch_device(platform.device)) if platform.device.type == "cuda" else nullcontext():
            executable(array("q", addresses), sizes, array("q"))

    return run, ready.resources.get(source.symbol)
