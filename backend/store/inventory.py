"""The kernel store from outside: its contents, their sizes and last use, and the candidates for removal."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from taskmap.backend.store.folder import IndexEntry, read_entry

_SUFFIXES = (".so", ".cubin")


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One file of the store: a shared object with the symbols of its kernels and their index files; or the record of a
    scheduled task.

    used: the last read in seconds since 1970, if the file system records it, else the last write.
    """

    path: Path
    bytes: int
    used: float
    symbols: tuple[str, ...]
    entries: tuple[Path, ...]
    compiler: str = ""
    isa: str = ""


def stored_objects(root: Path) -> list[StoredObject]:
    """The contents of the store at ``root``, the least recently used first."""
    index: dict[str, list[tuple[Path, IndexEntry]]] = {}
    for path, entry in _entries(root):
        index.setdefault(entry.object, []).append((path, entry))
    found = []
    for path in _files(root / "objects"):
        with contextlib.suppress(OSError):
            status = path.stat()
            entries = index.get(path.stem, [])
            parts = entries[0][1].parts if entries else {}
            found.append(
                StoredObject(
                    path,
                    status.st_size,
                    max(status.st_atime, status.st_mtime),
                    tuple(entry.symbol for _, entry in entries),
                    tuple(place for place, _ in entries),
                    parts.get("compiler", ""),
                    parts.get("isa", ""),
                )
            )
    return sorted(found, key=lambda o: (o.used, str(o.path)))


def task_entries(root: Path) -> list[Path]:
    """The files that hold the C of scheduled tasks."""
    return list(_files(root / "tasks"))


def task_files(root: Path) -> list[StoredObject]:
    """The same with their sizes, as things that may be removed."""
    found = []
    for path in task_entries(root):
        with contextlib.suppress(OSError):
            status = path.stat()
            found.append(StoredObject(path, status.st_size, max(status.st_atime, status.st_mtime), (), ()))
    return found


def damaged(root: Path) -> list[Path]:
    """Objects whose content does not match their name."""
    return [o.path for o in stored_objects(root) if o.path.suffix in _SUFFIXES and _digest(o.path) != o.path.stem]


def outdated(objects: Iterable[StoredObject], oldest: float | None, most_bytes: int | None) -> list[StoredObject]:
    """Of ``objects``, least recently used first: those used before ``oldest``, and as many more as needed until the
    rest takes at most ``most_bytes`` bytes."""
    objects = list(objects)
    gone = [o for o in objects if oldest is not None and o.used < oldest]
    left = [o for o in objects if oldest is None or o.used >= oldest]
    size = sum(o.bytes for o in left)
    for one in left:
        if most_bytes is None or size <= most_bytes:
            break
        gone.append(one)
        size -= one.bytes
    return gone


def remove(objects: Iterable[StoredObject]) -> int:
    """Removes objects and their index entries; returns the bytes freed, 0 for those that cannot be removed. A process
    that has loaded one keeps it; another recompiles kernels that it does not find."""
    freed = 0
    for one in objects:
        for path in one.entries:
            with contextlib.suppress(OSError):
                path.unlink()
        with contextlib.suppress(OSError):
            one.path.unlink(missing_ok=True)
            freed += one.bytes
    return freed


def stray_entries(root: Path) -> list[Path]:
    """Index files that are unreadable, or that point to no object."""
    there = {path.stem for path in _files(root / "objects")}
    sound = {path for path, entry in _entries(root) if entry.object in there}
    return [path for path in _files(root / "index") if path not in sound]


def _entries(root: Path) -> Iterator[tuple[Path, IndexEntry]]:
    for path in _files(root / "index"):
        with contextlib.suppress(OSError, ValueError):
            yield path, read_entry(path)


def _files(folder: Path) -> Iterator[Path]:
    for place, _, names in os.walk(folder):
        for name in sorted(names):
            if not name.startswith("."):
                yield Path(place, name)


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""
