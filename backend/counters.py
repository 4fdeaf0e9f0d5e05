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

    def add(
        self,
        *,
        kernels_compiled: int = 0,
        kernels_found: int = 0,
        units_compiled: int = 0,
        lookup_seconds: float = 0.0,
        compile_seconds: float = 0.0,
    ) -> None:
        with self._lock:
            now = self._counts
            self._counts = replace(
                now,
                kernels_compiled=now.kernels_compiled + kernels_compiled,
                kernels_found=now.kernels_found + kernels_found,
                units_compiled=now.units_compiled + units_compiled,
                lookup_seconds=now.lookup_seconds + lookup_seconds,
                compile_seconds=now.compile_seconds + compile_seconds,
            )

    def snapshot(self) -> Counts:
        with self._lock:
            return self._counts
