"""The convolution template: a direct convolution on a padded strip of the image.

    parallel over (image, group, planes, blocks of output rows and columns, chunks of output channels):
        strip = the input needed, padded                               a core's own copy
        for each panel of output channels, phase, output row, tile of columns:   multiply (microkernel);   epilogue

The microkernel's rows are neighbouring columns of one output row, its columns are output channels, its sum runs over
the window and the input channels. A transposed convolution has several phases (``window``), any other one. Symbolic
sizes cost no more than tiles that are computed in full and stored in part. A depthwise convolution has no channels to
sum: its template is ``depthwise``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from taskmap.ir.construct import ceil_div, constant_dim, index, minimum, product
from taskmap.ir.nodes import Buffer, Dim, Expr, Kernel
from taskmap.ir.target import Target
from taskmap.ir.task import Task
from taskmap.schedules.access import require_count
from taskmap.schedules.cpu.balance import blocks, makespan
from taskmap.schedules.cpu.depthwise import Depthwise
from taskmap.schedules.cpu.epilogue import Epilogue
from taskmap.schedules.cpu.loops import column_groups, parallel_grid
from taskmap.schedules.cpu.microkernel import Tile, choose_tile, emit_tile
from taskmap.schedules.cpu.phases import STRIP_BYTES, Block, Template
from taskmap.schedules.cpu.strip import Strip
from taskmap.schedules.cpu.window import Convolution, Phase, find_convolution, is_planar, positions
from taskmap.schedules.values import Values

_MOST_PHASES = 32
"""Each phase of a transposed convolution is code of its own."""
_SAMPLES = (8, 28, 100)
"""Extents that stand for a symbolic one when block sizes are chosen."""
_LONGEST_ROW = 64

TileBody = Callable[[Values, Expr, int, Dim], None]
"""What is done for a tile of columns: (values, its first column in the block, its width, how much of it counts)."""


def schedule_convolution(task: Task, target: Target) -> Kernel | None:
    """The template's kernel, or None for a task that is not anchored by a convolution it can do."""
    conv = find_convolution(task)
    if conv is None or math.prod(map(len, conv.phases)) > _MOST_PHASES:
        return None
    if is_matrix_product(conv) and not any(constant_dim(n) is None for n in conv.out):
        return None  # better done as one
    require_count(task, task.outputs, conv.stage.shape)
    return Depthwise(task, conv, target).kernel() if conv.depthwise else Dense(task, conv, target).kernel()


def is_matrix_product(conv: Convolution) -> bool:
    """Whether each output position needs one position of the image only, and all of its channels."""
    return conv.groups == 1 and all(len(p) == 1 and p[0].taps == 1 and p[0].shift == 0 for p in conv.phases)


@dataclass(slots=True)
class Dense(Template):
    """Every output channel of a group needs every input channel of it.

    A convolution of single positions, whose sizes are not known, needs no strip: it reads the image.
    """

    @property
    def direct(self) -> bool:
        """Whether the image is read where it lies."""
        return is_matrix_product(self.conv)

    def kernel(self) -> Kernel:
        """The kernel: see the top of the file."""
        c, b = self.conv, self.b
        extent = product([c.batch, *c.out]) if self.direct else c.steps(2)
        tile = choose_tile(extent, c.out_channels, self.target, self.lanes)
        width = tile.vectors * self.lanes
        panels = -(-c.out_channels // width)
        rows, columns, chunk = self.partition(tile, width, panels)
        strip = Strip(c, rows, columns, c.channels, is_planar(c))
        values = Values(self.task, b)
        places = [c.steps(0), ceil_div(c.steps(1), rows), ceil_div(c.steps(2), columns)]
        extents = [c.batch, c.groups, *places, -(-panels // chunk)]
        names = ["image", "group", "plane", "rows", "columns", "chunk"]
        with parallel_grid(b, names, extents, values, True, 1 << 62) as (image, group, z, y, x, part):
            inside = values.nested()
            first = (z, inside.simplifier(y * rows), inside.simplifier(x * columns))
            block = Block(image, group, first, rows, columns)
            loaded = None
            if not self.direct:
                loaded = strip.load(b, inside, image, first, group * c.channels, self.accumulate, self.lanes)
            whole, rest = divmod(c.out_channels, width)
            full = [(tile.vectors, self.lanes)]
            with b.loop("panel", chunk) as p:
                inside.bind(p, chunk)
                panel = inside.simplifier(part * chunk + p)
                if rest == 0 and panels % chunk == 0:
                    self.panel(inside.nested(), strip, loaded, block, panel * width, full, tile)
                elif whole == 0:
                    self.panel(inside.nested(), strip, loaded, block, index(0), column_groups(rest, self.lanes), tile)
                else:
                    with b.when(panel < whole):
                        channel = inside.simplifier(minimum(panel, whole - 1) * width)
                        self.panel(inside.nested(), strip, loaded, block, channel, full, tile)
                    if rest:
                        with b.otherwise(), b.when(panel < panels):
                            edge = column_groups(rest, self.lanes)
                            self.panel(inside.nested(), strip, loaded, block, index(whole * width), edge, tile)
        size = f"{rows}x{columns}"
        return self.finished(f"cpu.convolution(tile={tile.rows}x{width}, block={size}, chunks={-(-panels // chunk)})")

    def partition(self, tile: Tile, width: int, panels: int) -> tuple[int, int, int]:
        """(output rows and columns of a strip, panels of a chunk) for which the busiest core has the least to do,
        counting vector multiply-adds, the filling of strips, and weights that must come from beyond the second-level
        cache.

        Columns are cut only where a strip of one row is too large, or where their number is not known.
        """
        c, cores = self.conv, self.target.cores
        depth = 0 if self.direct else c.channels
        k = c.channels * math.prod(c.kernel)
        images = min(constant_dim(c.batch) or cores, 4 * cores) * min(c.groups, 4 * cores)
        images = min(images * (constant_dim(c.steps(0)) or 1), 16 * cores)
        streamed = k * width * self.accumulate.bytes / 16 if k * c.out_channels * 4 > self.target.l2 else 0.0
        budget = 2 * STRIP_BYTES // self.accumulate.bytes
        columns = self.block_columns(tile, budget)
        steps = constant_dim(c.steps(1))
        samples = _SAMPLES if steps is None else (steps,)

        def cost(rows: int, chunk: int, extent: int) -> float:
            fill = Strip(c, rows, columns, depth).size / 8
            per_panel = columns * k * width / self.lanes
            parts = blocks(panels, chunk)
            work = [fill + p * (r * per_panel + streamed) for r in blocks(extent, rows) for p in parts]
            return makespan(work * images, cores) / extent

        most = min(steps or 16, 512)
        fitting = [r for r in range(1, most + 1) if r == 1 or Strip(c, r, columns, depth).size <= budget]
        chunks = sorted({panels, -(-panels // cores), -(-panels // (2 * cores)), 1}, reverse=True)
        choices = ((r, p) for p in chunks for r in reversed(fitting))
        rows, chunk = min(choices, key=lambda choice: sum(cost(choice[0], choice[1], extent) for extent in samples))
        return rows, columns, chunk

    def block_columns(self, tile: Tile, budget: int) -> int:
        """Columns of a strip: all of them, or as many whole tiles as fit."""
        c = self.conv
        known = constant_dim(c.steps(2))
        one = Strip(c, 1, 1, c.channels)
        if known is not None and Strip(c, 1, known, c.channels).size <= 2 * budget:
            return known
        most = max(1, _LONGEST_ROW // tile.rows) if known is None else known // tile.rows + 1
        step = max(1, c.phases[2][0].stride * one.planes * one.height * c.channels)
        fitting = (2 * budget - one.size) // step // tile.rows
        return max(1, min(most, fitting)) * tile.rows

    def panel(
        self,
        values: Values,
        strip: Strip,
        loaded: Buffer | None,
        block: Block,
        channel: Expr,
        groups: list[tuple[int, int]],
        tile: Tile,
    ) -> None:
        """All output positions of a block for one panel of output channels."""
        c, b = self.conv, self.b
        width = sum(v * w for v, w in groups)

        def of_phase(inside: Values, phase: tuple[Phase, ...], rows: Dim, columns: Dim) -> None:
            taps = [p.taps for p in phase]

            def multiply(local: Values, y: Expr, x0: Expr, size: int, stored: Dim) -> None:
                out = b.allocate("tile", self.accumulate, (size, width))

                def left(at: Sequence[Expr], i: Expr, deep: Values) -> Expr:
                    *tap, ch = at
                    if loaded is None:
                        return self.element(deep, phase, block, y, x0 + i, ch)
                    return loaded[strip.at(phase, y, x0 + i, tap, ch)]

                def right(at: Sequence[Expr], j: Expr, deep: Values) -> Expr:
                    *tap, ch = at
                    zero = (index(0), index(0), index(0))
                    axes = c.axes(block.image, block.group * c.out_channels + channel + j, zero)
                    return deep.expand(c.w, {**axes, **c.taps(ch, self.kernel_at(phase, tap))})

                emit_tile(b, local, size, groups, [*taps, c.channels], left, right, out, self.accumulate)

                def position(i: Expr, j: Expr):  # type: ignore[no-untyped-def]
                    oc = block.group * c.out_channels + channel + j
                    return c.axes(block.image, oc, self.output(phase, block, y, x0 + i))

                Epilogue(self.task, c.stage, c.reduce, b).emit(local, out, stored, position, groups)

            with b.loop("row", index(rows)) as y:
                inside.bind(y, rows)
                self.tiles(
                    inside.nested(), columns, tile.rows,
                    lambda local, x0, size, stored: multiply(local, y, x0, size, stored),
                )  # fmt: skip

        self.each_phase(values, block, of_phase)

    def element(
        self, values: Values, phase: Sequence[Phase], block: Block, row: Expr, column: Expr, channel: Expr
    ) -> Expr:
        """The element of the image for one position of a block; one beyond the last column counts as the last."""
        c = self.conv
        held = minimum(block.first[2] + column, index(c.steps(2)) - 1)
        places = (block.first[0], block.first[1] + row, held)
        spatial = tuple(q * p.stride for q, p in zip(places, phase, strict=True))
        return values.at(c.x, (block.image, channel, *spatial[-c.rank :]))

    def tiles(self, values: Values, count: Dim, height: int, body: TileBody) -> None:
        """``body`` for tiles of ``height`` that cover ``count`` columns. Where the count is not known, the last tile is
        computed in full, or in half, and stored in part."""
        b = self.b
        if isinstance(count, int):
            for start, many, size in positions(count, height):
                with b.loop("tile", many) as t:
                    inside = values.nested()
                    inside.bind(t, many)
                    body(inside, t * size + start, size, size)
            return
        whole = b.let("tiles", values.simplifier(count // height))
        values.bind_value(whole, _LONGEST_ROW)
        with b.loop("tile", whole) as t:
            inside = values.nested()
            inside.bind(t, whole)
            body(inside, t * height, height, height)
        if height == 1:
            return
        rest = b.let("rest", values.simplifier(count - whole * height))
        values.bind_value(rest, height - 1)
        half = -(-height // 2)
        with b.when(rest > half):
            body(values.nested(), whole * height, height, rest)
        with b.otherwise(), b.when(rest > 0):
            body(values.nested(), whole * height, half, rest)
