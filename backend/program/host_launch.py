"""Launching a program's kernels on the CPU one by one from Python, so that each can be observed."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from taskmap.backend.cpu.openmp_threads import openmp_threads
from taskmap.backend.program.arena import NO_ARENA, Arena, ArenaPool
from taskmap.backend.program.structure import Launch, Program
from taskmap.ir.errors import IndexOutOfRangeError


@dataclass(slots=True, eq=False)
class HostLauncher:
    """A Launcher (see executable.py) of compiled C kernels; ``addresses`` maps their symbols to their loaded addresses.
    ``threads`` is the number of OpenMP threads that kernels use; None leaves the process's number."""

    program: Program
    addresses: Mapping[str, int]
    threads: int | None = None
    _functions: dict[str, Callable[..., None]] = field(init=False, default_factory=dict)
    _arenas: ArenaPool = field(init=False, default_factory=ArenaPool)

    def check(self, out_of_range: Callable[[int], IndexOutOfRangeError]) -> None:
        """Nothing to check: a launch raises its own errors."""

    def begin(self, arena_bytes: int, out_of_range: Callable[[int], IndexOutOfRangeError]) -> HostCall:
        """A run of the program."""
        return HostCall(self, self._arenas.take(arena_bytes) if arena_bytes else NO_ARENA, out_of_range)

    def run(self, step: int, addresses: Sequence[int], sizes: Sequence[int]) -> bool:
        """Runs the kernel of a step; False if it met an index out of range."""
        taken = self.program.steps[step]
        assert isinstance(taken, Launch)
        function = self._functions.get(taken.symbol)
        if function is None:
            function = self._functions[taken.symbol] = _function(taken, self.addresses[taken.symbol])
        error = ctypes.c_int(0)
        flag = (ctypes.addressof(error),) if taken.needs_error else ()
        with openmp_threads(self.threads):
            function(*addresses, *sizes, *flag)
        return error.value == 0

    def give(self, arena: Arena) -> None:
        """Frees the arena for another run."""
        if arena is not NO_ARENA:
            self._arenas.give(arena)


class HostCall:
    """One run: every launch has ended when `launch` returns."""

    def __init__(
        self, launcher: HostLauncher, arena: Arena, out_of_range: Callable[[int], IndexOutOfRangeError]
    ) -> None:
        self.arena = arena.address
        self._launcher, self._block, self._out_of_range = launcher, arena, out_of_range

    def launch(self, step: int, addresses: Sequence[int], sizes: Sequence[int]) -> None:
        """Runs the kernel of a step. Raises IndexOutOfRangeError for an index out of range."""
        if not self._launcher.run(step, addresses, sizes):
            raise self._out_of_range(step)

    def now(self) -> float:
        """The clock, in seconds."""
        return time.perf_counter()

    def elapsed(self, points: Sequence[float]) -> tuple[float, ...]:
        """The seconds between neighbouring points."""
        return tuple(after - before for before, after in pairwise(points))

    def finish(self) -> None:
        """Returns the arena."""
        self._launcher.give(self._block)


def _function(step: Launch, address: int) -> Callable[..., None]:
    kinds = [ctypes.c_void_p] * len(step.buffers) + [ctypes.c_longlong] * len(step.dims)
    error = [ctypes.c_void_p] if step.needs_error else []
    function: Callable[..., None] = ctypes.CFUNCTYPE(None, *kinds, *error)(address)
    return function
