"""The tuning database: one SQLite file that many processes and threads read and write concurrently.

One row for each (operator, configuration). Of two records with the same key, the later one wins; of equally old ones,
the one with more samples; a record from the future gives way to any other. connection.py opens it on any file system;
repair.py rebuilds a damaged one.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from taskmap.ir.errors import TuningError
from taskmap.tuning import repair as repairing
from taskmap.tuning.connection import Mode, can_write, connect, is_damage, on_network
from taskmap.tuning.lockfile import locks_work, memory_works, turn
from taskmap.tuning.record import DAY, Conditions, Operator, Record, Verdict, from_text, to_text
from taskmap.tuning.repair import readable, rebuilt

__all__ = ["Database", "RecordCheck"]

# A record from the future, i.e. later than ?13, has rank -1. The current clock decides, because a wrong clock may be
# set right later.
_INSERT = """
INSERT INTO records VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)
ON CONFLICT DO UPDATE SET verdict = excluded.verdict, seconds = excluded.seconds, measured_at = excluded.measured_at,
    rank = excluded.rank, samples = excluded.samples, line = excluded.line
WHERE (excluded.rank, excluded.samples, excluded.line) >
    (CASE WHEN records.measured_at > ?13 THEN -1.0 ELSE records.measured_at END, records.samples, records.line)
"""
_COLUMNS = "name, shapes, dtypes, layout, target, config, verdict, seconds"
_OF = "name = ? AND shapes = ? AND dtypes = ? AND layout = ? AND target = ?"
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class RecordCheck:
    """The number of records, and of damaged ones among them."""

    records: int
    damaged: int


@dataclass(slots=True, eq=False)
class Database:
    """The database at ``path``, which is created when a record is first added.

    Methods raise TuningError: the file cannot be read or written, the disk is full, or a newer taskmap wrote it.
    """

    path: Path
    _connection: sqlite3.Connection | None = field(default=None, init=False, repr=False)
    _mode: Mode | None = field(default=None, init=False, repr=False)
    _place: tuple[int, int] = field(default=(0, 0), init=False, repr=False)
    _owner: int = field(default=0, init=False, repr=False)
    _inherited: list[sqlite3.Connection] = field(default_factory=list, init=False, repr=False)
    _lock: threading.RLock = field(default_factory=threading.RLock, init=False, repr=False)

    def add(self, records: Iterable[Record]) -> int:
        """Keep all of ``records`` or none; returns how many changed the database."""
        new = list(records)
        return self._run(lambda c: _insert(c, new), writes=True) if new else 0

    def records(self, operator: Operator | None = None) -> list[Record]:
        """All records, or those of one operator, in the order of their keys. Invalid rows are left out."""
        where, values = (f" WHERE {_OF}", _fields(operator)) if operator else ("", ())
        query = f"SELECT line FROM records{where} ORDER BY name, shapes, dtypes, layout, target, config"
        lines: list[str] = self._run(lambda c: [line for (line,) in c.execute(query, values)], empty=[])
        return list(readable(lines))

    def best(
        self, operator: Operator, here: Conditions, usable: Callable[[Record], bool] = lambda record: True
    ) -> Record | None:
        """The fastest record of ``operator`` that is valid under the conditions ``here`` and ``usable``."""
        query = f"SELECT line FROM records WHERE {_OF} AND verdict = ? ORDER BY seconds, config"
        values = (*_fields(operator), Verdict.OK.value)
        lines: list[str] = self._run(lambda c: [line for (line,) in c.execute(query, values)], empty=[])
        now = time.time()
        return next((r for r in readable(lines) if r.stale(here, now) is None and usable(r)), None)

    def check(self) -> RecordCheck:
        """Read every row; check its checksum, and that its columns agree with its line."""
        lines: list[tuple[object, ...]] = self._run(
            lambda c: list(c.execute(f"SELECT {_COLUMNS}, line FROM records")), empty=[]
        )
        return RecordCheck(len(lines), sum(not _agrees(row) for row in lines))

    def count(self) -> int:
        """The number of records."""
        return self._run(lambda c: int(c.execute("SELECT count(*) FROM records").fetchone()[0]), empty=0)

    def remove(self, records: Iterable[Record]) -> int:
        """Delete ``records``; returns how many existed."""
        rows = [(*_fields(r.operator), r.config) for r in records]

        def delete(connection: sqlite3.Connection) -> int:
            before = connection.total_changes
            with connection:
                connection.executemany(f"DELETE FROM records WHERE {_OF} AND config = ?", rows)
            return connection.total_changes - before

        return self._run(delete, writes=True, empty=0) if rows else 0

    def ready(self) -> None:
        """Create the file if it is missing. Raises TuningError when no record can be added to it."""
        self._run(lambda c: _insert(c, ()), writes=True)

    def clear(self) -> int:
        """Delete all rows, also invalid ones; returns their number."""

        def delete(connection: sqlite3.Connection) -> int:
            with connection:
                return connection.execute("DELETE FROM records").rowcount

        return self._run(delete, writes=True, empty=0)

    def verify(self) -> Path | None:
        """Check the file and every row, and repair it if need be; returns the damaged file's new path, if any."""
        with self._lock:
            try:
                if not self.path.exists() or not can_write(self.path):
                    return None
                with self._turn(True):
                    return self._repair("it was verified", thoroughly=True)
            except (sqlite3.Error, OSError) as error:
                raise self._failure(error) from error

    def close(self) -> None:
        """Close the file; the next call opens it again."""
        if self._connection is not None and self._owner == os.getpid():
            self._connection.close()
        elif self._connection is not None:
            self._inherited.append(self._connection)  # belongs to the parent of this fork: must not be closed
        self._connection = None

    def _run(
        self, do: Callable[[sqlite3.Connection], _Result], *, writes: bool = False, empty: _Result | None = None
    ) -> _Result:
        """Run ``do`` with the open database; after a repair, run it once more if the file turns out to be damaged."""
        with self._lock:  # one connection, one transaction at a time
            try:
                if empty is not None and not self.path.exists() and not rebuilt(self.path).exists():
                    return empty
                with self._turn(writes):
                    return self._locked(do, writes)
            except (sqlite3.Error, OSError) as error:
                self.close()
                raise self._failure(error) from error

    def _turn(self, writes: bool) -> ExitStack:
        """Excludes other processes if the file system has no locks; the connection is then closed at the end."""
        if writes:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._mode is None or self._mode is Mode.READ:
            self._mode = self._chosen(writes)
        stack = ExitStack()
        if self._mode is Mode.ALONE:
            stack.enter_context(turn(self.path))
            stack.callback(self.close)
        return stack

    def _chosen(self, writes: bool) -> Mode:
        if not can_write(self.path):
            if writes:
                raise PermissionError("it, or its folder, cannot be written")
            return Mode.READ
        if not locks_work(self.path):
            return Mode.ALONE
        return Mode.LOCAL if memory_works(self.path) and not on_network(self.path) else Mode.NETWORK

    def _locked(self, do: Callable[[sqlite3.Connection], _Result], writes: bool) -> _Result:
        try:
            if rebuilt(self.path).exists():  # a repair was interrupted
                self._repair("a repair was interrupted")
            return do(self._open(writes))
        except sqlite3.DatabaseError as error:
            # A header may mark the file as read-only.
            damaged = is_damage(error) or ("readonly" in str(error) and can_write(self.path))
            if not damaged or self._mode is Mode.READ:
                raise
            self._repair(str(error))
        return do(self._open(writes))

    def _open(self, writes: bool) -> sqlite3.Connection:
        if self._connection is not None and self._owner == os.getpid() and self._place == _place(self.path):
            return self._connection
        self.close()  # it belongs to another process, or to a removed file
        mode = Mode.LOCAL if self._mode is None else self._mode
        try:
            self._connection = connect(self.path, mode)
        except sqlite3.OperationalError as error:
            if writes or mode is Mode.READ or "locked" in str(error):
                raise
            self._connection = connect(self.path, Mode.READ)  # a full disk, for instance; the next call tries again
            self._place, self._owner = (0, 0), os.getpid()
            return self._connection
        self._place, self._owner = _place(self.path), os.getpid()
        return self._connection

    def _repair(self, reason: str, thoroughly: bool = False) -> Path | None:
        mode = Mode.LOCAL if self._mode is None else self._mode

        def sound() -> bool:
            if not repairing.is_sound(self.path, mode):
                return False
            return not thoroughly or not self._damaged(mode)

        def fill(path: Path, records: Iterable[Record]) -> None:
            with closing(connect(path, mode)) as connection:
                _insert(connection, records)

        self.close()
        return repairing.repair(self.path, reason, sound, fill)

    def _damaged(self, mode: Mode) -> int:
        with closing(connect(self.path, mode)) as connection:
            return sum(not _agrees(row) for row in connection.execute(f"SELECT {_COLUMNS}, line FROM records"))

    def _failure(self, error: Exception) -> TuningError:
        return TuningError(
            "the tuning cache cannot be used",
            where=str(self.path),
            why=f"{str(error) or type(error).__name__}.",
            hint="TASKMAP_CACHE_DIR chooses another folder.",
        )


def _insert(connection: sqlite3.Connection, records: Iterable[Record]) -> int:
    now, before = time.time(), connection.total_changes
    with connection:
        connection.executemany(_INSERT, [_row(record, now) for record in records])
    return connection.total_changes - before


def _place(path: Path) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return (0, 0)
    return (found.st_dev, found.st_ino)


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
    latest = now + DAY
    rank = record.measured_at if record.measured_at <= latest else -1.0
    times = (record.typical, record.measured_at, rank, len(record.seconds))
    return (*_fields(record.operator), record.config, record.verdict.value, *times, to_text(record), latest)
