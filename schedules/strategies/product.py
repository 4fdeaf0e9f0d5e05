"""The matrix product that anchors a task: out[batch, m, n] = sum over k of left * right, its axes merged to four."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from taskmap.ir.analysis.contraction import Contraction, unconverted
from taskmap.ir.analysis.positions import unravel
from taskmap.ir.builder import Builder
from taskmap.ir.construct import index, product
from taskmap.ir.lower.flatten import row_major_strides
from taskmap.ir.nodes import Buffer, Dim, Expr, Var
from taskmap.ir.task import Stage, Task
from taskmap.ir.types import DType, compute_type
from taskmap.schedules.common.access import same_count
from taskmap.schedules.common.convolution_geometry import find_convolution, is_matrix_product
from taskmap.schedules.common.epilogue import Epilogue
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.common.matmul_form import anchor_of

Axes = tuple[tuple[Var, Dim], ...]


@dataclass(frozen=True, slots=True, eq=False)
class ProductOperand:
    """An operand: its element as an expression of ``axes``, groups of the contraction's axes; the operand has one
    dimension for each group."""

    name: str
    expr: Expr
    axes: tuple[Axes, ...]

    @property
    def shape(self) -> tuple[Dim, ...]:
        """The size of each group of axes."""
        return tuple(size_of(group) for group in self.axes)

    def buffer(self, fast: int) -> Buffer:
        """A buffer that stands for it, in no memory: neighbours along dimension ``fast`` are neighbours there."""
        last = len(self.axes) - 1
        order = [*(d for d in range(last + 1) if d != fast), fast]
        strides = dict(zip(order, row_major_strides(tuple(self.shape[d] for d in order)), strict=True))
        inner = None if fast == last else tuple(strides[d] for d in range(last + 1))
        return Buffer(self.name, self.expr.dtype, self.shape, strides=inner)

    def element(self, where: Sequence[Expr], values: Inliner) -> Expr:
        """The element at one index for each group."""
        return values.expand(self.expr, positions(self.axes, where, values))


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """A product with the factors a and b. A batch is one axis, whatever its rank."""

    task: Task
    stage: Stage
    c: Contraction
    a: ProductOperand
    b: ProductOperand

    @property
    def operands(self) -> tuple[ProductOperand, ...]:
        """The factors."""
        return self.a, self.b

    @property
    def outer(self) -> tuple[Axes, ...]:
        """The axes of the batch, as one group; no group without a batch."""
        return (self.c.batch,) if self.c.batch else ()

    @property
    def batch(self) -> tuple[Dim, ...]:
        """The number of products, if there is a batch."""
        return tuple(map(size_of, self.outer))

    @property
    def sizes(self) -> tuple[Dim, Dim, Dim]:
        """m, n and k."""
        return size_of(self.c.m), size_of(self.c.n), size_of(self.c.k)

    @property
    def total(self) -> DType:
        """The type of the sums."""
        return compute_type(self.c.reduce.dtype)

    @property
    def result(self) -> Buffer:
        """The sums as a tensor that is in no memory: the epilogue takes its elements."""
        m, n, _ = self.sizes
        return Buffer("c", self.total, (*self.batch, m, n))

    def store(self, where: Sequence[Expr], total: Expr, b: Builder, values: Inliner) -> None:
        """The epilogue of one sum."""
        at = positions((*self.outer, self.c.m, self.c.n), where, values)
        Epilogue(self.task, self.stage, self.c.reduce, b).element(values, total, at)


def find_product(task: Task) -> Product | str:
    """The product that anchors a task, or the reason why there is none that a MatMul describes."""
    found = anchor_of(task)
    if found is None:
        return "it is not a matrix product"
    stage, c = found
    convolution = find_convolution(task)
    if "correlation" in dict(stage.attrs) or (convolution and not is_matrix_product(convolution)):
        return "it is a convolution"
    if not all(same_count(out.shape, stage.shape) for out in task.outputs):
        return "an output differs in its number of elements from the product"
    outer = (c.batch,) if c.batch else ()
    a = ProductOperand("a", unconverted(c.a), (*outer, c.m, c.k))
    return Product(task, stage, c, a, ProductOperand("b", unconverted(c.b), (*outer, c.k, c.n)))


def size_of(axes: Axes) -> Dim:
    """The number of positions along merged axes."""
    return product([n for _, n in axes])


def positions(groups: Sequence[Axes], where: Sequence[Expr], values: Inliner) -> dict[Var, Expr]:
    """The index along each axis, from one number for each group of merged axes."""
    found: dict[Var, Expr] = {}
    for axes, at in zip(groups, where, strict=True):
        inside = unravel(index(at), [n for _, n in axes], values.simplifier)
        found |= {v: values.simplifier(i) for (v, _), i in zip(axes, inside, strict=True)}
    return found
