"""A pool of large outputs' memory for PyTorch's tensors, reused when nobody else holds it."""

from __future__ import annotations

from sys import getrefcount
from weakref import getweakrefcount

import torch

from taskmap.backend.program.binding import span
from taskmap.calls.memory import OutputPool

_use_count = getattr(torch._C, "_storage_Use_Count", None)  # without it, memory is never reused


class KeptOutputs(OutputPool):
    """The storages of one graph's latest outputs, by slot. Threads may take from it at once."""

    @staticmethod
    def size_of(block: torch.UntypedStorage) -> int:
        """The size in bytes of a storage."""
        return block.nbytes()

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
        if _use_count is not None:
            self.keep(slot, tensor.untyped_storage())
        return tensor


def _references(storage: torch.UntypedStorage) -> tuple[int, int, int]:
    """The references to a storage: Python variables and objects (a storage has one object), tensors, weak references.

    The caller's own variable counts, too, and while TorchDynamo watches frames (``set_eval_frame``) an argument counts
    once more: so compare only counts taken at the same place.
    """
    used = 0 if _use_count is None else _use_count(storage._cdata)
    return getrefcount(storage), used, getweakrefcount(storage)
