"""What a pass is, and how a pipeline of passes runs. The pipelines themselves are lists, each in one file of its own.

A pass is a frozen dataclass: its options are its fields, and four texts say what it is and why it stands where it does.

    @dataclass(frozen=True, slots=True)
    class LowerMappings:
        name = "lower_mappings"
        before = "register tiles have owners"
        after = "no MappedFor is left"
        why_here = "vectorisation needs to see the innermost loop"

        def run(self, kernel: Kernel) -> Kernel: ...

Dumping, timing and verifying hang on a pipeline from outside, as observers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from taskmap.ir.errors import TaskmapError
from taskmap.ir.nodes import Kernel
from taskmap.ir.printer import print_kernel


class Pass(Protocol):
    """A rewrite of a kernel. Running it changes nothing but what it returns."""

    @property
    def name(self) -> str:
        """A word for dumps and messages."""

    @property
    def before(self) -> str:
        """What must hold of the kernel that comes in; "" for nothing."""

    @property
    def after(self) -> str:
        """What holds of the kernel that goes out."""

    @property
    def why_here(self) -> str:
        """Why it stands after the passes before it and before those after it."""

    def run(self, kernel: Kernel) -> Kernel:
        """The rewritten kernel; the same object when there was nothing to do."""


@dataclass(frozen=True, slots=True)
class Step:
    """One pass that has just run: its place in the pipeline (from 1), its input and output, and the seconds it took."""

    place: int
    by: Pass
    before: Kernel
    after: Kernel
    seconds: float

    @property
    def changed(self) -> bool:
        """Whether the pass returned another kernel."""
        return self.after is not self.before


Observer = Callable[[Step], None]


def run_pipeline(passes: Iterable[Pass], kernel: Kernel, observe: Observer | None = None) -> Kernel:
    """Run ``passes`` in order. ``observe`` sees each step after its pass; what it raises ends the pipeline.

    An error of a pass is placed at the kernel's source unless the pass knew better.
    """
    for place, step in enumerate(passes, 1):
        start = time.perf_counter()
        try:
            result = step.run(kernel)
        except TaskmapError as error:
            error.at(kernel.source)
            raise
        seconds = time.perf_counter() - start
        if observe:
            observe(Step(place, step, kernel, result, seconds))
        kernel = result
    return kernel


def both(*observers: Observer) -> Observer:
    """One observer that calls each of ``observers`` in turn."""

    def observe(step: Step) -> None:
        for observer in observers:
            observer(step)

    return observe


def dump_to(folder: str | Path) -> Observer:
    """An observer that writes one numbered file per pass that changed the kernel, and the kernel before them all."""
    path = Path(folder)

    def observe(step: Step) -> None:
        path.mkdir(parents=True, exist_ok=True)
        if step.place == 1:
            (path / "00_start.txt").write_text(print_kernel(step.before), encoding="utf-8")
        if step.changed:
            (path / f"{step.place:02}_{step.by.name}.txt").write_text(print_kernel(step.after), encoding="utf-8")

    return observe


def explain(passes: Sequence[Pass]) -> str:
    """The pipeline in words: each pass, what holds before and after it, and why it stands where it stands."""
    lines = []
    for place, step in enumerate(passes, 1):
        lines.append(f"{place:2}  {step.name}")
        rows = (("before", step.before), ("after", step.after), ("here because", step.why_here))
        lines.extend(f"      {label}: {text}" for label, text in rows if text)
    return "\n".join(lines)
