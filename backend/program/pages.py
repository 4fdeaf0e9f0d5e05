"""Memory pages watched by the Linux kernel: those written since the last check.

userfaultfd with asynchronous write protection (Linux 6.7): the first write to a protected page costs a fault that the
kernel resolves by itself, and PAGEMAP_SCAN finds the written pages, 100 MB in some 15 us. It needs no signal handler
and no thread; writers, by any pointer or system call, notice nothing. The file descriptor is opened for user-mode
faults only, so it needs no privilege; a sandbox may still refuse it.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import threading
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from ctypes import addressof, c_longlong, c_uint64
from weakref import WeakValueDictionary

PAGE = os.sysconf("SC_PAGE_SIZE")

_SYSCALL = {"x86_64": 323, "aarch64": 282}
_USER_MODE_ONLY = 1
_API, _REGISTER = 0xC018AA3F, 0xC020AA00  # ioctls of userfaultfd
_SCAN = 0xC0606610  # PAGEMAP_SCAN
_FEATURES = (1 << 15) | (1 << 13)  # WP_ASYNC, WP_UNPOPULATED
_REGISTER_WP = 2
_PROTECT, _ONLY_WATCHED = 1, 2  # PM_SCAN_WP_MATCHING, PM_SCAN_CHECK_WPASYNC
_WRITTEN = 2  # PAGE_IS_WRITTEN

Range = tuple[int, int]
"""First address and the one after the last, both multiples of PAGE."""


class Pages:
    """A range of watched pages. ``writes`` counts how often written pages were found and protected again, for all
    watchers of any of them."""

    def __init__(self, start: int, end: int) -> None:
        self.start, self.end = start, end
        self.writes = c_longlong(0)

    @property
    def entry(self) -> tuple[int, int, int, int]:
        """The native code's view: start, end, the address of the count, and the count now."""
        return self.start, self.end, addressof(self.writes), self.writes.value


class PageWatch:
    """The watched pages of this process. Every method may be called by several threads."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.process = os.getpid()
        self._lock = threading.Lock()
        self._known: WeakValueDictionary[Range, Pages] = WeakValueDictionary()
        self._uffd: int = self._libc.syscall(_SYSCALL[platform.machine()], os.O_CLOEXEC | _USER_MODE_ONLY)
        if self._uffd < 0:
            raise OSError(ctypes.get_errno(), "userfaultfd")
        try:
            if not self._ioctl(self._uffd, _API, 0xAA, _FEATURES, 0):
                raise OSError(ctypes.get_errno(), "userfaultfd without asynchronous write protection")
            self.pagemap = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            os.close(self._uffd)
            raise

    def close(self) -> None:
        """Closes the file descriptors."""
        os.close(self._uffd)
        os.close(self.pagemap)

    def protect(self, ranges: Iterable[Range]) -> list[Pages | None]:
        """Watches the pages of each range from now on; None for ranges that the kernel does not watch."""
        with self._lock:
            made: list[Pages | None] = []
            written: list[Range] = []
            private = _private_memory()
            for start, end in ranges:
                known = _inside(private, start, end) and self._register(start, end)
                if not known or not self._seal(start, end, written):
                    made.append(None)
                    continue
                pages = self._known.get((start, end)) or Pages(start, end)
                self._known[start, end] = pages
                made.append(pages)
            self._count(written)
            return made

    def _register(self, start: int, end: int) -> bool:
        return self._ioctl(self._uffd, _REGISTER, start, end - start, _REGISTER_WP, 0)

    def _seal(self, start: int, end: int, written: list[Range]) -> bool:
        """Protects the written pages again, and adds them to ``written``."""
        found = (c_uint64 * 3)()
        at = start
        while at < end:
            flags = _PROTECT | _ONLY_WATCHED
            scan = (c_uint64 * 12)(96, flags, at, end, 0, addressof(found), 1, 0, 0, _WRITTEN, 0, _WRITTEN)
            count = self._libc.ioctl(self.pagemap, ctypes.c_ulong(_SCAN), scan)
            if count < 0:
                return False
            if count:
                written.append((found[0], found[1]))
            at = scan[4]
        return True

    def _count(self, written: list[Range]) -> None:
        """Count the writes in ``written`` for all pages known."""
        joined = _joined(written)
        ends = [end for _, end in joined]
        for pages in list(self._known.values()):
            i = bisect_left(ends, pages.start + 1)
            if i < len(joined) and joined[i][0] < pages.end:
                pages.writes.value += 1

    def _ioctl(self, fd: int, request: int, *words: int) -> bool:
        result: int = self._libc.ioctl(fd, ctypes.c_ulong(request), (c_uint64 * len(words))(*words))
        return result >= 0


class _ThisProcess:
    """The watch of this process. A forked child has none: the inherited one belongs to its parent."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.opened = False
        self.watch: PageWatch | None = None

    def get(self) -> PageWatch | None:
        with self.lock:
            if not self.opened:
                self.watch, self.opened = _open(), True
            return self.watch

    def forget(self) -> None:
        if self.watch is not None:
            self.watch.close()
        self.__init__()  # type: ignore[misc]  # as new


_THIS = _ThisProcess()
os.register_at_fork(after_in_child=_THIS.forget)


def page_watch() -> PageWatch | None:
    """The watch of this process, opened at the first call; None if the system has none, or refuses it."""
    return _THIS.get()


def _open() -> PageWatch | None:
    if sys.platform != "linux" or platform.machine() not in _SYSCALL or sys.maxsize < 1 << 32:
        return None
    try:
        return PageWatch()
    except OSError:
        return None


def _private_memory() -> list[Range]:
    """The mappings of this process that nobody else can write: private and anonymous; neighbours joined."""
    found: list[Range] = []
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            place, rights, _, _, inode = line.split(maxsplit=5)[:5]
            if rights[3] == "p" and inode == "0":
                start, _, end = place.partition("-")
                found.append((int(start, 16), int(end, 16)))
    return _joined(found)


def _joined(ranges: Sequence[Range]) -> list[Range]:
    """The same addresses in disjoint ranges, in order."""
    result: list[Range] = []
    for start, end in sorted(ranges):
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((start, end))
    return result


def _inside(ranges: Sequence[Range], start: int, end: int) -> bool:
    i = bisect_left([r[1] for r in ranges], end)
    return i < len(ranges) and ranges[i][0] <= start
