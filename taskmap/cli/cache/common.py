"""Shared by the actions of `taskmap cache`: the database, the conditions here, and the selection of records."""

from __future__ import annotations

import argparse
import fnmatch
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from taskmap.backend.cpu.host import detect_host
from taskmap.ir.errors import TaskmapError
from taskmap.ir.target import Target, cuda_target
from taskmap.ir.util.lazy import lazily
from taskmap.options import Options
from taskmap.targets.choose import host_target
from taskmap.trust.compiler import trusted_toolchain
from taskmap.tuning.database import Database
from taskmap.tuning.here import conditions, database_path
from taskmap.tuning.job import Setting
from taskmap.tuning.record import Conditions, Operator, Record

if TYPE_CHECKING:
    from taskmap.tuning.cuda_bench import gpu_here as _gpu_here
else:
    _gpu_here = lazily("taskmap.tuning.cuda_bench", "gpu_here")


@contextmanager
def opened(arguments: argparse.Namespace) -> Iterator[Database]:
    """The database named by the options."""
    database = Database(database_path(None if arguments.cache_dir is None else str(arguments.cache_dir)))
    try:
        yield database
    finally:
        database.close()


@lru_cache(maxsize=8)
def conditions_here(threads: int, isa: str | None = None) -> Conditions | None:
    """The conditions here, for kernels of this many threads; None without a compiler."""
    try:
        return conditions(trusted_toolchain(isa=isa), threads)
    except TaskmapError:
        return None


def isa_of(record: Record) -> str | None:
    """The instruction set of a record's target, if this machine supports it."""
    isa = record.operator.target.partition(":")[2]
    host = detect_host()
    return isa if isa in ("avx512", "avx2", "generic") and host.supports(isa) else None  # type: ignore[arg-type]


def target_of(record: Record) -> Target:
    """The target of a record's kernel, as far as it is known here; an absent GPU is represented by a typical GPU's
    data. Raises UnsupportedError and InvalidOptionError."""
    kind, _, isa = record.operator.target.partition(":")
    if kind == "cuda":
        here = gpu_here()
        return here[0] if here is not None and here[0].isa == isa else cuda_target(isa)
    return host_target(Options(isa=isa_of(record), threads=record.conditions.threads or 1), 1)


@lru_cache(maxsize=1)
def gpu_here() -> tuple[Target, Conditions] | None:
    """This machine's GPU; None if there is none, or no compiler for it."""
    try:
        return _gpu_here(Setting(1))
    except TaskmapError:
        return None


def stale(record: Record, now: float | None = None) -> str | None:
    """The reason why a record is not valid on this machine; None if it is."""
    if record.operator.target.startswith("cuda:"):
        gpu = gpu_here()
        if gpu is None or str(gpu[0]) != record.operator.target:
            return f"this machine does not run {record.operator.target}"
        return record.stale(gpu[1], time.time() if now is None else now)
    isa = isa_of(record)
    if isa is None:
        return f"this machine does not run {record.operator.target}"
    here = conditions_here(record.conditions.threads, isa)
    return "there is no C compiler here" if here is None else record.stale(here, time.time() if now is None else now)


def chosen(records: Iterable[Record], arguments: argparse.Namespace) -> list[Record]:
    """The records that the options select."""
    now = time.time()
    return [r for r in records if _matches(r, arguments, now)]


def _matches(r: Record, a: argparse.Namespace, now: float) -> bool:
    o = r.operator
    texts = [(a.name, o.name), (a.target, o.target)]
    exact = [(a.shapes, o.shapes), (a.dtypes, o.dtypes), (a.layout, o.layout)]
    return (
        all(wanted is None or wanted in text for wanted, text in texts)
        and all(wanted is None or fnmatch.fnmatchcase(text, wanted) for wanted, text in exact)
        and (a.verdict is None or r.verdict.value == a.verdict)
        and (a.stale is None or a.stale == (stale(r, now) is not None))
    )


def by_operator(records: Iterable[Record]) -> dict[Operator, list[Record]]:
    """Records in groups, fastest first."""
    found: dict[Operator, list[Record]] = {}
    for record in records:
        found.setdefault(record.operator, []).append(record)
    return {
        o: sorted(rs, key=lambda r: (r.typical, r.config)) for o, rs in sorted(found.items(), key=lambda x: str(x[0]))
    }


def as_json(record: Record, reason: str | None = None) -> dict[str, Any]:
    """A record as JSON data; ``reason``: why it is not valid here."""
    return {
        **{name: getattr(record.operator, name) for name in ("name", "shapes", "dtypes", "layout", "target")},
        "config": record.config,
        "verdict": record.verdict.value,
        "seconds": record.typical,
        "spread": record.spread,
        "samples": list(record.seconds),
        "measured_at": record.measured_at,
        "reason": record.reason,
        "stale": reason,
        "conditions": {
            name: getattr(record.conditions, name)
            for name in ("device", "threads", "compiler", "version", "driver", "clock")
        },
    }


def age(record: Record) -> str:
    """The time since it was measured."""
    days = (time.time() - record.measured_at) / 86400
    return "the future" if days < -1 else f"{max(days, 0):.0f} d" if days >= 1 else f"{max(days, 0) * 24:.1f} h"
