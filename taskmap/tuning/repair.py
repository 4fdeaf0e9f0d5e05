"""Sets a damaged tuning database aside, and builds a new one from all records that can be read.

Nothing is lost if the process is killed: the new file is complete before it replaces the old one, and a leftover new
file is taken in by the next process that opens the database.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from taskmap.ir.errors import TuningError
from taskmap.tuning.connection import SIDES, Mode, connect, is_damage
from taskmap.tuning.record import HEAD, Record, from_text

_log = logging.getLogger(__name__)
Fill = Callable[[Path, Iterable[Record]], None]
"""Adds records to the database at a path, then closes it."""


def rebuilt(path: Path) -> Path:
    """The path of a new database that is complete but has not replaced the old one yet."""
    return path.with_name(f"{path.name}.rebuilt")


def repair(path: Path, reason: str, sound: Callable[[], bool], fill: Fill) -> Path | None:
    """Set the file at ``path`` aside unless it is ``sound``, and build a new one; returns the old file's new path.

    None if it is sound, for instance because another process has repaired it meanwhile. Raises TuningError when the
    folder is not writable; then nothing has changed.
    """
    try:
        with open(path.with_name(f"{path.name}.lock"), "a") as lock:
            with contextlib.suppress(OSError):  # without locks, the caller has exclusive access
                fcntl.flock(lock, fcntl.LOCK_EX)
            return _repair(path, reason, sound, fill)
    except OSError as error:
        raise TuningError(
            "a damaged tuning cache cannot be repaired",
            where=str(path),
            why=f"{reason}; {error}.",
            hint="TASKMAP_CACHE_DIR chooses another folder.",
        ) from error


def _repair(path: Path, reason: str, sound: Callable[[], bool], fill: Fill) -> Path | None:
    leftover = rebuilt(path)
    for abandoned in path.parent.glob(f"{path.name}.making-*"):
        abandoned.unlink(missing_ok=True)
    if sound():
        if leftover.exists():
            fill(path, _salvage(leftover))
            leftover.unlink()
        return None
    kept = path.with_name(f"{path.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:8]}")
    saved = [*_salvage(path), *(_salvage(leftover) if leftover.exists() else ())]
    making = path.with_name(f"{path.name}.making-{uuid.uuid4().hex}")
    try:
        fill(making, saved)
        os.replace(making, leftover)
    finally:
        for side in ("", *SIDES):
            making.with_name(making.name + side).unlink(missing_ok=True)
    for side in SIDES:  # before the new file exists: SQLite would apply them to it
        with contextlib.suppress(FileNotFoundError):
            os.replace(path.with_name(path.name + side), kept.with_name(kept.name + side))
    try:
        os.link(path, kept)
    except OSError:  # this file system has no hard links
        shutil.copyfile(path, kept)
    os.replace(leftover, path)
    _log.warning(
        "the tuning cache %s was damaged (%s): %d records could be read and are in a new one; the old one is %s",
        path, reason, len(saved), kept,
    )  # fmt: skip
    return kept


def is_sound(path: Path, mode: Mode) -> bool:
    """True if SQLite finds no error, and may write. Raises sqlite3.Error when it cannot tell."""
    if not path.exists():
        return True
    try:
        with contextlib.closing(connect(path, mode)) as connection:
            connection.execute("BEGIN")
            connection.execute("DELETE FROM records WHERE FALSE")  # the header may forbid it
            connection.rollback()
            return bool(connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok")
    except sqlite3.DatabaseError as error:
        if is_damage(error) or "readonly" in str(error):
            return False
        raise


def readable(lines: Iterable[object]) -> Iterator[Record]:
    """The records among ``lines``; other lines are dropped."""
    for line in lines:
        with contextlib.suppress(TuningError):
            yield from_text(line if isinstance(line, str) else "")


def _salvage(path: Path) -> Iterator[Record]:
    """The records that can be read: by SQLite, else by searching the files for lines of records."""
    seen: set[object] = set()
    try:
        with contextlib.closing(
            sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=1.0)
        ) as connection:
            connection.text_factory = lambda data: data.decode(errors="replace")
            for (line,) in connection.execute("SELECT line FROM records"):
                seen.add(line)
                yield from readable([line])
            if connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok":
                return
    except sqlite3.Error:
        pass
    for side in ("", *SIDES):
        with contextlib.suppress(FileNotFoundError):
            for line in _lines(path.with_name(path.name + side).read_bytes()):
                if line not in seen:
                    seen.add(line)
                    yield from readable([line])


def _lines(data: bytes) -> Iterator[str]:
    """Candidates for lines of records in a file of any content: SQLite stores texts verbatim, but splits those of a row
    that is longer than a page."""
    head, last = HEAD.encode(), b'"verdict": "'
    for piece in data.split(head)[1:]:
        end = piece.find(b'"}', piece.find(last) + len(last))
        if last in piece and end >= 0:
            yield (head + piece[: end + 2]).decode(errors="replace")
