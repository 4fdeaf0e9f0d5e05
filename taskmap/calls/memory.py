"""Memory that a compiled graph keeps: of large outputs, and of constants.

The C library returns large freed blocks to the system, which clears every page of the next one: a model that returns
tens of megabytes would wait for that at every call, and write its output to cold memory.

Packed weights of a network are tens of megabytes, each read once per call. In pages of 4 KiB that is more than a TLB
holds, and processors prefetch no further than to the end of a page.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import ref

from taskmap.backend.program.arena import allocate_arena

SMALLEST = 1 << 20
"""Below this many bytes the C library itself keeps freed memory."""
MOST = 128 << 20
"""Bytes that all compiled graphs of a process together keep for their outputs."""
_ALIGNMENT = 64


class OutputPool:
    """The memory of one graph's latest outputs, by slot. Threads may take from it at once."""

    def __init__(self) -> None:
        self._kept: dict[int, Any] = {}
        key = id(self)
        _ALL[key] = ref(self, lambda _: _ALL.pop(key, None))

    @property
    def bytes(self) -> int:
        """Bytes held."""
        return sum(self.size_of(block) for block in tuple(self._kept.values()))

    @staticmethod
    def size_of(block: Any) -> int:
        """The size in bytes of a block of memory."""
        raise NotImplementedError

    def take(self, slot: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any) -> Any:
        """An uninitialised tensor; it reuses the previous memory of ``slot`` if that is free and of the same size."""
        raise NotImplementedError

    def keep(self, slot: int, block: Any) -> None:
        """Keep a block, unless all graphs together hold too much."""
        pools = [pool() for pool in tuple(_ALL.values())]
        held = sum(pool.bytes for pool in pools if pool is not None)
        if held + self.size_of(block) <= MOST:
            self._kept[slot] = block

    def clear(self) -> None:
        """Release all memory."""
        self._kept.clear()


# Not a WeakSet, which must not change during iteration in another thread; no lock, as a forked child may find it held.
_ALL: dict[int, ref[OutputPool]] = {}


class ConstantBlock:
    """The memory of the results of a run, by slot: one block of huge pages, which lives as long as any of them; every
    run begins another. ``sizes``: their bytes, in the order in which a run takes them."""

    def __init__(self, sizes: Mapping[int, int]) -> None:
        self._first = next(iter(sizes))
        self._starts: dict[int, int] = {}
        self._bytes = 0
        for slot, size in sizes.items():
            self._starts[slot] = self._bytes
            self._bytes += -(-size // _ALIGNMENT) * _ALIGNMENT
        self._block: tuple[Any, int] | None = None

    @staticmethod
    def shown(memory: object) -> tuple[Any, int]:
        """The bytes of a buffer, and the address of the first."""
        raise NotImplementedError

    def take(self, slot: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any) -> Any:
        """An uninitialised tensor in the block. Raises MemoryError."""
        raise NotImplementedError

    def place(self, slot: int) -> tuple[Any, int]:
        """The bytes of the block, and the place of a slot's first among them. Raises MemoryError."""
        if slot == self._first or self._block is None:
            arena = allocate_arena(max(self._bytes, _ALIGNMENT))
            whole, address = self.shown(arena.memory)
            self._block = whole, arena.address - address
        whole, first = self._block
        return whole, first + self._starts[slot]

    def clear(self) -> None:
        """Lets go of the block, which then lives as long as its tensors."""
        self._block = None
