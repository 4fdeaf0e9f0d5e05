"""Samples of memory: a quick test of whether tensors were written by someone whom PyTorch does not see.

A tensor's version counter misses writes through ``.data`` or through an array that shares its memory. A few words
spread over each tensor notice any update of a whole tensor; one that writes single elements may pass unseen.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Iterable
from dataclasses import dataclass

from taskmap.backend.kernel_source import KernelSource

_WORDS = 3  # per tensor: each is a line of memory that no cache holds at the next call

SOURCE = KernelSource(
    "taskmap_samples_differ",
    """\
int taskmap_samples_differ(const unsigned char *const *places, const unsigned char *seen, long long count)
{
  unsigned differ = 0;
  for (long long i = 0; i < count; i++) differ |= *places[i] ^ seen[i];
  return differ != 0;
}
""",
)
"""The comparison, compiled and stored like a kernel."""

_Differ = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_longlong)


@dataclass(frozen=True, slots=True)
class Samples:
    """Bytes seen at some places."""

    places: array[int]
    seen: bytes

    def differ(self, address: int) -> bool:
        """Whether a byte differs now; ``address`` is that of SOURCE's function. The memory must still be there."""
        return bool(_Differ(address)(self.places.buffer_info()[0], self.seen, len(self.seen)))


def take_samples(tensors: Iterable[tuple[int, int]]) -> Samples:
    """Samples of memory blocks, each an address and a number of bytes."""
    places = array("q")
    for address, size in tensors:
        words = min(_WORDS, -(-size // 4))
        for i in range(words):
            start = (size - 4) * i // max(1, words - 1) & ~3 if size >= 4 else 0
            places.extend(address + start + b for b in range(min(4, size - start)))
    return Samples(places, bytes(ctypes.c_ubyte.from_address(p).value for p in places))
