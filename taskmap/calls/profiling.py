"""Kernels as ranges of torch.profiler: each launch of a compiled graph has its own `record_function`.

Without a profiler a graph runs as usual, on the CPU in one native call; this file serves only profiled calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from taskmap.backend.program.executable import Executable, Launcher, ProgramRun
from taskmap.backend.program.structure import Launch
from taskmap.ir.errors import IndexOutOfRangeError
from taskmap.targets.platform import Runs


def with_ranges(executable: Runs) -> Runs:
    """An executable that runs the same program step by step, every kernel in a range named `taskmap::` plus the
    operators it computes, with the kernel's symbol as its argument. An executable without steps is returned
    unchanged."""
    if not isinstance(executable, Executable) or executable.single:
        return executable  # one that times its steps must keep them in its ``runs``
    names = tuple(
        (f"taskmap::{step.label or step.symbol}", step.symbol) if isinstance(step, Launch) else ("", "")
        for step in executable.program.steps
    )
    return Executable(executable.program, executable.plan, _RangedLauncher(executable.launcher, names))


@dataclass(frozen=True, slots=True, eq=False)
class _RangedLauncher:
    """A launcher whose launches are ranges; ``names``: name and argument of each step's range."""

    inner: Launcher
    names: tuple[tuple[str, str], ...]

    def check(self, out_of_range: Callable[[int], IndexOutOfRangeError]) -> None:
        self.inner.check(out_of_range)

    def begin(self, arena_bytes: int, out_of_range: Callable[[int], IndexOutOfRangeError]) -> ProgramRun:
        return _RangedCall(self.inner.begin(arena_bytes, out_of_range), self.names)


class _RangedCall:
    def __init__(self, inner: ProgramRun, names: tuple[tuple[str, str], ...]) -> None:
        self.arena = inner.arena
        self.now, self.elapsed, self.finish = inner.now, inner.elapsed, inner.finish
        self._inner, self._names = inner, names

    def launch(self, step: int, addresses: Sequence[int], sizes: Sequence[int]) -> None:
        with torch.profiler.record_function(*self._names[step]):
            self._inner.launch(step, addresses, sizes)
