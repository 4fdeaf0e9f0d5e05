"""Process-wide counts of compilations and calls."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from threading import Lock

from taskmap.backend.counters import Counters


@dataclass(frozen=True, slots=True)
class Metrics:
    """Counts since the process started.

    graphs: graphs compiled (forward and backward are two). fallbacks: graphs that PyTorch runs as a whole.
    kernels_compiled, kernels_found: kernels built by the C compiler, and kernels found in the store.
    tasks_scheduled, tasks_found, tasks_shared: fused groups that were scheduled; groups whose C was left by an earlier
    process; groups equal to an earlier group of this process. tasks_tuned: groups whose configuration came from the
    tuning cache. groups_split: groups that no schedule accepted as a whole.
    externs: steps that PyTorch runs. constants_prepared: how often frozen parameters were folded and packed.
    calls: calls of compiled graphs. compile_seconds: wall time in the C compiler.
    """

    graphs: int = 0
    fallbacks: int = 0
    kernels_compiled: int = 0
    kernels_found: int = 0
    tasks_scheduled: int = 0
    tasks_found: int = 0
    tasks_shared: int = 0
    tasks_tuned: int = 0
    groups_split: int = 0
    externs: int = 0
    constants_prepared: int = 0
    calls: int = 0
    compile_seconds: float = 0.0


@dataclass(slots=True)
class Ledger:
    """The running counts behind Metrics; safe under threads."""

    kernels: Counters = field(default_factory=Counters)
    _counts: dict[str, int] = field(default_factory=dict)
    _calls: itertools.count[int] = field(default_factory=itertools.count)
    _reads: int = 0
    _lock: Lock = field(default_factory=Lock, repr=False)

    def add(self, name: str, count: int = 1) -> None:
        """Count ``name``, a field of Metrics."""
        with self._lock:
            self._counts[name] = self._counts.get(name, 0) + count

    def count_call(self) -> None:
        """Count one call of a compiled graph: without a lock, because it is part of every call."""
        next(self._calls)

    def read(self) -> Metrics:
        """A snapshot of the counts."""
        made = self.kernels.snapshot()
        with self._lock:
            calls = next(self._calls) - self._reads  # reading advances the counter; subtract the reads
            self._reads += 1
            return Metrics(
                calls=calls,
                kernels_compiled=made.kernels_compiled,
                kernels_found=made.kernels_found,
                compile_seconds=made.compile_seconds,
                **self._counts,
            )


COUNTERS = Ledger()
"""The process's counts. Only people and tests read them; no compilation depends on them."""


def metrics() -> Metrics:
    """This process's counts so far."""
    return COUNTERS.read()
