"""Watching memory for writes that PyTorch does not notice.

A tensor's version counter misses writes through ``.data``, an array that shares its memory, or another process. So the
memory itself is checked: large blocks page by page, by the operating system's kernel (see pages.py); by a hash, small
blocks, incomplete pages, memory that others can map, and everything if the system does not watch pages. A hash misses
no change of a single word, and any other with a probability of 2**-64.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from taskmap.backend.program.pages import PAGE, Pages, page_watch
from taskmap.backend.store.key import KernelSource

SMALLEST = 8 * PAGE
"""The least number of bytes for which pages are watched: hashing fewer takes no longer than a system call."""

SOURCE = KernelSource(
    "taskmap_written",
    """\
#if defined(__linux__)
extern int ioctl(int, unsigned long, ...);
extern int getpid(void);
static int taskmap_written_pages(int pagemap, long long start, long long end)
{
  unsigned long long found[3];
  unsigned long long scan[12] = {96, 2, (unsigned long long)start, (unsigned long long)end, 0,
                                 (unsigned long long)found, 1, 1, 0, 2, 0, 2};
  return ioctl(pagemap, 0xC0606610ul, scan) != 0;
}
#else
static int getpid(void) { return 0; }
static int taskmap_written_pages(int pagemap, long long start, long long end) { return 1; }
#endif

static const unsigned long long taskmap_written_prime = 0x9E3779B97F4A7C15ull;

static unsigned long long taskmap_written_hash(const unsigned char *p, long long size)
{
  typedef unsigned long long word __attribute__((aligned(1), may_alias));
  const unsigned long long prime = taskmap_written_prime;
  unsigned long long h[8];
  long long i = 0;
  for (int k = 0; k < 8; k++) h[k] = (unsigned long long)k;
  for (; i + 64 <= size; i += 64)
    for (int k = 0; k < 8; k++) {
      h[k] = (h[k] ^ ((const word *)(p + i))[k]) * prime;
      h[k] ^= h[k] >> 29;
    }
  for (; i < size; i++) h[i & 7] = (h[i & 7] ^ p[i]) * prime;
  unsigned long long all = (unsigned long long)size;
  for (int k = 0; k < 8; k++) {
    all = (all ^ h[k]) * prime;
    all ^= all >> 32;
  }
  return all;
}

unsigned long long taskmap_written(const long long *t, int hash_only)
{
  long long pages = t[2], blocks = t[3];
  const long long *page = t + 4, *block = page + 4 * pages;
  if (!hash_only && pages) {
    if (getpid() != (int)t[0]) return 1;
    for (long long i = 0; i < pages; i++)
      if (*(volatile long long *)page[4 * i + 2] != page[4 * i + 3]) return 1;
    for (long long i = 0; i < pages; i++)
      if (taskmap_written_pages((int)t[1], page[4 * i], page[4 * i + 1])) return 1;
  }
  unsigned long long hash = 0;
  for (long long i = 0; i < blocks; i++)
    hash = (hash ^ taskmap_written_hash((const unsigned char *)block[2 * i], block[2 * i + 1])) * taskmap_written_prime;
  return hash_only ? hash : hash != (unsigned long long)block[2 * blocks];
}
""",
)
"""The hash and the comparison, compiled and stored like a kernel."""

_Written = ctypes.CFUNCTYPE(ctypes.c_ulonglong, ctypes.c_void_p, ctypes.c_int)


@dataclass(frozen=True, slots=True)
class Watch:
    """Memory as it was. ``table``: the process, its page map, numbers of page ranges and of blocks; for each range its
    entry (see Pages); for each block address and bytes; the blocks' hash. ``pages`` are kept for their counts.

    written: true if something was written since. The memory must still be there. hashed: bytes that it reads.
    """

    table: array[int]
    pages: tuple[Pages, ...]
    written: Callable[[], int]
    hashed: int


def watch(tensors: Iterable[tuple[int, int, bool]], address: int) -> Watch:
    """Memory blocks under watch: each an address, a number of bytes, and whether it may be watched by pages, which is
    wrong for memory that another process can write. ``address`` is that of SOURCE's function."""
    ranges: list[tuple[int, int]] = []
    blocks: list[tuple[int, int]] = []
    around: list[tuple[int, int]] = []
    system = page_watch()
    for start, size, private in dict.fromkeys(tensors):
        first, last = -(-start // PAGE) * PAGE, (start + size) // PAGE * PAGE
        if system is None or not private or last - first < SMALLEST:
            blocks.append((start, size))
        else:
            ranges.append((first, last))
            around.append((start, size))
    watched: list[Pages] = []
    for (start, size), pages in zip(around, [] if system is None else system.protect(ranges), strict=True):
        if pages is None:
            blocks.append((start, size))
            continue
        watched.append(pages)
        blocks += [(start, pages.start - start), (pages.end, start + size - pages.end)]
    blocks = [b for b in blocks if b[1]]
    head = [0, 0] if system is None else [system.process, system.pagemap]
    table = array("q", [*head, len(watched), len(blocks)])
    table.extend(word for pages in watched for word in pages.entry)
    table.extend(word for block in blocks for word in block)
    table.append(0)
    function = _Written(address)
    place = table.buffer_info()[0]
    table[-1] = ctypes.c_longlong(function(place, 1)).value
    return Watch(table, tuple(watched), partial(function, place, 0), sum(size for _, size in blocks))
