"""The memory of constants: one block of huge pages for all results of a preparation.

Packed weights of a network are tens of megabytes, each read once per call. In pages of 4 KiB that is more than a TLB
holds, and processors prefetch no further than to the end of a page.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from taskmap.backend.program.arena import allocate_arena

_ALIGNMENT = 64


class ConstantMemory:
    """The memory of the results of a run, by slot. ``sizes``: their bytes, in the order in which a run takes them. They
    lie in one block, which lives as long as any of them; every run begins another."""

    def __init__(self, sizes: Mapping[int, int]) -> None:
        self._first = next(iter(sizes))
        self._starts: dict[int, int] = {}
        self._bytes = 0
        for slot, size in sizes.items():
            self._starts[slot] = self._bytes
            self._bytes += -(-size // _ALIGNMENT) * _ALIGNMENT
        self._block: torch.Tensor | None = None

    def take(self, slot: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """An uninitialised tensor in the block. Raises MemoryError."""
        if slot == self._first or self._block is None:
            arena = allocate_arena(max(self._bytes, _ALIGNMENT))
            whole = torch.frombuffer(arena.memory, dtype=torch.uint8)
            first = arena.address - whole.data_ptr()
            self._block = whole[first : first + self._bytes]
        start = self._block.storage_offset() + self._starts[slot]
        tensor = torch.empty(0, dtype=dtype)
        return tensor.set_(self._block.untyped_storage(), start // dtype.itemsize, shape, strides)

    def clear(self) -> None:
        """Lets go of the block, which then lives as long as its tensors."""
        self._block = None
