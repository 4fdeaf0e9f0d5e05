"""Watching memory for writes that PyTorch does not notice.

A tensor's version counter misses writes through ``.data``, an array that shares its memory, or another process. So the
memory itself is checked: page by page, by the operating system's kernel (see pages.py); by a hash, short stretches of
pages, memory that others can map, and everything if the system does not watch pages. A hash misses no change of a
single word, and any other with a probability of 2**-64.

Tensors lie close together, so that whole pages are watched from the first to the last, with what lies between tensors.
If only that was written, the tensors' parts of such pages are hashed and found equal; from then on these pages are left
out and the parts hashed at every check.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from taskmap.backend.program.intervals import Interval, common, inward, joined, outward, without
from taskmap.backend.program.pages import PAGE, ProtectedPages, page_watch
from taskmap.backend.store.key import KernelSource

SMALLEST = 8 * PAGE
"""The least number of bytes for which pages are watched: hashing fewer takes no longer than a system call."""
_NEAR = 1 << 20
"""Bytes between ranges of pages that are looked at by one system call."""
_MOST_ALARMS = 8
"""Renewals of a watch after which it leaves every page that holds something else."""

SOURCE = KernelSource(
    "taskmap_written",
    """\
#if defined(__linux__)
extern int ioctl(int, unsigned long, ...);
extern int getpid(void);
/* 1 if pages of a span were written, or are not watched any more, that lie in one of the ranges, which are in order. */
static int taskmap_written_pages(int pagemap, const long long *span, const long long *range, const long long *last)
{
  unsigned long long found[96];
  long long at = span[0];
  while (at < span[1]) {
    unsigned long long scan[12] = {96, 0, (unsigned long long)at, (unsigned long long)span[1], 0,
                                   (unsigned long long)found, 32, 0, 1, 0, 3, 3};
    int n = ioctl(pagemap, 0xC0606610ul, scan);
    if (n < 0) return 1;
    for (int i = 0; i < n; i++) {
      while (range < last && range[1] <= (long long)found[3 * i]) range += 4;
      if (range < last && range[0] < (long long)found[3 * i + 1]) return 1;
    }
    if ((long long)scan[4] <= at) return 1;
    at = (long long)scan[4];
  }
  return 0;
}
#else
static int getpid(void) { return 0; }
static int taskmap_written_pages(int pagemap, const long long *span, const long long *range, const long long *last)
{
  return 1;
}
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
  long long pages = t[2], spans = t[3], blocks = t[4];
  const long long *page = t + 5, *span = page + 4 * pages, *block = span + 2 * spans;
  if (!hash_only && pages) {
    if (getpid() != (int)t[0]) return 1;
    for (long long i = 0; i < pages; i++)
      if (*(volatile long long *)page[4 * i + 2] != page[4 * i + 3]) return 1;
    for (long long i = 0; i < spans; i++)
      if (taskmap_written_pages((int)t[1], span + 2 * i, page, span)) return 1;
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


Memory = tuple[int, int, bool]
"""A block of memory: address, bytes, and whether it may be watched by pages, which is wrong for memory that another
process can write."""


class Watch:
    """Memory as it was when the watch was made. It must still be there.

    written: true if something was written since, in the memory or beside it on a watched page. hashed: bytes that it
    reads. avoided: pages that are not watched, because others write them, too.
    """

    def __init__(
        self, memory: Iterable[Memory], address: int, avoided: Sequence[Interval] = (), alarms: int = 0
    ) -> None:
        """``address`` is that of SOURCE's function; ``alarms`` counts the watches before that were renewed."""
        self._memory, self._address, self._alarms = tuple(dict.fromkeys(memory)), address, alarms
        self.avoided = joined(avoided)
        system = page_watch()
        private = joined((start, start + size) for start, size, alone in self._memory if alone)
        shared = joined((start, start + size) for start, size, alone in self._memory if not alone)
        self._pages = ProtectedPages((), (), 0)
        if system is not None:
            wanted = without(outward(private, PAGE), self.avoided)
            self._pages = system.protect([r for r in wanted if r[1] - r[0] >= SMALLEST])
        watched = self._pages.ranges
        self._inside = common(inward(private, PAGE), watched)
        blocks = [*without(private, watched), *shared]
        self.hashed = sum(end - start for start, end in blocks)
        head = (0, 0) if system is None else (system.process, system.pagemap)
        self._table = _table(head, self._pages.words, blocks)
        function = _Written(address)
        place = self._table.buffer_info()[0]
        self._table[-1] = ctypes.c_longlong(function(place, 1)).value
        self.written: Callable[[], int] = partial(function, place, 0)
        self._beside = _table((0, 0), (), [*blocks, *common(private, without(watched, self._inside))])
        self._before = function(self._beside.buffer_info()[0], 1)

    def renewed(self) -> Watch | None:
        """A new watch of the same memory, if only memory beside it was written; None if it may have changed itself.

        The memory on pages so written is hashed from then on, after some renewals that on all pages with other content.
        """
        system, ranges = page_watch(), self._pages.ranges
        if system is None or not ranges or self._table[0] != system.process:
            return None
        written = system.written(ranges, self._pages.time)
        if written is None or common(written, self._inside):
            return None
        beside = written if self._alarms < _MOST_ALARMS else without(ranges, self._inside)
        new = Watch(self._memory, self._address, [*self.avoided, *beside], self._alarms + 1)
        # Compared now, when the new watch notices what comes later.
        written = system.written(ranges, self._pages.time)
        if written is None or common(written, self._inside):
            return None
        return new if _Written(self._address)(self._beside.buffer_info()[0], 1) == self._before else None


def _table(head: tuple[int, int], words: Sequence[int], blocks: Sequence[Interval]) -> array[int]:
    """The argument of SOURCE's function: the process, its page map, numbers of page ranges, of spans and of blocks; for
    each range its entry (see Pages); for each span, which is looked at by one system call, start and end; for each
    block address and bytes; a place for the blocks' hash."""
    spans = _spans(list(zip(words[::4], words[1::4], strict=True)))
    table = array("q", [*head, len(words) // 4, len(spans), len(blocks), *words])
    table.extend(word for span in spans for word in span)
    table.extend(word for start, end in blocks for word in (start, end - start))
    table.append(0)
    return table


def _spans(ranges: list[Interval]) -> list[Interval]:
    """Ranges in order, joined where they lie close together."""
    spans: list[Interval] = []
    for start, end in ranges:
        near = spans and start - spans[-1][1] <= _NEAR
        spans[-1:] = [(spans[-1][0], end)] if near else [*spans[-1:], (start, end)]
    return spans
