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


def abandoned(all_held: Iterable[HeldStorages]) -> list[bool]:
    """For each of ``all_held``, true if some of its memory has no user but HeldStorages, or nobody can know."""
    if _use_count is None:
        return [True for _ in all_held]
    counts: Counter[int] = Counter()
    for one in [reference() for reference in tuple(_ALL.values())]:
        if one is not None:
            counts.update(one.storages)
    alone = torch.empty(1)
    besides = _use_count(alone.untyped_storage()._cdata) - 1  # of tensors
    return [any(_use_count(s) <= besides + counts[s] for s in held.storages) for held in all_held]


# No lock, as a forked child may find it held.
_ALL: dict[int, ref[HeldStorages]] = {}
