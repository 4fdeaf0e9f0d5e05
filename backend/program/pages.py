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
from collections import deque
from ctypes import addressof, c_longlong, c_uint64
from dataclasses import dataclass
from itertools import islice
from weakref import WeakValueDictionary

from taskmap.backend.program.intervals import Interval, common, joined

PAGE = os.sysconf("SC_PAGE_SIZE")

_SYSCALL = {"x86_64": 323, "aarch64": 282}
_USER_MODE_ONLY = 1
_API, _REGISTER = 0xC018AA3F, 0xC020AA00  # ioctls of userfaultfd
_SCAN = 0xC0606610  # PAGEMAP_SCAN
_FEATURES = (1 << 15) | (1 << 13)  # WP_ASYNC, WP_UNPOPULATED
_REGISTER_WP = 2
_PROTECT, _ONLY_WATCHED = 1, 2  # PM_SCAN_WP_MATCHING, PM_SCAN_CHECK_WPASYNC
_WRITTEN = 2  # PAGE_IS_WRITTEN
_REMEMBERED = 4096
"""Findings of written pages that are kept."""


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


@dataclass(frozen=True, slots=True)
class ProtectedPages:
    """Pages as they were at one ``time``, in the count of findings. ``words``: the native code's view of them."""

    pages: tuple[Pages, ...]
    words: tuple[int, ...]
    time: int

    @property
    def ranges(self) -> list[Interval]:
        """Their addresses."""
        return joined((pages.start, pages.end) for pages in self.pages)


class PageWatch:
    """The watched pages of this process. Every method may be called by several threads."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.process = os.getpid()
        self._lock = threading.Lock()
        self._known: WeakValueDictionary[Interval, Pages] = WeakValueDictionary()
        self._found: deque[list[Interval]] = deque(maxlen=_REMEMBERED)
        self._findings = 0
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

    def protect(self, wanted: list[Interval]) -> ProtectedPages:
        """Watches the pages of ``wanted`` from now on, as far as the kernel does so."""
        with self._lock:
            made: list[Pages] = []
            written: list[Interval] = []
            for start, end in common(wanted, _private_memory()):
                if self._register(start, end) and self._seal(start, end, written):
                    pages = self._known.get((start, end)) or Pages(start, end)
                    self._known[start, end] = pages
                    made.append(pages)
            self._count(written)
            return ProtectedPages(tuple(made), tuple(word for pages in made for word in pages.entry), self._findings)

    def written(self, ranges: list[Interval], time: int) -> list[Interval] | None:
        """The pages of watched ``ranges`` that were written since ``time``; they are protected again. None if that is
        not known any more."""
        with self._lock:
            written: list[Interval] = []
            sealed = [self._seal(start, end, written) for start, end in ranges]
            self._count(written)
            since = self._findings - time
            if since > len(self._found) or not all(sealed):
                return None
            recent = islice(self._found, len(self._found) - since, None)
            return common(joined(interval for found in recent for interval in found), ranges)

    def _register(self, start: int, end: int) -> bool:
        return self._ioctl(self._uffd, _REGISTER, start, end - start, _REGISTER_WP, 0)

    def _seal(self, start: int, end: int, written: list[Interval]) -> bool:
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

    def _count(self, written: list[Interval]) -> None:
        """Remember the writes in ``written``, and count them for all pages known."""
        if not written:
            return
        self._found.append(joined(written))
        self._findings += 1
        for pages in list(self._known.values()):
            if common(self._found[-1], [(pages.start, pages.end)]):
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


def _private_memory() -> list[Interval]:
    """The mappings of this process that nobody else can write: private and anonymous; neighbours joined."""
    found: list[Interval] = []
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            place, rights, _, _, inode = line.split(maxsplit=5)[:5]
            if rights[3] == "p" and inode == "0":
                start, _, end = place.partition("-")
                found.append((int(start, 16), int(end, 16)))
    return joined(found)
