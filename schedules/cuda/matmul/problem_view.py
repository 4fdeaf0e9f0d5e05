"""A matrix product as every GPU template sees it, and its context in a kernel: the block's tile and the epilogue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from taskmap.ir.algebra.mapping import TaskMapping
from taskmap.ir.analysis.contraction import Contraction, find_contraction
from taskmap.ir.analysis.simplify import Simplifier
from taskmap.ir.builder import Builder
from taskmap.ir.construct import as_expr, ceil_div, constant_value, index, minimum, product, static_size
from taskmap.ir.nodes import Binary, Buffer, Cast, Dim, Expr, LoopKind, Reduce, Var
from taskmap.ir.task import Stage, Task
from taskmap.ir.types import DType, compute_type
from taskmap.ir.visit import substitute, walk_exprs
from taskmap.ir.workers import BLOCKS
from taskmap.schedules.common.epilogue import Epilogue
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.common.positions import unravel
from taskmap.schedules.cuda.matmul.operand import Operand, analyse
from taskmap.schedules.cuda.support.launch import Launch
from taskmap.schedules.cuda.support.vectors import fills
from taskmap.schedules.strategies.product import positions

Renamed = tuple[tuple[Var, Expr], ...]
"""Axes of a stage in terms of a product's."""

_SMALLEST_GROUP = 8
"""Fewer columns in a group do not fill a tile."""

Test = Callable[[Expr, Expr, Inliner], Expr]
"""The condition that neighbouring elements of the tile, from (row, column) on, lie within the product: (row, column,
values)."""

Finish = Callable[[Expr, Expr, Expr, Inliner], None]
"""The work on an element of the tile: (row, column, value, values)."""


Keep = Callable[[Expr, Expr, Expr, Inliner], None]
"""Receives a finished element of the tile in place of memory: (row, column, value, values)."""


class Multiplier(Protocol):
    """The multiplier: it owns the sums of a block's tile."""

    @property
    def total(self) -> Buffer:
        """The sums, in registers."""
        ...

    def finish(self, values: Inliner, width: int, test: Test, body: Finish) -> None:
        """Calls ``body`` for every element of the tile for which ``test`` holds, in vectors of up to ``width``
        columns."""


def in_vectors(
    b: Builder, total: Buffer, held: TaskMapping, worker: Expr, lanes: int, values: Inliner, test: Test, body: Finish
) -> None:
    """Calls ``body`` for every element of the tile ``total`` for which ``test`` holds, in vectors of ``lanes`` columns.
    The mapping ``held`` gives the vectors of a worker: (row, number of the vector)."""
    rows, columns = total.shape
    with b.mapped(["i", "g"], held, worker) as (i, g):
        values.bind(i, rows)
        values.bind(g, columns // lanes)
        with b.when(test(i, g * lanes, values)), b.loop("v", lanes, LoopKind.VECTOR) as v:
            inside = values.nested()
            inside.bind(v, lanes)
            j = g * lanes + v
            body(i, j, total[i, j], inside)


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


@dataclass(slots=True)
class TileContext:
    """One block's part of a product: its tile, its part of a sum among ``split``, and the epilogue."""

    p: Gemm
    block: tuple[int, int]
    group: int
    threads: int
    split: int = 1
    launch: Launch = field(init=False)
    fixed: dict[Var, Expr] = field(default_factory=dict)
    row: Expr = field(default_factory=lambda: index(0))
    column: Expr = field(default_factory=lambda: index(0))
    part: Expr = field(default_factory=lambda: index(0))

    @property
    def tiles(self) -> tuple[Dim, Dim]:
        """Tiles of one product, along its rows and its columns."""
        return ceil_div(self.p.m, self.block[0]), ceil_div(self.p.n, self.block[1])

    def begin(self) -> Inliner:
        """Opens the kernel with the block's tile selected."""
        values = self.open()
        self.select_tile(values, BLOCKS[0])
        return values

    def open(self) -> Inliner:
        """Opens the kernel before a tile is selected."""
        p = self.p
        self.launch = Launch(p.task, (*p.batch, self.split, *self.tiles), self.threads)
        return self.launch.begin()[0]

    def select_tile(self, values: Inliner, number: Expr) -> None:
        """Selects the tile with this number for the block."""
        p, b = self.p, self.launch.b
        *outer, part, tile_m, tile_n = self.ordered(values, number)
        self.part = b.let("part", part)
        values.bind(self.part, self.split)
        self.fixed = dict(zip((v for v, _ in p.c.batch), outer, strict=True))
        self.row = b.let("row", values.simplifier(tile_m * self.block[0]))
        self.column = b.let("column", values.simplifier(tile_n * self.block[1]))
        values.bind(self.row, p.m)
        values.bind(self.column, p.n)

    def ordered(self, values: Inliner, at: Expr) -> tuple[Expr, ...]:
        """The product and tile of number ``at``. Blocks traverse ``group`` rows of tiles column by column, so that
        concurrent blocks read few rows and columns."""
        place = unravel(at, self.launch.grid, values.simplifier)
        group, (down, across) = self.group, self.tiles
        if group == 1 or static_size(down) == 1:
            return tuple(place)
        b = self.launch.b
        many = self.p.batch or self.split > 1
        number = b.let("tile", values.simplifier(at % product([down, across])) if many else at)
        values.bind(number, product([down, across]))
        first = b.let("first", values.simplifier(number // (index(across) * group) * group))
        height = b.let("height", values.simplifier(minimum(index(down) - first, group)))
        within = values.simplifier(number % (index(across) * group))
        return (*place[:-2], first + within % height, within // height)

    def epilogue(
        self, values: Inliner, multiplier: Multiplier, keep: Keep | None = None, *, clipped: bool = False
    ) -> None:
        """The epilogue for the part of the tile that lies within the product, or (``clipped``) for all of it, if
        nothing beyond is stored. ``keep`` receives the elements in place of memory."""
        p, b, row, column = self.p, self.launch.b, self.row, self.column
        finish = Epilogue(p.task, p.stage, p.c.reduce, b)
        width = 1
        while width < 8 and fills(p.n, 2 * width):
            width *= 2

        def test(i: Expr, j: Expr, local: Inliner) -> Expr:
            inside = as_expr(True)
            if clipped:
                return inside
            if not fills(p.m, self.block[0]):
                inside = inside & local.simplifier(row + i < p.m)
            if not fills(p.n, self.block[1]):
                inside = inside & local.simplifier(column + j < p.n)
            return inside

        def element(i: Expr, j: Expr, value: Expr, local: Inliner) -> None:
            at = {**self.fixed, **positions((p.c.m, p.c.n), (row + i, column + j), local)}
            into = None if keep is None else (lambda out, where, result: keep(i, j, result, local))  # pyright: ignore[reportOptionalCall]
            replace(finish, store=into).element(local.nested(), value, p.position(at))

        multiplier.finish(values, width, test, element)
