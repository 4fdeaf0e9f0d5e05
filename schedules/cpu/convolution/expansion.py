"""The image of a depthwise convolution, computed by a product where it would be copied from memory.

    for each row of an input tile, for each panel of its channels:
        for each tile of columns:   multiply (microkernel);   the product's epilogue;   store in the input tile

The product, of all channels of a narrower image, is multiplied panel by panel as it is packed. Its results are never in
memory that other cores see. Padding is zeros, as everywhere: it is no result of the product's epilogue.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from taskmap.ir.analysis.contraction import Contraction, find_contraction
from taskmap.ir.builder import Builder
from taskmap.ir.construct import const, index, static_size
from taskmap.ir.errors import ScheduleError
from taskmap.ir.expansion import ATTRIBUTE
from taskmap.ir.loops import column_groups
from taskmap.ir.nodes import Buffer, Expr, Load, Reduce, Var
from taskmap.ir.target import CpuTarget
from taskmap.ir.task import Stage, Task
from taskmap.ir.types import f32
from taskmap.ir.visit import walk_exprs
from taskmap.schedules.common.convolution_geometry import Convolution, positions
from taskmap.schedules.common.epilogue import Epilogue
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.common.loops import each_column
from taskmap.schedules.common.matmul_form import packed_group, packed_panels
from taskmap.schedules.cpu.convolution.input_tile import TileRow
from taskmap.schedules.cpu.matmul.config import registers
from taskmap.schedules.cpu.matmul.microkernel import Tile, chain_of, emit_tile, tile_cost

_TALLEST = 24
"""Rows of a register tile, at most."""


@dataclass(frozen=True, slots=True)
class Expansion:
    """The product of a ``stage``, of all images, rows and columns, with weights in panels of ``width`` channels."""

    stage: Stage
    c: Contraction
    width: int

    @property
    def terms(self) -> int:
        """Terms of each sum."""
        return max((static_size(d) or 1 for _, d in self.c.k), default=1)


def find_expansion(task: Task, conv: Convolution) -> Expansion | None:
    """The product that makes the image of ``conv``, marked as one that computes its image; None if the image is in
    memory. Raises ScheduleError for a product that the template does not multiply."""
    if ATTRIBUTE not in dict(conv.stage.attrs):
        return None
    stages = [s for s in _behind(task, conv.x) if any(isinstance(e, Reduce) for e in walk_exprs(s.body))]
    if not stages:
        return None
    stage = stages[0]
    c = find_contraction(stage.axes, stage.shape, stage.body)
    width = None if c is None else packed_panels(task, c)
    reason = ""
    if len(stages) > 1 or c is None:
        reason = "its image is made by more than one product"
    elif stage.shape != conv.x.shape or [v for v, _ in c.n] != [stage.axes[1]] or c.batch:
        reason = "its image is not a product of a narrower image with one weight"
    elif c.reduce.dtype != f32 or conv.x.dtype != f32:
        reason = "its image is not of f32"
    elif sum(static_size(d) != 1 for _, d in c.k) > 1 or not all(static_size(d) for _, d in c.k):
        reason = "the product's sum runs along several axes, or its length is not known"
    elif width is None or packed_group(task, c) > 1:
        reason = "the product's weights are not packed in panels"
    elif any(static_size(n) is None for n in conv.image):
        reason = "the image's size is known only when the kernel runs"
    if reason or c is None or width is None:
        raise ScheduleError(f"{task.name!r} does not compute the image of its convolution", why=f"{reason}.")
    return Expansion(stage, c, width)


def _behind(task: Task, buffer: Buffer) -> Iterator[Stage]:
    """The stages from which a value is computed, each before those it reads."""
    seen: set[Buffer] = set()
    stack = [buffer]
    while stack:
        one = stack.pop()
        stage = task.producers.get(one)
        if stage is None or one in seen:
            continue
        seen.add(one)
        yield stage
        stack.extend(e.buffer for e in walk_exprs(stage.body) if isinstance(e, Load))


@lru_cache(maxsize=1024)
def tile_rows(columns: int, vectors: int, lanes: int, target: CpuTarget) -> int:
    """The height of the register tile of ``vectors`` vectors that covers a row of ``columns`` with the least work."""
    tiles = [Tile(height, vectors) for height in range(min(_TALLEST, columns), 0, -1)]
    fitting = [t for t in tiles if registers(t, target) <= target.vector_registers]
    return min(fitting, key=lambda t: tile_cost(columns, vectors * lanes, t, lanes)).rows


@dataclass(frozen=True, slots=True)
class _Panel:
    """A panel of weights, whose first column is channel ``first`` of the tile: ``vectors`` are computed, of channels of
    which ``stored`` groups those that exist."""

    first: Expr
    vectors: int
    stored: Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class ExpandedRows:
    """Computes rows of an input tile of some channels of one image, from channel ``start`` on."""

    task: Task
    conv: Convolution
    expansion: Expansion
    target: CpuTarget
    builder: Builder
    image: Expr
    start: Expr
    channels: int

    @property
    def lanes(self) -> int:
        """Elements of a vector."""
        return self.target.lanes(f32.bytes)

    def __call__(self, values: Inliner, row: TileRow) -> None:
        """Computes the columns of ``row`` that lie in the image."""
        width, lanes = self.expansion.width, self.lanes
        whole, rest = divmod(self.channels, width)
        with self.builder.loop("panel", whole) as panel:
            values.bind(panel, whole)
            self.panel(values.nested(), row, _Panel(panel * width, width // lanes, column_groups(width, lanes)))
        if rest:
            part = _Panel(index(whole * width), -(-rest // lanes), column_groups(rest, lanes))
            self.panel(values.nested(), row, part)

    def panel(self, values: Inliner, row: TileRow, panel: _Panel) -> None:
        """The channels of a panel, tile by tile."""
        left, right = row.columns
        assert isinstance(left, int)
        assert isinstance(right, int)
        if left == right:
            return
        height = tile_rows(right - left, panel.vectors, self.lanes, self.target)
        for begin, many, size in positions(right - left, height):
            with self.builder.loop("tile", many) as t:
                inside = values.nested()
                inside.bind(t, many)
                self.tile(inside, row, panel, inside.simplifier(t * size + left + begin), size)

    def tile(self, values: Inliner, row: TileRow, panel: _Panel, column: Expr, height: int) -> None:
        """``height`` columns of the image from column ``column`` of the row on."""
        b, c, stage = self.builder, self.expansion.c, self.expansion.stage
        chain = chain_of(self.expansion.terms, f32)
        start_at = const(0, f32) if chain else None
        out = b.allocate("tile", f32, (height, panel.vectors * self.lanes), init=start_at)
        k = sorted(c.k, key=lambda axis: static_size(axis[1]) != 1)

        def at(i: Expr, j: Expr, inside: Inliner) -> dict[Var, Expr]:
            place = self.conv.spatial((*row.image, inside.simplifier(row.start + column + i)))
            return dict(zip(stage.axes, (self.image, self.start + panel.first + j, *place), strict=True))

        def left(summed: Sequence[Expr], i: Expr, inside: Inliner) -> Expr:
            terms = dict(zip((v for v, _ in k), summed, strict=True))
            return inside.expand(c.a, {**at(i, index(0), inside), **terms})

        def right(summed: Sequence[Expr], j: Expr, inside: Inliner) -> Expr:
            terms = dict(zip((v for v, _ in k), summed, strict=True))
            return inside.expand(c.b, {**at(index(0), j, inside), **terms})

        groups = [(panel.vectors, self.lanes)]
        emit_tile(b, values, height, groups, [d for _, d in k], left, right, out, f32, chain=chain)
        with b.loop("row", height) as i:
            values.bind(i, height)
            for j, inside in each_column(b, values, panel.stored):

                def put(_: Buffer, at: tuple[Expr, ...], value: Expr, i: Expr = i, j: Expr = j) -> None:
                    b.store(row.buffer, (*row.place, column + i, panel.first + j), value)

                finish = Epilogue(self.task, stage, c.reduce, b, put, (self.conv.x,))
                finish.element(inside, out[i, j], at(i, j, inside))
