"""The size limit of a kernel store: the least recently used objects go first.

The limit is TASKMAP_CACHE_SIZE, such as 500M or 10G; without it 4G, and "unlimited" for none. A store is checked when a
process first writes to it, and again after every sixteenth of the limit that this process writes; if it has grown
beyond the limit, it is cut back to nine tenths of it. Objects used within the last minutes stay, whatever the limit: a
process may be about to load them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

from taskmap.backend.store.inventory import remove, stored_objects, task_files
from taskmap.ir.errors import InvalidOptionError

VARIABLE = "TASKMAP_CACHE_SIZE"
DEFAULT = 4 << 30
RECENT_SECONDS = 600.0
_KEPT = 0.9
_SHARE = 16
_UNITS = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([BKMGT]?)(?:i?B)?", re.IGNORECASE)


def bytes_of(text: str) -> int:
    """The number of bytes in a text such as "500M". Raises ValueError."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a size; write 500M or 2G")
    return int(float(found[1]) * _UNITS[found[2].upper()])


def size_limit(environ: Mapping[str, str] | None = None) -> int | None:
    """The most bytes that a store may take; None for no limit. Raises InvalidOptionError for an invalid size."""
    text = (os.environ if environ is None else environ).get(VARIABLE, "").strip()
    if not text:
        return DEFAULT
    if text.lower() == "unlimited":
        return None
    try:
        return bytes_of(text)
    except ValueError as error:
        hint = f'Let {VARIABLE} be a size such as 500M or 10G, or "unlimited".'
        raise InvalidOptionError(f"{VARIABLE} cannot be {text!r}", hint=hint) from error


class SizeLimit:
    """Decides when a store is checked."""

    def __init__(self, most_bytes: int | None) -> None:
        self.most_bytes = most_bytes
        self._lock = Lock()
        self._unseen: int | None = None

    def written(self, root: Path, count: int) -> None:
        """Counts ``count`` bytes written to the store in ``root``. This method raises no error of the file system."""
        most = self.most_bytes
        if most is None:
            return
        with self._lock:
            due = self._unseen is None or self._unseen + count >= most // _SHARE
            self._unseen = 0 if due else (self._unseen or 0) + count
        if due:
            enforce(root, most)


def enforce(root: Path, most_bytes: int, now: float | None = None) -> int:
    """Cuts the store in ``root`` back if it takes more than ``most_bytes``; returns the bytes freed.

    Nothing happens while another process does it, or if the folder cannot be written.
    """
    now = time.time() if now is None else now
    if _bytes_in(root) <= most_bytes:
        return 0
    with _alone(root) as alone:
        if not alone:
            return 0
        files = sorted([*stored_objects(root), *task_files(root)], key=lambda o: (o.used, str(o.path)))
        size, freed = sum(o.bytes for o in files), 0
        for one in files:
            if size - freed <= most_bytes * _KEPT or one.used > now - RECENT_SECONDS:
                break
            freed += remove([one])
        return freed


def _bytes_in(root: Path) -> int:
    """The approximate size of a store: a walk without reading a file."""
    total = 0
    folders = [root / "objects", root / "tasks"]
    while folders:
        with contextlib.suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(Path(entry.path))
                    else:
                        total += entry.stat(follow_symlinks=False).st_size
    return total


@contextmanager
def _alone(root: Path) -> Iterator[bool]:
    """True if no other process is cutting the store back, and none will until the block ends."""
    try:
        lock = os.open(root / "limit.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:
        yield False
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        yield False
    else:
        yield True
    finally:
        os.close(lock)
