"""`taskmap cache export`, `import`, `merge` and `diff`."""

from __future__ import annotations

import argparse
import io
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from taskmap.cli.cache.common import as_json, chosen, opened
from taskmap.cli.output import answer, duration, plain, print_json, table
from taskmap.ir.errors import TuningError
from taskmap.ir.util.atomic_write import atomic_write
from taskmap.tuning.record import Record
from taskmap.tuning.share import Taken, differences, export, merge, read_all, take


def export_records(a: argparse.Namespace) -> int:
    """Write records as JSON lines."""
    with opened(a) as database:
        records = chosen(database.records(), a)
    if a.output is None:
        export(records, sys.stdout)
        return 0
    try:
        lines = io.StringIO()
        export(records, lines)
        atomic_write(a.output, lines.getvalue())
    except OSError as error:
        raise TuningError("records cannot be written", where=str(a.output), why=f"{error}.") from error
    content = {"records": len(records), "file": str(a.output)}
    answer(a.json, content, f"{len(records)} records written to {a.output}")
    return 0


def import_records(a: argparse.Namespace) -> int:
    """Add records; 1 if some lines were invalid."""
    results: dict[str, Taken] = {}
    with opened(a) as database:
        for file in a.files:
            standard = str(file) == "-"
            results[str(file)] = take(sys.stdin.buffer, database, "-") if standard else merge(file, database)
        count = database.count()
    if a.json:
        print_json({"files": {name: asdict(t) for name, t in results.items()}, "records": count})
    else:
        for name, t in results.items():
            print(f"{plain(name)}: {t.read} records read, {t.changed} new or newer, {t.refused} lines refused")
            for problem in t.problems:
                print(f"  {plain(problem)}")
        print(f"the cache now holds {count} records")
    return 1 if any(t.refused for t in results.values()) else 0


def diff(a: argparse.Namespace) -> int:
    """Compare two collections; 1 if they differ."""
    if len(a.files) > 2:
        raise TuningError("only two collections can be compared", hint="taskmap cache diff [LEFT] RIGHT")
    if len(a.files) == 2:
        left, right = (read_all(f) for f in a.files)
    else:
        with opened(a) as database:
            left = database.records()
        right = read_all(a.files[0])
    names = [str(f) for f in a.files] if len(a.files) == 2 else ["here", str(a.files[0])]
    found = differences(left, right)
    if a.json:
        print_json([
            {"operator": str(d.operator), "config": d.config, "left": _json(d.left), "right": _json(d.right)}
            for d in found
        ])  # fmt: skip
        return 1 if found else 0
    rows = [(str(d.operator), d.config, _side(d.left), _side(d.right)) for d in found]
    if rows:
        print(table(("operator", "config", *(Path(n).name for n in names)), rows, left=2))
    print(f"{len(found)} configurations differ between {plain(names[0])} and {plain(names[1])}")
    return 1 if found else 0


def _side(record: Record | None) -> str:
    if record is None:
        return "-"
    return duration(record.typical) if record.seconds else record.verdict.value


def _json(record: Record | None) -> dict[str, Any] | None:
    return None if record is None else as_json(record)
