"""The interface between the driver and a target: writing, compiling and running its kernels."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from taskmap.backend.compile_pool import CompilePool
from taskmap.backend.cuda.resources import Resources
from taskmap.backend.program.executable import TimedRun
from taskmap.backend.program.memory_plan import MemoryPlan
from taskmap.backend.program.sequence import Extern
from taskmap.backend.program.structure import Program
from taskmap.backend.store.objects import KernelStore
from taskmap.graph.passes import GraphPass
from taskmap.ir.errors import TaskmapError
from taskmap.ir.nodes import Kernel
from taskmap.ir.target import Target
from taskmap.targets.devices import Device
from taskmap.targets.source_record import Source as Source
from taskmap.util.dump import Dump

VECTOR_BYTES = 16
"""The widest load of a GPU kernel; the addresses from PyTorch's allocators are multiples of more."""

Programs = Mapping[Program, MemoryPlan]
Show = Callable[[int, int], None]


class Runs(Protocol):
    """A program that can be run: an Executable, or a callable like it."""

    runs: deque[TimedRun]

    def __call__(
        self, io: array[int], dims: Sequence[int], constants: array[int], extern: Extern | None = None
    ) -> None:
        """Run all steps."""

    def release(self) -> None:
        """Release all memory kept between calls."""


@dataclass(frozen=True, slots=True)
class LoadedPrograms:
    """Programs that can be run. ``differ``: the address of the function that detects writes
    (``backend.program.watch``), or None if the memory of parameters is not watched. ``resources``: each kernel's use of
    GPU resources, by symbol.
    """

    executables: Mapping[Program, Runs]
    differ: int | None
    resources: Mapping[str, Resources]


class Capturer(Protocol):
    """Records the work that a function gives to a GPU."""

    def capture(self, function: Callable[[], None]) -> Callable[[], None]:
        """Call ``function`` and record its work; the result gives the same work to the GPU again."""
        ...


class ProgramBuilder(Protocol):
    """Compiles the kernels of one graph while others are still being generated: `add` each, then `finish`.

    A pool compiles them; a target defines how programs become executables.
    """

    compiler: CompilePool[Any, Any, Any, Any]

    def __len__(self) -> int:
        """The number of kernels wanted so far."""
        return len(self.compiler)

    def add(self, source: Source) -> None:
        """Request a kernel."""
        self.compiler.add(source)

    def refused(self, show: Show) -> Mapping[str, TaskmapError]:
        """By symbol, the reasons why kernels need more of the hardware than it has; they are no longer requested."""
        return self.compiler.refused(show)

    def finish(self, programs: Programs, prepares: bool, dump: Dump, show: Show) -> LoadedPrograms:
        """The programs, ready to be run; ``prepares``: one of them computes constants."""
        ...

    def close(self) -> None:
        """Stop work in progress."""
        self.compiler.close()


class Platform(Protocol):
    """A target. ``device``: the device of its tensors. ``suffix``: the suffix of its source files."""

    @property
    def store(self) -> KernelStore: ...

    @property
    def target(self) -> Target: ...

    @property
    def device(self) -> Device: ...

    @property
    def suffix(self) -> str: ...

    @property
    def alignment(self) -> int | None:
        """The address of every tensor used by kernels must be a multiple of this many bytes; None for any address."""
        ...

    def capturer(self) -> Capturer | None:
        """Records the launches of one compiled graph for replay, if the options ask for it."""
        ...

    @property
    def graph_passes(self) -> tuple[GraphPass, ...]:
        """The passes that follow those of every graph: they arrange weights as the target's templates read them."""
        ...

    def generate(self, kernel: Kernel) -> Source:
        """The source of a lowered kernel."""
        ...

    def builder(self) -> ProgramBuilder:
        """A builder that compiles and loads the kernels of one graph."""
        ...
