"""Tunable problems: an operator in canonical form, and the configurations that compute it.

Tuning measures the operator alone, without its prologue and epilogue. So operators of one form share their
measurements, whichever models they come from, and a machine that has only the form can measure it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from taskmap.ir.construct import static_size
from taskmap.ir.errors import ScheduleError, TypeMismatchError
from taskmap.ir.nodes import Dim, Expr, Kernel, Var
from taskmap.ir.target import Target
from taskmap.ir.task import Task
from taskmap.ir.types import DType, dtype_named
from taskmap.ir.util.lazy import lazily
from taskmap.ir.visit import walk_exprs

if TYPE_CHECKING:
    from taskmap.ir.interp.definitions import size_of as _size_of
else:
    _size_of = lazily("taskmap.ir.interp.definitions", "size_of")

Config = Hashable
"""A template's own frozen dataclass, whose ``str`` its problem reads back."""


class Problem(Protocol):
    """One operator of one template; ``shapes``, ``dtypes`` and ``layout`` are canonical texts that describe it
    completely. The targets that its methods take are of its template's kind: CpuTarget or GpuTarget."""

    @property
    def template(self) -> str: ...

    @property
    def shapes(self) -> str: ...

    @property
    def dtypes(self) -> str: ...

    @property
    def layout(self) -> str: ...

    @property
    def operations(self) -> float:
        """Multiplications and additions of one run."""
        ...

    def task(self) -> Task:
        """The operator alone, without prologue or epilogue."""
        ...

    def dims(self) -> tuple[int, ...]:
        """Values of the task's symbolic sizes for which it is tuned."""
        ...

    def default(self, target: Any) -> Config:
        """The untuned configuration."""
        ...

    def configs(self, target: Any) -> tuple[Config, ...]:
        """At most 200 valid configurations."""
        ...

    def cycles(self, config: Config, target: Any) -> float:
        """Cycles of a configuration by the cost model."""
        ...

    def read(self, text: str, target: Any) -> Config | None:
        """The configuration with this text, if it is valid on ``target``, else None."""
        ...

    def kernel(self, task: Task, config: Config, target: Any) -> Kernel:
        """The template's kernel of a task of this form. Raises ScheduleError."""
        ...


@dataclass(frozen=True, slots=True)
class Space:
    """The configurations of a problem on a target, in ascending order of estimated cost."""

    problem: Problem
    target: Target
    default: Config
    configs: tuple[Config, ...]
    cycles: tuple[float, ...]

    def named(self, text: str) -> Config | None:
        """The configuration with this text, or None."""
        return next((c for c in self.configs if str(c) == text), None)


def space_of(problem: Problem, target: Target) -> Space:
    """The space of a problem. Configurations of equal cost keep the order of ``problem.configs``."""
    costs = sorted(
        ((problem.cycles(c, target), n, c) for n, c in enumerate(problem.configs(target))), key=lambda x: x[:2]
    )
    configs = tuple(c for _, _, c in costs)
    return Space(problem, target, problem.default(target), configs, tuple(cost for cost, _, _ in costs))


@dataclass(frozen=True, slots=True)
class Template:
    """Finds the problems of a template in tasks, and reads them back from their text."""

    name: str
    find: Callable[[Task, Any, Mapping[Var, int]], Problem | None]
    read: Callable[[str, str, str], Problem]


def likely(dim: Dim, hints: Mapping[Var, int]) -> int | None:
    """A size, or its likely value; None if nothing hints at it."""
    known = static_size(dim)
    if known is not None:
        return known
    names = {e for e in walk_exprs(dim) if isinstance(e, Var)} if isinstance(dim, Expr) else set()
    return _size_of(dim, hints) if names <= hints.keys() else None


def sizes_text(sizes: Iterable[int], free: Iterable[bool]) -> str:
    """The sizes as text; a question mark before a size that is known only when the kernel runs."""
    return "x".join(f"{'?' * unknown}{size}" for size, unknown in zip(sizes, free, strict=True))


def types_text(types: Iterable[DType]) -> str:
    """The element types as text."""
    return ",".join(t.name for t in types)


def read_types(text: str) -> tuple[DType, ...]:
    """The types that ``types_text`` wrote; empty if a name is not a type's."""
    try:
        return tuple(dtype_named(name) for name in text.split(","))
    except TypeMismatchError:
        return ()


def unreadable(template: str, text: str) -> ScheduleError:
    """The error for text that does not describe a problem of ``template``."""
    return ScheduleError(
        f"{text!r} does not describe an operator of {template}", hint="taskmap cache list shows those that exist."
    )
