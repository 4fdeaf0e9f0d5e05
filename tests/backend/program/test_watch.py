"""Watched memory: writes to it are noticed, those beside it are not taken for them."""

from __future__ import annotations

import ctypes
import itertools
import mmap
from typing import Any

import numpy as np
import pytest

from taskmap.backend.counters import Counters
from taskmap.backend.cpu.compile import compile_kernels
from taskmap.backend.cpu.toolchain import find_toolchain
from taskmap.backend.program.pages import PAGE, page_watch
from taskmap.backend.program.watch import _MOST_ALARMS, SOURCE, Memory, Watch
from taskmap.backend.store.objects import KernelStore

GAP = 16
"""Bytes between two blocks, as an allocator leaves them."""


@pytest.fixture(autouse=True)
def _watches_pages() -> None:
    if page_watch() is None:
        pytest.skip("this system does not watch pages")


@pytest.fixture(scope="module")
def address() -> int:
    return compile_kernels([SOURCE], find_toolchain(), KernelStore(), Counters())[SOURCE.symbol]


def blocks(sizes: list[int]) -> tuple[Any, list[Memory], list[int]]:
    """Memory with blocks of ``sizes`` bytes in it, GAP bytes apart, and where each begins."""
    starts = list(itertools.accumulate(sizes, lambda at, size: at + size + GAP, initial=GAP))
    memory = np.frombuffer(mmap.mmap(-1, starts[-1] + PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)
    base = memory.ctypes.data
    return memory, [(base + at, size, True) for at, size in zip(starts, sizes, strict=False)], starts


def is_noticed(watch: Watch) -> bool:
    return bool(watch.written()) and watch.renewed() is None


def renewed(watch: Watch) -> Watch:
    assert watch.written()
    new = watch.renewed()
    assert new is not None
    assert not new.written()
    return new


def test_blocks_close_together_are_watched_as_whole_pages(address: int) -> None:
    """No byte is hashed, and one system call looks at all."""
    memory, held, _ = blocks([3 * PAGE, 100, 5000, 9 * PAGE, 64, 20 * PAGE])
    watch = Watch(held, address)
    assert watch.hashed == 0
    assert watch._table[2:5].tolist() == [1, 1, 0]
    assert not watch.written()
    del memory


def test_blocks_far_apart_take_one_system_call_for_each_cluster(address: int) -> None:
    memory, held, _ = blocks([10 * PAGE, 12 * PAGE, 2 << 20, 10 * PAGE])
    del held[2]
    first, second, last = held
    watch = Watch([first, second, last], address)
    assert watch._table[2:5].tolist() == [2, 2, 0]
    memory[held[2][0] - held[0][0] + 20] += 1
    assert is_noticed(watch)


def test_every_byte_of_every_block_counts(address: int) -> None:
    memory, held, starts = blocks([3 * PAGE, 100, 5000, 9 * PAGE])
    for start, (_, size, _) in zip(starts, held, strict=False):
        for at in (start, start + size // 2, start + size - 1):
            watch = Watch(held, address)
            assert not watch.written()
            memory[at] += 1
            assert is_noticed(watch)


def test_a_write_beside_the_blocks_is_not_a_change(address: int) -> None:
    """Its page is hashed from then on, and writes to the blocks' part of it are still noticed."""
    memory, held, starts = blocks([12 * PAGE, 100, 5000, 12 * PAGE])
    watch = Watch(held, address)
    memory[starts[1] - GAP] += 1
    watch = renewed(watch)
    assert 0 < watch.hashed <= PAGE
    memory[starts[1] - GAP + 1] += 1
    assert not watch.written()
    memory[starts[1]] += 1
    assert is_noticed(watch)


def test_a_write_beside_a_block_does_not_hide_one_to_it(address: int) -> None:
    memory, held, starts = blocks([12 * PAGE, 100, 5000])
    for at in (starts[1] + 5, starts[0] + 6 * PAGE):
        watch = Watch(held, address)
        memory[starts[1] - GAP] += 1
        memory[at] += 1
        assert is_noticed(watch)


def test_two_watches_of_common_pages_both_notice(address: int) -> None:
    """The write is beside the first watch's memory, in the second one's: the first protects the page again."""
    memory, held, starts = blocks([12 * PAGE, 100, 12 * PAGE])
    first, second = Watch([held[0], held[2]], address), Watch(held, address)
    memory[starts[1] + 3] += 1
    first = renewed(first)
    assert is_noticed(second)
    assert not first.written()


def test_many_alarms_end_in_hashes_of_all_pages_that_hold_more(address: int) -> None:
    memory, held, starts = blocks([2 * PAGE] * (_MOST_ALARMS + 4))
    watch = Watch(held, address)
    for n in range(1, _MOST_ALARMS + 2):
        memory[starts[n] - GAP] += 1
        watch = renewed(watch)
    for n in range(1, len(held)):
        memory[starts[n] - GAP] += 1
    assert not watch.written()
    memory[starts[-2] + 7] += 1
    assert is_noticed(watch)


def test_memory_that_another_process_may_write_is_hashed(address: int) -> None:
    memory, held, starts = blocks([12 * PAGE, 10 * PAGE])
    watch = Watch([held[0], (*held[1][:2], False)], address)
    assert watch.hashed == held[1][1]
    memory[starts[1] + 5 * PAGE] += 1
    assert is_noticed(watch)


def test_memory_that_is_mapped_anew_is_taken_for_written(address: int) -> None:
    """Nobody watches the new pages, and their content may be any."""
    size = 40 * PAGE
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    rights, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    place = libc.mmap(None, size, rights, flags, -1, 0)
    ctypes.memset(place, 1, size)
    watch = Watch([(place, size, True)], address)
    assert not watch.written()
    fixed = 0x10
    assert libc.mmap(place + 9 * PAGE, 3 * PAGE, rights, flags | fixed, -1, 0) == place + 9 * PAGE
    assert is_noticed(watch)
    libc.munmap(ctypes.c_void_p(place), ctypes.c_size_t(size))
