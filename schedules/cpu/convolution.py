"""The convolution template: a direct convolution on a padded strip of the image.

    parallel over (image, group, blocks of output rows, chunks of output channels):
        strip = the input rows needed, padded                          a core's own copy
        for each panel of output channels, output row, tile of columns:   multiply (microkernel);   epilogue

The microkernel's rows are neighbouring columns of one output row, its columns are output channels, its sum runs over
the window and the input channels. A depthwise convolution has no channels to sum: there vectors run over the
channels, and the weights of the window stay in registers while the columns pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from taskmap.ir.builder import Builder
from taskmap.ir.construct import cast, constant_dim, index, minimum
from taskmap.ir.nodes import Buffer, Expr, Kernel, LoopKind, Scope
from taskmap.ir.target import Target
from taskmap.ir.task import Task
from taskmap.ir.types import DType, compute_type
from taskmap.schedules.access import require_count
from taskmap.schedules.cpu.balance import blocks, makespan
from taskmap.schedules.cpu.epilogue import Epilogue
from taskmap.schedules.cpu.loops import column_groups, parallel_grid
from taskmap.schedules.cpu.microkernel import Tile, choose_tile, emit_tile
from taskmap.schedules.cpu.window import Convolution, Strip, find_convolution, is_planar, positions, strip_rows
from taskmap.schedules.values import Values

_STRIP_BYTES = 256 << 10


def schedule_convolution(task: Task, target: Target) -> Kernel | None:
    """The template's kernel, or None for a task that is not anchored by a convolution it can do."""
    conv = find_convolution(task)
    if conv is None or (conv.kernel == (1, 1) and conv.padding == (0, 0) and conv.groups == 1):
        return None  # a matrix product, and better done as one
    require_count(task, task.outputs, conv.stage.shape)
    plan = _Depthwise(task, conv, target) if conv.depthwise else _Dense(task, conv, target)
    return plan.kernel()


@dataclass(slots=True)
class _Template:
    task: Task
    conv: Convolution
    target: Target
    b: Builder = field(default_factory=Builder)

    @property
    def accumulate(self) -> DType:
        return compute_type(self.conv.reduce.dtype)

    @property
    def lanes(self) -> int:
        return self.target.lanes(self.accumulate.bytes)

    def finished(self, note: str) -> Kernel:
        buffers = (*self.task.inputs, *self.task.outputs)
        return Kernel(self.task.name, buffers, self.task.outputs, self.task.dims, self.b.body(), note=note)

    def row_blocks(self, rows: int) -> int:
        return -(-self.conv.out[0] // rows)

    def output_rows(self, values: Values, block: Expr, rows: int) -> tuple[Expr, int | Expr]:
        """The first output row of a block, and how many it has (the last block may have fewer)."""
        first = values.simplifier(block * rows)
        if self.conv.out[0] % rows == 0:
            return first, rows
        count = self.b.let("rows", values.simplifier(minimum(index(self.conv.out[0]) - first, rows)))
        values.bind_value(count, rows)
        return first, count


@dataclass(slots=True)
class _Dense(_Template):
    """Every output channel of a group needs every input channel of it."""

    def kernel(self) -> Kernel:
        c, b = self.conv, self.b
        tile = choose_tile(c.out[1], c.out_channels, self.target, self.lanes)
        width = tile.vectors * self.lanes
        panels = -(-c.out_channels // width)
        rows, chunk = self.partition(width, panels)
        strip = Strip(c, rows, c.channels, is_planar(c))
        values = Values(self.task, b)
        extents = [c.batch, c.groups, self.row_blocks(rows), -(-panels // chunk)]
        with parallel_grid(b, ["image", "group", "block", "chunk"], extents, values, True, 1 << 62) as at:
            image, group, block, part = at
            inside = values.nested()
            first, count = self.output_rows(inside, block, rows)
            loaded = strip.load(b, inside, image, first, group * c.channels, self.accumulate, self.lanes)
            whole, rest = divmod(c.out_channels, width)
            with b.loop("panel", chunk) as p:
                inside.bind(p, chunk)
                panel = inside.simplifier(part * chunk + p)
                place = (image, group, first, count)
                full = [(tile.vectors, self.lanes)]
                if rest == 0 and panels % chunk == 0:
                    self.panel(inside.nested(), strip, loaded, place, panel * width, full, tile)
                elif whole == 0:
                    self.panel(inside.nested(), strip, loaded, place, index(0), column_groups(rest, self.lanes), tile)
                else:
                    with b.when(panel < whole):
                        column = inside.simplifier(minimum(panel, whole - 1) * width)
                        self.panel(inside.nested(), strip, loaded, place, column, full, tile)
                    if rest:
                        with b.otherwise(), b.when(panel < panels):
                            edge = column_groups(rest, self.lanes)
                            self.panel(inside.nested(), strip, loaded, place, index(whole * width), edge, tile)
        return self.finished(f"cpu.convolution(tile={tile.rows}x{width}, rows={rows}, chunks={-(-panels // chunk)})")

    def partition(self, width: int, panels: int) -> tuple[int, int]:
        """(output rows of a strip, panels of a chunk) for which the busiest core has the least to do, counting vector
        multiply-adds, the filling of strips, and weights that must come from beyond the second-level cache."""
        c, cores = self.conv, self.target.cores
        k = c.channels * c.kernel[0] * c.kernel[1]
        images = min(constant_dim(c.batch) or cores, 4 * cores) * min(c.groups, 4 * cores)
        streamed = k * width * self.accumulate.bytes / 16 if k * c.out_channels * 4 > self.target.l2 else 0.0

        def cost(rows: int, chunk: int) -> float:
            strip = Strip(c, rows, c.channels, False)
            fill = strip.height * strip.width * c.channels / 8
            per_panel = c.out[1] * k * width / self.lanes
            work = [
                fill + p * (r * per_panel + streamed) for r in blocks(c.out[0], rows) for p in blocks(panels, chunk)
            ]
            return makespan(work * images, cores)

        budget = 2 * _STRIP_BYTES // self.accumulate.bytes
        strips = [Strip(c, rows, c.channels, False) for rows in range(1, c.out[0] + 1)]
        fitting = [s.rows for s in strips if s.rows == 1 or s.height * s.width * c.channels <= budget]
        chunks = sorted({panels, -(-panels // cores), -(-panels // (2 * cores)), 1}, reverse=True)
        return min(((r, p) for p in chunks for r in reversed(fitting)), key=lambda choice: cost(*choice))

    def panel(
        self,
        values: Values,
        strip: Strip,
        loaded: Buffer,
        place: tuple[Expr, Expr, Expr, int | Expr],
        channel: Expr,
        groups: list[tuple[int, int]],
        tile: Tile,
    ) -> None:
        """All output rows of a strip for one panel of output channels."""
        c, b = self.conv, self.b
        image, group, first, count = place
        columns = sum(v * w for v, w in groups)
        with b.loop("row", index(count)) as y:
            values.bind(y, strip.rows)
            for start, many, height in positions(c.out[1], tile.rows):
                with b.loop("tile", many) as t:
                    inside = values.nested()
                    inside.bind(t, many)
                    x0 = t * height + start
                    out = b.allocate("tile", self.accumulate, (height, columns))

                    def a(at: Sequence[Expr], i: Expr, local: Values, x0: Expr = x0) -> Expr:
                        ky, kx, ch = at
                        row = y * c.stride[0] + ky * c.dilation[0]
                        column = (x0 + i) * c.stride[1] + kx * c.dilation[1]
                        return loaded[strip.at(row, column, ch)]

                    def right(at: Sequence[Expr], j: Expr, local: Values) -> Expr:
                        ky, kx, ch = at
                        axes = c.axes(image, group * c.out_channels + channel + j, index(0), index(0))
                        return local.expand(c.w, {**axes, **c.taps(ch, ky, kx)})

                    emit_tile(b, inside, height, groups, [*c.kernel, c.channels], a, right, out, self.accumulate)

                    def position(i: Expr, j: Expr, x0: Expr = x0):  # type: ignore[no-untyped-def]
                        return c.axes(image, group * c.out_channels + channel + j, first + y, x0 + i)

                    Epilogue(self.task, c.stage, c.reduce, b).emit(inside, out, height, position, groups)


@dataclass(slots=True)
class _Depthwise(_Template):
    """Every channel on its own: vectors over channels."""

    def kernel(self) -> Kernel:
        c, b = self.conv, self.b
        budget = _STRIP_BYTES
        rows = strip_rows(c, c.groups, self.accumulate.bytes, budget, self.target.cores)
        blocks = self.row_blocks(rows)
        channels = c.groups
        if blocks < self.target.cores and c.groups >= 2 * self.lanes * self.target.cores:
            channels = -(-c.groups // self.lanes // (2 * self.target.cores)) * self.lanes
        one_row = Strip(c, 1, 1, False)
        fitting = 2 * budget // (one_row.height * one_row.width * self.accumulate.bytes)
        channels = min(channels, max(1, fitting // self.lanes) * self.lanes)
        whole, rest = divmod(c.groups, channels)
        height = min(c.out[1], 8 if self.target.vector_registers >= 32 else 4)
        values = Values(self.task, b)
        extents = [c.batch, blocks, whole + (rest > 0)]
        with parallel_grid(b, ["image", "block", "chunk"], extents, values, True, 1 << 62) as at:
            image, block, part = at
            inside = values.nested()
            first, count = self.output_rows(inside, block, rows)
            if not rest:
                self.chunk(inside.nested(), image, first, count, rows, part * channels, channels, height)
            else:
                with b.when(part < whole):
                    self.chunk(inside.nested(), image, first, count, rows, part * channels, channels, height)
                with b.otherwise():
                    self.chunk(inside.nested(), image, first, count, rows, index(whole * channels), rest, height)
        return self.finished(f"cpu.depthwise(columns={height}, rows={rows}, channels={channels})")

    def chunk(
        self,
        values: Values,
        image: Expr,
        first: Expr,
        count: int | Expr,
        rows: int,
        start: Expr,
        channels: int,
        height: int,
    ) -> None:
        """All output rows of a strip for some channels."""
        c, b = self.conv, self.b
        strip = Strip(c, rows, channels, False)
        loaded = strip.load(b, values, image, first, start, self.accumulate, self.lanes)
        offset = 0
        for vectors, width in column_groups(channels, self.lanes):
            with b.loop("vector", vectors) as v:
                values.bind(v, vectors)
                kind = LoopKind.VECTOR if width > 1 else LoopKind.SERIAL
                with b.loop("lane", width, kind) as lane:
                    inside = values.nested()
                    inside.bind(lane, width)
                    channel = v * width + lane + offset
                    self.channel(inside, strip, loaded, image, first, count, start, channel, height)
            offset += vectors * width

    def channel(
        self,
        values: Values,
        strip: Strip,
        loaded: Buffer,
        image: Expr,
        first: Expr,
        count: int | Expr,
        start: Expr,
        channel: Expr,
        height: int,
    ) -> None:
        """One channel (a lane of a vector of them): its weights in registers, all columns of all rows."""
        c, b = self.conv, self.b
        taps = [(ky, kx) for ky in range(c.kernel[0]) for kx in range(c.kernel[1])]
        at = c.axes(image, start + channel, index(0), index(0))
        weights = [
            b.let("w", cast(values.expand(c.w, {**at, **c.taps(index(0), index(ky), index(kx))}), self.accumulate))
            for ky, kx in taps
        ]
        with b.loop("row", index(count)) as y:
            values.bind(y, strip.rows)
            for begin, many, size in positions(c.out[1], height):
                with b.loop("tile", many) as t:
                    inside = values.nested()
                    inside.bind(t, many)
                    x0 = t * size + begin
                    acc = b.allocate("acc", self.accumulate, (size,), Scope.REGISTER)
                    for i in range(size):
                        b.store(acc, i, 0.0)
                    for (ky, kx), w in zip(taps, weights, strict=True):
                        row = y * c.stride[0] + ky * c.dilation[0]
                        for i in range(size):
                            column = (x0 + i) * c.stride[1] + kx * c.dilation[1]
                            b.store(acc, i, acc[i] + loaded[strip.at(row, column, channel)] * w)
                    finish = Epilogue(self.task, c.stage, c.reduce, b)
                    for i in range(size):
                        finish.element(inside.nested(), acc[i], c.axes(image, start + channel, first + y, x0 + i))
