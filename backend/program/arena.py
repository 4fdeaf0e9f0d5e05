"""Arenas: page-aligned blocks that an executable reuses from call to call."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from dataclasses import dataclass, field

_HUGE_PAGE = 2 << 20


@dataclass(frozen=True, slots=True)
class Arena:
    """``bytes`` usable bytes at ``address``, which is a multiple of a page (of a huge page, where it is larger)."""

    address: int
    bytes: int
    memory: object = field(repr=False)


NO_ARENA = Arena(0, 0, None)
"""For a program without temporaries."""


def allocate_arena(size: int) -> Arena:
    """A block of at least ``size`` bytes. Raises MemoryError. Pages are allocated at their first write."""
    if size <= 0:
        return NO_ARENA
    huge = size >= _HUGE_PAGE
    try:
        # Private: huge pages are for private memory, and a forked process must not write into ours.
        memory = mmap.mmap(-1, size + (_HUGE_PAGE if huge else 0), access=mmap.ACCESS_COPY)
    except OSError as error:
        raise MemoryError(f"cannot allocate an arena of {size} bytes: {error}") from error
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    if not huge:
        return Arena(start, size, memory)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # Fewer TLB misses on large activations. Without huge pages in the kernel the arena works all the same.
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return Arena(-(-start // _HUGE_PAGE) * _HUGE_PAGE, size, memory)


@dataclass(slots=True)
class ArenaPool:
    """Arenas that no call is using. Each call takes one and returns it, so calls may run concurrently."""

    _free: list[Arena] = field(default_factory=list)

    def take(self, size: int) -> Arena:
        """An arena of at least ``size`` bytes for exclusive use."""
        try:
            arena = self._free.pop()  # atomic: two threads never get the same one
        except IndexError:
            return allocate_arena(size)
        return arena if arena.bytes >= size else allocate_arena(size)

    def clear(self) -> None:
        """Frees all arenas that are not in use."""
        self._free.clear()

    def give(self, arena: Arena) -> None:
        """Returns an arena that ``take`` gave."""
        self._free.append(arena)
