"""Kernels of the CPU launched one at a time from Python, so that each can be timed without a compiler."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from taskmap.backend.program.arena import Arena, allocate_arena
from taskmap.backend.program.structure import Launch, Program
from taskmap.ir.errors import IndexOutOfRangeError

OutOfRange = Callable[[int], IndexOutOfRangeError]


@dataclass(frozen=True, slots=True)
class CpuLauncher:
    """The Launcher of one program; ``addresses`` maps symbols to loaded kernels."""

    program: Program
    addresses: Mapping[str, int]

    def check(self, out_of_range: OutOfRange) -> None:
        """Nothing to check: a launch raises its own errors."""

    def begin(self, arena_bytes: int, out_of_range: OutOfRange) -> CpuCall:
        """A run with an arena of its own."""
        return CpuCall(self, allocate_arena(arena_bytes), out_of_range)


@dataclass(slots=True)
class CpuCall:
    """One run; ``memory`` is its arena."""

    launcher: CpuLauncher
    memory: Arena
    out_of_range: OutOfRange
    arena: int = field(init=False)

    def __post_init__(self) -> None:
        self.arena = self.memory.address

    def launch(self, step: int, addresses: Sequence[int], sizes: Sequence[int]) -> None:
        """Runs a step's kernel. Raises IndexOutOfRangeError."""
        launch = self.launcher.program.steps[step]
        assert isinstance(launch, Launch)
        types: list[type] = [ctypes.c_void_p] * len(addresses) + [ctypes.c_longlong] * len(sizes)
        error = ctypes.c_int(0)
        arguments: list[object] = [*addresses, *sizes]
        if launch.needs_error:
            types.append(ctypes.c_void_p)
            arguments.append(ctypes.byref(error))
        ctypes.CFUNCTYPE(None, *types)(self.launcher.addresses[launch.symbol])(*arguments)
        if error.value:
            raise self.out_of_range(step)

    def now(self) -> float:
        """The time: a kernel has ended when its launch returns."""
        return time.perf_counter()

    def elapsed(self, points: Sequence[float]) -> tuple[float, ...]:
        """The seconds between neighbouring points."""
        return tuple(after - before for before, after in pairwise(points))

    def finish(self) -> None:
        """Nothing to wait for."""
