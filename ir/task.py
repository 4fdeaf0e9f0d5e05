"""Compute definitions and tasks: the values of an operator, and of a fused group of operators.

A ``Compute`` gives the shape of its output and the value of one element as an expression of its inputs. A ``Task`` is a
DAG of such definitions over concrete buffers, which a schedule turns into a kernel. Loads in a definition must be in
bounds wherever they are evaluated; a definition that reads beyond an edge clamps its index and selects.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from taskmap.ir.construct import as_expr, cast, reduce
from taskmap.ir.nodes import Buffer, Dim, Expr, ExprLike, Var
from taskmap.ir.types import DType
from taskmap.ir.visit import loads_in, walk_exprs


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

    def __getitem__(self, at: ExprLike | tuple[ExprLike, ...]) -> Expr:
        return self.out[at]


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
    written: object = field(init=False, repr=False, default=None)
    """The task's structure, written once (see analysis/key.py)."""

    @staticmethod
    def of(name: str, *stages: Stage) -> Task:
        """The task of these stages, each of which loads earlier ones; the last one is written. Its inputs are the other
        tensors that they load, in order of their first use."""
        made = {s.out for s in stages}
        read = (e.buffer for s in stages for e in loads_in(s.body) if e.buffer not in made)
        inputs = tuple(dict.fromkeys(read))
        sizes = (n for b in (*inputs, *made) for n in b.shape if isinstance(n, Expr))
        dims = dict.fromkeys(e for n in sizes for e in walk_exprs(n) if isinstance(e, Var))
        return Task(name, inputs, stages, (stages[-1].out,), tuple(dims))

    def __post_init__(self) -> None:
        object.__setattr__(self, "producers", {s.out: s for s in self.stages})


def stage(name: str, shape: Sequence[Dim], element: Callable[..., ExprLike], dtype: DType | None = None) -> Stage:
    """A stage whose element at (i, j, ...) is ``element(i, j, ...)``, converted to ``dtype``; the function's parameters
    name the axes. Stages and tensors are indexed with square brackets.

    exponentials = stage("e", (m, n), lambda i, j: exp(x[i, j] - highest[i]))
    """
    axes = tuple(Var(v) for v in element.__code__.co_varnames[: len(shape)])
    body = as_expr(element(*axes), dtype)
    body = body if dtype is None else cast(body, dtype)
    return Stage(Buffer(name, body.dtype, tuple(shape)), axes, body)


def reduced(op: str, extents: Dim | Sequence[Dim], element: Callable[..., ExprLike]) -> Expr:
    """``element(k, ...)`` for k below each of ``extents``, summed by ``op``: sum prod max min any all.

    total = stage("total", (m,), lambda i: reduced("sum", n, lambda j: x[i, j]))
    """
    sizes = extents if isinstance(extents, Sequence) else [extents]
    axes = [Var(v) for v in element.__code__.co_varnames[: len(sizes)]]
    return reduce(op, list(zip(axes, sizes, strict=True)), element(*axes))
