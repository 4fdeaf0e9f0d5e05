"""The depthwise convolution template: every channel is independent, so vectors run over the channels.

The weights of the window stay in registers while the columns of an input tile (``input_tile``) pass, a few at a time.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from taskmap.ir.construct import call, cast, ceil_div, index
from taskmap.ir.loops import column_groups, parallel_grid
from taskmap.ir.nodes import Buffer, Dim, Expr, Kernel, Scope
from taskmap.schedules.common.convolution_geometry import StridePhase, positions
from taskmap.schedules.common.epilogue import Epilogue
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.common.loops import each_column
from taskmap.schedules.cpu.convolution.base import ConvolutionBase, OutputBlock
from taskmap.schedules.cpu.convolution.depthwise_config import DepthwiseConfig
from taskmap.schedules.cpu.convolution.expansion import ExpandedRows, Expansion
from taskmap.schedules.cpu.convolution.input_tile import InputTile


@dataclass(slots=True, kw_only=True)
class Depthwise(ConvolutionBase):
    """One channel in, one channel out, for each group."""

    config: DepthwiseConfig
    expansion: Expansion | None = None

    def kernel(self) -> Kernel:
        """The kernel, as the module's docstring describes."""
        c, b = self.conv, self.b
        rows, columns, channels, height = (
            self.config.rows,
            self.config.columns,
            self.config.channels,
            self.config.height,
        )
        whole, rest = divmod(c.groups, channels)
        values = Inliner(self.task, b)
        places = [c.steps(0), ceil_div(c.steps(1), rows), ceil_div(c.steps(2), columns)]
        extents = [c.batch, *places, whole + (rest > 0)]
        names = ["image", "plane", "rows", "columns", "chunk"]
        with parallel_grid(b, names, extents, values.simplifier, self.shared, 1 << 62) as (image, z, y, x, part):
            inside = values.nested()
            first = (z, inside.simplifier(y * rows), inside.simplifier(x * columns))
            block = OutputBlock(image, index(0), first, rows, columns)
            if not rest:
                self.chunk(inside.nested(), block, part * channels, channels, height)
            else:
                with b.when(part < whole):
                    self.chunk(inside.nested(), block, part * channels, channels, height)
                with b.otherwise():
                    self.chunk(inside.nested(), block, index(whole * channels), rest, height)
        return self.finished(f"cpu.depthwise(columns={height}, block={rows}x{columns}, channels={channels}{self.form})")

    @property
    def form(self) -> str:
        """The part of the kernel's note that names the form, if it is not the plain one."""
        return "" if self.expansion is None else f", expands={self.expansion.terms}"

    def chunk(self, values: Inliner, block: OutputBlock, start: Expr, channels: int, height: int) -> None:
        """All output positions of a block for some channels."""
        c, b = self.conv, self.b
        input_tile = InputTile(c, block.rows, block.columns, channels)
        fill = None
        if self.expansion is not None:
            fill = ExpandedRows(self.task, c, self.expansion, self.target, b, block.image, start, channels)
        loaded = input_tile.load(b, values, block.image, block.first, start, self.accumulate, self.lanes, fill)

        def of_phase(local: Inliner, phase: tuple[StridePhase, ...], rows: Dim, columns: Dim) -> None:
            for channel, inside in each_column(b, local, column_groups(channels, self.lanes)):
                self.channel(inside, input_tile, loaded, block, phase, rows, columns, start, channel, height)

        self.each_phase(values, block, of_phase)

    def channel(
        self,
        values: Inliner,
        input_tile: InputTile,
        loaded: Buffer,
        block: OutputBlock,
        phase: Sequence[StridePhase],
        rows: Dim,
        columns: Dim,
        start: Expr,
        channel: Expr,
        height: int,
    ) -> None:
        """One vector of channels: its weights in registers, all columns of all rows."""
        c, b = self.conv, self.b
        taps = [tuple(map(index, at)) for at in itertools.product(*(range(p.taps) for p in phase))]
        zero = (index(0), index(0), index(0))
        at = c.axes(block.image, start + channel, zero)
        weights = [
            b.let(
                "w", cast(values.expand(c.w, {**at, **c.taps(index(0), self.kernel_at(phase, tap))}), self.accumulate)
            )
            for tap in taps
        ]
        with b.loop("row", index(rows)) as y:
            values.bind(y, rows)
            for begin, many, size in column_tiles(columns, height):
                with b.loop("tile", index(many)) as t:
                    inside = values.nested()
                    inside.bind(t, many)
                    x0 = t * size + begin
                    acc = b.allocate("acc", self.accumulate, (size,), Scope.REGISTER)
                    for i in range(size):
                        b.store(acc, i, 0.0)
                    for tap, w in zip(taps, weights, strict=True):
                        for i in range(size):
                            element = loaded[input_tile.at(phase, y, x0 + i, tap, channel)]
                            fused = self.accumulate.is_float
                            b.store(acc, i, call("fma", element, w, acc[i]) if fused else acc[i] + element * w)
                    finish = Epilogue(self.task, c.stage, c.reduce, b)
                    for i in range(size):
                        place = self.output(phase, block, y, x0 + i)
                        finish.element(inside.nested(), acc[i], c.axes(block.image, start + channel, place))


def column_tiles(count: Dim, height: int) -> list[tuple[Dim, Dim, int]]:
    """(first, tiles, size) of tiles that cover ``count`` columns; sizes halve if the count is symbolic."""
    if isinstance(count, int):
        return list(positions(count, height))
    parts: list[tuple[Dim, Dim, int]] = [(0, count // height, height)]
    size = height
    while size > 1:
        smaller = size // 2
        parts.append((count // size * size, count % size // smaller, smaller))
        size = smaller
    return parts
