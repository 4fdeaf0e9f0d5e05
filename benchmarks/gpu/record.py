"""The results of a part of `make gpu` so far: a JSON file written after every case; a later run continues it."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from benchmarks.gpu.watchdog import Watchdog

LOST = 75
"""The exit status of a part whose GPU context a kernel has ended: begun again, it goes on with what comes next."""

WRONG = 3
"""The exit status of a part that came to its end, with results that are wrong or cases that failed."""

Row = dict[str, Any]
ENDED = "the process ended here"
_EVERY = 1.0  # seconds between writes of all rows: of a thousand quick cases, all rows are not written a thousand times


@dataclass(slots=True)
class Record:
    """Rows by name. ``runs``: the conditions of each process that added some, to which a row's "run" is an index.

    ``only``: patterns of the wanted cases; empty for all. ``kernels``: the numbers of kernels that this
    process has compiled and found in its store.
    """

    path: Path
    runs: list[dict[str, Any]] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    only: Sequence[str] = ()
    watchdog: Watchdog = field(default_factory=lambda: Watchdog(None))
    kernels: Callable[[], tuple[int, int]] | None = None
    _earlier: set[str] = field(default_factory=set)
    _written: float = 0.0

    @classmethod
    def begun(cls, path: Path, conditions: dict[str, Any], *, resume: bool) -> Record:
        """An empty record; or, to ``resume``, the file's contents, if they were measured with the same code."""
        path.parent.mkdir(parents=True, exist_ok=True)
        close(path, ENDED)
        found: dict[str, Any] = _read(path) if resume else {}
        runs = found.get("runs", [])
        if runs and runs[-1].get("code") != conditions.get("code"):
            runs, found = [], {}
        record = cls(path, [*runs, conditions], found.get("rows", []))
        record._earlier = {row["name"] for row in record.rows}
        return record

    def has(self, name: str) -> bool:
        """True if an earlier process has measured the case, or ended at it."""
        return name in self._earlier

    def wants(self, name: str) -> bool:
        """True if the case is wanted."""
        return not self.only or any(fnmatchcase(name, pattern) for pattern in self.only)

    def begin(self, name: str) -> None:
        """Announces a case, so that it is not tried again if it ends the process."""
        if self._written == 0:
            self.write()
        _now(self.path).write_text(name, encoding="utf-8")

    def end(self, row: Row) -> None:
        """Record the result."""
        self.rows.append({**row, "run": len(self.runs) - 1})
        if time.monotonic() - self._written > _EVERY:
            self.write()
        else:
            with _journal(self.path).open("a", encoding="utf-8") as file:
                file.write(json.dumps(self.rows[-1]) + "\n")
        _now(self.path).unlink(missing_ok=True)

    def write(self) -> None:
        """Replace the file by the record as JSON."""
        if self.kernels is not None and self.runs:
            compiled, found = self.kernels()
            self.runs[-1]["kernels"] = {"compiled": compiled, "found": found}
        _write(self.path, self.runs, self.rows, self.skipped)
        self._written = time.monotonic()

    @property
    def status(self) -> int:
        """The exit status: WRONG if a result is wrong or a case failed."""
        return 0 if all(row["right"] for row in self.rows) else WRONG


def close(path: Path, why: str, *, failed: bool = True) -> str:
    """Record why the writing process ended. Returns its current case, if any.

    ``failed``: otherwise the case counts as not begun.
    """
    now = _now(path)
    if not now.exists():
        return ""
    found, culprit = _read(path), now.read_text(encoding="utf-8")
    runs, rows, skipped = found.get("runs", []), found.get("rows", []), found.get("skipped", [])
    if failed:
        rows.append({"name": culprit, "failed": why, "right": False, "run": len(runs) - 1})
    else:
        skipped.append(culprit)
    _write(path, runs, rows, skipped)
    now.unlink()
    return culprit


def count(path: Path) -> int:
    """The number of cases in a record."""
    return len(_read(path).get("rows", []))


def failures(path: Path) -> list[Row]:
    """The rows of a record that are wrong or failed."""
    return [row for row in _read(path).get("rows", []) if not row["right"]]


def _now(path: Path) -> Path:
    """The file that names a process's current case."""
    return path.with_suffix(".now")


def _journal(path: Path) -> Path:
    """The rows added since the file was written, one per line."""
    return path.with_suffix(".rows")


def _read(path: Path) -> dict[str, Any]:
    """The file's contents, with the rows added since; empty if there is no readable file."""
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    with suppress(OSError, ValueError):
        later = [json.loads(line) for line in _journal(path).read_text("utf-8").splitlines()]
        found["rows"] = list({row["name"]: row for row in [*found.get("rows", []), *later]}.values())
    return found


def _write(path: Path, runs: Sequence[Any], rows: Sequence[Row], skipped: Sequence[str]) -> None:
    record = {"runs": runs, "summary": summary(rows), "rows": rows, "skipped": skipped}
    made = path.with_suffix(".part")
    made.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    made.replace(path)
    _journal(path).unlink(missing_ok=True)


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """The number of rows that keep their bounds, and the geometric mean of their ratios."""
    measured = [row for row in rows if "ratio" in row]
    if not measured:
        return {}
    return {
        "measured": len(measured),
        "met": sum(row["ratio"] >= row["floor"] for row in measured),
        "geometric_mean": statistics.geometric_mean(row["ratio"] for row in measured),
    }


def measure_each(
    record: Record,
    cases: Iterable[tuple[str, Callable[[], Row]]],
    over: Callable[[], bool],
    is_lost: Callable[[], bool],
    show: Callable[[Row], None],
) -> bool:
    """Every case that is not in the record, by name, until the time is ``over``; the remaining cases are named there.

    ``is_lost`` says whether a kernel has ended the GPU's context: then the process can do no more, and this is False.
    """
    for name, measure in cases:
        if record.has(name) or not record.wants(name):
            continue
        if over():
            record.skipped.append(name)
            continue
        usable = measured(record, name, measure, is_lost)
        show(record.rows[-1])
        if not usable:
            return False
    record.write()
    return True


def left_of(record: Record, cases: Iterable[tuple[str, Callable[[], Row]]]) -> Iterable[tuple[str, Callable[[], Row]]]:
    """The cases that are wanted and not in the record."""
    return ((name, measure) for name, measure in cases if record.wants(name) and not record.has(name))


def measured(record: Record, name: str, measure: Callable[[], Row], is_lost: Callable[[], bool]) -> bool:
    """Measure one case, watched; true if the process can continue."""
    record.begin(name)
    record.watchdog.arm()
    try:
        record.end({**measure(), "name": name})
    except Exception as failed:
        lost = is_lost()
        why = f"{'the GPU context is lost: ' if lost else ''}{type(failed).__name__}: {failed}"
        record.end({"name": name, "failed": why[:2000], "right": False})
        return not lost
    finally:
        record.watchdog.disarm()
    return True
