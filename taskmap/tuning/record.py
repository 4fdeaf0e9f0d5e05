"""Records of the tuning cache: a measurement, its operator and its conditions."""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

from taskmap.ir.errors import TuningError

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


def to_text(record: Record) -> str:
    """One line of JSON with a checksum, which ``from_text`` reads. Its keys are sorted, so the checksum comes first."""
    content = {
        "conditions": {name: getattr(record.conditions, name) for name in _CONDITIONS},
        "config": record.config,
        "measured_at": record.measured_at,
        "operator": {name: getattr(record.operator, name) for name in _OPERATOR},
        "reason": record.reason[:_LONGEST_REASON].encode(errors="replace").decode(),
        "seconds": record.seconds,
        "verdict": record.verdict.value,
    }
    text = _encode(content)
    return f'{HEAD}{_digest(text)}", {text[1:]}'


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
        return Record(
            operator=Operator(**{f.name: _text(content["operator"][f.name]) for f in fields(Operator)}),
            config=_text(content["config"]),
            verdict=Verdict(_text(content["verdict"])),
            conditions=_conditions(content["conditions"]),
            measured_at=_number(content["measured_at"], 0.0, _LAST_DATE),
            seconds=_samples(content["seconds"]),
            reason=_text(content["reason"], _LONGEST_REASON),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise TuningError("a line is not a tuning record", why=f"{type(error).__name__}: {error}") from error


def _conditions(content: Mapping[str, Any]) -> Conditions:
    threads = content["threads"]
    if isinstance(threads, bool) or not isinstance(threads, int) or not 0 <= threads <= _MOST_THREADS:
        raise ValueError("threads are a whole number")
    return Conditions(
        device=_text(content["device"]),
        threads=threads,
        compiler=_text(content["compiler"]),
        version=_text(content["version"]),
        driver=_text(content["driver"]),
        clock=_number(content["clock"], 0.0, 1e9),
    )


def _samples(value: object) -> tuple[float, ...]:
    if not isinstance(value, list) or len(value) > _MOST_SAMPLES:
        raise TypeError(f"samples are a list of {_MOST_SAMPLES} numbers at most")
    return tuple(_number(s, _SHORTEST, _LONGEST_RUN) for s in value)


def _number(value: object, least: float, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        raise ValueError(f"a number between {least:g} and {most:g} was expected")
    return float(value)


def _text(value: object, longest: int = _LONGEST) -> str:
    if not isinstance(value, str) or len(value) > longest:
        raise TypeError(f"a text of {longest} characters at most was expected")
    value.encode()  # an unpaired surrogate cannot be stored: a UnicodeEncodeError is a ValueError
    return value


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


_DIGITS = 16
_CONDITIONS = tuple(f.name for f in fields(Conditions))
_OPERATOR = tuple(f.name for f in fields(Operator))
_encode = json.JSONEncoder(sort_keys=True).encode
_DECODER = json.JSONDecoder(parse_constant=_no_constant)
