"""A few kernels that cover all: every template at every corner of its space on every type, and every operator with
every type and size, each in at least one of them.

Mistakes that show only for one operator at one corner are left to the full set, python -m benchmarks.cuda_corners.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tests.cuda_proof.subjects import Choice, Subject
from tests.schedules.cuda_running import cuda

Part = tuple[str, ...]
"""("corner", template, corner, types) or ("operator", template, operator, types)."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A candidate kernel: a subject with a configuration, and the parts that it covers."""

    subject: Subject
    config: str
    parts: frozenset[Part]


def candidates(subjects: Iterable[Subject], architectures: Sequence[str]) -> list[Candidate]:
    """Every subject with every configuration that it has for any of the architectures."""
    found = []
    for subject in subjects:
        ends: dict[str, set[str]] = {}
        for isa in architectures:
            for config, choice in subject.corners(cuda(isa)).items():
                ends.setdefault(config, set()).update(_named(choice, isa))
        found += [Candidate(subject, config, frozenset(_parts(subject, e))) for config, e in ends.items()]
    return found


def _named(choice: Choice, isa: str) -> Iterator[str]:
    """The names of corners; that of the default depends on the architecture."""
    return (f"{isa}, default" if corner == "default" else corner for corner in choice.corners)


def _parts(subject: Subject, corners: Iterable[str]) -> Iterator[Part]:
    yield "operator", subject.template, subject.operator, subject.types
    for corner in corners:
        yield "corner", subject.template, corner, subject.types


def covered(some: Iterable[Candidate]) -> frozenset[Part]:
    """The parts that they cover together."""
    return frozenset[Part]().union(*(c.parts for c in some))


def covering(every: Sequence[Candidate]) -> list[Candidate]:
    """A subset that covers the parts of all; in their order, the same in every run.

    Greedy: repeatedly the one with the most missing parts; then, the last chosen first, superfluous ones are dropped.
    """
    missing = covered(every)
    rest, chosen = list(every), []
    while missing:
        best = max(rest, key=lambda c: len(c.parts & missing))  # of several the first
        chosen.append(best)
        rest.remove(best)
        missing -= best.parts
    for c in reversed(list(chosen)):
        if c.parts <= covered(o for o in chosen if o is not c):
            chosen.remove(c)
    return [c for c in every if c in chosen]
