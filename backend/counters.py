"""Counters of the cost of building kernels, owned by the caller who requests kernels and passed down."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from threading import Lock


@dataclass(frozen=True, slots=True)
class Counts:
    """Numbers of kernels compiled and found in the store, of translation units compiled, and seconds of wall time for
    each part."""

    kernels_compiled: int = 0
    kernels_found: int = 0
    units_compiled: int = 0
    lookup_seconds: float = 0.0
    compile_seconds: float = 0.0


@dataclass(slots=True)
class Counters:
    """A thread-safe running sum of Counts."""

    _counts: Counts = field(default_factory=Counts)
    _lock: Lock = field(default_factory=Lock, repr=False)

    def add(self, **more: float) -> None:
        """Add to the counts of these names."""
        with self._lock:
            self._counts = replace(self._counts, **{n: getattr(self._counts, n) + m for n, m in more.items()})

    def snapshot(self) -> Counts:
        with self._lock:
            return self._counts
