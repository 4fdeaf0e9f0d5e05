"""Constants that several graphs have computed alike are kept once.

A model called with several sizes becomes several graphs, and each packs the weights for its kernels, mostly in the same
way. Results are compared as bytes, so nothing needs to be known of their computation; nobody writes to them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol
from weakref import ref

import torch

from taskmap.backend.program.binding import span

_SMALLEST = 1 << 14
"""Bytes of a constant from which it is looked for."""
_SAMPLES = 64
_WORTH = 4
"""The others are copied out of their block of memory if a quarter of it is known, or more."""
_KNOWN: dict[tuple[Any, ...], list[ref[torch.Tensor]]] = {}
"""Constants in use, by type, layout and a sample of their bytes. No lock, as a forked child may find it held: what two
threads add at once may be known to one of them only."""


class Block(Protocol):
    """A block of memory for constants; see ConstantBlock."""

    def take(self, slot: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any) -> Any:
        """An uninitialised tensor in the block."""


def kept_once(
    values: Sequence[torch.Tensor], block: Callable[[Mapping[int, int]], Block], arguments: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """``values``, with other graphs' constants in place of equal ones on a CPU. The rest is then copied to its own
    ``block``, so that the memory of all is freed. Values in the memory of ``arguments`` stay as they are."""
    outside = {a.untyped_storage()._cdata for a in arguments}
    own = {i: v for i, v in enumerate(values) if _is_plain(v) and v.untyped_storage()._cdata not in outside}
    keys = {i: _key(v) for i, v in own.items() if v.nbytes >= _SMALLEST}
    known = {i: same for i, key in keys.items() if (same := _known(key, own[i])) is not None}
    if _WORTH * sum(own[i].nbytes for i in known) < sum(v.nbytes for v in own.values()) or not known:
        known = {}
    result = list(values)
    rest = {i: v for i, v in own.items() if i not in known} if known else {}
    if rest:
        memory = block({i: v.nbytes for i, v in rest.items()})
        for i, v in rest.items():
            result[i] = memory.take(i, tuple(v.shape), v.stride(), v.dtype).copy_(v)
    for i, same in known.items():
        result[i] = same
    for i, key in keys.items():
        if i not in known:
            _KNOWN.setdefault(key, []).append(ref(result[i]))
    return tuple(result)


def _known(key: tuple[Any, ...], value: torch.Tensor) -> torch.Tensor | None:
    """A constant of the same bytes, or None."""
    alive = [(r, t) for r in _KNOWN.pop(key, ()) if (t := r()) is not None]
    if alive:
        _KNOWN[key] = [r for r, _ in alive]
    return next((t for _, t in alive if torch.equal(_bytes(t), _bytes(value))), None)


def _is_plain(value: object) -> bool:
    """True for a tensor on a CPU whose elements fill its memory."""
    return (
        isinstance(value, torch.Tensor)
        and value.device.type == "cpu"
        and value.numel() == span(value.shape, value.stride()) != 0
    )


def _bytes(value: torch.Tensor) -> torch.Tensor:
    return value.as_strided((value.numel(),), (1,)).view(torch.uint8)


def _key(value: torch.Tensor) -> tuple[Any, ...]:
    content = _bytes(value)
    sample = content[:: max(1, content.numel() // _SAMPLES)]
    return value.dtype, tuple(value.shape), value.stride(), sample.numpy().tobytes()
