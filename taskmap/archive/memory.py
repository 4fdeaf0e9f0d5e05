"""A file in memory: mapped, or copied where nobody may change it between a look at it and its use."""

from __future__ import annotations

import io
import mmap
import os
import stat
from pathlib import Path
from typing import Any


def in_memory(path: Path, copied: bool) -> mmap.mmap | None:
    """The content of a file that is not empty, from a page's start on; None for what is no file, or an empty one.

    A mapped file takes no memory that processes do not share, but a writer changes it for all. Raises OSError.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):  # looked at first: opening a pipe would wait
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
    """Memory as a file to read from."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._at = 0

    def readable(self) -> bool:
        """It can be read."""
        return True

    def seekable(self) -> bool:
        """It has places."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """The new place. Raises OSError for one before the start."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: len(self._memory)}[whence]
        if start + offset < 0:
            raise OSError("a place before the start")
        self._at = start + offset
        return self._at

    def readinto(self, target: Any) -> int:
        """Copy what comes next; how many bytes there were."""
        content = self._memory[self._at : self._at + len(target)]
        target[: len(content)] = content
        self._at += len(content)
        return len(content)
