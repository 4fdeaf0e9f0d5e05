"""Builds and measures configurations of one operator on a GPU, timed by CUDA events."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from taskmap.backend.counters import Counters
from taskmap.backend.cuda.codegen import generate
from taskmap.backend.cuda.compile import SUFFIX, CudaBinary, compile_cuda
from taskmap.backend.cuda.driver import DeviceInfo, Driver, open_driver
from taskmap.backend.cuda.launch import CudaLauncher, DeviceKernel, LaunchContext, Memory
from taskmap.backend.cuda.toolchain import CudaToolchain, find_cuda_toolchain
from taskmap.backend.program.structure import BufferKind, Launch, Program, ProgramBuffer
from taskmap.backend.store.objects import KernelStore
from taskmap.ir.errors import CodegenError, CompilerFailedError, IndexOutOfRangeError, LoweringError, ScheduleError
from taskmap.ir.lower.pipeline import lower
from taskmap.ir.target import GpuTarget
from taskmap.options import Options
from taskmap.schedules import read_problem
from taskmap.targets.choose import gpu_target
from taskmap.tuning.bench import WrongResultError
from taskmap.tuning.expected import expected
from taskmap.tuning.here import version
from taskmap.tuning.job import Job, Setting
from taskmap.tuning.operands import BenchOperand, operand
from taskmap.tuning.record import Conditions

_DEVICE = 0
_SERIES_SECONDS = 500e-6
_FEWEST_SERIES = 3
_MOST_CALLS = 1000


@dataclass(frozen=True, slots=True, eq=False)
class Gpu:
    """The measuring GPU, its identity in records, and its compiler."""

    driver: Driver
    device: DeviceInfo
    target: GpuTarget
    toolchain: CudaToolchain

    @property
    def conditions(self) -> Conditions:
        """The conditions that a time measured on it depends on."""
        return cuda_conditions(self.driver, self.device, self.toolchain)


def cuda_conditions(driver: Driver, device: DeviceInfo, toolchain: CudaToolchain) -> Conditions:
    """The conditions that a time measured on ``device`` depends on; a GPU kernel has no host threads."""
    return Conditions(
        device=f"{device.name} {device.multiprocessors} multiprocessors",
        threads=0,
        compiler=f"{toolchain.identity}{' fast_math' if toolchain.fast_math else ''}",
        version=version(),
        driver=str(driver.version),
    )


def conditions_with(toolchain: CudaToolchain) -> Conditions:
    """The conditions on this machine, for kernels compiled by ``toolchain``. Raises NoDeviceError."""
    driver = open_driver()
    return cuda_conditions(driver, driver.device(_DEVICE), toolchain)


def find_gpu(setting: Setting, driver: Driver | None = None) -> Gpu:
    """The first GPU visible to the process. Raises NoDeviceError and CompilerNotFoundError, which say what is missing,
    and UnsupportedError if the compiler does not know the GPU."""
    driver = driver or open_driver()
    device = driver.device(_DEVICE)
    target = gpu_target(Options(target="cuda", gpu=setting.gpu), device)
    return Gpu(driver, device, target, find_cuda_toolchain(target.isa, fast_math=setting.fast_math))


def gpu_here(setting: Setting) -> tuple[GpuTarget, Conditions]:
    """The target of tuning, and the conditions on this machine. Raises the errors of ``find_gpu``."""
    gpu = find_gpu(setting)
    return gpu.target, gpu.conditions


class CudaBench:
    """The kernels of a job's operator, and their operands on the GPU. ``refused``: configurations without a kernel,
    and why."""

    def __init__(self, job: Job, driver: Driver | None = None) -> None:
        """``driver`` replaces the machine's driver. Raises ScheduleError for an unknown operator, and the errors of
        ``find_gpu``."""
        setting = job.setting
        self.problem = read_problem(job.operator.name, job.operator.shapes, job.operator.dtypes, job.operator.layout)
        self.gpu = find_gpu(setting, driver)
        self.conditions = self.gpu.conditions
        self.refused: dict[str, str] = {}
        self._store = KernelStore(None if setting.cache_dir is None else Path(setting.cache_dir), suffix=SUFFIX)
        self._task = self.problem.task()
        self._binaries: dict[str, CudaBinary] = {}
        self._launchers: dict[str, CudaLauncher] = {}
        self._calls: dict[str, int] = {}
        self._host: list[BenchOperand] = []
        self._addresses: list[int] = []
        self._want: tuple[Any, float]

    def adopt(self, names: Mapping[str, tuple[str, str]]) -> None:
        """Does nothing: compiled kernels are found in the store by their text, which ``build`` generates."""

    def build(self, configs: Sequence[str], started: Callable[[str], None]) -> dict[str, tuple[str, str]]:
        """Compile kernels that are missing; returns their symbols."""
        built: dict[str, tuple[str, str]] = {}
        for text in (c for c in configs if c not in self._binaries and c not in self.refused):
            started(text)
            try:
                self._binaries[text] = self._compile(text)
            except (ScheduleError, LoweringError, CodegenError, CompilerFailedError) as error:
                self.refused[text] = str(error)
                continue
            symbol = self._binaries[text].source.symbol
            built[text] = (symbol, symbol)
        return built

    def check(self, config: str) -> None:
        """Run a kernel once on poisoned memory. Raises WrongResultError."""
        self._run(config, 1)
        out, driver = self._host[-1], self.gpu.driver
        driver.call("cuMemcpyDtoH", out.address, self._addresses[-1], out.flat.nbytes)
        want, limit = self._want
        error = float(np.abs(out.values() - want).max(initial=0.0))
        out.poison()
        driver.call("cuMemcpyHtoD", self._addresses[-1], out.address, out.flat.nbytes)
        if not error <= limit:
            raise WrongResultError(f"the largest error is {error:.3g}, and {limit:.3g} is allowed")

    def sample(self, config: str, seconds: float) -> float:
        """Seconds per launch: the fastest of several series, which together take about ``seconds``."""
        calls = self._calls.get(config)
        if calls is None:
            once = min(self._run(config, 1) for _ in range(_FEWEST_SERIES))
            calls = self._calls[config] = max(1, min(_MOST_CALLS, round(_SERIES_SECONDS / max(once, 1e-7))))
        fastest, total, done = math.inf, 0.0, 0
        while done < _FEWEST_SERIES or total < seconds:
            took = self._run(config, calls)
            fastest = min(fastest, took / calls)
            total += took
            done += 1
        return fastest

    def _run(self, config: str, calls: int) -> float:
        """The total seconds of ``calls`` launches, by events of the GPU."""
        self._place()
        call = self._launcher(config).begin(0, _out_of_range)
        before = call.now()
        for _ in range(calls):
            call.launch(0, self._addresses, self.problem.dims())
        (took,) = call.elapsed((before, call.now()))
        call.finish()
        return max(took, 1e-9)

    def _compile(self, text: str) -> CudaBinary:
        config = self.problem.read(text, self.gpu.target)
        if config is None:
            raise ScheduleError(f"{text!r} is not a configuration of {self.problem.template} here")
        kernel = self.problem.kernel(self._task, config, self.gpu.target)
        source = generate(lower(kernel, target=self.gpu.target), self.gpu.target)
        return compile_cuda([source], self.gpu.toolchain, self._store, Counters())[source.symbol]

    def _launcher(self, config: str) -> CudaLauncher:
        if config not in self._launchers:
            binary, gpu = self._binaries[config], self.gpu
            count = len(self._task.inputs) + len(self._task.outputs)
            buffers = tuple(ProgramBuffer(BufferKind.INPUT, 0) for _ in range(count))
            dims = binary.source.dims
            step = Launch(binary.source.symbol, tuple(range(count)), dims, binary.source.needs_error, self._task.name)
            compiled_by = f"{gpu.toolchain.identity} for {gpu.toolchain.architecture}"
            kernel = DeviceKernel(binary.source, gpu.driver.load(binary.image, binary.source.symbol, compiled_by))
            self._launchers[config] = CudaLauncher(
                Program(buffers, (step,), dims),
                {binary.source.symbol: kernel},
                gpu.driver,
                _DEVICE,
                LaunchContext(self._allocate, lambda: 0),
            )
        return self._launchers[config]

    def _allocate(self, size: int) -> Memory:
        self.gpu.driver.ensure_context(_DEVICE)
        return int(self.gpu.driver.call("cuMemAlloc", max(size, 1))), None

    def _place(self) -> None:
        """Make the operands, on the host and on the GPU, on first use; the output is poisoned."""
        if self._addresses:
            return
        draw = np.random.default_rng()
        dims = dict(zip(self._task.dims, self.problem.dims(), strict=True))
        inputs = [operand(b, draw, dims) for b in self._task.inputs]
        (out,) = (operand(b, None, dims) for b in self._task.outputs)
        out.poison()
        self._host = [*inputs, out]
        self._want = expected(self.problem, [x.values() for x in inputs])
        addresses = [self._allocate(x.flat.nbytes)[0] for x in self._host]
        for x, address in zip(self._host, addresses, strict=True):
            self.gpu.driver.call("cuMemcpyHtoD", address, x.address, x.flat.nbytes)
        self._addresses = addresses


def _out_of_range(step: int) -> IndexOutOfRangeError:
    return IndexOutOfRangeError("a kernel indexed out of range while it was tuned")
