"""Tensor maps lie where the driver and CUDA's header require it."""

from __future__ import annotations

import gc
from itertools import pairwise

from taskmap.backend.cuda.encoded_map import MAP_BYTES, EncodedMap


def test_a_map_is_aligned_and_inside_its_memory() -> None:
    """Wherever Python's allocator puts the object, and however many there are."""
    made: list[EncodedMap] = []
    other: list[bytearray] = []
    for n in range(200):
        made.append(EncodedMap())
        other.append(bytearray(16 * (n % 7) + 8))  # moves the next one
    assert MAP_BYTES == 128
    assert all(one.address % 128 == 0 for one in made)
    addresses = sorted(one.address for one in made)
    del other
    gc.collect()
    assert all(b - a >= MAP_BYTES for a, b in pairwise(addresses))
