"""`taskmap cache verify`, `prune`, `stats`, `clear` and `path` for records."""

from __future__ import annotations

import argparse
import os
import random
import time
from collections import Counter
from dataclasses import dataclass

from taskmap.backend.store.objects import default_path
from taskmap.cli.cache.common import by_operator, chosen, isa_of, opened, stale
from taskmap.cli.output import Bar, answer, duration, plain, print_json, size, table
from taskmap.ir.errors import ScheduleError, TuningError
from taskmap.schedules import read_problem
from taskmap.tuning.isolation import attempt
from taskmap.tuning.job import Job, Setting
from taskmap.tuning.record import DAY, Record, Verdict, typical

_LIKE = 1.25
"""A record is no longer right if a new measurement differs by more than this factor."""
_SAMPLES = 5


@dataclass(frozen=True, slots=True)
class Again:
    """A record measured again. ``now``: seconds, None if it could not be measured, for the reason ``why``."""

    record: Record
    now: float | None
    why: str = ""

    @property
    def holds(self) -> bool:
        """True if the record is still right."""
        return self.now is not None and 1 / _LIKE < self.now / self.record.typical < _LIKE


def verify(a: argparse.Namespace) -> int:
    """Check the file and every record, and measure some again; 1 if anything is wrong."""
    with opened(a) as database:
        kept = database.verify()
        check = database.check()
        sample = _sample(database.records(), a.measure or 0)
        bar = Bar("measuring", a.json)
        measured = []
        for number, record in enumerate(sample):
            bar.show(number, len(sample))
            measured.append(_again(record, None if a.cache_dir is None else str(a.cache_dir)))
        bar.close()
    sound = kept is None and not check.damaged and all(m.holds for m in measured)
    if a.json:
        print_json({
            "records": check.records, "damaged": check.damaged, "repaired": None if kept is None else str(kept),
            "measured": [{"operator": str(m.record.operator), "config": m.record.config, "then": m.record.typical,
                          "now": m.now, "holds": m.holds, "why": m.why} for m in measured],
        })  # fmt: skip
        return 0 if sound else 1
    if kept is not None:
        print(f"the file was damaged: all readable records are in a new one; the old one is {kept}")
    print(f"{check.records} records, {check.damaged} of them damaged")
    for m in measured:
        now = m.why if m.now is None else f"{duration(m.now)} now ({m.now / m.record.typical:.2f})"
        what = f"{plain(str(m.record.operator))} {plain(m.record.config)}"
        print(f"{'holds' if m.holds else 'does not hold'}: {what}: {duration(m.record.typical)} then, {plain(now)}")
    return 0 if sound else 1


def prune(a: argparse.Namespace) -> int:
    """Remove the records that the options select."""
    if a.max_size is not None:
        raise TuningError(
            "records are limited by number, not by size", hint="Use --max-records, or --kernels with --max-size."
        )
    texts = (a.max_records, a.name, a.shapes, a.dtypes, a.layout, a.target, a.verdict)
    if a.older is None and a.stale is None and not any(texts):
        raise TuningError("nothing is selected for removal", hint="taskmap cache clear --yes removes everything.")
    with opened(a) as database:
        records = chosen(database.records(), a)
        if a.older is not None:
            limit = time.time() - a.older * DAY
            records = [r for r in records if r.measured_at < limit]
        if a.max_records is not None:
            records = sorted(records, key=lambda r: r.measured_at)[: max(0, len(records) - a.max_records)]
        count = len(records) if a.dry_run else database.remove(records)
        left = database.count()
    done = "would be removed" if a.dry_run else "removed"
    content = {"removed": 0 if a.dry_run else count, "would_remove": count, "left": left}
    answer(a.json, content, f"{count} records {done}, {left} left")
    return 0


def stats(a: argparse.Namespace) -> int:
    """Show numbers and sizes."""
    with opened(a) as database:
        records = database.records()
        bytes_ = database.path.stat().st_size if database.path.exists() else 0
        path = database.path
    fresh = sum(stale(r) is None for r in records)
    counts = {
        "verdicts": Counter(r.verdict.value for r in records),
        "targets": Counter(r.operator.target for r in records),
        "devices": Counter(r.conditions.device for r in records),
        "versions": Counter(r.conditions.version for r in records),
    }
    operators = len(by_operator(records))
    if a.json:
        print_json({
            "path": str(path), "bytes": bytes_, "records": len(records), "operators": operators, "count_here": fresh,
            **{k: dict(v) for k, v in counts.items()},
        })  # fmt: skip
        return 0
    print(f"{path}: {size(bytes_)}, {len(records)} records of {operators} operators, {fresh} valid here")
    for name, found in counts.items():
        if found:
            print(table((name, "records"), [(key, str(n)) for key, n in found.most_common()]))
    return 0


def clear(a: argparse.Namespace) -> int:
    """Remove everything."""
    if not a.yes:
        raise TuningError("this removes all records", hint="Add --yes. To keep a copy, run taskmap cache export first.")
    with opened(a) as database:
        count = database.clear()
    answer(a.json, {"removed": count}, f"{count} records removed")
    return 0


def path(a: argparse.Namespace) -> int:
    """Show the cache's path."""
    root = default_path() if a.cache_dir is None else a.cache_dir.absolute()
    found = root if a.kernels else root / "tuning.sqlite"
    answer(a.json, {"path": str(found), "exists": found.exists(), "writable": os.access(root, os.W_OK)}, str(found))
    return 0


def _sample(records: list[Record], count: int) -> list[Record]:
    """A random sample of the records that are valid here."""
    fresh = [r for r in records if r.verdict is Verdict.OK and stale(r) is None]
    return random.sample(fresh, min(count, len(fresh)))


def _again(record: Record, folder: str | None) -> Again:
    operator = record.operator
    try:
        read_problem(operator.name, operator.shapes, operator.dtypes, operator.layout)
    except ScheduleError as error:
        return Again(record, None, error.what)
    setting = Setting(record.conditions.threads, isa_of(record), cache_dir=folder)
    outcome = attempt(Job(operator, setting, (record.config,), _SAMPLES))
    if record.config in outcome.failures:
        return Again(record, None, outcome.failures[record.config].reason)
    return Again(record, typical(outcome.samples.get(record.config, [])))
