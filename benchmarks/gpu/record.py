"""What a part of `make gpu` has found so far: a JSON file that is written after every case, and gone on with later."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LOST = 75
"""The exit status of a part whose GPU context a kernel has ended: begun again, it goes on with what comes next."""

Row = dict[str, Any]


@dataclass(slots=True)
class Record:
    """Rows by name. ``runs``: the conditions of each process that added some, to which a row's "run" is an index."""

    path: Path
    runs: list[dict[str, Any]] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    _earlier: set[str] = field(default_factory=set)

    @classmethod
    def begun(cls, path: Path, conditions: dict[str, Any], *, resume: bool) -> Record:
        """An empty record; or, to ``resume``, what is in the file, where that was measured of the same code."""
        path.parent.mkdir(parents=True, exist_ok=True)
        found: dict[str, Any] = {}
        if resume and path.exists():
            found = json.loads(path.read_text(encoding="utf-8"))
        runs = found.get("runs", [])
        if runs and runs[-1].get("code") != conditions.get("code"):
            runs, found = [], {}
        record = cls(path, [*runs, conditions], found.get("rows", []))
        record._earlier = {row["name"] for row in record.rows}
        return record

    def has(self, name: str) -> bool:
        """Whether an earlier process has measured it, or has come to an end there."""
        return name in self._earlier

    def begin(self, name: str) -> None:
        """Says what comes now, so that it is not tried again where it ends the process."""
        self.rows.append({"name": name, "failed": "the process ended here", "right": False, "run": len(self.runs) - 1})
        self.write()

    def end(self, row: Row) -> None:
        """What came of it."""
        self.rows[-1] = {**row, "run": len(self.runs) - 1}
        self.write()

    def write(self) -> None:
        """As JSON, in the place of what is there."""
        record = {"runs": self.runs, "summary": summary(self.rows), "rows": self.rows, "skipped": self.skipped}
        made = self.path.with_suffix(".part")
        made.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        made.replace(self.path)

    @property
    def status(self) -> int:
        """The exit status: 1 where a result is wrong, or a case failed."""
        return int(not all(row["right"] for row in self.rows))


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """How many rows keep their bounds, and the geometric mean of their ratios."""
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
    """Every case that is not in the record, by name, until the time is ``over``; what is left then is named there.

    ``is_lost`` says whether a kernel has ended the GPU's context: then the process can do no more, and this is False.
    """
    for name, measure in cases:
        if record.has(name):
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


def measured(record: Record, name: str, measure: Callable[[], Row], is_lost: Callable[[], bool]) -> bool:
    record.begin(name)
    try:
        record.end({**measure(), "name": name})
    except Exception as failed:
        record.end({"name": name, "failed": f"{type(failed).__name__}: {failed}"[:2000], "right": False})
        return not is_lost()
    return True
