"""`taskmap cache list`, `show`, `best`, `tune` and `explain-miss`."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator

from taskmap.cli.cache.common import (
    age,
    as_json,
    by_operator,
    chosen,
    conditions_here,
    isa_of,
    opened,
    stale,
    target_of,
)
from taskmap.cli.operators import problem_of
from taskmap.cli.output import clipped, duration, in_short, paint, plain, print_json, table
from taskmap.cli.plot import distribution
from taskmap.cli.tune.session import TuningMachine, cpu_machine, cuda_machine, report, tune_one
from taskmap.ir.errors import TaskmapError, TuningError
from taskmap.ir.target import Target
from taskmap.options import Options
from taskmap.schedules import Problem, read_problem
from taskmap.targets.choose import host_target
from taskmap.tuning.miss import Miss, nearest
from taskmap.tuning.record import Conditions, Operator, Record, Verdict
from taskmap.tuning.tune import Budget, operator_of


def list_records(a: argparse.Namespace) -> int:
    """List the records that the options select."""
    with opened(a) as database:
        records = chosen(database.records(), a)
    if a.sort == "time":
        records.sort(key=lambda r: (r.typical, str(r.operator), r.config))
    elif a.sort == "date":
        records.sort(key=lambda r: (-r.measured_at, str(r.operator), r.config))
    total, operators = len(records), len({r.operator for r in records})
    records = records[: a.limit]
    if a.json:
        print_json([as_json(r, stale(r)) for r in records])
        return 0
    rows = [(_operator(r.operator), r.config, *_outcome(r), age(r)) for r in records]
    if rows:
        print(table(("operator", "config", "time", "spread", "samples", "verdict", "valid here", "age"), rows, left=2))
    more = f", {len(records)} shown" if len(records) < total else ""
    print(f"{total} records of {operators} operators{more}")
    return 0


def show(a: argparse.Namespace) -> int:
    """Show one operator's space."""
    with opened(a) as database:
        groups = by_operator(chosen(database.records(), a))
    operator, records = _only(groups)
    times = {r.config: r.typical for r in records if r.verdict is Verdict.OK}
    default, pick, total = _space(operator, records)
    if a.json:
        print_json({
            "operator": str(operator), "default": default, "pick": pick, "configs": total,
            "records": [as_json(r, stale(r)) for r in records],
        })  # fmt: skip
        return 0
    print(paint(clipped(str(operator)), "bold"))
    best = min(times.values(), default=1.0)
    rows = [
        (
            r.config,
            *_outcome(r),
            f"{r.typical / best:.2f}" if r.config in times else "-",
            _marks(r.config, default, pick),
        )
        for r in records[: a.limit]
    ]
    print(table(("config", "time", "spread", "samples", "verdict", "valid here", "/ best", ""), rows))
    if len(records) > a.limit:
        print(f"and {len(records) - a.limit} more (--limit)")
    marks = {name: times[c] for name, c in (("default", default), ("cost model", pick)) if c in times}
    print(f"\n{distribution(list(times.values()), marks)}")
    print(f"\n{len(records)} of {total or 'unknown many'} configurations recorded")
    for r in (r for r in records if r.verdict is not Verdict.OK):
        print(f"{paint(r.verdict.value, 'red')}: {clipped(r.config)}: {in_short(r.reason)}")
    return 0


def best(a: argparse.Namespace) -> int:
    """Show the configuration that compilations use here, for every selected operator."""
    with opened(a) as database:
        groups = by_operator(chosen(database.records(), a))
    found = {o: next(_used(o, rs), None) for o, rs in groups.items()}
    if a.json:
        print_json([{"operator": str(o), "best": None if r is None else as_json(r)} for o, r in found.items()])
    else:
        rows = [
            (_operator(o), r.config if r else "(default: no valid record)", duration(r.typical) if r else "-")
            for o, r in found.items()
        ]
        print(table(("operator", "config", "time"), rows, left=2) if rows else "no records")
    return 0 if any(found.values()) else 1


def _used(operator: Operator, records: list[Record]) -> Iterator[Record]:
    """The records that compilations would use, in order of preference."""
    problem = _problem(operator)
    for r in records:
        if problem is not None and r.verdict is Verdict.OK and stale(r) is None:
            if problem.read(r.config, target_of(r)) is not None:
                yield r


def _problem(operator: Operator) -> Problem | None:
    """The problem of a record; None if no template of this version computes it."""
    try:
        return read_problem(operator.name, operator.shapes, operator.dtypes, operator.layout)
    except TaskmapError:
        return None


def tune_again(a: argparse.Namespace) -> int:
    """Measure recorded operators again."""
    with opened(a) as database:
        groups = by_operator(chosen(database.records(), a))
        found = []
        for operator, records in groups.items():
            where = _machine(records[0], None if a.cache_dir is None else str(a.cache_dir))
            problem = _problem(operator)
            if where is None or problem is None:
                why = "there is no such template" if problem is None else "this machine cannot run it"
                print(f"taskmap: skipped {clipped(str(operator))}: {why}", file=sys.stderr)
                continue
            budget = Budget(a.seconds, None, again=True) if a.all else Budget(a.seconds, again=True)
            found.append(tune_one(problem, where, database, budget, quiet=a.json))
    report(found, a.json)
    return 0 if found else 1


def _machine(record: Record, folder: str | None) -> TuningMachine | None:
    """The machine that measures a record's operator; None if this machine cannot run it."""
    if record.operator.target.startswith("cuda:"):
        try:
            where = cuda_machine(None, folder)
        except TaskmapError:
            return None
        return where if str(where.target) == record.operator.target else None
    isa = isa_of(record)
    return None if isa is None else cpu_machine(record.conditions.threads, isa, folder)


def explain_miss(a: argparse.Namespace) -> int:
    """Explain why no record of an operator is valid here."""
    target, here = _here(a)
    operator = operator_of(problem_of(a, target), target)
    with opened(a) as database:
        hit = database.best(operator, here)
        misses = nearest(database.records(), operator, here, time.time()) if hit is None else []
    if a.json:
        found = None if hit is None else as_json(hit)
        print_json({"operator": str(operator), "hit": found, "nearest": [_miss(m) for m in misses]})
        return 0 if hit else 1
    if hit is not None:
        print(f"no miss: {operator} has {clipped(hit.config)}, {duration(hit.typical)}")
        return 0
    threads = f" with {here.threads} threads" if target.kind == "cpu" else ""
    print(f"no valid record of {operator}{threads}")
    for m in misses:
        print(f"\nnearest: {clipped(str(m.record.operator))}, {clipped(m.record.config)}, {duration(m.record.typical)}")
        for part, there, now in m.differs:
            print(f"  {part}: {clipped(there)} there, {clipped(now)} here")
        if m.why:
            print(f"  {plain(m.why)}")
    if not misses:
        print("there are no records at all; create some with taskmap tune")
    return 1


def _here(a: argparse.Namespace) -> tuple[Target, Conditions]:
    """The target that the options describe, and its conditions."""
    if a.target == "cuda":
        where = cuda_machine(None, None if a.cache_dir is None else str(a.cache_dir))
        return where.target, where.here
    threads = a.threads or os.cpu_count() or 1
    target = host_target(Options(isa=a.isa, threads=threads), threads)
    here = conditions_here(threads, target.isa)
    if here is None:
        raise TuningError("records cannot be compared", why="records depend on the C compiler, and there is none here.")
    return target, here


def _miss(m: Miss) -> dict[str, object]:
    parts = [{"part": part, "there": there, "here": here} for part, there, here in m.differs]
    return {"record": as_json(m.record), "differs": parts, "why": m.why}


def _only(groups: dict[Operator, list[Record]]) -> tuple[Operator, list[Record]]:
    if len(groups) == 1:
        return next(iter(groups.items()))
    names = "\n".join(clipped(str(o)) for o in list(groups)[:20])
    raise TuningError(
        "no recorded operator matches the options" if not groups else f"the options match {len(groups)} operators",
        where=names or None,
        hint="Narrow them down with --shapes, --dtypes, --layout or --target."
        if groups
        else "taskmap cache list shows all.",
    )


def _space(operator: Operator, records: list[Record]) -> tuple[str, str, int]:
    """The default, the cost model's pick, and the size of the space; empty if this machine cannot determine them."""
    try:
        problem = read_problem(operator.name, operator.shapes, operator.dtypes, operator.layout)
        target = target_of(records[0])
    except TaskmapError:
        return "", "", 0
    configs = problem.configs(target)
    pick = min(configs, key=lambda c: problem.cycles(c, target))
    return str(problem.default(target)), str(pick), len(configs)


def _marks(config: str, default: str, pick: str) -> str:
    return " ".join(name for name, of in (("default", default), ("model", pick)) if of == config)


def _operator(o: Operator) -> str:
    return f"{o.name} {o.shapes} {o.dtypes} {o.layout} {o.target}"


def _outcome(r: Record) -> tuple[str, str, str, str, str]:
    took, spread = (duration(r.typical), f"{r.spread:.0%}") if r.verdict is Verdict.OK else ("-", "-")
    return took, spread, str(len(r.seconds)), r.verdict.value, "no" if stale(r) else "yes"
