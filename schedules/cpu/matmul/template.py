"""The matmul template: any contraction whose operands can be read element by element.

    parallel over (batch, blocks of rows, panels of columns), or over panels first where that is more even:
        for each tile of rows in the block:   multiply (microkernel);   epilogue on the tile, vectorised

A panel is as wide as the tile, so a weight packed into panels (``graph.passes.weight_packing``) is read sequentially;
one core reads each panel, which stays in its second-level cache while the rows pass. Rows are blocked so that they stay
there too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from taskmap.ir.analysis.contraction import Contraction, multiplies_bytes
from taskmap.ir.analysis.positions import unravel
from taskmap.ir.analysis.windows import row_run
from taskmap.ir.builder import Builder
from taskmap.ir.construct import ceil_div, const, index, minimum, product, static_size
from taskmap.ir.errors import ScheduleError
from taskmap.ir.loops import column_groups, parallel_grid, worth_sharing
from taskmap.ir.nodes import Buffer, Dim, Expr, Kernel, Var
from taskmap.ir.target import CpuTarget
from taskmap.ir.task import Stage, Task
from taskmap.ir.types import DType, compute_type, f32
from taskmap.schedules.common.access import require_count
from taskmap.schedules.common.epilogue import Epilogue
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.common.matmul_form import anchor_of, packed_panels
from taskmap.schedules.cpu.matmul.ahead import Ahead, NextPanel, stored_weights
from taskmap.schedules.cpu.matmul.code_tile import CodedContraction, CodeOperands, emit_code_tile, find_coded
from taskmap.schedules.cpu.matmul.column_copies import columns_of, copy_columns, is_moved
from taskmap.schedules.cpu.matmul.config import (
    Columns,
    MatmulConfig,
    Sizes,
    copies_panels,
    default,
    panels_first,
    validity,
)
from taskmap.schedules.cpu.matmul.dot_tile import GroupedContraction, emit_dot_tile, find_dots
from taskmap.schedules.cpu.matmul.group_copies import copy_groups
from taskmap.schedules.cpu.matmul.microkernel import Tile, chain_of, choose_tile, emit_tile
from taskmap.schedules.cpu.matmul.summed_loops import Element
from taskmap.schedules.cpu.support.kernels import kernel_of

_SHARED_FROM = 40_000
_FEWEST = 12
"""Multiply-adds of a step that prefetches: a shorter one waits for memory in any case."""


def panel_width(
    m: Dim,
    n: Dim,
    target: CpuTarget,
    dtype: DType = f32,
    terms: Dim = 0,
    *,
    grouped: bool = False,
    run: int | None = None,
) -> int:
    """Columns of B that the template reads together for an m × n product of sums of ``terms`` with results of this
    type: the panel width for packing B. grouped: neighbours along the sum are stored together. run: rows of A that are
    equally spaced in memory before others follow (``ir.analysis.windows``)."""
    lanes = target.lanes(compute_type(dtype).bytes)
    return choose_tile(m, n, target, lanes, grouped, 0 if grouped else terms, run).vectors * lanes


@dataclass(frozen=True, slots=True)
class _Block:
    """The work of one iteration of the parallel loop: up to ``size`` rows from ``first`` on, and one panel from
    ``column`` on.

    ``vectors`` groups the columns for computing, ``groups`` for storing: a packed panel is computed to its full width,
    and its padding is dropped only at the end.
    """

    outer: tuple[Expr, ...]
    first: Expr
    size: int
    column: Expr
    vectors: tuple[tuple[int, int], ...]
    groups: tuple[tuple[int, int], ...]

    @property
    def columns(self) -> int:
        """Columns that are computed."""
        return sum(v * w for v, w in self.vectors)


@dataclass(frozen=True, slots=True)
class _Cut:
    """A k-block: its first term, by the axis and as a number, and its extents along all summed axes; ``whole``: those
    of a block that is not the last."""

    offsets: dict[Var, Expr]
    extents: list[Dim]
    whole: list[Dim]
    first: Expr


TileBody = Callable[[Inliner, Expr, Expr, int], None]
"""The work on a tile: (values, its first row, the same relative to the block's first row, its height)."""


@dataclass(slots=True)
class _Matmul:
    task: Task
    stage: Stage
    c: Contraction
    target: CpuTarget
    sizes: Sizes
    config: MatmulConfig
    dots: GroupedContraction | None = None
    stored: Buffer | None = None
    copies: bool = False
    coded: CodedContraction | None = None
    b: Builder = field(default_factory=Builder)

    @property
    def tile(self) -> Tile:
        return self.config.tile

    @property
    def k_blocks(self) -> int:
        return self.config.k_blocks

    @property
    def lanes(self) -> int:
        return self.target.lanes(self.accumulate.bytes)

    @property
    def accumulate(self) -> DType:
        return compute_type(self.c.reduce.dtype)

    @property
    def width(self) -> int:
        return self.tile.vectors * self.lanes

    @property
    def m(self) -> Dim:
        return self.sizes.m

    @property
    def n(self) -> Dim:
        return self.sizes.n

    @property
    def chain(self) -> int:
        """Terms added one after another, 0 if the sum is not split."""
        return 0 if self.dots else chain_of(self.sizes.k, self.accumulate)

    def kernel(self) -> Kernel:
        m, n, width, size = self.m, self.n, self.width, self.config.rows
        batch = [d for _, d in self.c.batch]
        order = [(ceil_div(m, size), "rows"), (ceil_div(n, width), "panel")]
        swapped = panels_first(self.config, self.sizes, self.target)
        if swapped:
            order.reverse()
        extents = [*batch, *(extent for extent, _ in order)]
        names = [*(v.name for v, _ in self.c.batch), *(name for _, name in order)]
        values = Inliner(self.task, self.b)
        shared = worth_sharing(product([m, n, *batch, *[d for _, d in self.c.k]]), _SHARED_FROM)
        full = ((self.tile.vectors, self.lanes),)
        with parallel_grid(self.b, names, extents, values.simplifier, shared, 1 << 62) as (*outer, one, other):
            row_block, panel = (other, one) if swapped else (one, other)
            whole = n // width if isinstance(n, int) else index(n) // width
            rest = n % width if isinstance(n, int) else None
            block = _Block(tuple(outer), row_block * size, size, panel * width, full, full)
            if rest == 0:
                self.panel(values.nested(), block)
            elif static_size(whole) == 0:
                self.edge_panel(values.nested(), block, index(0), rest)
            else:
                with self.b.when(panel < whole):
                    # The minimum changes no value; it tells the simplifier that the panel is whole.
                    column = values.simplifier(minimum(panel, index(whole) - 1) * width)
                    self.panel(values.nested(), replace(block, column=column))
                with self.b.otherwise():
                    self.edge_panel(values.nested(), block, index(whole) * width, rest)
        dots = self.dots or self.coded
        by = f", by={dots.instruction.name}" if dots else ""
        note = f"cpu.matmul(tile={self.tile.rows}x{width}, rows={size}, k_blocks={self.k_blocks}{by})"
        return kernel_of(self.task, self.b, note)

    def edge_panel(self, values: Inliner, block: _Block, start: Expr, rest: int | None) -> None:
        """The columns that do not fill a panel; one by one if their number is symbolic."""
        if rest is not None:
            groups = tuple(column_groups(rest, self.lanes))
            padded = self.sizes.packed == self.width or self.dots is not None
            vectors = ((-(-rest // self.lanes), self.lanes),) if padded else groups
            self.panel(values, replace(block, column=start, vectors=vectors, groups=groups))
            return
        with self.b.loop("column", index(self.n) - start) as j:
            values.bind(j, self.width)
            self.panel(values.nested(), replace(block, column=start + j, vectors=((1, 1),), groups=((1, 1),)))

    def panel(self, values: Inliner, block: _Block) -> None:
        """All rows of a block against one panel of columns."""
        if self.k_blocks == 1:
            if self.dots:
                copied = self.copied_groups(values, block, 0, self.dots.whole, self.dots.rest)
            else:
                copied = self.copied(values, block, {}, [d for _, d in self.k_order()])
            self.each_tile(values, block, lambda *tile: self.whole_tile(block, copied, *tile))
            return
        zero = const(0, self.accumulate)
        out = self.b.allocate("sums", self.accumulate, (block.size, block.columns), init=zero)
        with self.b.loop("k_block", self.k_blocks) as part:
            values.bind(part, self.k_blocks)
            inside = values.nested()
            if self.dots:
                first, loops = self.dots.part(part, self.k_blocks, inside.simplifier)
                copied = self.copied_groups(inside, block, first, product(loops), 0)
            else:
                cut = self.cut(inside, part)
                copied = self.copied(inside, block, cut.offsets, cut.extents)
            self.each_tile(inside, block, lambda *tile: self.partial_tile(block, out, part, copied, *tile))
        if self.dots and self.dots.rest:
            tail = values.nested()
            copied = self.copied_groups(tail, block, self.dots.whole, 0, self.dots.rest)
            self.each_tile(tail, block, lambda *tile: self.dot_tail(block, out, copied, *tile))
        rows = values.simplifier(minimum(index(self.m) - block.first, block.size))
        self.epilogue(values, block, out, block.first, rows)

    def each_tile(self, values: Inliner, block: _Block, body: TileBody) -> None:
        """Calls ``body`` for the tiles of a block; the last one may have fewer rows."""
        m, height = self.m, self.tile.rows
        if not isinstance(m, int):
            self.open_tiles(values, block, m, body)
            return
        if isinstance(m, int) and m <= block.size:
            self.tiles(values, block, m // height, height, body)
            if m % height:
                self.last_tile(values.nested(), block, index(m // height * height), m % height, body)
            return
        if isinstance(m, int) and m % height == 0 and m % block.size == 0:
            self.tiles(values, block, block.size // height, height, body)
            return
        count = index(minimum(index(m) - block.first, block.size))
        whole = self.b.let("tiles", count // height)
        values.bind_value(whole, block.size // height)
        self.tiles(values.nested(), block, whole, height, body)
        if m % height:
            with self.b.when(count % height > 0):
                self.last_tile(values.nested(), block, whole * height, m % height, body)

    def open_tiles(self, values: Inliner, block: _Block, m: Dim, body: TileBody) -> None:
        """The same if M is symbolic: the remaining rows are one tile that is computed in full, or single rows."""
        height = self.tile.rows
        count = self.b.let("count", values.simplifier(minimum(index(m) - block.first, block.size)))
        values.bind_value(count, block.size)
        most = -(-block.size // height)
        tiles = self.b.let("tiles", values.simplifier((count + max(height - 2, 0)) // height))
        values.bind_value(tiles, most)
        with self.b.loop("tile", tiles) as t:
            values.bind(t, most)
            inside = values.nested()
            body(inside, inside.simplifier(block.first + t * height), t * height, height)
        if height == 1:
            return
        with self.b.when(values.simplifier(tiles * height < count)):
            body(values.nested(), values.simplifier(block.first + tiles * height), tiles * height, 1)

    def tiles(self, values: Inliner, block: _Block, count: Dim, height: int, body: TileBody) -> None:
        """``count`` tiles of ``height`` rows of a block; the minimum only tells the simplifier that they end with the
        last row. As a multiple of the height, the first row of a tile tells where its rows lie in an image."""
        with self.b.loop("tile", index(count)) as t:
            values.bind(t, count)
            inside = values.nested()
            number = inside.simplifier(block.first // height) + t
            start = inside.simplifier(minimum(number, index(self.m) // height - 1) * height)
            body(inside, start, inside.simplifier(t * height), height)

    def last_tile(self, values: Inliner, block: _Block, skipped: Expr, height: int, body: TileBody) -> None:
        """The tile of the last ``height`` rows, behind ``skipped`` rows of its block."""
        body(values, values.simplifier(index(self.m) - height), skipped, height)

    def copied(
        self, values: Inliner, block: _Block, offsets: dict[Var, Expr], extents: Sequence[Dim]
    ) -> Element | None:
        """The columns of a block in a copy of their own, for the terms that ``offsets`` and ``extents`` describe; None
        if they are read in place."""
        if not self.copies or block.columns < self.lanes:
            return None
        whole = [-(-(static_size(d) or 1) // self.k_blocks) for _, d in self.k_order()]
        _, right = self.operands(block, block.first, offsets)
        lie, moved = self.sizes.columns, is_moved(self.task, self.c.b)
        return copy_columns(self.b, values.nested(), right, block.vectors, extents, whole, lie, moved=moved)

    def copied_groups(self, values: Inliner, block: _Block, first: Dim, whole: Dim, rest: int) -> Element | None:
        """The columns of a block in a copy of their own, in groups: ``whole`` ones from group ``first`` on, and the
        last one, of ``rest`` terms; None if B is stored so."""
        if self.dots is None or self.dots.copied is None:
            return None
        _, right = self.operands(block, block.first, {})
        most = (0 if static_size(whole) == 0 else self.dots.most(self.k_blocks)) + (rest > 0)
        terms = (first, whole, rest, self.dots.group)
        by_terms = self.dots.copied is Columns.APART
        columns = block.columns, block.groups
        return copy_groups(self.b, values.nested(), right, columns, terms, most, self.dots.type_of_b, by_terms)

    def whole_tile(
        self, block: _Block, copied: Element | None, values: Inliner, start: Expr, local: Expr, height: int
    ) -> None:
        """A tile from first to last."""
        if self.dots:
            out = self.b.allocate("tile", self.accumulate, (height, block.columns))
            left, right = self.operands(block, start, {})
            columns = (block.columns // self.lanes, self.lanes)
            emit_dot_tile(self.b, values, height, columns, self.dots.loops, left, copied or right, out, self.dots)
            if self.dots.rest:
                self.dot_tail(block, out, copied, values, start, index(0), height)
            self.epilogue(values, block, out, start, self.rows_of(values, start, height))
            return
        if self.coded:
            self.coded_tile(block, self.coded, values, start, height)
            return
        start_at = const(0, self.accumulate) if self.chain else None
        out = self.b.allocate("tile", self.accumulate, (height, block.columns), init=start_at)
        k = [d for _, d in self.k_order()]
        left, right = self.operands(block, start, {})
        emit_tile(
            *(self.b, values, height, block.vectors, k, left, copied or right, out, self.accumulate),
            chain=self.chain,
            ahead=self.ahead(values, block, local, height, k, 0),
        )
        self.epilogue(values, block, out, start, self.rows_of(values, start, height))

    def coded_tile(self, block: _Block, coded: CodedContraction, values: Inliner, start: Expr, height: int) -> None:
        """A tile from first to last, of weights with codes of four bits."""
        out = self.b.allocate("tile", self.accumulate, (height, block.columns), init=const(0, self.accumulate))
        a, code = self.operands(block, start, {})
        weight = (coded.weight.scale, coded.weight.offset)
        scale, offset = (None if e is None else self.element(e, self.c.n, block, block.column, {}) for e in weight)
        columns = (block.columns // self.lanes, self.lanes)
        emit_code_tile(self.b, values, height, columns, CodeOperands(a, code, scale, offset), out, coded)
        self.epilogue(values, block, out, start, self.rows_of(values, start, height))

    def rows_of(self, values: Inliner, start: Expr, height: int) -> Dim:
        """Rows of a tile that exist."""
        if not isinstance(self.m, int) and height > 1:
            return values.simplifier.dim(minimum(index(self.m) - start, height))
        return height

    def dot_tail(
        self,
        block: _Block,
        out: Buffer,
        copied: Element | None,
        values: Inliner,
        start: Expr,
        local: Expr,
        height: int,
    ) -> None:
        """The last group of the sum of a tile, which zeros fill, added to ``out``."""
        assert self.dots is not None
        a, right = self.operands(block, start, {})
        columns = (block.columns // self.lanes, self.lanes)
        emit_dot_tile(
            *(self.b, values, height, columns, (1,), self.dots.tail(a), copied or right, out, self.dots),
            first=self.dots.whole,
            row=local,
            resume=True,
        )

    def cut(self, values: Inliner, part: Expr) -> _Cut:
        """K-block ``part``."""
        k = self.k_order()
        (position,) = (d for d, (_, extent) in enumerate(k) if static_size(extent) != 1)
        var, extent = k[position]
        depth = -(-(static_size(extent) or 0) // self.k_blocks)
        extents: list[Dim] = [d for _, d in k]
        whole = [*extents[:position], depth, *extents[position + 1 :]]
        extents[position] = values.simplifier.dim(minimum(index(extent) - part * depth, depth))
        return _Cut({var: part * depth}, extents, whole, part * depth)

    def partial_tile(
        self,
        block: _Block,
        out: Buffer,
        part: Expr,
        copied: Element | None,
        values: Inliner,
        start: Expr,
        local: Expr,
        height: int,
    ) -> None:
        """One k-block of the sum of a tile, added to ``out``."""
        if self.dots:
            first, loops = self.dots.part(part, self.k_blocks, values.simplifier)
            columns = (block.columns // self.lanes, self.lanes)
            left, right = self.operands(block, start, {})
            emit_dot_tile(
                *(self.b, values, height, columns, loops, left, copied or right, out, self.dots),
                first=first,
                row=local,
                resume=True,
            )
            return
        cut = self.cut(values, part)
        left, right = self.operands(block, start, cut.offsets)
        emit_tile(
            *(self.b, values, height, block.vectors, cut.extents, left, copied or right, out, self.accumulate),
            row=local,
            resume=not self.chain,
            chain=self.chain,
            ahead=self.ahead(values, block, local, height, cut.whole, cut.first),
        )

    def operands(self, block: _Block, start: Expr, offsets: dict[Var, Expr]) -> tuple[Element, Element]:
        """Both operands of a tile, as functions of (summed indices, row or column of the tile)."""
        right = self.element(self.c.b, self.c.n, block, block.column, offsets)
        if isinstance(self.m, int):
            return self.element(self.c.a, self.c.m, block, start, offsets), right
        left = self.element(self.c.a, self.c.m, block, index(0), offsets)
        last = index(self.m) - 1

        def held(at: Sequence[Expr], offset: Expr, values: Inliner) -> Expr:
            return left(at, values.simplifier(minimum(start + offset, last)), values)

        return held, right

    def element(
        self, expr: Expr, axes: tuple[tuple[Var, Dim], ...], block: _Block, base: Expr, offsets: dict[Var, Expr]
    ) -> Element:
        """An operand as a function of (summed indices, position along ``axes`` from ``base`` on)."""
        k = self.k_order()
        fixed = dict(zip((v for v, _ in self.c.batch), block.outer, strict=True))

        def element(at: Sequence[Expr], offset: Expr, values: Inliner) -> Expr:
            summed = {v: i + offsets[v] if v in offsets else i for (v, _), i in zip(k, at, strict=True)}
            return values.expand(expr, {**fixed, **position_on(axes, base + offset), **summed})

        return element

    def ahead(
        self, values: Inliner, block: _Block, local: Expr, height: int, k: Sequence[Dim], first: Expr | int
    ) -> Ahead | None:
        """The packed columns after those that a block multiplies with from term ``first`` of the sum on."""
        rows = min(static_size(self.m) or block.size, block.size)
        panel = values.simplifier(block.column // self.width)
        if self.stored is None or height * block.columns < _FEWEST * self.lanes:
            return None
        steps, width = static_size(product(list(k))), self.width
        if steps is None:
            return None
        behind = values.simplifier((index(first) + steps) * width)
        following = NextPanel(self.stored, panel, behind, width, -(-rows // self.tile.rows))
        return following.lines(values.simplifier(local // self.tile.rows), k)

    def epilogue(self, values: Inliner, block: _Block, out: Buffer, start: Expr, rows: Dim) -> None:
        """Store the epilogue of ``rows`` rows of ``out``, beginning with row ``start``."""
        fixed = dict(zip((v for v, _ in self.c.batch), block.outer, strict=True))

        def position(i: Expr, j: Expr) -> dict[Var, Expr]:
            row = minimum(start + i, index(self.m) - 1)
            return {**fixed, **position_on(self.c.m, row), **position_on(self.c.n, block.column + j)}

        Epilogue(self.task, self.stage, self.c.reduce, self.b).emit(values, out, rows, position, block.groups)

    def k_order(self) -> tuple[tuple[Var, Dim], ...]:
        """The summed axes, with the contiguous axis of A innermost (for a convolution, its first: the channels)."""
        return (*self.c.k[1:], self.c.k[0]) if len(self.c.k) > 1 else self.c.k


def position_on(axes: Sequence[tuple[Var, Dim]], flat: Expr) -> dict[Var, Expr]:
    """The indices along ``axes`` of the element with row-major number ``flat``."""
    return dict(zip((v for v, _ in axes), unravel(flat, [n for _, n in axes]), strict=True))


def sizes_of(task: Task, c: Contraction) -> Sizes:
    """The sizes of a product, as configurations need them."""
    extents, packed = [static_size(d) for _, d in c.k], packed_panels(task, c)
    return Sizes(
        m=product([d for _, d in c.m]),
        n=product([d for _, d in c.n]),
        k=static_size(product([d for _, d in c.k])),
        batch=static_size(product([d for _, d in c.batch])),
        bytes=compute_type(c.reduce.dtype).bytes,
        one_sum=sum(e != 1 for e in extents) == 1,
        packed=packed,
        columns=columns_of(task, c) if packed is None else None,
    )


def schedule_matmul(task: Task, target: CpuTarget, config: MatmulConfig | None = None) -> Kernel | None:
    """The template's kernel with ``config``, by default the untuned one; None if the task has no contraction or its
    operands are guarded (padding). Raises ScheduleError with the reason if ``config`` does not fit."""
    found = anchor_of(task)
    if found is None:
        return None
    stage, c = found
    if not c.reduce.dtype.is_float and not multiplies_bytes(c.reduce):
        return None
    require_count(task, task.outputs, stage.shape)
    sizes, dots = sizes_of(task, c), find_dots(task, c, target)
    if dots is not None:  # a product of groups: as large in memory, and as long, as one of f32
        whole, run = max(dots.whole, 1), row_run(c)
        c, sizes = dots.contraction, replace(sizes, k=whole, grouped=True, run=run, columns=None)
    coded = find_coded(c, target) if dots is None else None
    if coded is not None:
        c, sizes = coded.contraction, replace(sizes, one_sum=False)
    if config is None:
        config = default(sizes, target)
    elif reason := validity(config, sizes, target):
        raise ScheduleError(f"{task.name!r} cannot be computed with {config}", why=f"{reason}.")
    stored = stored_weights(c.b, sizes.packed) if dots is None and coded is None else None
    copies = copies_panels(config, sizes, target)
    return _Matmul(task, stage, c, target, sizes, config, dots, stored, copies, coded).kernel()
