"""The CPU as a target: kernels in C, a launch sequence in C."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

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
from taskmap.graph.passes.biases import AddBiases
from taskmap.graph.passes.byte_tables import TabulateBytes
from taskmap.graph.passes.convolution_products import MultiplyConvolutions
from taskmap.graph.passes.integer_sums import IntegerSums
from taskmap.graph.passes.narrow_weights import NarrowWeights
from taskmap.graph.passes.quotients import MultiplyByReciprocals
from taskmap.graph.passes.weight_packing import PackWeights
from taskmap.graph.passes.winograd import TransformWeights
from taskmap.ir.nodes import Kernel
from taskmap.ir.target import CpuTarget
from taskmap.options import Options
from taskmap.schedules import (
    choose_form,
    copies_columns,
    has_tiles,
    packed_filled,
    packed_together,
    packed_width,
    packed_with_signs,
    widened_width,
)
from taskmap.targets.choose import host_target
from taskmap.targets.devices import CPU
from taskmap.targets.platform import LoadedPrograms, ProgramBuilder, Programs, Show
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
    device: torch.device = CPU
    suffix: str = ".c"
    alignment: int | None = None

    def capturer(self) -> None:
        """None: a CPU has no launch queue to record."""

    @property
    def graph_passes(self) -> tuple[GraphPass, ...]:
        """Numbers are quantised without divisions, functions of bytes looked up. Dequantised tensors are multiplied as
        integers, and few rows with weights as narrow as they are stored. Convolutions of floats that tiles multiply are
        products, and biases are added to sums of narrow floats before these are rounded. Weights of other convolutions
        that minimal filtering computes faster are transformed. The others are packed in panels as wide as the target's
        micro-kernels, and in groups that its instructions multiply; with strategies of a user, which do not know
        panels, they stay as they are."""
        together, filled = (partial(of, target=self.target) for of in (packed_together, packed_filled))
        width = partial(packed_width, target=self.target)
        fused = "fma" in self.target.features
        quotients = (MultiplyByReciprocals(),) if fused else ()
        integers = (*quotients, TabulateBytes(), IntegerSums())
        narrow = NarrowWeights(partial(widened_width, target=self.target), fused)
        signs = partial(packed_with_signs, target=self.target)
        copies = partial(copies_columns, target=self.target)
        pack = PackWeights(width, together=together, filled=filled, any_signs=signs, copies=copies)
        if self.options.strategies:
            return (*integers, narrow)
        products = MultiplyConvolutions(partial(has_tiles, target=self.target))
        first = (*integers, narrow, products, AddBiases())
        if not self.options.winograd:
            return *first, pack
        return *first, TransformWeights(partial(choose_form, target=self.target)), pack

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
    return CpuPlatform(options, host_target(options, torch.get_num_threads()), toolchain, store)
