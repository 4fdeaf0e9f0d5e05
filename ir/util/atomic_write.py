"""Atomic file writes: a reader of the path sees the old content or the new, never a part."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from taskmap.ir.errors import InputError


def atomic_write(path: Path, content: bytes | str, *, scratch: Path | None = None, mode: int = 0o666) -> None:
    """Write ``content``, a text as UTF-8; see `replaced`. Raises OSError as the file system does."""
    with replaced(path, scratch=scratch, mode=mode) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def write_output(path: Path, content: str, what: str) -> None:
    """Write a file that the user requested; ``what`` names it in the message. Raises InputError."""
    try:
        atomic_write(path, content)
    except OSError as error:
        raise InputError(f"{what} cannot be written to {path}", why=f"{error.strerror or error}.") from error


@contextmanager
def replaced(
    path: Path, *, scratch: Path | None = None, mode: int = 0o666, durable: bool = False
) -> Iterator[BinaryIO]:
    """A new file that takes the place of ``path`` when the block ends without an exception.

    Until then the file is unnamed if the file system supports that, so even a killed process leaves nothing behind.
    scratch: folder of its temporary name, on the same file system (default: the folder of ``path``). mode: permissions,
    before the umask. durable: the content reaches the disk before the name does, so that a crash of the machine leaves
    the old content or the new. Raises OSError.
    """
    temporary = (scratch or path.parent) / f".{path.name}.{uuid.uuid4().hex[:8]}.part"
    file = _unnamed(temporary.parent, mode) or open(  # noqa: SIM115  closed below, before it takes its place
        temporary, "x+b", opener=lambda name, flags: os.open(name, flags, mode)
    )
    try:
        with file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
            if not temporary.exists():
                _give_name(file, temporary)
        os.replace(temporary, path)
    finally:
        with suppress(OSError):
            temporary.unlink()


def _unnamed(folder: Path, mode: int) -> BinaryIO | None:
    flag = getattr(os, "O_TMPFILE", 0)
    if not flag or not os.path.exists("/proc/self/fd"):
        return None
    try:
        return open(os.open(folder, flag | os.O_RDWR | os.O_CLOEXEC, mode), "w+b")
    except OSError:
        return None


def _give_name(file: BinaryIO, path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:  # with a folder, Python calls linkat, and only that follows the symbolic link of an open file
        os.link(f"/proc/self/fd/{file.fileno()}", path.name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=True)
    finally:
        os.close(folder)
