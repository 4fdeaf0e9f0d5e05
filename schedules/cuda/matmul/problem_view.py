"""A matrix product as every GPU template sees it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from taskmap.ir.analysis.contraction import Contraction, find_contraction
from taskmap.ir.analysis.simplify import Simplifier
from taskmap.ir.construct import constant_value, product, static_size
from taskmap.ir.nodes import Binary, Cast, Dim, Expr, Reduce, Var
from taskmap.ir.task import Stage, Task
from taskmap.ir.types import DType, compute_type
from taskmap.ir.visit import substitute, walk_exprs
from taskmap.schedules.cuda.matmul.operand import Operand, analyse

Renamed = tuple[tuple[Var, Expr], ...]
"""Axes of a stage in terms of a product's."""

_SMALLEST_GROUP = 8
"""Fewer columns in a group do not fill a tile."""


@dataclass(frozen=True, slots=True)
class Gemm:
    """A contraction and its operands."""

    task: Task
    stage: Stage
    c: Contraction
    left: Operand
    right: Operand
    renamed: Renamed = ()

    def position(self, at: dict[Var, Expr]) -> dict[Var, Expr]:
        """A position along the product's axes as one along those of its stage."""
        return {**at, **{v: substitute(e, at) for v, e in self.renamed}}

    @property
    def accumulate(self) -> DType:
        """The type of the sums."""
        return compute_type(self.c.reduce.dtype)

    @property
    def m(self) -> Dim:
        """Rows."""
        return product([d for _, d in self.c.m])

    @property
    def n(self) -> Dim:
        """Columns."""
        return product([d for _, d in self.c.n])

    @property
    def k(self) -> Dim:
        """Terms of a sum."""
        return product([d for _, d in self.c.k])

    @property
    def batch(self) -> tuple[Dim, ...]:
        """The number of products in the batch."""
        return tuple(d for _, d in self.c.batch)


def find_product(task: Task) -> Gemm | None:
    """The product that anchors a task, or the first stage that is one; else None."""
    stages = [task.stages[task.anchor]] if task.anchor is not None else task.stages
    for stage in stages:
        plain = find_contraction(stage.axes, stage.shape, stage.body)
        found = find_groups(stage) if plain is None else (plain, ())
        if found is not None:
            c, renamed = found
            k = (*c.k[1:], c.k[0]) if len(c.k) > 1 else c.k  # the channels of a convolution, its first sum, innermost
            left, right = analyse(task, c.a, c.batch, c.m, k), analyse(task, c.b, c.batch, c.n, k)
            return Gemm(task, stage, c, left, right, renamed)
    return None


def find_groups(stage: Stage) -> tuple[Contraction, Renamed] | None:
    """A contraction in which one operand depends on an axis only by its group, axis // size, as in a grouped
    convolution: a product for each group. Also returns that axis in terms of the group and the position in the
    group."""
    body = stage.body
    while isinstance(body, Cast):
        body = body.a
    if not isinstance(body, Reduce) or body.op != "sum":
        return None
    extents = dict(zip(stage.axes, stage.shape, strict=True))
    for e in walk_exprs(body.body):
        if not isinstance(e, Binary) or e.op != "floordiv" or not isinstance(e.a, Var) or e.a not in extents:
            continue
        axis, size, extent = e.a, constant_value(e.b), static_size(extents[e.a])
        if size is None or extent is None or extent % int(size) or int(size) < _SMALLEST_GROUP:
            continue
        assert isinstance(axis, Var)
        group, place = Var("group"), Var(axis.name)
        simplifier = Simplifier()
        simplifier.bind(group, extent // int(size))
        simplifier.bind(place, int(size))
        renamed = group * int(size) + place
        inner = simplifier(substitute(body.body, {axis: renamed}))
        at = stage.axes.index(axis)
        axes = (*stage.axes[:at], group, place, *stage.axes[at + 1 :])
        shape = (*stage.shape[:at], extent // int(size), int(size), *stage.shape[at + 1 :])
        c = find_contraction(axes, shape, replace(body, body=inner))
        if c is not None:
            return replace(c, reduce=body), ((axis, renamed),)
    return None
