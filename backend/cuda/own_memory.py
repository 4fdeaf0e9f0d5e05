"""The memory private to launches.

Launches of a program run one after another, so all use the same memory. Counters come first and are set to 0 once, at
the beginning of a run: every kernel leaves them 0, and nothing else is written there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from taskmap.backend.cuda.source import CudaSource

OWN_ALIGNMENT = 256
"""Alignment of every address in bytes."""


@dataclass(frozen=True, slots=True)
class OwnMemory:
    """``bytes`` in all, of which the first ``cleared`` must be 0; by symbol the offsets of a kernel's arguments."""

    bytes: int
    cleared: int
    offsets: Mapping[str, tuple[int, ...]]


def own_memory(sources: Mapping[str, CudaSource]) -> OwnMemory:
    """Space for the private memory of each of ``sources``, by symbol."""
    cleared = max((_end(s.counters) for s in sources.values()), default=0)
    room = max((_end(s.workspace) for s in sources.values()), default=0)
    offsets = {
        symbol: (*(cleared + at for at in _starts(s.workspace)), *_starts(s.counters))
        for symbol, s in sources.items()
        if s.workspace or s.counters
    }
    return OwnMemory(cleared + room, cleared, offsets)


def _starts(sizes: tuple[int, ...]) -> list[int]:
    return [_end(sizes[:n]) for n in range(len(sizes))]


def _end(sizes: tuple[int, ...]) -> int:
    return sum(-(-size // OWN_ALIGNMENT) * OWN_ALIGNMENT for size in sizes)
