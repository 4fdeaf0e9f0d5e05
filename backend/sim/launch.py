"""Launching a program's kernels in the simulator, on host memory, without checks: at the speed of the host."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from time import perf_counter
from typing import Any

from taskmap.backend.cuda.own_memory import OWN_ALIGNMENT, OwnMemory, own_memory
from taskmap.backend.cuda.tensor_map import Views, views_of
from taskmap.backend.program.arena import NO_ARENA, Arena, ArenaPool
from taskmap.backend.program.sizes import SizesFunction, sizes_function
from taskmap.backend.program.structure import Launch, Program
from taskmap.backend.sim import structs
from taskmap.backend.sim.building import SimKernel, engine
from taskmap.backend.sim.tensor_map import encode
from taskmap.ir.errors import IndexOutOfRangeError, SimulationError

_SECONDS = 600.0
"""Seconds of processor time after which a kernel is ended, if no hang was detected before."""

_MOST_PROBLEMS = 4


@dataclass(slots=True, eq=False)
class SimLauncher:
    """Runs the kernels of one program on the host, blocks divided among ``workers`` threads."""

    program: Program
    kernels: Mapping[str, SimKernel]
    workers: int = 1
    grids: dict[str, SizesFunction] = field(init=False)
    entries: dict[str, int] = field(init=False)
    own: OwnMemory = field(init=False)
    views: dict[str, Views] = field(init=False)
    arenas: ArenaPool = field(init=False, default_factory=ArenaPool)

    def __post_init__(self) -> None:
        sources = {symbol: self.kernels[symbol].source for symbol in self.program.symbols}
        self.grids = {symbol: sizes_function(source.grid, source.dims) for symbol, source in sources.items()}
        self.views = {symbol: views_of(source.maps, source.dims) for symbol, source in sources.items() if source.maps}
        self.own = own_memory(sources)
        self.entries = {symbol: self.kernels[symbol].entry for symbol in self.program.symbols}

    def check(self, out_of_range: Callable[[int], IndexOutOfRangeError]) -> None:
        """Nothing to check: a run raises its own errors."""

    def begin(self, arena_bytes: int, out_of_range: Callable[[int], IndexOutOfRangeError]) -> SimCall:
        """A run of the program."""
        own = -(-arena_bytes // OWN_ALIGNMENT) * OWN_ALIGNMENT
        needed = own + self.own.bytes if self.own.bytes else arena_bytes
        arena = self.arenas.take(needed) if needed else NO_ARENA
        if self.own.cleared:
            ctypes.memset(arena.address + own, 0, self.own.cleared)
        return SimCall(self, arena, out_of_range, arena.address + own)


class SimCall:
    """One run: every launch has ended when `launch` returns."""

    def __init__(
        self, launcher: SimLauncher, arena: Arena, out_of_range: Callable[[int], IndexOutOfRangeError], own: int = 0
    ) -> None:
        self.launcher, self.arena = launcher, arena.address
        self._arena, self._own, self._out_of_range = arena, own, out_of_range

    def launch(self, step: int, addresses: Sequence[int], sizes: Sequence[int]) -> None:
        """Runs the kernel of a step. Raises SimulationError, and IndexOutOfRangeError for an index out of range."""
        taken = self.launcher.program.steps[step]
        assert isinstance(taken, Launch)
        source = self.launcher.kernels[taken.symbol].source
        grid = self.launcher.grids[taken.symbol](sizes)
        if 0 in grid:
            return
        error = ctypes.c_int(0)
        own = (self._own + at for at in self.launcher.own.offsets.get(taken.symbol, ()))
        values: list[Any] = [structs.Argument(address, None) for address in (*addresses, *own)]
        values += [ctypes.c_longlong(size) for size in sizes]
        if taken.symbol in self.launcher.views:
            values += [encode(view) for view in self.launcher.views[taken.symbol](addresses, sizes)]
        if taken.needs_error:
            values.append(structs.Argument(ctypes.addressof(error), None))
        arguments = (ctypes.c_void_p * max(len(values), 1))(*(ctypes.addressof(value) for value in values))
        run = structs.Run(
            entry=self.launcher.entries[taken.symbol],
            arguments=arguments,
            regions=(structs.Region * 1)(),
            seconds=_SECONDS,
            grid=structs.Dim3(*(*grid, 1, 1)[:3]),
            cluster=structs.Dim3(*source.cluster),
            threads=source.threads,
            shared_bytes=source.shared_bytes,
            shared_granule=2,
            late=1,
            workers=self.launcher.workers,
        )
        found = (structs.FoundProblem * _MOST_PROBLEMS)()
        number = engine().tm_sim_run_grid(
            ctypes.byref(run), None, 0, found, _MOST_PROBLEMS, ctypes.byref(structs.Counted())
        )
        if number:
            raise SimulationError(
                f"kernel {taken.symbol} failed in the simulator",
                where=taken.where or None,
                why="\n".join(p.text.decode(errors="replace") for p in found[:number]),
                hint="taskmap.simulate runs a kernel with every access checked.",
            )
        if error.value:
            raise self._out_of_range(step)

    def now(self) -> float:
        """The time: launches are over when they return."""
        return perf_counter()

    def elapsed(self, points: Sequence[float]) -> tuple[float, ...]:
        """The seconds between neighbouring points."""
        return tuple(b - a for a, b in pairwise(points))

    def finish(self) -> None:
        """Returns the arena."""
        if self._arena is not NO_ARENA:
            self.launcher.arenas.give(self._arena)
