"""What a target needs of the driver: how its kernels are written, compiled and run."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from taskmap.backend.cuda.resources import Resources
from taskmap.backend.program.executable import Extern, TimedRun
from taskmap.backend.program.memory_plan import MemoryPlan
from taskmap.backend.program.structure import Program
from taskmap.backend.store.objects import KernelStore
from taskmap.compile.source_record import Source as Source
from taskmap.graph.nodes import Graph
from taskmap.ir.errors import TaskmapError
from taskmap.ir.nodes import Kernel
from taskmap.ir.target import Target
from taskmap.util.dump import Dump

VECTOR_BYTES = 16
"""What a kernel of a GPU loads at once; PyTorch's allocators give addresses that are multiples of more."""

Programs = Mapping[Program, MemoryPlan]
Show = Callable[[int, int], None]


class Runs(Protocol):
    """A program that can be run: an Executable, or what is called as one."""

    runs: deque[TimedRun]

    def __call__(
        self, io: array[int], dims: Sequence[int], constants: array[int], extern: Extern | None = None
    ) -> None:
        """Run all steps."""

    def release(self) -> None:
        """Give up what is kept between calls."""


@dataclass(frozen=True, slots=True)
class LoadedPrograms:
    """Programs that can be run. ``differ``: the address of the function that sees writes (``backend.program.watch``),
    or None where parameters' memory is not looked at. ``resources``: what each kernel takes of a GPU, by symbol.
    """

    executables: Mapping[Program, Runs]
    differ: int | None
    resources: Mapping[str, Resources]


class Capturer(Protocol):
    """What records the work that a function gives to a GPU."""

    def capture(self, function: Callable[[], None]) -> Callable[[], None]:
        """Call ``function`` and record the work; the result gives the same work to the GPU again."""


class ProgramBuilder(Protocol):
    """Compiles the kernels of one graph while others are still being made: `add` each, then `finish`."""

    def __len__(self) -> int:
        """The number of kernels wanted so far."""

    def add(self, source: Source) -> None:
        """A kernel is wanted."""

    def refused(self, show: Show) -> Mapping[str, TaskmapError]:
        """By symbol, why kernels take more of the hardware than it has: they are no longer wanted."""

    def finish(self, programs: Programs, prepares: bool, dump: Dump, show: Show) -> LoadedPrograms:
        """The programs, ready to be run; ``prepares``: one of them computes constants."""

    def close(self) -> None:
        """End what is still at work."""


class Platform(Protocol):
    """A target: ``device`` is where tensors are, ``suffix`` the ending of files that hold its source."""

    @property
    def store(self) -> KernelStore: ...

    @property
    def target(self) -> Target: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def suffix(self) -> str: ...

    @property
    def alignment(self) -> int | None:
        """Bytes of which the address of every tensor that kernels use must be a multiple; None for any."""

    def capturer(self) -> Capturer | None:
        """What records the launches of one compiled graph for replay, where the options want that."""

    def arranged(self, graph: Graph) -> Graph:
        """A graph after the passes, its weights arranged as the target's templates read them."""

    def generate(self, kernel: Kernel) -> Source:
        """The source of a lowered kernel."""

    def builder(self) -> ProgramBuilder:
        """What compiles and loads the kernels of one graph."""
