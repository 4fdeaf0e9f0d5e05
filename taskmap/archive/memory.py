"""A file in memory: mapped, or copied so that nobody can change it between its check and its use."""

from __future__ import annotations

import io
import mmap
import os
import stat
from pathlib import Path
from typing import Any


def in_memory(path: Path, copied: bool) -> mmap.mmap | None:
    """The content of a non-empty file, aligned to a page; None for an empty file, or a path that is not a file.

    Processes share the memory of a mapped file, but a writer changes it for all of them. Raises OSError.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):  # checked first, because opening a pipe would block
        return None
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if not size:
            return None
        if not copied:
            return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        memory = mmap.mmap(-1, size)
        if file.readinto(memory) != size:
            raise OSError("the file became shorter while it was read")
        return memory


class FileWindow(io.RawIOBase):
    """Memory as a readable file."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._at = 0

    def readable(self) -> bool:
        """Always: the window is readable."""
        return True

    def seekable(self) -> bool:
        """Always: the window is seekable."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """The new position. Raises OSError for a position before the start."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: len(self._memory)}[whence]
        if start + offset < 0:
            raise OSError("a place before the start")
        self._at = start + offset
        return self._at

    def readinto(self, target: Any) -> int:
        """Copy the next bytes; returns their number."""
        content = self._memory[self._at : self._at + len(target)]
        target[: len(content)] = content
        self._at += len(content)
        return len(content)
