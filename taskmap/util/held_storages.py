"""Tensors that keep memory in place, and whether anybody else still uses that memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from weakref import ref

import torch

_use_count = getattr(torch._C, "_storage_Use_Count", None)


class HeldStorages:
    """Aliases of tensors: their memory cannot be given to others meanwhile."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self._tensors = tuple(t.detach() for t in tensors)
        self.storages = Counter(t.untyped_storage()._cdata for t in self._tensors)
        key = id(self)
        _ALL[key] = ref(self, lambda _: _ALL.pop(key, None))

    @property
    def abandoned(self) -> bool:
        """True if some of the memory has no user but HeldStorages, or nobody can know."""
        if _use_count is None:
            return True
        held: Counter[int] = Counter()
        for one in [reference() for reference in tuple(_ALL.values())]:
            if one is not None:
                held.update({storage: one.storages[storage] for storage in self.storages})
        alone = torch.empty(1)
        besides = _use_count(alone.untyped_storage()._cdata) - 1  # of tensors
        return any(_use_count(storage) <= besides + held[storage] for storage in self.storages)


# No lock, as a forked child may find it held.
_ALL: dict[int, ref[HeldStorages]] = {}
