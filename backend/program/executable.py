"""An executable: a program with its kernels loaded, ready to be called with addresses."""

from __future__ import annotations

import ctypes
import time
from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from taskmap.backend.program.arena import NO_ARENA, ArenaPool
from taskmap.backend.program.launch_c import launch_sources
from taskmap.backend.program.memory_plan import MemoryPlan
from taskmap.backend.program.sizes import SizesFunction, sizes_function
from taskmap.backend.program.structure import ExternCall, Launch, Program
from taskmap.ir.errors import IndexOutOfRangeError, InputError

_Run = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 5)  # releases the interpreter's lock while it runs
_NONE = array("q")
Extern = Callable[[int, "array[int]"], None]


KEPT_RUNS = 256
"""The number of timed runs that an executable keeps."""


@dataclass(frozen=True, slots=True)
class TimedRun:
    """One run of all steps: the symbolic sizes, and the seconds of each step."""

    sizes: tuple[int, ...]
    seconds: tuple[float, ...]


@dataclass(slots=True, eq=False)
class Executable:
    """Runs a program. ``addresses`` maps every symbol, kernels and launch functions alike, to its loaded address.

    Threads may call one executable at once: each call has an arena of its own. With ``single`` every step runs by
    itself and is timed; ``runs`` holds the latest.
    """

    program: Program
    plan: MemoryPlan
    addresses: Mapping[str, int]
    single: bool = False
    threads: int | None = None
    steps: tuple[int | Callable[..., int], ...] = field(init=False)
    runs: deque[TimedRun] = field(init=False, default_factory=lambda: deque(maxlen=KEPT_RUNS))
    _only: Callable[..., int] | None = field(init=False)
    _kernels: array[int] = field(init=False)
    _kernels_address: int = field(init=False)
    _counts: tuple[int, int, int] = field(init=False)
    _arena_bytes: SizesFunction = field(init=False)
    _arenas: ArenaPool = field(init=False, default_factory=ArenaPool)

    def __post_init__(self) -> None:
        program = self.program
        self._kernels = array("q", [self.addresses[s] for s in program.symbols])
        self._kernels_address = self._kernels.buffer_info()[0]
        self._counts = (len(program.io), len(program.dims), len(program.constants))
        self._arena_bytes = sizes_function([self.plan.bytes], program.dims)
        sources = iter(launch_sources(program, self.plan, single=self.single, threads=self.threads))
        self.steps = tuple(
            run.index if isinstance(run, ExternCall) else _Run(self.addresses[next(sources).symbol])
            for run in program.segments(self.single)
        )
        only = self.steps[0] if len(self.steps) == 1 else None
        self._only = None if isinstance(only, int) else only

    def __call__(
        self, io: array[int], dims: Sequence[int] = (), constants: array[int] = _NONE, extern: Extern | None = None
    ) -> None:
        """Runs all steps on the addresses in ``io`` and ``constants``, in the order of the program's tables.

        ``extern`` is called with the number of each extern call and with ``io``, in which it may write the addresses of
        its results. Raises IndexOutOfRangeError if data indexed beyond a tensor, naming the operator, and InputError if
        the number of addresses or sizes is wrong.
        """
        if (len(io), len(dims), len(constants)) != self._counts:
            raise self._wrong_counts(len(io), len(dims), len(constants))
        sizes = array("q", dims) if dims else _NONE
        needed = self._arena_bytes(dims)[0]
        arena = self._arenas.take(needed) if needed else NO_ARENA
        tables = (
            arena.address,
            io.buffer_info()[0],
            constants.buffer_info()[0],
            self._kernels_address,
            sizes.buffer_info()[0],
        )
        try:
            if self.single:
                self.runs.append(TimedRun(tuple(dims), self._run_timed(tables, io, extern)))
            elif self._only is not None:
                failed = self._only(*tables)
                if failed:
                    raise self._out_of_range(failed - 1)
            else:
                for step in self.steps:
                    self._run(step, tables, io, extern)
        finally:
            if needed:
                self._arenas.give(arena)

    def _run(
        self, step: int | Callable[..., int], tables: tuple[int, ...], io: array[int], extern: Extern | None
    ) -> None:
        if isinstance(step, int):
            if extern is None:
                raise InputError(f"extern call {step} has nothing to call")
            extern(step, io)
            return
        failed = step(*tables)
        if failed:
            raise self._out_of_range(failed - 1)

    def _run_timed(self, tables: tuple[int, ...], io: array[int], extern: Extern | None) -> tuple[float, ...]:
        seconds = []
        for step in self.steps:
            started = time.perf_counter()
            self._run(step, tables, io, extern)
            seconds.append(time.perf_counter() - started)
        return tuple(seconds)

    def release(self) -> None:
        """Frees the arenas that no call is using; the next call makes new ones."""
        self._arenas.clear()

    def _wrong_counts(self, *given: int) -> InputError:
        needed, got = (f"{io} addresses, {d} sizes and {c} constants" for io, d, c in (self._counts, given))
        return InputError(f"a program that needs {needed} was called with {got}")

    def _out_of_range(self, position: int) -> IndexOutOfRangeError:
        launch = self.program.steps[position]
        assert isinstance(launch, Launch)
        return launch.out_of_range()
