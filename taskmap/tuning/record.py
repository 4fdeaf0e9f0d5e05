"""Records of the tuning cache: what was measured, of which operator, under which conditions."""

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


class Verdict(Enum):
    """What became of a configuration: measured, or why it never will be."""

    OK = "ok"
    WRONG = "wrong"
    CRASHED = "crashed"
    HUNG = "hung"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Operator:
    """What a record is of. All fields are text in a canonical form, so that equal operators have equal fields.

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
    """Under what a time was measured. A time counts only where all of them are the same, the clock aside.

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
    """One configuration of one operator. ``seconds`` are the samples, none unless the verdict is OK; ``measured_at`` is
    in seconds since 1970."""

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
            raise TuningError(f"a record of {self.operator} holds a time that is none: {self.seconds}")

    @property
    def typical(self) -> float:
        """Seconds of one run; infinite where it could not be measured."""
        return typical(self.seconds)

    @property
    def spread(self) -> float:
        """Distance between the quartiles of the samples, as a share of the typical time."""
        if len(self.seconds) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return (high - low) / low

    def stale(self, here: Conditions, now: float) -> str | None:
        """Why the record says nothing about ``here`` and ``now``; None when it does."""
        if self.measured_at > now + DAY:
            return "it is from the future: its clock or this one is wrong"
        for f in fields(Conditions):
            then, today = getattr(self.conditions, f.name), getattr(here, f.name)
            if f.name != "clock" and then != today:
                return f"measured with {f.name} {then or 'none'}, and here it is {today or 'none'}"
        return None


def typical(seconds: Sequence[float]) -> float:
    """What samples say of a time: their lower quartile, since what else a machine does only ever adds to them."""
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
        "reason": record.reason,
        "seconds": record.seconds,
        "verdict": record.verdict.value,
    }
    text = _encode(content)
    return f'{_HEAD}{_digest(text)}", {text[1:]}'


def from_text(line: str) -> Record:
    """The record of a line. Raises TuningError for a line that is none, says too little or was changed."""
    try:
        content = _DECODER.decode(line)
    except (ValueError, RecursionError) as error:
        raise TuningError("a line is not a tuning record", why=f"it is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise TuningError("a line is not a tuning record", why="it is not a JSON object.")
    check = content.pop("check", None)
    rest = line.strip()[len(_HEAD) + _DIGITS + 3 :]  # as to_text wrote it; another order of keys is as good
    if check != _digest("{" + rest) and check != _digest(_encode(content)):
        raise TuningError("a tuning record was changed", why="its checksum does not match.")
    return _read(content)


def _read(content: Mapping[str, Any]) -> Record:
    try:
        return Record(
            operator=Operator(**_texts(content["operator"], Operator)),
            config=_text(content["config"]),
            verdict=Verdict(content["verdict"]),
            conditions=_conditions(content["conditions"]),
            measured_at=float(content["measured_at"]),
            seconds=tuple(float(s) for s in content["seconds"]),
            reason=_text(content["reason"]),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise TuningError("a line is not a tuning record", why=f"{type(error).__name__}: {error}") from error


def _conditions(content: Mapping[str, Any]) -> Conditions:
    return Conditions(
        device=_text(content["device"]),
        threads=int(content["threads"]),
        compiler=_text(content["compiler"]),
        version=_text(content["version"]),
        driver=_text(content["driver"]),
        clock=float(content["clock"]),
    )


def _texts(content: Mapping[str, Any], kind: type[Operator]) -> dict[str, str]:
    return {f.name: _text(content[f.name]) for f in fields(kind)}


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


_DIGITS = 16
_HEAD = '{"check": "'
_CONDITIONS = tuple(f.name for f in fields(Conditions))
_OPERATOR = tuple(f.name for f in fields(Operator))
_encode = json.JSONEncoder(sort_keys=True).encode
_DECODER = json.JSONDecoder(parse_constant=_no_constant)
