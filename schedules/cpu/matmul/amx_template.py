"""The matmul template on tile registers: products of bf16 by AMX, with prologue and epilogue fused.

    parallel over (batch, blocks of rows, groups of panels):
        copy the rows of a that tiles cannot be loaded from: computed ones, those beside an edge, the end of the sum
        for each panel of b, 32 columns (unless it is stored so, copied in groups of neighbours: two or four at once):
            for each part of a long sum:
                for each 32 rows of the block:   multiply (microkernel);   at the end: epilogue on the tile, vectorised

Where rows of a lie in memory at a constant stride, tiles are loaded from there, unless their lines fall on few sets of
the cache. A part of a panel stays in the first-level cache; a block of rows with its sums and a group of panels stay in
the second-level cache. Copies are filled with zeros beyond the end of the sum and repeat the last row beyond the last
one, so no value beside an edge enters a sum, and nothing outside an operand is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from taskmap.ir.analysis.contraction import Contraction
from taskmap.ir.builder import Builder, region
from taskmap.ir.construct import ceil_div, index, minimum, product, static_size
from taskmap.ir.loops import column_groups, parallel_grid, worth_sharing
from taskmap.ir.nodes import Buffer, Dim, Expr, Kernel, Region, Var
from taskmap.ir.target import CpuTarget
from taskmap.ir.task import Stage, Task
from taskmap.ir.visit import substitute
from taskmap.schedules.common.access import require_count
from taskmap.schedules.common.epilogue import Epilogue
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.common.loops import each_column
from taskmap.schedules.common.matmul_form import anchor_of
from taskmap.schedules.cpu.matmul.amx_blocking import LINE, BlockSizes, block_sizes, copies_rows
from taskmap.schedules.cpu.matmul.amx_copies import copied_together, copy_columns, copy_panels, copy_rows
from taskmap.schedules.cpu.matmul.amx_operands import TileOperands, find_operands, through_gaps
from taskmap.schedules.cpu.matmul.amx_tile import Ahead, Place, Source, TileUnit, multiply_tiles
from taskmap.schedules.cpu.matmul.template import position_on
from taskmap.schedules.cpu.support.kernels import kernel_of

_SHARED_FROM = 1_000_000
"""Products worth several threads: a few microseconds of one."""


def schedule_tiles(task: Task, target: CpuTarget) -> Kernel | None:
    """The template's kernel; None if the task has no contraction that the target multiplies by tiles."""
    found = anchor_of(task)
    if found is None:
        return None
    stage, c = found
    operands = find_operands(task, c, target)
    if operands is None:
        return None
    require_count(task, task.outputs, stage.shape)
    lines = through_gaps(task, operands)
    if lines is not None and not copies_rows(lines):
        operands = lines
    elif copies_rows(operands):
        operands = replace(operands, rows=None)
    blocking = block_sizes(operands, target)
    return None if blocking is None else _TileProduct(task, stage, operands, blocking, target).kernel()


@dataclass(frozen=True, slots=True)
class _Block:
    """The work of one iteration of the parallel loop: ``rows`` rows from ``first`` on."""

    outer: tuple[Expr, ...]
    first: Expr
    rows: Dim


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of one call of the microkernel: its ``number`` in the block, the first ``row``, how many there are, and
    the tiles of a; ``tail``: those of the last step."""

    number: Expr
    row: Expr
    count: Expr
    left: Source
    tail: Source | None = None


def _from_step(source: Source, first: Expr) -> Source:
    """``source`` with its steps counted from ``first`` on."""
    return source if first == index(0) else lambda i, k: source(i, first + k)


@dataclass(slots=True)
class _TileProduct:
    task: Task
    stage: Stage
    operands: TileOperands
    blocking: BlockSizes
    target: CpuTarget
    b: Builder = field(default_factory=Builder)

    @property
    def unit(self) -> TileUnit:
        return self.operands.unit

    @property
    def c(self) -> Contraction:
        return self.operands.contraction

    @property
    def m(self) -> Dim:
        return self.operands.m

    @property
    def n(self) -> Dim:
        return self.operands.n

    def kernel(self) -> Kernel:
        b, unit, size, panels = self.b, self.unit, self.blocking.rows, self.blocking.panels
        batch = [d for _, d in self.c.batch]
        all_panels = ceil_div(self.n, unit.width)
        extents = [*batch, ceil_div(self.m, size), ceil_div(all_panels, panels)]
        names = [*(v.name for v, _ in self.c.batch), "rows", "panels"]
        values = Inliner(self.task, b)
        shared = worth_sharing(product([self.m, self.n, *batch, self.operands.k]), _SHARED_FROM)
        with parallel_grid(b, names, extents, values.simplifier, shared, 1 << 62) as (*outer, row_block, group):
            b.invoke(unit.tiles.configure)
            first = values.simplifier(row_block * size)
            rows = values.simplifier.dim(minimum(index(self.m) - first, size))
            block = _Block(tuple(outer), first, rows)
            self.block(values, block, group, all_panels)
            b.invoke(unit.tiles.release)
        note = (
            f"cpu.matmul(tiles={unit.height}x{unit.width}, rows={size}, panels={panels}, by={unit.tiles.product.name})"
        )
        return kernel_of(self.task, b, note)

    def block(self, values: Inliner, block: _Block, group: Expr, all_panels: Dim) -> None:
        """All rows of a block against a group of panels."""
        b, unit, panels = self.b, self.unit, self.blocking.panels
        height, whole = unit.height, self.operands.k // unit.depth
        tiles = values.simplifier.dim(ceil_div(block.rows, height))
        direct = self.operands.rows is not None
        full = values.simplifier.dim(index(block.rows) // height) if direct else 0
        held, ends = None, None
        if static_size(full) is None or static_size(tiles) is None or full != tiles:
            count: Dim = 1 if direct else self.blocking.rows // height
            held = b.allocate("held", unit.tiles.spec.a, (count, self.operands.steps, height, unit.depth))
            with b.loop("tile", values.simplifier(index(tiles) - index(full))) as t:
                values.bind(t, count)
                row = values.simplifier(block.first + (index(full) + t) * height)
                copy_rows(b, values.nested(), self.operands, self.target, self.fixed(block), row, held, t)
        if direct and self.operands.k % unit.depth and static_size(full) != 0:
            ends = b.allocate("ends", unit.tiles.spec.a, (self.blocking.rows // height, 1, height, unit.depth))
            with b.loop("tile", index(full)) as t:
                values.bind(t, self.blocking.rows // height)
                row = values.simplifier(block.first + t * height)
                copy_rows(b, values.nested(), self.operands, self.target, self.fixed(block), row, ends, t, whole)
        count = values.simplifier.dim(minimum(index(all_panels) - group * panels, panels))
        first = values.simplifier(group * panels)

        def each(values: Inliner, emit: Callable[[Inliner, _Rows], None]) -> None:
            if direct:
                with b.loop("tile", index(full)) as t:
                    values.bind(t, self.blocking.rows // height)
                    inside = values.nested()
                    row = inside.simplifier(block.first + t * height)
                    tail = None if ends is None else self.copied(ends, t)
                    emit(inside, _Rows(t, row, index(height), self.loaded(inside, block, row), tail))
            if held is not None:
                with b.loop("tile", values.simplifier(index(tiles) - index(full))) as t:
                    values.bind(t, self.blocking.rows // height)
                    inside = values.nested()
                    number = inside.simplifier(index(full) + t)
                    row = inside.simplifier(block.first + number * height)
                    rows = inside.simplifier(minimum(index(self.m) - row, height))
                    emit(inside, _Rows(number, row, rows, self.copied(held, t)))

        for panel, right in self.panels(values, block, first, count, all_panels):
            self.panel(partial(each, values), block, panel, right)

    def panels(
        self, values: Inliner, block: _Block, first: Expr, count: Dim, all_panels: Dim
    ) -> Iterator[tuple[Expr, Source]]:
        """Yields each of ``count`` panels of b from ``first`` on, and its tiles, inside a loop: where they are stored
        in groups, else in copies, several made at a time if their rows share lines of memory."""
        b, unit, stored = self.b, self.unit, self.operands.packed
        if stored is not None:
            with b.loop("panel", index(count)) as p:
                values.bind(p, self.blocking.panels)
                panel = values.simplifier(first + p)
                yield panel, self.tiles_of(stored, panel)
            return
        together = copied_together(self.operands, self.blocking.panels, all_panels)
        size = (together, self.operands.steps * unit.depth // unit.tiles.group, unit.width, unit.tiles.group)
        copies = b.allocate("packed", unit.tiles.spec.b, size)
        if self.operands.k % unit.depth or (static_size(self.n) or 1) % unit.width:
            b.fill(copies, 0)
        with b.loop("panels", values.simplifier(index(count) // together)) as p:
            values.bind(p, self.blocking.panels // together)
            start = values.simplifier(first + p * together)
            if together > 1:
                copy_panels(b, values.nested(), self.operands, self.target, self.fixed(block), start, copies)
            else:
                copy = partial(copy_columns, b, self.operands, self.fixed(block), start, copies)
                self.columns(values.nested(), start, copy)
            with b.loop("panel", together) as number:
                values.bind(number, together)
                yield values.simplifier(start + number), self.tiles_of(copies, number)

    def panel(self, each: Callable[..., None], block: _Block, panel: Expr, right: Source) -> None:
        """All rows of a block against a panel, in parts of the sum; ``each`` loops over calls of the microkernel."""
        b, unit, part, steps = self.b, self.unit, self.blocking.part, self.operands.steps
        if not part:
            each(lambda values, rows: self.tile(values, block, panel, rows, right))
            return
        sums = b.allocate("sums", unit.tiles.spec.c, (self.blocking.rows, unit.width))
        last = (steps - 1) // part * part

        def add(first: Expr, start: bool) -> Callable[[Inliner, _Rows], None]:
            def emit(values: Inliner, rows: _Rows) -> None:
                held = sums, values.simplifier(rows.number * unit.height)
                left, b_part = _from_step(rows.left, first), _from_step(right, first)
                ahead = self.ahead(values, panel, rows.number, first, part)
                multiply_tiles(b, unit, part, left, b_part, held, start=held if start else None, ahead=ahead)

            return emit

        each(add(index(0), start=False))
        with b.loop("part", last // part - 1) as number:
            each(add((number + 1) * part, start=True))
        each(lambda values, rows: self.tile(values, block, panel, rows, right, last, sums))

    def fixed(self, block: _Block) -> dict[Var, Expr]:
        """The indices of the batch."""
        return dict(zip((v for v, _ in self.c.batch), block.outer, strict=True))

    def copied(self, held: Buffer, slot: Expr) -> Source:
        """The tiles of a copy."""
        unit = self.unit

        def place(i: int, k: Expr) -> Place:
            start = (slot, minimum(k, index(held.shape[1]) - 1), index(i * unit.rows), index(0))
            return region(held, start, (1, 1, unit.rows, unit.depth)), index(unit.depth)

        return place

    def loaded(self, values: Inliner, block: _Block, row: Expr) -> Source:
        """The tiles of a in memory, from row ``row`` on."""
        rows, unit = self.operands.rows, self.unit

        def place(i: int, k: Expr) -> Place:
            assert rows is not None
            at = {
                **self.fixed(block),
                **position_on(self.c.m, row + i * unit.rows),
                **position_on(self.c.k, k * unit.depth),
            }
            start = [values.simplifier(substitute(e, at)) for e in rows.load.indices]
            return region(rows.load.buffer, start, (1,) * len(start)), index(rows.stride)

        return place

    def tiles_of(self, stored: Buffer, panel: Expr) -> Source:
        """The tiles of panel ``panel`` of ``stored``."""
        unit, group = self.unit, self.unit.tiles.group
        groups = unit.depth // group

        def place(j: int, k: Expr) -> Place:
            start = (panel, k * groups, index(j * unit.columns), index(0))
            return region(stored, start, (1, groups, unit.columns, group)), index(unit.width * group)

        return place

    def ahead(self, values: Inliner, panel: Expr, number: Expr, first: Expr, steps: int) -> Ahead | None:
        """The part of a panel after the ``steps`` steps from ``first`` on, shared out among the calls of a block: the
        next part, or the next panel's first. None for a panel that is copied."""
        unit, stored = self.unit, self.operands.packed
        if stored is None:
            return None
        groups, group = unit.depth // unit.tiles.group, unit.tiles.group
        in_row = unit.width * group * stored.dtype.bytes // LINE
        calls = self.blocking.rows // unit.height
        share = -(-groups * in_row // calls)
        call = values.simplifier(minimum(number, groups * in_row // share - 1))
        begin = values.simplifier((first + steps) * groups)

        def lines(k: Expr) -> list[Region]:
            found = []
            for i in range(share):
                line = (call * steps + k) * share + i
                start = (panel, begin + line // in_row, line % in_row * (unit.width // in_row), index(0))
                found.append(region(stored, [values.simplifier(e) for e in start], (1, 1, 1, 1)))
            return found

        return lines

    def tile(
        self,
        values: Inliner,
        block: _Block,
        panel: Expr,
        rows: _Rows,
        right: Source,
        first: int = 0,
        sums: Buffer | None = None,
    ) -> None:
        """One call of the microkernel from step ``first`` on, added to ``sums``, and its epilogue."""
        unit, from_step = self.unit, index(first)
        out = self.b.allocate("tile", unit.tiles.spec.c, (unit.height, unit.width))
        steps = self.operands.steps - first - (rows.tail is not None)
        start = None if sums is None else (sums, values.simplifier(rows.number * unit.height))
        left, right = _from_step(rows.left, from_step), _from_step(right, from_step)
        ahead = self.ahead(values, panel, rows.number, from_step, self.operands.steps - first)
        multiply_tiles(self.b, unit, steps, left, right, (out, index(0)), tail=rows.tail, start=start, ahead=ahead)
        column = values.simplifier(panel * unit.width)

        def store(inside: Inliner, groups: Sequence[tuple[int, int]]) -> None:
            self.epilogue(inside, block, out, rows.row, rows.count, column, groups)

        self.columns(values, panel, store)

    def columns(self, values: Inliner, panel: Expr, body: Callable[[Inliner, Sequence[tuple[int, int]]], None]) -> None:
        """``body`` for the columns of a panel that exist, in groups of vectors; () for a symbolic number."""
        width, lanes = self.unit.width, self.target.lanes(4)
        n = static_size(self.n)
        if n is not None and n % width == 0:
            body(values, column_groups(width, lanes))
        elif n is not None and n < width:
            body(values, column_groups(n, lanes))
        else:
            whole = index(self.n) // width
            with self.b.when(values.simplifier(panel < whole)):
                body(values.nested(), column_groups(width, lanes))
            with self.b.otherwise():
                body(values.nested(), () if n is None else column_groups(n % width, lanes))

    def epilogue(
        self,
        values: Inliner,
        block: _Block,
        out: Buffer,
        row: Expr,
        rows: Expr,
        column: Expr,
        groups: Sequence[tuple[int, int]],
    ) -> None:
        """Store the epilogue of ``rows`` rows of ``out`` from row ``row`` and column ``column`` on."""
        fixed, last = self.fixed(block), index(self.m) - 1

        def position(i: Expr, j: Expr) -> dict[Var, Expr]:
            at = {**position_on(self.c.m, minimum(row + i, last)), **position_on(self.c.n, column + j)}
            return {**fixed, **at}

        epilogue = Epilogue(self.task, self.stage, self.c.reduce, self.b)
        if self.operands.present is not None:
            pitch = self.c.m[-1][1]
            with self.b.loop("row", rows) as i:
                values.bind(i, self.unit.height)
                with self.b.when(values.simplifier((row + i) % pitch < self.operands.present)):
                    for at, inside in each_column(self.b, values.nested(), groups):
                        epilogue.element(inside, out[i, at], position(i, at))
            return
        if groups:
            epilogue.emit(values, out, values.simplifier.dim(rows), position, groups)
            return
        with self.b.loop("row", rows) as i, self.b.loop("column", index(self.n) - column) as j:
            values.bind(i, self.unit.height)
            values.bind(j, self.unit.width)
            epilogue.element(values.nested(), out[i, j], position(i, j))
