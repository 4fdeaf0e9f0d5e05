"""Tensors that keep memory in place, and whether anybody else still uses that memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from threading import RLock

import torch

_use_count = getattr(torch._C, "_storage_Use_Count", None)
_LOCK = RLock()
_HELD: Counter[int] = Counter()
"""The tensors of all HeldStorages, by the address of their storage's object."""


class HeldStorages:
    """Aliases of tensors: their memory cannot be given to others meanwhile."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self._tensors = tuple(t.detach() for t in tensors)
        self._storages = Counter(t.untyped_storage()._cdata for t in self._tensors)
        with _LOCK:
            _HELD.update(self._storages)

    def __del__(self) -> None:
        with _LOCK:
            _HELD.subtract(self._storages)
            for storage in self._storages:
                if _HELD[storage] <= 0:
                    del _HELD[storage]

    @property
    def abandoned(self) -> bool:
        """True if some of the memory has no user but HeldStorages, or nobody can know."""
        if _use_count is None:
            return True
        alone = torch.empty(1)
        least = _use_count(alone.untyped_storage()._cdata) - 1  # besides tensors
        with _LOCK:
            return any(_use_count(s) <= least + _HELD[s] for s in self._storages)
