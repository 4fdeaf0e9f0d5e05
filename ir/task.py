"""Compute definitions and tasks: the values of an operator, and of a fused group of operators.

A ``Compute`` gives the shape of its output and the value of one element as an expression of its inputs. A ``Task`` is a
DAG of such definitions over concrete buffers, which a schedule turns into a kernel. Loads in a definition must be in
bounds wherever they are evaluated; a definition that reads beyond an edge clamps its index and selects.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from taskmap.ir.construct import as_expr, cast
from taskmap.ir.nodes import Buffer, Dim, Expr, ExprLike, Var
from taskmap.ir.types import DType


@dataclass(frozen=True, slots=True, eq=False)
class Compute:
    """out[axes] = body, for axes below shape; ``inputs`` are the formal tensors that body loads."""

    name: str
    inputs: tuple[Buffer, ...]
    shape: tuple[Dim, ...]
    dtype: DType
    axes: tuple[Var, ...]
    body: Expr


def compute(
    name: str,
    inputs: Sequence[Buffer],
    shape: Sequence[Dim],
    element: Callable[..., ExprLike],
    dtype: DType | None = None,
) -> Compute:
    """Define an output of ``shape`` whose element at (i, j, ...) is ``element(i, j, ...)``, converted to ``dtype``."""
    axes = tuple(Var(f"i{d}") for d in range(len(shape)))
    body = as_expr(element(*axes), dtype)
    if dtype is not None:
        body = cast(body, dtype)
    return Compute(name, tuple(inputs), tuple(shape), body.dtype, axes, body)


def formal(name: str, shape: Sequence[Dim], dtype: DType) -> Buffer:
    """A formal tensor parameter of a compute definition."""
    return Buffer(name, dtype, tuple(shape))


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """One definition of a task: out[axes] = body, where body loads the task's inputs or earlier stages' outputs.

    ``label`` names the operator; ``attrs`` holds facts that a template needs beyond the expression (a convolution's
    strides).
    """

    out: Buffer
    axes: tuple[Var, ...]
    body: Expr
    label: str = ""
    attrs: tuple[tuple[str, object], ...] = ()

    @property
    def shape(self) -> tuple[Dim, ...]:
        """The shape of the stage's output."""
        return self.out.shape


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """A fused group: its inputs, its stages in order, those stages' buffers that must be written, and symbolic sizes.

    ``anchor`` is the index of the stage that a template schedules, or None.
    """

    name: str
    inputs: tuple[Buffer, ...]
    stages: tuple[Stage, ...]
    outputs: tuple[Buffer, ...]
    dims: tuple[Var, ...] = ()
    anchor: int | None = None
    producers: dict[Buffer, Stage] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "producers", {s.out: s for s in self.stages})
