"""The version of taskmap's own text: a hash of source files, part of the keys of what is kept between processes."""

from __future__ import annotations

import hashlib
import os
import time
import uuid
from collections.abc import Iterator, Sequence
from functools import lru_cache
from operator import attrgetter
from pathlib import Path

_LOADED = time.time()
_EDITING_SECONDS = 10.0


@lru_cache(maxsize=1)
def compiler_version() -> str:
    """A hash of the source files that turn a task into C: the packages ir, schedules and backend."""
    return version_of(_rooms())


def version_of(rooms: Sequence[Path]) -> str:
    """A hash of the source files in folders.

    A file edited at about the time when this process loaded it may differ from the running code: it gets a version of
    its own.
    """
    digest = hashlib.sha256()
    for room in rooms:
        for entry in sorted(_sources(room), key=attrgetter("path")):
            if entry.stat().st_mtime > _LOADED - _EDITING_SECONDS:
                return uuid.uuid4().hex
            digest.update(entry.path.removeprefix(str(room.parent)).encode() + b"\0")
            with open(entry.path, "rb", buffering=0) as file:
                digest.update(hashlib.sha256(file.read()).digest())
    return digest.hexdigest()


def _sources(room: str | Path) -> Iterator[os.DirEntry[str]]:
    with os.scandir(room) as entries:
        for entry in entries:
            if entry.is_dir():
                if entry.name != "__pycache__":
                    yield from _sources(entry.path)
            elif entry.name.endswith((".py", ".cuh")):
                yield entry


def _rooms() -> list[Path]:
    return [Path(__file__).parents[1] / room for room in ("backend", "ir", "schedules")]
