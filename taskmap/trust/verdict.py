"""The result of a compiler's trial, kept beside the kernel store: `compilers/<key>.json`."""

from __future__ import annotations

import hashlib
import json
import logging
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import taskmap
from taskmap.backend.cpu.toolchain import Safer, Toolchain
from taskmap.ir.util.atomic_write import atomic_write
from taskmap.util.own_version import compiler_version, version_of

_log = logging.getLogger(__name__)
_FORMAT = 2

Flags = tuple[str, ...]


class UntriedError(Exception):
    """The samples could not be compiled or loaded, so that nothing is known about their results."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A kernel that a compiler compiled wrongly, and its error."""

    kernel: str
    what: str


@dataclass(frozen=True, slots=True)
class Climb:
    """The ladder's result for one kind of kernel: the rung, None if no rung is right; how many kernels were tried and
    whether any has f16; and the faults on the rungs below."""

    flags: Flags | None
    count: int
    halves: bool
    wrong: tuple[tuple[Flags, tuple[Fault, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a compiler's trial."""

    integers: Climb
    floats: Climb

    @property
    def safer(self) -> Safer | None:
        """The flags to add; None for a compiler that must not be used."""
        if self.integers.flags is None or self.floats.flags is None:
            return None
        return Safer(self.integers.flags, self.floats.flags)


@dataclass(frozen=True, slots=True)
class CompilerVerdict:
    """The outcome of a trial of ``count`` kernels.

    safer: flags to add; None for a compiler that may not be used. wrong: for each rung with faults, its flags and
    the first kernels that were wrong. halves: kernels with f16 could be compiled. seconds: duration of the trial.
    """

    safer: Safer | None
    count: int
    wrong: tuple[str, ...] = ()
    halves: bool = True
    seconds: float = 0.0

    def __str__(self) -> str:
        tried = f"{self.count} kernels tried in {self.seconds:.1f} s" + ("" if self.halves else "; it has no f16")
        if self.safer is None:
            return f"wrong, and not used ({tried}): {self.wrong[-1]}"
        if self.safer == Safer():
            return f"right ({tried})"
        kinds = (("with integers", self.safer.integers), ("of floats", self.safer.floats))
        added = "; ".join(f"kernels {kind} get {shlex.join(flags)}" for kind, flags in kinds if flags)
        return f"{added} ({tried}); {self.wrong[0]}"


def verdict_of(outcome: Outcome, seconds: float) -> CompilerVerdict:
    """The verdict of an outcome."""
    wrong = []
    for climb in (outcome.integers, outcome.floats):
        for flags, found in climb.wrong:
            first, others = found[0], len(found) - 1
            more = f" and {others} more" if others else ""
            wrong.append(f"with {shlex.join(flags) or 'the usual flags'} {first.kernel}: {first.what}{more}")
    count, halves = outcome.integers.count + outcome.floats.count, outcome.integers.halves and outcome.floats.halves
    return CompilerVerdict(outcome.safer, count, tuple(wrong), halves, round(seconds, 2))


def verdict_key(toolchain: Toolchain, fingerprint: tuple[str, int, int]) -> str:
    """The name of a compiler's verdict: its path and file, version, flags, and everything that decides the corpus."""
    parts = [_FORMAT, toolchain.identity, toolchain.command, fingerprint, toolchain.flags, toolchain.isa, _corpus()]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


@lru_cache(maxsize=1)
def _corpus() -> str:
    """A version of the corpus: a hash of the definitions, the schedules and the generator."""
    definitions = Path(taskmap.__path__[0]) / "graph" / "ops"
    return f"{compiler_version()} {version_of([definitions, Path(__file__).parent])}"


def find_verdict(root: Path, key: str) -> CompilerVerdict | None:
    """The verdict kept under ``key``; None if there is none or it is damaged."""
    try:
        record = json.loads(_path(root, key).read_bytes())
        if record["key"] != key or record["check"] != _check(record["verdict"]):
            raise ValueError("the checksum does not match")
        return _read(record["verdict"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        _log.debug("cannot read a compiler's verdict %s: %s", _path(root, key), error)
        return None


def keep_verdict(root: Path, key: str, toolchain: Toolchain, verdict: CompilerVerdict) -> None:
    """Keep ``verdict``, if possible."""
    path = _path(root, key)
    content = asdict(verdict)
    record = {
        "key": key,
        "check": _check(content),
        "verdict": content,
        "compiler": toolchain.identity,
        "command": list(toolchain.command),
        "flags": list(toolchain.flags),
    }
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        atomic_write(path, json.dumps(record, indent=1))
    except OSError as error:
        _log.debug("cannot keep a compiler's verdict %s: %s", path, error)


def _path(root: Path, key: str) -> Path:
    return root / "compilers" / f"{key}.json"


def _check(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _read(content: Mapping[str, Any]) -> CompilerVerdict:
    safer = content["safer"]
    if safer is not None:
        safer = Safer(_flags(safer["integers"]), _flags(safer["floats"]))
    wrong, halves, seconds = _flags(content["wrong"]), bool(content["halves"]), float(content["seconds"])
    return CompilerVerdict(safer, int(content["count"]), wrong, halves, seconds)


def _flags(words: Any) -> tuple[str, ...]:
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise TypeError("not a list of words")
    return tuple(words)
