"""The result of a compiler's trial, kept beside the kernel store: `compilers/<key>.json`."""

from __future__ import annotations

import hashlib
import json
import logging
import shlex
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import taskmap
from taskmap.backend.cpu.toolchain import Safer, Toolchain
from taskmap.backend.store.records import read_record, write_record
from taskmap.ir.util.codec import FLAG, TEXT, many, optional, real, record, text, whole
from taskmap.util.own_version import compiler_version, version_of

_log = logging.getLogger(__name__)
_FORMAT = 3

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


_FLAGS = many(TEXT)
_VERDICT = record(
    CompilerVerdict,
    safer=optional(record(Safer, integers=_FLAGS, floats=_FLAGS)),
    count=whole(),
    wrong=many(text(1 << 20)),
    halves=FLAG,
    seconds=real(0.0, 1e9),
)


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
        return read_record(_path(root, key), key, _VERDICT)
    except (OSError, ValueError) as error:
        _log.debug("cannot read a compiler's verdict %s: %s", _path(root, key), error)
        return None


def keep_verdict(root: Path, key: str, toolchain: Toolchain, verdict: CompilerVerdict) -> None:
    """Keep ``verdict``, if possible."""
    path = _path(root, key)
    facts = {"compiler": toolchain.identity, "command": toolchain.command, "flags": toolchain.flags}
    try:
        write_record(path, key, _VERDICT, verdict, facts)
    except OSError as error:
        _log.debug("cannot keep a compiler's verdict %s: %s", path, error)


def _path(root: Path, key: str) -> Path:
    return root / "compilers" / f"{key}.json"
