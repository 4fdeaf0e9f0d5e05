"""An executable: a program with its kernels loaded, ready to be called with addresses.

A Launcher launches the kernels one by one, so an executable is the same for a CPU, a GPU and the simulator. On the CPU
a compiled launch sequence runs all kernels between two extern calls at once; timed runs go step by step there, too.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Protocol

from taskmap.backend.program.memory_plan import MemoryPlan
from taskmap.backend.program.sequence import CompiledSequence, Extern
from taskmap.backend.program.sizes import SizesFunction, sizes_function
from taskmap.backend.program.structure import BufferKind, ExternCall, Launch, Program
from taskmap.ir.errors import IndexOutOfRangeError, InputError
from taskmap.ir.expressions import Dim

_NONE = array("q")
Numbers = Sequence[int]
OutOfRange = Callable[[int], IndexOutOfRangeError]
"""Makes the error of a step whose data index beyond a tensor."""

KEPT_RUNS = 256
"""The number of timed runs that an executable keeps."""


@dataclass(frozen=True, slots=True)
class TimedRun:
    """One run of all steps: the symbolic sizes, and the seconds of each step."""

    sizes: tuple[int, ...]
    seconds: tuple[float, ...]


class ProgramRun(Protocol):
    """One run of a program: its arena's address, launches in order, points in time."""

    arena: int

    def launch(self, step: int, addresses: Numbers, sizes: Numbers) -> None:
        """Launch the kernel of a step."""

    def now(self) -> Any:
        """The point in time at which all launches so far have ended."""
        ...

    def elapsed(self, points: Sequence[Any]) -> tuple[float, ...]:
        """The seconds between neighbouring points."""
        ...

    def finish(self) -> None:
        """Called when all steps have been launched."""


class Launcher(Protocol):
    """Runs the kernels of one program. ``out_of_range`` makes the error of a step."""

    def check(self, out_of_range: OutOfRange) -> None:
        """Raises the errors of earlier runs."""

    def begin(self, arena_bytes: int, out_of_range: OutOfRange) -> ProgramRun:
        """A run of the program, with an arena of ``arena_bytes`` bytes. Raises the errors of earlier runs."""
        ...


@dataclass(frozen=True, slots=True)
class _Step:
    """A launch: the entries of the call's address table that it takes, and its sizes."""

    addresses: Callable[[list[int]], tuple[int, ...]]
    sizes: SizesFunction


@dataclass(slots=True, eq=False)
class Executable:
    """Runs a program: through ``sequence`` if there is one, else step by step through ``launcher``.

    Threads may call one executable at once: each call has an arena of its own. With ``single`` every step runs by
    itself and is timed; ``runs`` holds the latest.
    """

    program: Program
    plan: MemoryPlan
    launcher: Launcher
    sequence: CompiledSequence | None = None
    single: bool = False
    runs: deque[TimedRun] = field(init=False, default_factory=lambda: deque(maxlen=KEPT_RUNS))
    _steps: tuple[_Step | int, ...] = field(init=False, default=())
    _regions: SizesFunction = field(init=False)
    _places: tuple[tuple[int, int], ...] = field(init=False, default=())
    _counts: tuple[int, int, int] = field(init=False)

    def __post_init__(self) -> None:
        program = self.program
        self._counts = (len(program.io), len(program.dims), len(program.constants))
        if self.sequence is not None and not self.single:
            return
        self.sequence = None
        tables = {b: i for i, b in enumerate((*program.io, *program.constants))}
        temporaries = [b for b, _ in enumerate(program.buffers) if program.buffers[b].kind is BufferKind.ARENA]
        entries = {**tables, **{b: len(tables) + i for i, b in enumerate(temporaries)}}
        self._places = tuple(self.plan.places.get(b, (0, 0)) for b in temporaries)
        factors: list[Dim] = [region.factor for region in self.plan.regions]
        self._regions = sizes_function([self.plan.bytes, *factors], program.dims)
        self._steps = tuple(
            step.index
            if isinstance(step, ExternCall)
            else _Step(_getter([entries[b] for b in step.buffers]), sizes_function(step.dims, program.dims))
            for step in program.steps
        )

    def __call__(
        self, io: array[int], dims: Numbers = (), constants: array[int] = _NONE, extern: Extern | None = None
    ) -> None:
        """Runs all steps on the addresses in ``io`` and ``constants``, in the order of the program's tables.

        ``extern`` is called with the number of each extern call and with ``io``, in which it may write the addresses of
        its results. Raises IndexOutOfRangeError if data indexed beyond a tensor, naming the operator (for a GPU, that
        of an earlier call), and InputError if the number of addresses or sizes is wrong.
        """
        if (len(io), len(dims), len(constants)) != self._counts:
            raise self._wrong_counts(len(io), len(dims), len(constants))
        if self.sequence is None:
            self._run_steps(io, dims, constants, extern)
            return
        failed = self.sequence(io, dims, constants, extern)
        if failed:
            raise self._out_of_range(failed - 1)

    def check(self) -> None:
        """Raises the errors of earlier runs."""
        self.launcher.check(self._out_of_range)

    def release(self) -> None:
        """Frees the memory of the sequence that no call is using; the next call makes new one."""
        if self.sequence is not None:
            self.sequence.release()

    def _run_steps(self, io: array[int], dims: Numbers, constants: array[int], extern: Extern | None) -> None:
        needed, *factors = self._regions(dims)
        call = self.launcher.begin(needed, self._out_of_range)
        rest = [*constants, *self._temporaries(call.arena, factors)]
        table = [*io, *rest]
        points = [call.now()] if self.single else None
        for number, step in enumerate(self._steps):
            if isinstance(step, _Step):
                call.launch(number, step.addresses(table), step.sizes(dims))
            elif extern is None:
                raise InputError(f"extern call {step} has nothing to call")
            else:
                extern(step, io)
                table = [*io, *rest]
            if points is not None:
                points.append(call.now())
        call.finish()
        if points is not None:
            self.runs.append(TimedRun(tuple(dims), call.elapsed(points)))

    def _temporaries(self, arena: int, factors: Numbers) -> list[int]:
        starts: list[int] = []
        for region, factor in zip(self.plan.regions, factors, strict=True):
            starts.append(arena)
            arena += region.units * factor
        return [starts[region] + offset * factors[region] for region, offset in self._places] if starts else []

    def _wrong_counts(self, *given: int) -> InputError:
        needed, got = (f"{io} addresses, {d} sizes and {c} constants" for io, d, c in (self._counts, given))
        return InputError(f"a program that needs {needed} was called with {got}")

    def _out_of_range(self, position: int) -> IndexOutOfRangeError:
        launch = self.program.steps[position]
        assert isinstance(launch, Launch)
        return launch.out_of_range()


def _getter(entries: Sequence[int]) -> Callable[[list[int]], tuple[int, ...]]:
    if len(entries) == 1:
        only = entries[0]
        return lambda table: (table[only],)
    return itemgetter(*entries) if entries else lambda _: ()
