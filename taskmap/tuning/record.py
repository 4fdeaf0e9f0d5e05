"""Records of the tuning cache: a measurement, its operator and its conditions."""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import Any

from taskmap.ir.errors import TuningError
from taskmap.ir.util.codec import Codec, Json, many, one_of, real, record, text, whole

DAY = 24 * 3600.0
HEAD = '{"check": "'
"""The first characters of every record's line."""
_LONGEST = 1024
_LONGEST_REASON = 8192
_MOST_SAMPLES = 1000
_MOST_THREADS = 1 << 16
_LAST_DATE = 1e11
_SHORTEST, _LONGEST_RUN = 1e-12, 1e9


class Verdict(Enum):
    """The outcome for a configuration: measured, or the reason why it never will be."""

    OK = "ok"
    WRONG = "wrong"
    CRASHED = "crashed"
    HUNG = "hung"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Operator:
    """The operator of a record. All fields are text in a canonical form, so that equal operators have equal fields.

    name: the template ("cpu.matmul"). shapes, dtypes, layout: of its operands. target: the hardware that the kernel is
    made for ("cpu:avx512").
    """

    name: str
    shapes: str
    dtypes: str
    layout: str
    target: str

    def __str__(self) -> str:
        return f"{self.name} {self.shapes} {self.dtypes} {self.layout} on {self.target}".replace("  ", " ")


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions of a measurement. A time is valid only where all of them are the same, except the clock.

    device: the processor's model. clock: its frequency in MHz, 0 where unknown. threads: of the kernel. driver: of a
    GPU. compiler: with its version and flags. version: of taskmap's templates.
    """

    device: str
    threads: int
    compiler: str
    version: str
    driver: str = ""
    clock: float = 0.0


@dataclass(frozen=True, slots=True)
class Record:
    """One configuration of one operator. ``seconds`` are the samples, empty unless the verdict is OK; ``measured_at``
    is in seconds since 1970."""

    operator: Operator
    config: str
    verdict: Verdict
    conditions: Conditions
    measured_at: float
    seconds: tuple[float, ...] = ()
    reason: str = ""

    def __post_init__(self) -> None:
        if (self.verdict is Verdict.OK) != bool(self.seconds):
            raise TuningError(
                f"a record of {self.operator} is {self.verdict.value} and has {len(self.seconds)} samples",
                hint="A configuration that was measured has samples, and no other has.",
            )
        if not all(math.isfinite(s) and s > 0 for s in self.seconds) or not math.isfinite(self.measured_at):
            raise TuningError(f"a record of {self.operator} holds an invalid time: {self.seconds}")

    @property
    def typical(self) -> float:
        """Seconds per run; infinite if it could not be measured."""
        return typical(self.seconds)

    @property
    def spread(self) -> float:
        """Distance between the quartiles of the samples, as a share of the typical time."""
        if len(self.seconds) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return (high - low) / low

    def stale(self, here: Conditions, now: float) -> str | None:
        """The reason why the record is not valid for ``here`` and ``now``; None if it is."""
        if self.measured_at > now + DAY:
            return "it is from the future: its clock or this one is wrong"
        for f in fields(Conditions):
            then, today = getattr(self.conditions, f.name), getattr(here, f.name)
            if f.name != "clock" and then != today:
                return f"measured with {f.name} {then or 'none'}, and here it is {today or 'none'}"
        return None


def typical(seconds: Sequence[float]) -> float:
    """The typical time: the lower quartile of the samples, because other work on the machine only ever adds time."""
    if len(seconds) < 2:
        return seconds[0] if seconds else math.inf
    return statistics.quantiles(seconds, n=4, method="inclusive")[0]


def to_text(r: Record) -> str:
    """One line of JSON with a checksum, which ``from_text`` reads. Its keys are sorted, so the checksum comes first."""
    if r.reason:
        r = replace(r, reason=r.reason[:_LONGEST_REASON].encode(errors="replace").decode())
    content = _RECORD.write(r)
    line = _encode(content)
    return f'{HEAD}{_digest(line)}", {line[1:]}'


def from_text(line: str) -> Record:
    """The record of a line. Raises TuningError for a line that is invalid, incomplete or was changed."""
    try:
        content = _DECODER.decode(line)
    except (ValueError, RecursionError) as error:
        raise TuningError("a line is not a tuning record", why=f"it is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise TuningError("a line is not a tuning record", why="it is not a JSON object.")
    check = content.pop("check", None)
    rest = line.strip()[len(HEAD) + _DIGITS + 3 :]  # as to_text wrote it; any order of keys is accepted
    if check != _digest("{" + rest) and check != _digest(_again(content)):
        raise TuningError("a tuning record was changed", why="its checksum does not match.")
    return _read(content)


def _again(content: Mapping[str, Any]) -> str:
    try:
        return _encode(content)
    except (ValueError, RecursionError) as error:
        raise TuningError("a line is not a tuning record", why=f"it is nested too deep: {error}") from error


def _read(content: Mapping[str, Any]) -> Record:
    try:
        return _RECORD.read(Json(content, "the record"))
    except ValueError as error:
        raise TuningError("a line is not a tuning record", why=str(error)) from error


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


_DIGITS = 16
_TEXT = text(_LONGEST)
_VERDICTS = one_of([v.value for v in Verdict])
_SECONDS = many(real(_SHORTEST, _LONGEST_RUN))
_RECORD = record(
    Record,
    operator=record(Operator, name=_TEXT, shapes=_TEXT, dtypes=_TEXT, layout=_TEXT, target=_TEXT),
    config=_TEXT,
    verdict=Codec(lambda verdict: verdict.value, lambda j: Verdict(_VERDICTS.read(j))),
    conditions=record(
        Conditions,
        device=_TEXT,
        threads=whole(0, _MOST_THREADS + 1),
        compiler=_TEXT,
        version=_TEXT,
        driver=_TEXT,
        clock=real(0.0, 1e9),
    ),
    measured_at=real(0.0, _LAST_DATE),
    seconds=_SECONDS.where(lambda samples: len(samples) <= _MOST_SAMPLES, f"a list of {_MOST_SAMPLES} numbers at most"),
    reason=text(_LONGEST_REASON),
)
_encode = json.JSONEncoder(sort_keys=True).encode
_DECODER = json.JSONDecoder(parse_constant=_no_constant)
