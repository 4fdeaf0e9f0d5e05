"""The CPU as a target: kernels in C, a launch sequence in C."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from taskmap.backend.cpu.codegen import generate
from taskmap.backend.cpu.compile import KernelCompiler
from taskmap.backend.cpu.toolchain import Toolchain
from taskmap.backend.program import watch
from taskmap.backend.program.executable import Executable
from taskmap.backend.program.host_launch import HostLauncher
from taskmap.backend.program.launch_c import launch_sources
from taskmap.backend.program.sequence import CompiledSequence
from taskmap.backend.program.structure import Program
from taskmap.backend.store.key import KernelSource
from taskmap.backend.store.objects import KernelStore
from taskmap.graph.passes import GraphPass
from taskmap.ir.nodes import Kernel
from taskmap.ir.target import CpuTarget
from taskmap.options import Options
from taskmap.targets.choose import host_target
from taskmap.targets.cpu_passes import cpu_passes
from taskmap.targets.devices import CPU, Device
from taskmap.targets.platform import LoadedPrograms, ProgramBuilder, Programs, Show
from taskmap.targets.threads import planned_threads
from taskmap.trust.compiler import trusted_toolchain
from taskmap.util.dump import Dump
from taskmap.util.metrics import COUNTERS


@dataclass(frozen=True, slots=True)
class CpuPlatform:
    """This machine's CPU, one C compiler, one kernel store."""

    options: Options
    target: CpuTarget
    toolchain: Toolchain
    store: KernelStore
    device: Device = CPU
    suffix: str = ".c"
    alignment: int | None = None

    def capturer(self) -> None:
        """None: a CPU has no launch queue to record."""

    @property
    def graph_passes(self) -> tuple[GraphPass, ...]:
        """Those of the target. With strategies of a user, which do not know panels, weights stay as they are."""
        return cpu_passes(self.target, winograd=self.options.winograd, pack=not self.options.strategies)

    def generate(self, kernel: Kernel) -> KernelSource:
        """The C of a lowered kernel, without its note, which may contain the model's names of sizes: equal kernels must
        have equal text."""
        return generate(replace(kernel, note=""), self.target.vector_bytes, self.target.features)

    def builder(self) -> CpuBuilder:
        """A builder that compiles and loads the kernels of one graph."""
        return CpuBuilder(self.options, KernelCompiler(self.toolchain, self.store, COUNTERS.kernels))


@dataclass(frozen=True, slots=True)
class CpuBuilder(ProgramBuilder):
    """Compiles kernels, then the launch sequences of programs."""

    options: Options
    compiler: KernelCompiler

    def finish(self, programs: Programs, prepares: bool, dump: Dump, show: Show) -> LoadedPrograms:
        """The programs with their launch sequences."""
        options = self.options
        sequences = {
            program: launch_sources(program, places, threads=options.threads)
            for program, places in programs.items()
            if not options.profile  # timed step by step
        }
        launches = [source for sources in sequences.values() for source in sources]
        for source in launches:
            dump.write(f"{source.symbol}.c", "\n".join([*source.prelude, source.text]))
        checked = prepares and options.check_frozen
        if checked:
            launches.append(watch.SOURCE)
        loaded = self.compiler.finish(launches, show)
        executables: dict[Program, Executable] = {}
        for program, places in programs.items():
            launcher = HostLauncher(program, loaded, options.threads)
            functions = [loaded[source.symbol] for source in sequences.get(program, ())]
            sequence = None if options.profile else CompiledSequence(program, places, loaded, functions)
            executables[program] = Executable(program, places, launcher, sequence, options.profile)
        return LoadedPrograms(executables, loaded[watch.SOURCE.symbol] if checked else None, {})


def cpu_platform(options: Options) -> CpuPlatform:
    """This machine's CPU. Raises CompilerNotFoundError, UnsupportedError and KernelStoreError."""
    toolchain = trusted_toolchain(isa=options.code_isa, fast_math=options.fast_math, cache_dir=options.cache_dir)
    store = KernelStore(None if options.cache_dir is None else Path(options.cache_dir))
    return CpuPlatform(options, host_target(options, planned_threads()), toolchain, store)
