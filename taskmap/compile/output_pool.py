"""A pool of large outputs' memory, reused when nobody else holds it.

The C library returns large freed blocks to the system, which clears every page of the next one: a model that returns
tens of megabytes would wait for that at every call, and write its output to cold memory.
"""

from __future__ import annotations

from sys import getrefcount
from weakref import getweakrefcount, ref

import torch

from taskmap.backend.program.binding import span

SMALLEST = 1 << 20
"""Below this many bytes the C library itself keeps freed memory."""
MOST = 128 << 20
"""Bytes that all compiled graphs of a process together keep for their outputs."""

_use_count = getattr(torch._C, "_storage_Use_Count", None)  # without it, memory is never reused


class KeptOutputs:
    """The memory of one graph's latest outputs, by slot. Threads may take from it at once."""

    def __init__(self) -> None:
        self._kept: dict[int, torch.UntypedStorage] = {}
        key = id(self)
        _ALL[key] = ref(self, lambda _: _ALL.pop(key, None))

    @property
    def bytes(self) -> int:
        """Bytes held."""
        return sum(storage.nbytes() for storage in tuple(self._kept.values()))

    def take(self, slot: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """An uninitialised tensor; it reuses the previous memory of ``slot`` if that is free and of the same size.

        Memory is free when no tensor, view, array or storage object refers to it, and no other process received it.
        """
        storage = self._kept.pop(slot, None)
        unknown = torch.empty(1).untyped_storage()  # to others: these are the counts of free memory
        if storage is not None and _references(storage) == _references(unknown) and not storage.is_shared():
            tensor = torch.empty(0, dtype=dtype)
            if storage.nbytes() == span(shape, strides) * tensor.element_size():
                tensor.set_(storage, 0, shape, strides)
                self._kept[slot] = storage
                return tensor
        tensor = torch.empty_strided(shape, strides, dtype=dtype)
        self._keep(slot, tensor.untyped_storage())
        return tensor

    def _keep(self, slot: int, storage: torch.UntypedStorage) -> None:
        pools = [pool() for pool in tuple(_ALL.values())]
        held = sum(pool.bytes for pool in pools if pool is not None)
        if _use_count is not None and held + storage.nbytes() <= MOST:
            self._kept[slot] = storage

    def clear(self) -> None:
        """Release all memory."""
        self._kept.clear()


# Not a WeakSet, which must not change during iteration in another thread; no lock, as a forked child may find it held.
_ALL: dict[int, ref[KeptOutputs]] = {}


def _references(storage: torch.UntypedStorage) -> tuple[int, int, int]:
    """The references to a storage: Python variables and objects (a storage has one object), tensors, weak references.

    The caller's own variable counts, too, and while TorchDynamo watches frames (``set_eval_frame``) an argument counts
    once more: so compare only counts taken at the same place.
    """
    used = 0 if _use_count is None else _use_count(storage._cdata)
    return getrefcount(storage), used, getweakrefcount(storage)
