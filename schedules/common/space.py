"""What may be tuned: an operator in a canonical form, and the configurations that compute it.

Tuning measures the operator alone, without what is fused with it: operators of one form share what is known of them,
whichever model they stand in, and a machine that has only the form can measure it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from taskmap.ir.construct import static_size
from taskmap.ir.errors import ScheduleError, TypeMismatchError
from taskmap.ir.nodes import Dim, Expr, Kernel, Var
from taskmap.ir.target import Target
from taskmap.ir.task import Task
from taskmap.ir.types import DType, dtype_named
from taskmap.ir.util.lazy import lazily
from taskmap.ir.visit import walk_exprs

_size_of: Callable[[Dim, Mapping[Var, int]], int] = lazily("taskmap.ir.interp.definitions", "size_of")

Config = Hashable
"""A template's own frozen dataclass, whose ``str`` its problem reads back."""


class Problem(Protocol):
    """One operator of one template; ``shapes``, ``dtypes`` and ``layout`` are canonical text, and say all of it."""

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

    def task(self) -> Task:
        """The operator with nothing fused to it."""

    def dims(self) -> tuple[int, ...]:
        """Values of the task's symbolic sizes, for which it is tuned."""

    def default(self, target: Target) -> Config:
        """The configuration that is used untuned."""

    def configs(self, target: Target) -> tuple[Config, ...]:
        """At most 200 valid configurations."""

    def cycles(self, config: Config, target: Target) -> float:
        """What the cost model says of a configuration."""

    def read(self, text: str, target: Target) -> Config | None:
        """The configuration with this text, if it is valid here."""

    def kernel(self, task: Task, config: Config, target: Target) -> Kernel:
        """The template's kernel of a task of this form. Raises ScheduleError."""


@dataclass(frozen=True, slots=True)
class Space:
    """The configurations of a problem on a target, those first that the cost model expects to be fastest."""

    problem: Problem
    target: Target
    default: Config
    configs: tuple[Config, ...]
    cycles: tuple[float, ...]

    def named(self, text: str) -> Config | None:
        """The configuration with this text."""
        return next((c for c in self.configs if str(c) == text), None)


def space_of(problem: Problem, target: Target) -> Space:
    """The space of a problem. Equal costs keep the order of ``problem.configs``."""
    costs = sorted(
        ((problem.cycles(c, target), n, c) for n, c in enumerate(problem.configs(target))), key=lambda x: x[:2]
    )
    configs = tuple(c for _, _, c in costs)
    return Space(problem, target, problem.default(target), configs, tuple(cost for cost, _, _ in costs))


@dataclass(frozen=True, slots=True)
class Template:
    """How problems of a template are found in tasks, and read back from their text."""

    name: str
    find: Callable[[Task, Target, Mapping[Var, int]], Problem | None]
    read: Callable[[str, str, str], Problem]


def likely(dim: Dim, hints: Mapping[Var, int]) -> int | None:
    """A size, or what it is likely to be; None where nothing hints at it."""
    known = static_size(dim)
    if known is not None:
        return known
    names = {e for e in walk_exprs(dim) if isinstance(e, Var)} if isinstance(dim, Expr) else set()
    return _size_of(dim, hints) if names <= hints.keys() else None


def sizes_text(sizes: Iterable[int], free: Iterable[bool]) -> str:
    """Sizes as problems write them; a question mark before one that is known only when the kernel runs."""
    return "x".join(f"{'?' * unknown}{size}" for size, unknown in zip(sizes, free, strict=True))


def types_text(types: Iterable[DType]) -> str:
    """Element types as problems write them."""
    return ",".join(t.name for t in types)


def read_types(text: str) -> tuple[DType, ...]:
    """What ``types_text`` wrote; nothing where a name is no type's."""
    try:
        return tuple(dtype_named(name) for name in text.split(","))
    except TypeMismatchError:
        return ()


def unreadable(template: str, text: str) -> ScheduleError:
    """The error for text that says no problem of ``template``."""
    return ScheduleError(f"{text!r} is no operator of {template}", hint="taskmap cache list shows what is.")
