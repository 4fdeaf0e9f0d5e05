"""Explains why no record of an operator applies here: the nearest records, and the differences of their keys."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from taskmap.tuning.record import Conditions, Operator, Record, Verdict


@dataclass(frozen=True, slots=True)
class Miss:
    """A record that does not apply. ``differs``: (part, there, here) of its key; ``why``: if the keys do not
    differ, the reason."""

    record: Record
    differs: tuple[tuple[str, str, str], ...]
    why: str = ""


def nearest(records: Iterable[Record], operator: Operator, here: Conditions, now: float, most: int = 3) -> list[Miss]:
    """The records that differ in the fewest parts from ``operator`` under the conditions ``here``; for each operator
    and set of conditions, the fastest."""
    found: dict[tuple[object, ...], Miss] = {}
    for record in records:
        differs = (*_differs(record.operator, operator), *_differs(record.conditions, here))
        why = ""
        if not differs:
            why = record.stale(here, now) or (
                "" if record.verdict is Verdict.OK else f"{record.verdict.value}: {record.reason}"
            )
        miss = Miss(record, differs, why)
        key = (record.operator, differs)
        if key not in found or _order(miss) < _order(found[key]):
            found[key] = miss
    return sorted(found.values(), key=_order)[:most]


def _order(miss: Miss) -> tuple[int, float, str, str]:
    return len(miss.differs), miss.record.typical, str(miss.record.operator), miss.record.config


def _differs(there: Operator | Conditions, here: Operator | Conditions) -> tuple[tuple[str, str, str], ...]:
    names = [f.name for f in fields(there) if f.name != "clock"]
    pairs = ((name, str(getattr(there, name)), str(getattr(here, name))) for name in names)
    return tuple(pair for pair in pairs if pair[1] != pair[2])
