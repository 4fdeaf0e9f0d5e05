"""The matrix-multiplication template: any contraction whose factors can be read element by element.

    parallel over (batch, blocks of rows, panels of columns):
        for each tile of rows in the block:   multiply (microkernel);   epilogue on the tile, vectorised

A panel is as wide as the tile, so a weight packed into panels (``graph.packing``) is read straight through; each
panel is read by one core, and stays in its second-level cache while the rows pass by. Rows are blocked so that they
stay there too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from taskmap.ir.builder import Builder
from taskmap.ir.construct import ceil_div, constant_dim, index, minimum, product
from taskmap.ir.contraction import Contraction, find_contraction
from taskmap.ir.nodes import Dim, Expr, Kernel, Var
from taskmap.ir.target import Target
from taskmap.ir.task import Stage, Task
from taskmap.ir.types import DType, compute_type, f32
from taskmap.schedules.cpu.balance import blocks, makespan
from taskmap.schedules.cpu.epilogue import Epilogue
from taskmap.schedules.cpu.loops import column_groups, parallel_grid
from taskmap.schedules.cpu.microkernel import Tile, choose_tile, emit_tile
from taskmap.schedules.values import Values

_PARALLEL_ABOVE = 40_000


def anchor_of(task: Task) -> tuple[Stage, Contraction] | None:
    """The stage of a task that is a contraction, if it has one."""
    stages = [task.stages[task.anchor]] if task.anchor is not None else task.stages
    for stage in stages:
        found = find_contraction(stage.axes, stage.shape, stage.body)
        if found is not None:
            return stage, found
    return None


def panel_width(m: Dim, n: Dim, target: Target, dtype: DType = f32) -> int:
    """How many columns of B the template reads together for an m × n product, so that a packed B can be laid out so."""
    lanes = target.lanes(compute_type(dtype).bytes)
    return choose_tile(m, n, target, lanes).vectors * lanes


@dataclass(slots=True)
class _Matmul:
    task: Task
    stage: Stage
    c: Contraction
    target: Target
    b: Builder = field(default_factory=Builder)
    lanes: int = 1
    tile: Tile = field(default_factory=lambda: Tile(1, 1))

    def kernel(self) -> Kernel:
        accumulate = compute_type(self.c.reduce.dtype)
        self.lanes = self.target.lanes(accumulate.bytes)
        m, n = product([d for _, d in self.c.m]), product([d for _, d in self.c.n])
        self.tile = choose_tile(m, n, self.target, self.lanes)
        width = self.tile.vectors * self.lanes
        block = self.row_block(m, n)
        batch = [d for _, d in self.c.batch]
        extents = [*batch, ceil_div(m, block), ceil_div(n, width)]
        names = [*(v.name for v, _ in self.c.batch), "rows", "panel"]
        values = Values(self.task, self.b)
        size = constant_dim(product([m, n, *batch, *[d for _, d in self.c.k]]))
        parallel = size is None or size >= _PARALLEL_ABOVE
        with parallel_grid(self.b, names, extents, values, parallel, 1 << 62) as at:
            *outer, row_block, panel = at
            whole = n // width if isinstance(n, int) else index(n) // width
            rest = n % width if isinstance(n, int) else None
            rows = (m, row_block * block, block)
            if rest == 0:
                self.panel(values.nested(), outer, rows, panel * width, [(self.tile.vectors, self.lanes)], accumulate)
            elif constant_dim(whole) == 0:
                self.edge_panel(values.nested(), outer, rows, whole, width, n, rest, accumulate)
            else:
                with self.b.when(panel < whole):
                    # The minimum changes nothing here; it tells the simplifier that the panel is a whole one.
                    column = values.simplifier(minimum(panel, index(whole) - 1) * width)
                    self.panel(values.nested(), outer, rows, column, [(self.tile.vectors, self.lanes)], accumulate)
                with self.b.otherwise():
                    self.edge_panel(values.nested(), outer, rows, whole, width, n, rest, accumulate)
        note = f"cpu.matmul(tile={self.tile.rows}x{width}, rows={block})"
        buffers = (*self.task.inputs, *self.task.outputs)
        return Kernel(self.task.name, buffers, self.task.outputs, self.task.dims, self.b.body(), note=note)

    def row_block(self, m: Dim, n: Dim) -> int:
        """Rows that are multiplied with a panel before the next one: at most half a second-level cache of A, in
        whole tiles, and so many that all cores have equal work."""
        k = constant_dim(product([d for _, d in self.c.k])) or 1024
        height, width = self.tile.rows, self.tile.vectors * self.lanes
        fitting = max(1, self.target.l2 // 2 // (4 * k) // height) * height
        batch = constant_dim(product([d for _, d in self.c.batch]))
        if not isinstance(m, int) or not isinstance(n, int) or batch is None:
            return min(fitting, 16 * height)
        tiles = -(-m // height)
        fewest = -(-m // fitting)
        panels = [w / width for w in blocks(n, width)]

        def cost(size: int) -> float:
            work = [rows * p for rows in blocks(m, size * height) for p in panels]
            return makespan(work * min(batch, 4 * self.target.cores), self.target.cores) * (1 + 0.01 * (tiles / size))

        sizes = {-(-tiles // count) for count in range(fewest, min(tiles, fewest + 4 * self.target.cores) + 1)}
        return min(sorted(sizes, reverse=True), key=cost) * height

    def edge_panel(
        self,
        values: Values,
        outer: Sequence[Expr],
        rows: tuple[Dim, Expr, int],
        whole: Dim,
        width: int,
        n: Dim,
        rest: int | None,
        accumulate: DType,
    ) -> None:
        """The columns that do not fill a panel: in narrower vectors, or one by one when their number is symbolic."""
        start = index(whole) * width
        if rest is not None:
            self.panel(values, outer, rows, start, column_groups(rest, self.lanes), accumulate)
            return
        with self.b.loop("column", index(n) - start) as j:
            values.bind(j, width)
            self.panel(values.nested(), outer, rows, start + j, [(1, 1)], accumulate)

    def panel(
        self,
        values: Values,
        outer: Sequence[Expr],
        rows: tuple[Dim, Expr, int],
        column: Expr,
        groups: list[tuple[int, int]],
        accumulate: DType,
    ) -> None:
        """All rows of a block against one panel of columns."""
        m, first, block = rows
        height = self.tile.rows
        if isinstance(m, int) and m % height == 0 and m % block == 0:
            self.tiles(values, outer, first, block // height, height, column, groups, accumulate)
            return
        count = index(minimum(index(m) - first, block))
        if isinstance(m, int) and m <= block:
            self.tiles(values, outer, first, m // height, height, column, groups, accumulate)
            if m % height:
                start = first + m // height * height
                self.tiles(values.nested(), outer, start, 1, m % height, column, groups, accumulate)
            return
        whole = self.b.let("tiles", count // height)
        values.bind_value(whole, block // height)
        self.tiles(values.nested(), outer, first, whole, height, column, groups, accumulate)
        edge = m % height if isinstance(m, int) else None
        if edge:
            with self.b.when(count % height > 0):
                start = first + whole * height
                self.tiles(values.nested(), outer, start, 1, edge, column, groups, accumulate)
        elif edge is None:
            self.tiles(values.nested(), outer, first + whole * height, count % height, 1, column, groups, accumulate)

    def tiles(
        self,
        values: Values,
        outer: Sequence[Expr],
        first: Expr,
        count: Dim,
        height: int,
        column: Expr,
        groups: list[tuple[int, int]],
        accumulate: DType,
    ) -> None:
        """``count`` tiles of ``height`` rows, one below the other; the minimum says that they end with the last row."""
        last = index(product([d for _, d in self.c.m])) - height
        with self.b.loop("tile", index(count)) as t:
            values.bind(t, count)
            inside = values.nested()
            start = inside.simplifier(minimum(first + t * height, last))
            columns = sum(v * w for v, w in groups)
            out = self.b.allocate("tile", accumulate, (height, columns))
            fixed = dict(zip((v for v, _ in self.c.batch), outer, strict=True))
            k = self.k_order()

            def read(expr: Expr, axes: tuple[tuple[Var, Dim], ...], base: Expr):  # type: ignore[no-untyped-def]
                def element(at: Sequence[Expr], offset: Expr, local: Values) -> Expr:
                    known = {**fixed, **unravel(axes, base + offset), **dict(zip((v for v, _ in k), at, strict=True))}
                    return local.expand(expr, known)

                return element

            a, b = read(self.c.a, self.c.m, start), read(self.c.b, self.c.n, column)
            emit_tile(self.b, inside, height, groups, [d for _, d in k], a, b, out, accumulate)
            Epilogue(self.task, self.stage, self.c.reduce, self.b).emit(
                inside, out, lambda i, j: {**fixed, **unravel(self.c.m, start + i), **unravel(self.c.n, column + j)},
                groups
            )

    def k_order(self) -> tuple[tuple[Var, Dim], ...]:
        """The summed axes, the one along which A is contiguous innermost (the first of a convolution's: channels)."""
        return (*self.c.k[1:], self.c.k[0]) if len(self.c.k) > 1 else self.c.k


def unravel(axes: Sequence[tuple[Var, Dim]], flat: Expr) -> dict[Var, Expr]:
    """The indices along ``axes`` of the element number ``flat`` in row-major order."""
    found: dict[Var, Expr] = {}
    for d, (var, extent) in enumerate(axes):
        at = flat // product([e for _, e in axes[d + 1 :]])
        found[var] = at % extent if d else at
    return found


def schedule_matmul(task: Task, target: Target) -> Kernel | None:
    """The template's kernel, or None when the task has no contraction or its factors are guarded (padding)."""
    found = anchor_of(task)
    if found is None:
        return None
    stage, c = found
    if not c.reduce.dtype.is_float:
        return None
    return _Matmul(task, stage, c, target).kernel()


