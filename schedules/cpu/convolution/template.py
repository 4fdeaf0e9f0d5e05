"""The convolution template: direct convolution on a padded input tile.

    parallel over (image, group, planes, blocks of output rows and columns, chunks of output channels):
        tile = the input needed, padded                                a core's own copy
        for each panel of output channels, phase, output row, tile of columns:   multiply (microkernel);   epilogue

The microkernel's rows are neighbouring columns of one output row, its columns are output channels, and its sum runs
over the window and the input channels. A transposed convolution has several phases (``StridePhase``), any other one.
Symbolic sizes cost no more than tiles that are computed in full and stored in part. A depthwise convolution has no
channels to sum: its template is ``depthwise``. With few output channels the microkernel is ``dot_tile``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from taskmap.ir.construct import ceil_div, index, minimum, product, static_size
from taskmap.ir.errors import ScheduleError
from taskmap.ir.loops import column_groups, parallel_grid
from taskmap.ir.nodes import Buffer, Dim, Expr, Kernel, Var
from taskmap.ir.target import CpuTarget
from taskmap.ir.task import Task
from taskmap.schedules.common.access import require_count
from taskmap.schedules.common.convolution_geometry import (
    Convolution,
    StridePhase,
    find_convolution,
    is_matrix_product,
    is_planar,
    positions,
)
from taskmap.schedules.common.epilogue import Epilogue
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.cpu.convolution.base import ConvolutionBase, OutputBlock
from taskmap.schedules.cpu.convolution.config import (
    ConvolutionConfig,
    by_dots,
    default,
    edge_columns,
    packed_width,
    validity,
)
from taskmap.schedules.cpu.convolution.depthwise import Depthwise
from taskmap.schedules.cpu.convolution.depthwise_config import (
    DepthwiseConfig,
    depthwise_default,
    depthwise_validity,
    is_paired,
)
from taskmap.schedules.cpu.convolution.dot_tile import emit_dots
from taskmap.schedules.cpu.convolution.expansion import Expansion, find_expansion
from taskmap.schedules.cpu.convolution.expansion_config import expanded_default, expanded_validity
from taskmap.schedules.cpu.convolution.input_tile import InputTile
from taskmap.schedules.cpu.convolution.paired_depthwise import PairedDepthwise
from taskmap.schedules.cpu.convolution.turned_rows import STRIP, put_tile, store_strip, stores_along_columns
from taskmap.schedules.cpu.matmul.ahead import Ahead, NextPanel, stored_weights
from taskmap.schedules.cpu.matmul.microkernel import Tile, chain_of, emit_tile

_MOST_PHASES = 32
"""Each phase of a transposed convolution is separate code."""
_LONGEST_ROW = 64

Config = ConvolutionConfig | DepthwiseConfig
TileBody = Callable[[Inliner, Expr, int, Dim], None]
"""The work on a tile of columns: (values, its first column in the block, its width, its number of valid columns)."""


def schedule_convolution(task: Task, target: CpuTarget, config: Config | None = None) -> Kernel | None:
    """The template's kernel with ``config``, by default the untuned one; None for a task that is not anchored by a
    convolution it supports. Raises ScheduleError with the reason if ``config`` does not fit."""
    conv = schedulable(task)
    if conv is None:
        return None
    require_count(task, task.outputs, conv.stage.shape)
    if conv.depthwise:
        return _depthwise(task, conv, target, config).kernel()
    return _dense(task, conv, target, config).kernel()


def _depthwise(task: Task, conv: Convolution, target: CpuTarget, config: Config | None) -> Depthwise:
    expansion = find_expansion(task, conv)
    if expansion is not None:
        return _expanding(task, conv, target, config, expansion)
    if config is None:
        return _alone(task, conv, target, depthwise_default(conv, target))
    if not isinstance(config, DepthwiseConfig):
        raise _unfit(task, config, "this configuration is not for a depthwise convolution")
    if reason := depthwise_validity(config, conv, target):
        raise _unfit(task, config, reason)
    return _alone(task, conv, target, config)


def _alone(task: Task, conv: Convolution, target: CpuTarget, config: DepthwiseConfig) -> Depthwise:
    form = PairedDepthwise if is_paired(conv, target) else Depthwise
    return form(task, conv, target, config=config)


def _expanding(
    task: Task, conv: Convolution, target: CpuTarget, config: Config | None, expansion: Expansion
) -> Depthwise:
    chosen = config or expanded_default(conv, expansion.terms, expansion.width, target)
    if chosen is None:
        raise ScheduleError(f"no input tile of {task.name!r} fits a core's cache")
    if not isinstance(chosen, DepthwiseConfig):
        raise _unfit(task, chosen, "this configuration is not for a depthwise convolution")
    if reason := expanded_validity(chosen, conv, expansion.width, target):
        raise _unfit(task, chosen, reason)
    return Depthwise(task, conv, target, config=chosen, expansion=expansion)


def _dense(task: Task, conv: Convolution, target: CpuTarget, config: Config | None) -> Dense:
    if config is None:
        return Dense(task, conv, target, config=default(conv, target))
    if not isinstance(config, ConvolutionConfig):
        raise _unfit(task, config, "this configuration is for a depthwise convolution")
    if reason := validity(config, conv, target):
        raise _unfit(task, config, reason)
    return Dense(task, conv, target, config=config)


def _unfit(task: Task, config: Config, reason: str) -> ScheduleError:
    return ScheduleError(f"{task.name!r} cannot be computed with {config}", why=f"{reason}.")


def schedulable(task: Task) -> Convolution | None:
    """The convolution that anchors a task, if the template supports it."""
    conv = find_convolution(task)
    if conv is None or math.prod(map(len, conv.phases)) > _MOST_PHASES:
        return None
    known = all(static_size(n) is not None for n in conv.out)
    return None if known and is_matrix_product(conv) else conv  # a matrix product is faster


@dataclass(slots=True, kw_only=True)
class Dense(ConvolutionBase):
    """Dense convolution: every output channel of a group needs every input channel of it.

    A 1x1 convolution of symbolic sizes needs no input tile: it reads the image.
    """

    config: ConvolutionConfig

    @property
    def direct(self) -> bool:
        """True if the image is read in place."""
        return is_matrix_product(self.conv)

    def kernel(self) -> Kernel:
        """The kernel, as the module's docstring describes."""
        c, b = self.conv, self.b
        tile, rows, columns, chunk = self.config.tile, self.config.rows, self.config.columns, self.config.panels
        width = tile.vectors * self.lanes
        panels = -(-c.out_channels // width)
        input_tile = InputTile(c, rows, columns, c.channels, is_planar(c) and not by_dots(c, self.target))
        values = Inliner(self.task, b)
        chunks = -(-panels // chunk)
        with self.blocks(values, rows, columns, chunks) as (image, group, z, y, x, part):
            inside = values.nested()
            first = (z, inside.simplifier(y * rows), inside.simplifier(x * columns))
            block = OutputBlock(image, group, first, rows, columns)
            loaded = None
            if not self.direct:
                loaded = input_tile.load(b, inside, image, first, group * c.channels, self.accumulate, self.lanes)
            whole, rest = divmod(c.out_channels, width)
            full, edge = [(tile.vectors, self.lanes)], edge_columns(c, rest, width, self.lanes)
            with b.loop("panel", chunk) as p:
                inside.bind(p, chunk)
                panel = inside.simplifier(part * chunk + p)
                if rest == 0 and panels % chunk == 0:
                    self.panel(inside.nested(), input_tile, loaded, block, panel * width, full, tile)
                elif whole == 0:
                    self.panel(inside.nested(), input_tile, loaded, block, index(0), edge, tile, rest)
                else:
                    with b.when(panel < whole):
                        channel = inside.simplifier(minimum(panel, whole - 1) * width)
                        self.panel(inside.nested(), input_tile, loaded, block, channel, full, tile)
                    if rest:
                        with b.otherwise(), b.when(panel < panels):
                            self.panel(
                                inside.nested(), input_tile, loaded, block, index(whole * width), edge, tile, rest
                            )
        size = f"{rows}x{columns}"
        return self.finished(f"cpu.convolution(tile={tile.rows}x{width}, block={size}, chunks={chunks})")

    @contextmanager
    def blocks(self, values: Inliner, rows: int, columns: int, chunks: int) -> Iterator[tuple[Expr, ...]]:
        """The parallel loop: (image, group, plane, block of rows, block of columns, chunk of output channels)."""
        c = self.conv
        places = [c.steps(0), ceil_div(c.steps(1), rows), ceil_div(c.steps(2), columns)]
        extents = [c.batch, c.groups, *places, chunks]
        names = ["image", "group", "plane", "rows", "columns", "chunk"]
        if self.config.neighbours == "image":
            with parallel_grid(self.b, names, extents, values.simplifier, self.shared, 1 << 62) as at:
                yield at
            return
        names, extents = [names[5], *names[:5]], [extents[5], *extents[:5]]
        with parallel_grid(self.b, names, extents, values.simplifier, self.shared, 1 << 62) as (part, *place):
            yield (*place, part)

    def panel(
        self,
        values: Inliner,
        input_tile: InputTile,
        loaded: Buffer | None,
        block: OutputBlock,
        channel: Expr,
        groups: list[tuple[int, int]],
        tile: Tile,
        count: int | None = None,
    ) -> None:
        """All output positions of a block for one panel of output channels. groups: those that are computed; count: the
        number of those that are stored, by default all."""
        c, b = self.conv, self.b
        width = sum(v * w for v, w in groups)
        kept = groups if count in (None, width) else column_groups(count or 0, self.lanes)

        def of_phase(inside: Inliner, phase: tuple[StridePhase, ...], rows: Dim, columns: Dim) -> None:
            k: list[Dim] = [*(p.taps for p in phase), c.channels]
            chain = chain_of(static_size(product(k)), self.accumulate)

            def position(y: Expr, x: Expr, j: Expr) -> dict[Var, Expr]:
                oc = block.group * c.out_channels + channel + j
                return c.axes(block.image, oc, self.output(phase, block, y, x))

            def multiply(local: Inliner, y: Expr, x0: Expr, size: int) -> Buffer:
                out = b.allocate(
                    "tile", self.accumulate, (size, width), init=0.0 if chain and not by_dots(c, self.target) else None
                )

                def left(at: Sequence[Expr], i: Expr, deep: Inliner) -> Expr:
                    *tap, ch = at
                    if loaded is None:
                        return self.element(deep, phase, block, y, x0 + i, ch)
                    return loaded[input_tile.at(phase, y, x0 + i, tap, ch)]

                def right(at: Sequence[Expr], j: Expr, deep: Inliner) -> Expr:
                    *tap, ch = at
                    zero = (index(0), index(0), index(0))
                    axes = c.axes(block.image, block.group * c.out_channels + channel + j, zero)
                    return deep.expand(c.w, {**axes, **c.taps(ch, self.kernel_at(phase, tap))})

                if by_dots(c, self.target):
                    emit_dots(b, local, (size, width), k, left, right, out, self.accumulate, self.lanes)
                else:
                    ahead = self.ahead(local, channel, rows, columns, k, (y, x0))
                    emit_tile(b, local, size, groups, k, left, right, out, self.accumulate, chain=chain, ahead=ahead)
                return out

            finish = Epilogue(self.task, c.stage, c.reduce, b)

            def by_tiles(local: Inliner, y: Expr) -> None:
                def one(deep: Inliner, x0: Expr, size: int, stored: Dim) -> None:
                    out = multiply(deep, y, x0, size)
                    finish.emit(deep, out, stored, lambda i, j: position(y, x0 + i, j), kept)

                self.tiles(local, columns, tile.rows, one)

            def by_strips(local: Inliner, y: Expr, count: int) -> None:
                for start, many, size in positions(count, STRIP):
                    with b.loop("strip", many) as n:
                        deep = local.nested()
                        deep.bind(n, many)
                        self.strip(deep, n * size + start, size, y, multiply, position, finish, kept)

            with b.loop("row", index(rows)) as y:
                inside.bind(y, rows)
                if isinstance(columns, int) and self.turned(columns, sum(v * w for v, w in kept)):
                    by_strips(inside.nested(), y, columns)
                else:
                    by_tiles(inside.nested(), y)

        self.each_phase(values, block, of_phase)

    def turned(self, columns: int, channels: int) -> bool:
        """True if results are stored by strips of columns."""
        return not by_dots(self.conv, self.target) and stores_along_columns(self.task, self.conv, columns, channels)

    def strip(
        self,
        values: Inliner,
        first: Expr,
        size: int,
        y: Expr,
        multiply: Callable[[Inliner, Expr, Expr, int], Buffer],
        position: Callable[[Expr, Expr, Expr], dict[Var, Expr]],
        finish: Epilogue,
        kept: list[tuple[int, int]],
    ) -> None:
        """``size`` columns from ``first`` on, tile by tile, then the epilogue of all of them."""
        b = self.b
        strip = b.allocate("strip", self.accumulate, (size, sum(v * w for v, w in kept)))

        def one(inside: Inliner, x0: Expr, rows: int, _: Dim) -> None:
            put_tile(b, inside, multiply(inside, y, first + x0, rows), strip, x0, rows, kept)

        self.tiles(values.nested(), size, self.config.tile.rows, one)
        store_strip(b, values, strip, self.lanes, finish, lambda i, j: position(y, first + i, j))

    def ahead(
        self, values: Inliner, channel: Expr, rows: Dim, columns: Dim, k: Sequence[Dim], at: tuple[Expr, Expr]
    ) -> Ahead | None:
        """The weights of the next panel of output channels; None if this block has only one, their place is not known,
        or the second-level cache does not hold both panels: the tiles to come would miss theirs."""
        c, tile = self.conv, self.config.tile
        width = tile.vectors * self.lanes
        packed = packed_width(c)
        stored = stored_weights(c.w, packed)
        high, wide, terms = static_size(rows), static_size(columns), static_size(product(list(k)))
        if stored is None or packed != width or c.groups != 1 or not (high and wide and terms):
            return None
        if math.prod(map(len, c.phases)) > 1 or (self.config.panels == 1 and self.config.neighbours == "weights"):
            return None
        if 2 * terms * width * stored.dtype.bytes > self.target.l2:
            return None
        across = -(-wide // tile.rows)
        following = NextPanel(stored, values.simplifier(channel // width), index(terms * width), width, high * across)
        return following.lines(values.simplifier(at[0] * across + at[1] // tile.rows), k)

    def element(
        self, values: Inliner, phase: Sequence[StridePhase], block: OutputBlock, row: Expr, column: Expr, channel: Expr
    ) -> Expr:
        """The image element for one position of a block; positions beyond the last column use the last."""
        c = self.conv
        held = minimum(block.first[2] + column, index(c.steps(2)) - 1)
        places = (block.first[0], block.first[1] + row, held)
        spatial = tuple(q * p.stride for q, p in zip(places, phase, strict=True))
        return values.element(c.x, (block.image, channel, *c.spatial(spatial)))

    def tiles(self, values: Inliner, count: Dim, height: int, body: TileBody) -> None:
        """Calls ``body`` for tiles of ``height`` that cover ``count`` columns. If the count is symbolic, the last tile
        is computed in full, or in half, and stored in part."""
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
