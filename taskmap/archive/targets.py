"""Compiling for an archive: a session for each kind of target, and the binaries that it produced.

GPU kernels are compiled on machines without a GPU; the platform there only places results and runs nothing.
"""

from __future__ import annotations

import ctypes
from array import array
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from taskmap.archive.session import ArchiveSession, Binary, features_used
from taskmap.backend.cpu.compile import team_file
from taskmap.backend.cpu.team import PARALLEL
from taskmap.backend.cuda.compile import SUFFIX, CudaCompiler
from taskmap.backend.cuda.driver import open_driver
from taskmap.backend.cuda.toolchain import CudaToolchain, find_cuda_toolchain
from taskmap.backend.program.executable import Executable, TimedRun
from taskmap.backend.program.sequence import Extern
from taskmap.backend.program.sizes import sizes_function
from taskmap.backend.program.structure import BufferKind, ExternCall, Program
from taskmap.backend.sim.building import build_kernels, engine, engine_file
from taskmap.backend.sim.launch import SimLauncher
from taskmap.backend.sim.unit import ENGINE_SYMBOL, entry_symbol
from taskmap.backend.store.inventory import stored_objects
from taskmap.backend.store.objects import KernelStore
from taskmap.compile.session import Session, new_session
from taskmap.compile.task_store import TaskStore
from taskmap.ir.errors import CompilerNotFoundError, NoDeviceError, UnsupportedError
from taskmap.ir.target import GpuTarget
from taskmap.ir.util.lazy import lazily
from taskmap.options import Options
from taskmap.targets.choose import gpu_target, simulated_target
from taskmap.targets.cpu import CpuPlatform
from taskmap.targets.devices import CPU, Device
from taskmap.targets.gpu_base import GpuCode
from taskmap.targets.platform import LoadedPrograms, ProgramBuilder, Programs, Runs, Show
from taskmap.targets.sim import SimPlatform
from taskmap.targets.threads import planned_threads
from taskmap.tuning.choice import choices
from taskmap.util.dump import Dump
from taskmap.util.metrics import COUNTERS

# It needs PyTorch, which only GPUs follow.
if TYPE_CHECKING:
    from taskmap.targets.gpu_options import with_options as _with_options
else:
    _with_options = lazily("taskmap.targets.gpu_options", "with_options")


def archive_session(options: Options, folder: Path) -> ArchiveSession:
    """A session that compiles for ``options.target``. ``folder``: an empty one that outlives the session.

    Raises as new_session, and UnsupportedError for requests that need the GPU to be present.
    """
    options = replace(options, target=options.target or "cpu", threads=None, profile=False, dump_dir=None)
    if options.target == "cuda":
        return _for_gpu(options)
    session = new_session(options)
    platform = session.platform
    assert isinstance(platform, (CpuPlatform, SimPlatform))
    simulated = isinstance(platform, SimPlatform)
    user = platform.store
    if simulated:
        engine(user)
    # Separate objects: those of the user's store hold kernels of other models.
    session.platform = replace(platform, store=KernelStore(folder / "kernels"))

    def binaries(needed: Collection[str]) -> list[Binary]:
        named = {entry_symbol(s): s for s in needed} if simulated else {s: s for s in needed}
        found = [
            (stored.path.read_bytes(), tuple(sorted(named[s] for s in stored.symbols if s in named)))
            for stored in stored_objects(folder / "kernels")
        ]
        if needed:
            found.append(
                (engine_file(user).read_bytes(), (ENGINE_SYMBOL,))
                if isinstance(platform, SimPlatform)
                else (team_file(platform.toolchain, user).read_bytes(), (PARALLEL,))
            )
        return [binary for binary in found if binary[1]]

    def features(needed: Collection[str]) -> tuple[str, ...]:
        return () if simulated else features_used(folder / "kernels", needed)

    return ArchiveSession(session, ".so", binaries, features)


def _for_gpu(options: Options) -> ArchiveSession:
    if options.tune_seconds is not None:
        raise UnsupportedError(
            "an archive for a GPU cannot be tuned while it is written",
            why="configurations are measured on the GPU, which need not be present.",
            hint="Tune on that GPU (taskmap tune model.onnx --target cuda), and take the records here: "
            "taskmap cache export, taskmap cache import.",
        )
    target = _with_options(_target(options), options)
    toolchain = find_cuda_toolchain(target.isa, fast_math=options.fast_math)
    store = KernelStore(None if options.cache_dir is None else Path(options.cache_dir), suffix=SUFFIX)
    platform = AbsentGpu(options, target, toolchain, store)
    session = Session(options, platform, TaskStore(store.path / "tasks"))
    session.choices = choices(store.path / "tuning.sqlite", target, toolchain, options)
    return ArchiveSession(session, SUFFIX, lambda needed: [(platform.images[s], (s,)) for s in needed], _no_features)


def _no_features(needed: Collection[str]) -> tuple[str, ...]:
    return ()


def _target(options: Options) -> GpuTarget:
    """The GPU named by the options, or else this machine's GPU, or else the simulator's default."""
    if options.gpu is not None:
        return simulated_target(options)
    try:
        driver = open_driver()
        return gpu_target(options, driver.device(0))
    except (NoDeviceError, CompilerNotFoundError):
        return simulated_target(options)


@dataclass(frozen=True, slots=True)
class AbsentGpu(GpuCode):
    """The platform of a GPU that need not be present: kernels are compiled for it, but not run. ``images``: the machine
    code of compiled kernels, by symbol."""

    options: Options
    target: GpuTarget
    toolchain: CudaToolchain
    store: KernelStore
    images: dict[str, bytes] = field(default_factory=dict)
    device: Device = CPU

    def capturer(self) -> None:
        """None: there is no launch queue to record."""

    def builder(self) -> AbsentBuilder:
        """A builder that compiles the kernels of one graph."""
        return AbsentBuilder(self, CudaCompiler(self.toolchain, self.store, COUNTERS.kernels))


@dataclass(frozen=True, slots=True)
class AbsentBuilder(ProgramBuilder):
    """Compiles kernels. Values that depend only on constants are computed in the simulator, as the GPU would."""

    platform: AbsentGpu
    compiler: CudaCompiler

    def finish(self, programs: Programs, prepares: bool, dump: Dump, show: Show) -> LoadedPrograms:
        """Programs that are not run, except the second, which prepares constants."""
        binaries = self.compiler.finish((), show)
        self.platform.images.update({symbol: binary.image for symbol, binary in binaries.items()})
        main, *others = programs
        runs: dict[Program, Runs] = {main: NotRun(main)}
        for program in others:
            sources = [binaries[symbol].source for symbol in program.symbols]
            store = KernelStore(self.platform.store.path)
            built = build_kernels(sources, store, checked=False, counters=COUNTERS.kernels)
            launcher = SimLauncher(program, {k.source.symbol: k for k in built}, planned_threads())
            runs[program] = Executable(program, programs[program], launcher)
        return LoadedPrograms(runs, None, {symbol: binary.resources for symbol, binary in binaries.items()})


@dataclass(slots=True, eq=False)
class NotRun:
    """A program whose results are zeros, which suffices because its inputs are zeros while an archive is written."""

    program: Program
    runs: deque[TimedRun] = field(init=False, default_factory=deque)

    def __call__(
        self, io: array[int], dims: Sequence[int], constants: array[int], extern: Extern | None = None
    ) -> None:
        """Fill the results with zeros; extern calls are run."""
        program = self.program
        sizes = sizes_function([b.bytes for b in program.buffers], program.dims)(dims)
        for address, b in zip(io, program.io, strict=True):
            if program.buffers[b].kind is BufferKind.OUTPUT:
                ctypes.memset(address, 0, sizes[b])
        for step in program.steps:
            if isinstance(step, ExternCall) and extern is not None:
                extern(step.index, io)

    def release(self) -> None:
        """Nothing is kept between calls."""
