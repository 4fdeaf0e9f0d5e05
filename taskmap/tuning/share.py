"""Exchange of records: export and import as JSON lines, merging databases, comparing collections.

The database resolves conflicts, whatever the source: of two records of one configuration the later one
wins, of equally old ones the one with more samples, and one from the future gives way to any other.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from taskmap.ir.errors import TuningError
from taskmap.tuning.database import Database
from taskmap.tuning.record import Operator, Record, from_text, to_text

_LONGEST_LINE = 1 << 16
_BATCH = 5000
_MAGIC = b"SQLite format 3\0"
_SHOWN = 5
_LONGEST_PROBLEM = 300


@dataclass(slots=True)
class Taken:
    """The result of reading records. ``problems``: the first invalid lines, with their numbers and reasons."""

    read: int = 0
    changed: int = 0
    refused: int = 0
    problems: list[str] = field(default_factory=list)


def export(records: Iterable[Record], stream: IO[str]) -> int:
    """Write records as lines of JSON; returns their number."""
    count = 0
    for record in records:
        stream.write(to_text(record) + "\n")
        count += 1
    return count


def take(lines: IO[bytes], database: Database, name: str) -> Taken:
    """Add the records in ``lines`` to ``database``, and skip invalid lines."""
    taken = Taken()
    return _added(_records(lines, taken, name), taken, database)


def merge(path: Path, database: Database) -> Taken:
    """Add the records of another database, or of a file of JSON lines. Raises TuningError when it cannot be read."""
    try:
        with open(path, "rb") as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                file.seek(0)
                return take(file, database, path.name)
    except OSError as error:
        raise TuningError("records cannot be read", where=str(path), why=f"{error}.") from error
    taken = Taken()
    return _added(_of_database(path, taken), taken, database)


def _added(records: Iterable[Record], taken: Taken, database: Database) -> Taken:
    batch: list[Record] = []
    for record in records:
        batch.append(record)
        if len(batch) >= _BATCH:
            taken.changed += database.add(batch)
            batch = []
    taken.changed += database.add(batch)
    return taken


def read_all(path: Path) -> list[Record]:
    """The records of a database or of a file of JSON lines. Raises TuningError when it cannot be read."""
    try:
        with open(path, "rb") as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                file.seek(0)
                return list(_records(file, Taken(), path.name))
    except OSError as error:
        raise TuningError("records cannot be read", where=str(path), why=f"{error}.") from error
    return list(_of_database(path, Taken()))


@dataclass(frozen=True, slots=True)
class Difference:
    """A configuration with different records in two collections; None in the one that lacks it."""

    operator: Operator
    config: str
    left: Record | None
    right: Record | None


def differences(left: Iterable[Record], right: Iterable[Record]) -> list[Difference]:
    """The differences between two collections, in the order of their keys."""
    one = {(r.operator, r.config): r for r in left}
    other = {(r.operator, r.config): r for r in right}
    keys = sorted({*one, *other}, key=lambda key: (str(key[0]), key[1]))
    return [Difference(*key, one.get(key), other.get(key)) for key in keys if one.get(key) != other.get(key)]


def _records(lines: IO[bytes], taken: Taken, name: str) -> Iterator[Record]:
    number = 0
    while line := lines.readline(_LONGEST_LINE):
        number += 1
        if len(line) >= _LONGEST_LINE and not line.endswith(b"\n"):
            _refuse(taken, f"{name}:{number}: longer than any record")
            while (rest := lines.readline(_LONGEST_LINE)) and not rest.endswith(b"\n"):
                pass
            continue
        if not line.strip():
            continue
        try:
            record = from_text(line.decode())
        except UnicodeDecodeError:
            _refuse(taken, f"{name}:{number}: not UTF-8")
            continue
        except TuningError as error:
            _refuse(taken, f"{name}:{number}: {error.what}{f': {error.why}' if error.why else ''}")
            continue
        taken.read += 1
        yield record


def _of_database(path: Path, taken: Taken) -> Iterator[Record]:
    """The records of a database that is opened read-only."""
    try:
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
        try:
            for number, (line,) in enumerate(connection.execute("SELECT line FROM records"), 1):
                try:
                    record = from_text(line if isinstance(line, str) else "")
                except TuningError as error:
                    _refuse(taken, f"{path.name}: row {number}: {error.what}")
                    continue
                taken.read += 1
                yield record
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise TuningError("records cannot be read", where=str(path), why=f"{error}.") from error


def _refuse(taken: Taken, why: str) -> None:
    taken.refused += 1
    if len(taken.problems) < _SHOWN:
        taken.problems.append(why[:_LONGEST_PROBLEM])
