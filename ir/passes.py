"""Passes and pipelines, for kernels and graphs alike. The pipelines themselves are lists, each in one file of its own.

A pass is a frozen dataclass. Its options are its fields. Its texts document its purpose and the reason for its
place; its conditions are checks that run under the option ``verify_passes``.

    @dataclass(frozen=True, slots=True)
    class LowerMappedLoops(Pass[Kernel]):
        name = "lower-mapped-loops"
        before = "every worker is below its mapping's number of workers"
        after = "no task-mapped loop is left"
        why_here = "after registers are distributed; before the passes that work on addresses"
        requires = (NO_DISTRIBUTED_REGISTERS,)
        ensures = (NO_MAPPED_LOOPS,)

        def run(self, program: Kernel) -> Kernel: ...

Dumping, timing and the verifier are attached to a pipeline from outside, as observers.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from taskmap.ir.errors import TaskmapError, VerifyError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Condition(Generic[T]):
    """A property of a program. ``breach(program)`` returns the reason why it does not hold, or None if it holds."""

    text: str
    breach: Callable[[T], str | None]


@dataclass(frozen=True, slots=True)
class Invariant(Generic[T]):
    """A property that a pass preserves. ``breach(given, made)`` returns the reason why it is lost, or None."""

    text: str
    breach: Callable[[T, T], str | None]


class Pass(ABC, Generic[T]):
    """A rewrite of a program, a kernel or a graph. It never modifies its input."""

    __slots__ = ()

    name: ClassVar[str]
    """The name in dumps and messages, in kebab-case."""
    before: ClassVar[str] = ""
    """The property required of the input program, in words; "" if there is none."""
    after: ClassVar[str] = ""
    """The property ensured for the output program, in words."""
    why_here: ClassVar[str] = ""
    """The reason for its place among the passes."""
    requires: ClassVar[tuple[Condition, ...]] = ()  # type: ignore[type-arg]  # a class variable cannot name T
    """The checks of the input program."""
    ensures: ClassVar[tuple[Condition, ...]] = ()  # type: ignore[type-arg]  # a class variable cannot name T
    """The checks of the output program."""
    keeps: ClassVar[tuple[Invariant, ...]] = ()  # type: ignore[type-arg]  # a class variable cannot name T
    """The checks of both together."""

    @abstractmethod
    def run(self, program: T, /) -> T:
        """The rewritten program; the same object if nothing changed."""


@dataclass(frozen=True, slots=True)
class Step(Generic[T]):
    """One pass that has just run: its place in the pipeline (from 1), its input and output, and the seconds it took."""

    place: int
    by: Pass[T]
    before: T
    after: T
    seconds: float

    @property
    def changed(self) -> bool:
        """True if the pass returned another program."""
        return self.after is not self.before


Observer = Callable[[Step[T]], None]


def run_pipeline(
    passes: Iterable[Pass[T]], program: T, observe: Observer[T] | None = None, *, verify: bool = False
) -> T:
    """Run ``passes`` in order. ``observe`` sees each step after its pass; an exception in it ends the pipeline.

    ``verify``: the conditions of every pass are checked. Raises VerifyError, which names the pass and the condition. An
    error of a pass is located at the kernel's source unless it already has a location.
    """
    for place, step in enumerate(passes, 1):
        try:
            if verify:
                _check_before(place, step, program)
            start = time.perf_counter()
            result = step.run(program)
            seconds = time.perf_counter() - start
            if observe:
                observe(Step(place, step, program, result, seconds))
            if verify:  # after the dump, so that it includes a result that fails
                _check_after(place, step, program, result)
        except TaskmapError as error:
            error.at(getattr(program, "source", None))
            raise
        program = result
    return program


def _check_before(place: int, step: Pass[T], program: T) -> None:
    for condition in step.requires:
        if (reason := condition.breach(program)) is not None:
            raise VerifyError(
                f"the pass {step.name!r}, number {place}, cannot run: it requires that {condition.text}", why=reason
            )


def _check_after(place: int, step: Pass[T], given: T, made: T) -> None:
    for condition in step.ensures:
        if (reason := condition.breach(made)) is not None:
            raise VerifyError(
                f"the pass {step.name!r}, number {place}, does not ensure that {condition.text}", why=reason
            )
    for invariant in step.keeps:
        if (reason := invariant.breach(given, made)) is not None:
            raise VerifyError(f"the pass {step.name!r}, number {place}, does not keep {invariant.text}", why=reason)


def both(*observers: Observer[T] | None) -> Observer[T] | None:
    """One observer that calls each of ``observers`` in turn; None without observers."""
    present = [observer for observer in observers if observer is not None]
    if not present:
        return None

    def observe(step: Step[T]) -> None:
        for observer in present:
            observer(step)

    return observe


def dump_each(write: Callable[[str, T], None]) -> Observer[T]:
    """An observer that calls ``write(pass name, program)`` after every pass."""
    return lambda step: write(step.by.name, step.after)


def explain(passes: Sequence[Pass[T]]) -> str:
    """The pipeline as text: each pass with its conditions and the reason for its place."""
    lines = []
    for place, step in enumerate(passes, 1):
        lines.append(f"{place:2}  {step.name}")
        rows = (
            ("before", step.before),
            ("requires", "; ".join(c.text for c in step.requires)),
            ("after", step.after),
            ("ensures", "; ".join(c.text for c in step.ensures)),
            ("keeps", "; ".join(i.text for i in step.keeps)),
            ("here because", step.why_here),
        )
        lines.extend(f"      {label}: {text}" for label, text in rows if text)
    return "\n".join(lines)
