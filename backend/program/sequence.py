"""The compiled launch sequence of a program on the CPU (see launch_c): one native call between extern calls."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Mapping, Sequence

from taskmap.backend.program.arena import NO_ARENA, ArenaPool
from taskmap.backend.program.memory_plan import MemoryPlan
from taskmap.backend.program.sizes import sizes_function
from taskmap.backend.program.structure import ExternCall, Program
from taskmap.ir.errors import InputError

_Run = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 5)  # releases the interpreter's lock while it runs
Extern = Callable[[int, "array[int]"], None]


class CompiledSequence:
    """Runs all steps of a program. ``kernels``: the addresses of its kernels by symbol; ``functions``: those of the
    functions that launch_sources wrote, in order.

    ``segments``: the compiled functions, and the numbers of extern calls. Threads may call one sequence at once: each
    call has an arena of its own.
    """

    __slots__ = ("_arena_bytes", "_arenas", "_kernels", "_kernels_address", "_needed", "_only", "segments")

    def __init__(
        self, program: Program, plan: MemoryPlan, kernels: Mapping[str, int], functions: Sequence[int]
    ) -> None:
        self._kernels = array("q", [kernels[symbol] for symbol in program.symbols])
        self._kernels_address = self._kernels.buffer_info()[0]
        self._arena_bytes = sizes_function([plan.bytes], program.dims)
        self._needed = 0 if program.dims else self._arena_bytes(())[0]
        self._arenas = ArenaPool()
        compiled = iter(functions)
        self.segments: tuple[int | Callable[..., int], ...] = tuple(
            segment.index if isinstance(segment, ExternCall) else _Run(next(compiled)) for segment in program.segments()
        )
        only = self.segments[0] if len(self.segments) == 1 else None
        self._only = None if isinstance(only, int) else only

    def __call__(self, io: array[int], dims: Sequence[int], constants: array[int], extern: Extern | None) -> int:
        """0, or 1 plus the step whose data indexed beyond a tensor. Raises InputError for an extern call without
        ``extern``."""
        needed, where = self._needed, 0
        if dims:
            sizes = array("q", dims)
            needed, where = self._arena_bytes(dims)[0], sizes.buffer_info()[0]
        arena = self._arenas.take(needed) if needed else NO_ARENA
        tables = (
            arena.address,
            io.buffer_info()[0],
            constants.buffer_info()[0],
            self._kernels_address,
            where,
        )
        try:
            return self._run(tables, io, extern) if self._only is None else self._only(*tables)
        finally:
            if needed:
                self._arenas.give(arena)

    def _run(self, tables: tuple[int, ...], io: array[int], extern: Extern | None) -> int:
        for segment in self.segments:
            if not isinstance(segment, int):
                failed = segment(*tables)
                if failed:
                    return failed
            elif extern is None:
                raise InputError(f"extern call {segment} has nothing to call")
            else:
                extern(segment, io)
        return 0

    def release(self) -> None:
        """Frees the arenas that no call is using; the next call makes new ones."""
        self._arenas.clear()
