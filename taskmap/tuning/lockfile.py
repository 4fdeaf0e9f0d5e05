"""Mutual exclusion on file systems without locks: by a file that only one process can create, containing its name.

Some network file systems refuse locks (ENOLCK); there, SQLite cannot keep processes apart. A lock file whose process
was killed is taken over: at once if that process is known to be dead, else when the file is older than any use
takes. A process killed before it could write its name leaves an empty file, which is taken over
after seconds; a process that was merely suspended there notices, after writing, that it has lost the file.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_OLD_SECONDS = 300.0
_UNNAMED_SECONDS = 5.0
_PAUSE_SECONDS = 0.02


def memory_works(path: Path) -> bool:
    """True if processes can share memory through a file beside ``path``; its folder is writable. Raises OSError."""
    with _beside(path) as descriptor:
        try:
            os.ftruncate(descriptor, 1)
            mmap.mmap(descriptor, 1).close()
        except OSError:
            return False
        return True


def locks_work(path: Path) -> bool:
    """True if the file system locks files beside ``path``; its folder is writable. Raises OSError."""
    with _beside(path) as descriptor:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):  # another process holds the lock: locks work
            return True
        except OSError:
            return False
        return True


@contextmanager
def _beside(path: Path) -> Iterator[int]:
    # Never on the database itself: closing a file releases all locks that this process holds on it.
    descriptor = os.open(path.with_name(f"{path.name}.lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def turn(path: Path, patience: float = 60.0) -> Iterator[None]:
    """Exclusive access to ``path`` within the block.

    Raises TimeoutError after ``patience`` seconds, and OSError if the folder is not writable.
    """
    mark = path.with_name(f"{path.name}.turn")
    deadline = time.monotonic() + patience
    while not _taken(mark):
        held = _content(mark)
        if held is not None and _abandoned(mark, held):
            _take_over(mark, held)
            continue
        if time.monotonic() > deadline:
            raise TimeoutError(f"{mark} says that process {held!r} works on it; remove that file if it does not")
        time.sleep(_PAUSE_SECONDS)
    try:
        yield
    finally:
        mark.unlink(missing_ok=True)


def _taken(mark: Path) -> bool:
    try:
        descriptor = os.open(mark, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return False
    name = f"{socket.gethostname()} {os.getpid()}"
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(name)
    return _content(mark) == name


def _content(mark: Path) -> str | None:
    try:
        return mark.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None


def _abandoned(mark: Path, held: str) -> bool:
    host, _, process = held.rpartition(" ")
    if host == socket.gethostname() and process.isdecimal():
        return not _alive(int(process))
    try:
        return abs(time.time() - mark.stat().st_mtime) > (_OLD_SECONDS if held else _UNNAMED_SECONDS)
    except FileNotFoundError:
        return False


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _take_over(mark: Path, held: str) -> None:
    """Remove an abandoned lock file; one that another process has created meanwhile is put back."""
    aside = mark.with_name(f"{mark.name}-{uuid.uuid4().hex}")
    try:
        os.rename(mark, aside)
    except FileNotFoundError:
        return
    if _content(aside) != held:
        with contextlib.suppress(FileExistsError):
            os.link(aside, mark)
    aside.unlink(missing_ok=True)
