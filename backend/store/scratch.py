"""Private temporary folders that are removed with their owner, or soon after an owner that was killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
import weakref
from pathlib import Path

LEFTOVER_SECONDS = 3600.0
"""A temporary file or folder without a living owner is removed once it is older than this."""


class Scratch:
    """A temporary folder that only this user can enter; removed on close, when collected, or at exit.

    Its owner holds a lock in it, by which a later process sees whether the owner still lives. Usable in `with`.
    """

    def __init__(self) -> None:
        _sweep(Path(tempfile.gettempdir()))
        self.path = Path(tempfile.mkdtemp(prefix=_prefix()))
        lock = os.open(self.path / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        with contextlib.suppress(OSError):  # a file system without locks, on which nothing is ever swept
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._finalizer = weakref.finalize(self, _remove, self.path, lock, os.getpid())

    def close(self) -> None:
        self._finalizer()

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.close()


def _prefix() -> str:
    return f"taskmap-{os.geteuid()}-"


def _remove(path: Path, lock: int, owner: int) -> None:
    os.close(lock)
    if os.getpid() == owner:  # a forked child inherits the object, but not the folder
        shutil.rmtree(path, ignore_errors=True)


def _sweep(parent: Path) -> None:
    """Removes leftovers of this user's killed processes in `parent`."""
    oldest = time.time() - LEFTOVER_SECONDS
    for entry in _entries(parent):
        if not entry.name.startswith(_prefix()) or not entry.is_dir(follow_symlinks=False):
            continue
        try:
            status = entry.stat(follow_symlinks=False)
            if status.st_uid != os.geteuid() or status.st_mtime > oldest or _is_held(Path(entry.path, "lock")):
                continue
        except OSError:
            continue
        shutil.rmtree(entry.path, ignore_errors=True)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


def _is_held(lock: Path) -> bool:
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
