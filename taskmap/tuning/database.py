"""The tuning database: one SQLite file, which many processes and threads read and write at once.

One row for each (operator, configuration). Of two records of the same the later one stays, the one with more samples
where they are equally old; one from the future gives way to any other. A damaged file is set aside, and a new one is
made of all that can be read.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from taskmap.ir.errors import TuningError
from taskmap.tuning.record import DAY, Conditions, Operator, Record, Verdict, from_text, to_text

_SCHEMA = 1
_WAIT_SECONDS = 60.0
_CREATE = """
CREATE TABLE IF NOT EXISTS records (
    name TEXT NOT NULL, shapes TEXT NOT NULL, dtypes TEXT NOT NULL, layout TEXT NOT NULL, target TEXT NOT NULL,
    config TEXT NOT NULL, verdict TEXT NOT NULL, seconds REAL NOT NULL, measured_at REAL NOT NULL, rank REAL NOT NULL,
    samples INTEGER NOT NULL, line TEXT NOT NULL,
    PRIMARY KEY (name, shapes, dtypes, layout, target, config)
)
"""
_INSERT = """
INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET verdict = excluded.verdict, seconds = excluded.seconds, measured_at = excluded.measured_at,
    rank = excluded.rank, samples = excluded.samples, line = excluded.line
WHERE (excluded.rank, excluded.samples, excluded.line) > (rank, records.samples, records.line)
"""
_COLUMNS = "name, shapes, dtypes, layout, target, config, verdict, seconds"
_OF = "name = ? AND shapes = ? AND dtypes = ? AND layout = ? AND target = ?"
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Check:
    """How many records there are, and how many of them are damaged."""

    records: int
    damaged: int


@dataclass(slots=True, eq=False)
class Database:
    """The database at ``path``, which is made when something is first added.

    Methods raise TuningError: the file cannot be read or written, the disk is full, or it is of a newer taskmap.
    """

    path: Path
    _connection: sqlite3.Connection | None = field(default=None, init=False, repr=False)
    _owner: int = field(default=0, init=False, repr=False)
    _lock: threading.RLock = field(default_factory=threading.RLock, init=False, repr=False)

    def add(self, records: Iterable[Record]) -> int:
        """Keep ``records``, all or none; how many changed the database."""
        now = time.time()
        rows = [_row(record, now) for record in records]

        def write(connection: sqlite3.Connection) -> int:
            before = connection.total_changes
            with connection:
                connection.executemany(_INSERT, rows)
            return connection.total_changes - before

        return self._run(write, writes=True) if rows else 0

    def records(self, operator: Operator | None = None) -> list[Record]:
        """All records, or those of one operator, in the order of their keys. Rows that make no sense are left out."""
        where, values = (f" WHERE {_OF}", _fields(operator)) if operator else ("", ())
        query = f"SELECT line FROM records{where} ORDER BY name, shapes, dtypes, layout, target, config"
        lines: list[str] = self._run(lambda c: [line for (line,) in c.execute(query, values)], empty=[])
        return list(_readable(lines))

    def best(self, operator: Operator, here: Conditions) -> Record | None:
        """The fastest record of ``operator`` that counts under the conditions ``here``."""
        query = f"SELECT line FROM records WHERE {_OF} AND verdict = ? ORDER BY seconds, config"
        values = (*_fields(operator), Verdict.OK.value)
        lines: list[str] = self._run(lambda c: [line for (line,) in c.execute(query, values)], empty=[])
        now = time.time()
        return next((r for r in _readable(lines) if r.stale(here, now) is None), None)

    def check(self) -> Check:
        """Read every row: its checksum, and whether its columns say what its line says."""
        lines: list[tuple[object, ...]] = self._run(
            lambda c: list(c.execute(f"SELECT {_COLUMNS}, line FROM records")), empty=[]
        )
        return Check(len(lines), sum(not _agrees(row) for row in lines))

    def count(self) -> int:
        """How many records there are."""
        return self._run(lambda c: int(c.execute("SELECT count(*) FROM records").fetchone()[0]), empty=0)

    def remove(self, records: Iterable[Record]) -> int:
        """Forget ``records``; how many were there."""
        rows = [(*_fields(r.operator), r.config) for r in records]

        def delete(connection: sqlite3.Connection) -> int:
            before = connection.total_changes
            with connection:
                connection.executemany(f"DELETE FROM records WHERE {_OF} AND config = ?", rows)
            return connection.total_changes - before

        return self._run(delete, writes=True, empty=0) if rows else 0

    def close(self) -> None:
        """Close the file; the next call opens it again."""
        if self._connection is not None and self._owner == os.getpid():
            self._connection.close()
        self._connection = None

    def _run(
        self, do: Callable[[sqlite3.Connection], _Result], *, writes: bool = False, empty: _Result | None = None
    ) -> _Result:
        """``do`` with the open database; once more after a repair, when the file turns out to be damaged."""
        if empty is not None and not self.path.exists():
            return empty
        with self._lock:  # one connection, one transaction at a time
            return self._locked(do, writes)

    def _locked(self, do: Callable[[sqlite3.Connection], _Result], writes: bool) -> _Result:
        try:
            return do(self._open(writes))
        except sqlite3.OperationalError as error:
            raise self._failure(error) from error
        except sqlite3.DatabaseError as error:
            self.close()
            repair(self.path, str(error))
        try:
            return do(self._open(writes))
        except sqlite3.Error as error:
            raise self._failure(error) from error

    def _open(self, writes: bool) -> sqlite3.Connection:
        if self._connection is not None and self._owner == os.getpid():
            return self._connection
        try:
            if writes:
                self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            can_write = os.access(self.path if self.path.exists() else self.path.parent, os.W_OK)
        except OSError as error:
            raise self._failure(error) from error
        self._connection = _connect(self.path, read_only=not can_write)
        self._owner = os.getpid()
        return self._connection

    def _failure(self, error: Exception) -> TuningError:
        return TuningError(
            "the tuning cache cannot be used",
            where=str(self.path),
            why=f"{error}.",
            hint="TASKMAP_CACHE_DIR chooses another folder.",
        )


def repair(path: Path, reason: str) -> Path | None:
    """Set the damaged file at ``path`` aside, and make a new one of all that can be read; where the old one lies.

    None when another process has done it meanwhile. Raises TuningError when the folder cannot be written.
    """
    try:
        with open(path.with_name(path.name + ".lock"), "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if _is_sound(path):
                return None
            kept = path.with_name(f"{path.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}")
            saved = list(_salvage(path))
            os.replace(path, kept)
            for side in ("-wal", "-shm"):
                with contextlib.suppress(FileNotFoundError):
                    os.replace(path.with_name(path.name + side), kept.with_name(kept.name + side))
    except OSError as error:
        raise TuningError(
            "a damaged tuning cache cannot be repaired", where=str(path), why=f"{reason}; {error}"
        ) from error
    database = Database(path)
    database.add(saved)
    database.close()
    return kept


def _connect(path: Path, read_only: bool) -> sqlite3.Connection:
    place = f"{path.resolve().as_uri()}?mode={'ro' if read_only else 'rwc'}"
    connection = sqlite3.connect(place, uri=True, timeout=_WAIT_SECONDS, check_same_thread=False)
    try:
        if not read_only:
            # Where the file system cannot share memory between processes, SQLite keeps its ordinary journal.
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            with connection:
                connection.execute(_CREATE)
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > _SCHEMA:
            raise TuningError(
                "the tuning cache is of a newer taskmap",
                where=str(path),
                why=f"its format is {version}, and this version reads {_SCHEMA}.",
                hint="Use that version, or choose another folder with TASKMAP_CACHE_DIR.",
            )
        if version < _SCHEMA and not read_only:
            connection.execute(f"PRAGMA user_version = {_SCHEMA}")
    except BaseException:
        connection.close()
        raise
    return connection


def _is_sound(path: Path) -> bool:
    if not path.exists():
        return True
    try:
        with contextlib.closing(_connect(path, read_only=False)) as connection:
            return bool(connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok")
    except sqlite3.DatabaseError:
        return False


def _salvage(path: Path) -> Iterator[Record]:
    """The records that can still be read: forward until the damage, then backward until it."""
    seen: set[str] = set()
    for order in ("ASC", "DESC"):
        try:
            with contextlib.closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
                for (line,) in connection.execute(f"SELECT line FROM records ORDER BY rowid {order}"):
                    if isinstance(line, str) and line not in seen:
                        seen.add(line)
                        yield from _readable([line])
        except sqlite3.DatabaseError:
            continue


def _readable(lines: Iterable[str]) -> Iterator[Record]:
    for line in lines:
        with contextlib.suppress(TuningError):
            yield from_text(line)


def _agrees(row: tuple[object, ...]) -> bool:
    *columns, line = row
    try:
        record = from_text(line if isinstance(line, str) else "")
    except TuningError:
        return False
    return columns == [*_fields(record.operator), record.config, record.verdict.value, record.typical]


def _fields(operator: Operator) -> tuple[str, ...]:
    return operator.name, operator.shapes, operator.dtypes, operator.layout, operator.target


def _row(record: Record, now: float) -> tuple[object, ...]:
    rank = record.measured_at if record.measured_at <= now + DAY else -1.0
    times = (record.typical, record.measured_at, rank, len(record.seconds))
    return (*_fields(record.operator), record.config, record.verdict.value, *times, to_text(record))
