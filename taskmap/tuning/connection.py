"""Opens the tuning database on any kind of file system.

If processes can share memory, SQLite's write-ahead log (WAL) is used, and readers never wait. WAL's shared memory does
not work between the machines of a network file system; there, and if a file system refuses to map files, an ordinary
rollback journal is used. Without file locks, a process must have exclusive access (see lockfile.py). A database that
cannot be written is opened for reading.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sqlite3
import tempfile
from enum import Enum
from pathlib import Path

from taskmap.ir.errors import TuningError
from taskmap.tuning.lockfile import turn

SCHEMA = 1
SIDES = ("-wal", "-shm", "-journal")
"""Suffixes of the files that belong to a database."""
_LAST_SCHEMA = 16
"""A format number above this is a sign of damage, not of a newer version."""
_WAIT_SECONDS = 60.0
_TABLE = """CREATE TABLE records (
    name TEXT NOT NULL, shapes TEXT NOT NULL, dtypes TEXT NOT NULL, layout TEXT NOT NULL, target TEXT NOT NULL,
    config TEXT NOT NULL, verdict TEXT NOT NULL, seconds REAL NOT NULL, measured_at REAL NOT NULL, rank REAL NOT NULL,
    samples INTEGER NOT NULL, line TEXT NOT NULL,
    PRIMARY KEY (name, shapes, dtypes, layout, target, config)
)"""
_MOUNTS = Path("/proc/self/mountinfo")
_NETWORK = re.compile(
    r"nfs\d?|cifs|smb\w*|9p|afs|ceph|lustre|gpfs|beegfs|glusterfs|orangefs|pvfs2|ocfs2|gfs2|virtiofs|vboxsf|prl_fs"
    r"|fuse(\.(?!fuse-overlayfs).*)?"
)


_AHEAD = ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = NORMAL")
_JOURNAL = ("PRAGMA journal_mode = DELETE", "PRAGMA synchronous = FULL")
# Without shared memory, only a single process can read changes in a write-ahead log.
_UNSHARED = (
    "PRAGMA locking_mode = EXCLUSIVE",
    *_JOURNAL,
    "PRAGMA locking_mode = NORMAL",
    "SELECT count(*) FROM sqlite_master",
)


class Mode(Enum):
    """Access to a database: shared through memory, shared through an ordinary journal, by one process at a time, or
    read-only."""

    LOCAL = "local"
    NETWORK = "network"
    ALONE = "alone"
    READ = "read"


def is_damage(error: sqlite3.Error) -> bool:
    """True if an error means that the file is damaged, not that it is locked, full, or unreachable."""
    # Only SQLITE_CORRUPT and SQLITE_NOTADB raise DatabaseError itself instead of a subclass.
    return type(error) is sqlite3.DatabaseError or "unsupported file format" in str(error)


def on_network(path: Path) -> bool:
    """True if ``path`` is on a file system that other machines may write to."""
    place, best, kind = str(path.resolve()), "", ""
    try:
        lines = _MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    for line in lines:
        mount, _, system = line.partition(" - ")
        fields = mount.split(" ")
        if len(fields) < 5 or not system:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), fields[4])
        inside = place == point or place.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, system.split(" ")[0]
    return _NETWORK.fullmatch(kind) is not None


def connect(path: Path, mode: Mode) -> sqlite3.Connection:
    """The open database, with its table created if missing.

    Raises TuningError for a database of a newer taskmap, OSError, and sqlite3.Error; ``is_damage`` classifies the
    latter.
    """
    if mode is Mode.READ:
        return _reading(path)
    if mode is Mode.ALONE:
        return _writing(path, "&vfs=unix-none", _UNSHARED)
    if mode is Mode.LOCAL:
        return _writing(path, "", _AHEAD)
    try:
        return _writing(path, "", _JOURNAL)
    except sqlite3.OperationalError as error:
        if "locked" in str(error):
            raise
    with turn(path):  # two processes that want exclusive access would deadlock
        return _writing(path, "", _UNSHARED)


def _writing(path: Path, options: str, steps: tuple[str, ...]) -> sqlite3.Connection:
    connection = _opened(path, f"mode=rwc{options}")
    try:
        for step in steps:
            _step(connection, step)
        if _version(connection, path) == 0:
            _create(connection)
        else:
            _check_table(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _step(connection: sqlite3.Connection, step: str) -> None:
    """Apply one setting. A journal mode that other processes use is left alone."""
    changes = step == _JOURNAL[0]
    try:
        if changes:
            connection.execute("PRAGMA busy_timeout = 1000")
        connection.execute(step).fetchall()
    except sqlite3.OperationalError as error:
        if not (changes and "locked" in str(error)):
            raise
    finally:
        if changes:
            connection.execute(f"PRAGMA busy_timeout = {int(1000 * _WAIT_SECONDS)}")


def _reading(path: Path) -> sqlite3.Connection:
    """A read-only database; if it has a write-ahead log that cannot be read in place, a copy."""
    attempts = ["mode=ro"]
    wal = path.with_name(f"{path.name}-wal")
    if not (wal.exists() and wal.stat().st_size):
        attempts.append("mode=ro&immutable=1")
    for attempt in attempts:
        try:
            return _looked_at(_opened(path, attempt), path)
        except sqlite3.OperationalError:
            if attempt == attempts[-1] and not wal.exists():
                raise
    with tempfile.TemporaryDirectory(prefix="taskmap-tuning-") as folder:
        copy = Path(folder, path.name)
        for side in ("", "-wal"):
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(path.with_name(path.name + side), copy.with_name(copy.name + side))
        connection = sqlite3.connect(":memory:", check_same_thread=False)
        with contextlib.closing(_looked_at(_opened(copy, "mode=rw"), copy)) as found:
            found.backup(connection)
    connection.text_factory = _text
    return connection


def _looked_at(connection: sqlite3.Connection, path: Path) -> sqlite3.Connection:
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if _version(connection, path):
            _check_table(connection)
        else:
            connection.execute(f"CREATE TEMPORARY TABLE {_TABLE.removeprefix('CREATE TABLE ')}")
    except BaseException:
        connection.close()
        raise
    return connection


def _opened(path: Path, options: str) -> sqlite3.Connection:
    place = f"{path.resolve().as_uri()}?{options}"
    connection = sqlite3.connect(place, uri=True, timeout=_WAIT_SECONDS, check_same_thread=False)
    connection.text_factory = _text
    return connection


def _text(data: bytes) -> str:
    """The text of a possibly damaged row; its checksum detects damage."""
    return data.decode(errors="replace")


def _version(connection: sqlite3.Connection, path: Path) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if not 0 <= version <= _LAST_SCHEMA:
        raise sqlite3.DatabaseError(f"its format is {version}, which no version will use")
    if version > SCHEMA:
        raise TuningError(
            "the tuning cache was written by a newer taskmap",
            where=str(path),
            why=f"its format is {version}, and this version reads {SCHEMA}.",
            hint="Use that version, or choose another folder with TASKMAP_CACHE_DIR.",
        )
    return int(version)


def _create(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    with connection:  # all or nothing
        if not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            connection.execute(_TABLE)
        _check_table(connection)
        connection.execute(f"PRAGMA user_version = {SCHEMA}")


def _check_table(connection: sqlite3.Connection) -> None:
    found = connection.execute("SELECT sql FROM sqlite_master WHERE type = 'table' AND name = 'records'").fetchone()
    if found is None or " ".join(str(found[0]).split()) != " ".join(_TABLE.split()):
        raise sqlite3.DatabaseError("it does not hold the table of a tuning cache")


def can_write(path: Path) -> bool:
    """True if a database at ``path`` can be changed: it and its folder, in which SQLite keeps its journal."""
    return os.access(path.parent, os.W_OK) and (not path.exists() or os.access(path, os.W_OK))
