"""The template of convolution by minimal filtering: the kernel of a convolution of transformed weights.

    parallel over (images, blocks of rows and columns of tiles, chunks of output channels):
        for each slice of the input channels:   copy the padded input;   transformed = Bᵀ d B of every tile
        for each panel of output channels:
            for each position of a tile:        products = transformed inputs × transformed weights   (microkernel)
            for each tile:                      Aᵀ products A;   epilogue

A block is so small that its transformed inputs stay in a core's second-level cache. Its tiles are computed in full, and
stored as far as the image reaches, so sizes may be symbolic and any padding is right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from taskmap.ir.builder import Builder
from taskmap.ir.construct import ceil_div, const, index, maximum, minimum, static_size
from taskmap.ir.loops import column_groups, parallel_grid
from taskmap.ir.nodes import Buffer, Dim, Expr, Kernel
from taskmap.ir.target import CpuTarget
from taskmap.ir.task import Task
from taskmap.ir.types import f32
from taskmap.schedules.common.access import require_count
from taskmap.schedules.common.convolution_geometry import positions
from taskmap.schedules.common.epilogue import Epilogue
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.common.loops import each_column, vector_loop
from taskmap.schedules.cpu.convolution.input_tile import InputTile
from taskmap.schedules.cpu.matmul.ahead import NextPanel
from taskmap.schedules.cpu.matmul.microkernel import emit_tile
from taskmap.schedules.cpu.support.kernels import kernel_of
from taskmap.schedules.cpu.winograd.choice import default
from taskmap.schedules.cpu.winograd.config import BYTES, CHAIN, UNSPLIT, FilterSizes, WinogradConfig, sizes_of
from taskmap.schedules.cpu.winograd.geometry import WinogradConvolution, find_winograd
from taskmap.schedules.cpu.winograd.transform import both_sides

TileBody = Callable[[Inliner, Expr, int], None]
"""The work on a register tile: (values, its first tile of the image in the block, its height)."""


def schedule_winograd(task: Task, target: CpuTarget, config: WinogradConfig | None = None) -> Kernel | None:
    """The template's kernel; None for a task that is not anchored by a convolution of transformed weights."""
    found = find_winograd(task)
    if found is None:
        return None
    c = found.conv
    require_count(task, task.outputs, c.stage.shape)
    sizes = sizes_of(found.form, c.batch, c.channels, c.out_channels, (c.out[1], c.out[2]), found.width)
    chosen = config or default(sizes, target)
    if chosen is None:
        return None
    return _Winograd(task, found, sizes, target, chosen).kernel()


@dataclass(frozen=True, slots=True)
class _Block:
    """One iteration of the parallel loop: images, rows and columns of tiles from ``image``, ``row``, ``column`` on."""

    image: Expr
    row: Expr
    column: Expr


@dataclass(slots=True)
class _Winograd:
    task: Task
    found: WinogradConvolution
    sizes: FilterSizes
    target: CpuTarget
    config: WinogradConfig
    b: Builder = field(default_factory=Builder)

    @property
    def lanes(self) -> int:
        return self.target.lanes(BYTES)

    @property
    def outputs(self) -> int:
        """Outputs of a tile per dimension."""
        return self.sizes.form.outputs

    @property
    def symbolic(self) -> bool:
        """True if the number of tiles of a block is known only when the kernel runs; it then has one row."""
        return self.sizes.columns is None

    def kernel(self) -> Kernel:
        """The kernel, as the module's docstring describes."""
        c, config, b = self.found.conv, self.config, self.b
        tiles: list[Dim] = [ceil_div(n, self.outputs) for n in c.out[1:]]
        chunks = -(-self.sizes.panels // config.panels)
        places = [ceil_div(c.batch, config.images), *map(ceil_div, tiles, (config.rows, config.columns)), chunks]
        values = Inliner(self.task, b)
        names = ["image", "rows", "columns", "chunk"]
        with parallel_grid(b, names, places, values.simplifier, True, 1 << 62) as (n, y, x, part):
            inside = values.nested()
            first = (n * config.images, y * config.rows, x * config.columns)
            block = _Block(*(inside.simplifier(at) for at in first))
            live = self.live(inside, block, tiles[1])
            transformed = self.transform_inputs(inside, block, live)
            with b.loop("panel", config.panels) as p:
                inside.bind(p, config.panels)
                self.panel(inside.nested(), block, transformed, live, inside.simplifier(part * config.panels + p))
        tile = f"{config.tile.rows}x{self.found.width}"
        size = f"{config.images}x{config.rows}x{config.columns}"
        note = f"cpu.winograd({self.sizes.form}, tile={tile}, block={size}, chunks={chunks})"
        return kernel_of(self.task, b, note)

    def live(self, values: Inliner, block: _Block, across: Dim) -> Dim:
        """The tiles of a block that are computed: all, or register tiles that reach the end of a row."""
        if not self.symbolic:
            return self.config.tiles
        left = minimum(index(across) - block.column, self.config.columns)
        count = self.b.let("live", values.simplifier(left))
        values.bind_value(count, self.config.columns)
        return count

    def transform_inputs(self, values: Inliner, block: _Block, live: Dim) -> Buffer:
        """Bᵀ d B of every tile and channel of a block: [positions, tiles × channels]."""
        b, config, c = self.b, self.config, self.found.conv
        form, depth = self.sizes.form, config.depth
        # Rows one vector longer than needed: rows a power of two apart would compete for the same lines of a cache.
        shape = (self.sizes.positions, config.tiles * c.channels + self.lanes)
        transformed = b.allocate("transformed", f32, shape)
        input_tile = InputTile(c, config.rows * form.outputs, config.columns * form.outputs, depth)
        slices = c.channels // depth
        with b.loop("image", config.images) as image, b.loop("slice", slices) as part:
            values.bind(image, config.images)
            values.bind(part, slices)
            local = values.nested()
            first = (index(0), block.row * form.outputs, block.column * form.outputs)
            at = (local.simplifier(block.image + image), first, local.simplifier(part * depth))
            loaded = input_tile.load(b, local, *at, f32, self.lanes)
            reached = self.rounded(local, live) if self.symbolic else config.columns
            with b.loop("tile_row", config.rows) as row, b.loop("tile_column", index(reached)) as column:
                local.bind(row, config.rows)
                local.bind(column, config.columns)

                def one(channel: Expr, inside: Inliner, *_: object) -> None:
                    tile = (image * config.rows + row) * config.columns + column
                    place = inside.simplifier(tile * c.channels + part * depth + channel)
                    corner = (row * form.outputs, column * form.outputs)
                    both_sides(
                        b, form.of_inputs,
                        lambda i, j: loaded[0, corner[0] + i, corner[1] + j, channel],
                        lambda i, j, value: b.store(transformed, (i * form.inputs + j, place), value),
                    )  # fmt: skip

                vector_loop(b, "transform", depth, self.lanes, local.nested(), one)
        return transformed

    def rounded(self, values: Inliner, live: Dim) -> Expr:
        """``live`` rounded up to whole register tiles, at most all tiles of a block."""
        height = self.config.tile.rows
        return values.simplifier(minimum(index(ceil_div(live, height)) * height, self.config.tiles))

    def panel(self, values: Inliner, block: _Block, transformed: Buffer, live: Dim, panel: Expr) -> None:
        """All outputs of a block in one panel of output channels."""
        sizes, width, b = self.sizes, self.found.width, self.b
        whole, rest = divmod(sizes.out_channels, width)
        all_full = sizes.panels % self.config.panels == 0
        if rest == 0 and all_full:
            self.outputs_of(values, block, transformed, live, panel, width)
            return
        if whole == 0:
            self.outputs_of(values, block, transformed, live, index(0), rest)
            return
        with b.when(values.simplifier(panel < whole)):
            held = values.simplifier(minimum(panel, whole - 1))
            self.outputs_of(values.nested(), block, transformed, live, held, width)
        if rest:
            with b.otherwise(), b.when(values.simplifier(panel < sizes.panels)):
                self.outputs_of(values.nested(), block, transformed, live, index(whole), rest)

    def outputs_of(
        self, values: Inliner, block: _Block, transformed: Buffer, live: Dim, panel: Expr, columns: int
    ) -> None:
        """The first ``columns`` channels of a panel: multiply, transform, store."""
        b, config, width = self.b, self.config, self.found.width
        stored = config.tiles | 1  # an odd number: positions are then never a power of two apart
        products = b.allocate("products", f32, (self.sizes.positions * stored, width))
        groups = [(config.tile.vectors, self.lanes)]
        side = self.sizes.form.inputs
        channels = self.sizes.channels
        parts = -(-channels // CHAIN) if channels > UNSPLIT else 1
        with b.loop("position", self.sizes.positions) as position:
            values.bind(position, self.sizes.positions)
            if parts > 1:
                self.clear(values.nested(), products, position * stored)
            # All tiles take one part of the sum before the next: its weights are then in the nearest cache.
            with b.loop("part", parts) as part:
                inside = values.nested()
                inside.bind(part, parts)
                begin = inside.simplifier(part * CHAIN)
                length = inside.simplifier.dim(minimum(channels - begin, CHAIN if parts > 1 else channels))

                def multiply(local: Inliner, first: Expr, height: int) -> None:
                    def left(at: Sequence[Expr], i: Expr, deep: Inliner) -> Expr:
                        return transformed[position, deep.simplifier((first + i) * channels + begin + at[0])]

                    def right(at: Sequence[Expr], j: Expr, deep: Inliner) -> Expr:
                        channel = deep.simplifier(begin + at[0])
                        return self.found.weights[panel, position // side, position % side, channel, j]

                    row = local.simplifier(position * stored + first)
                    tile = (b, local, height, groups, [length], left, right, products, f32)
                    behind = inside.simplifier((position * channels + begin + length) * width)
                    following = NextPanel(self.found.weights, panel, behind, width, -(-config.tiles // height))
                    ahead = following.lines(local.simplifier(first // config.tile.rows), [static_size(length) or CHAIN])
                    emit_tile(*tile, row=row, add=parts > 1, ahead=ahead)

                self.each_tile(inside, live, multiply)
        self.transform_outputs(values.nested(), block, products, stored, panel, columns)

    def clear(self, values: Inliner, products: Buffer, first: Expr) -> None:
        """The products of one position, whose rows begin with ``first``, become 0."""
        tiles = self.config.tiles
        with self.b.loop("cleared", tiles) as i:
            values.bind(i, tiles)
            vector_loop(
                *(self.b, "clear", self.found.width, self.lanes, values.nested()),
                lambda j, *_: self.b.store(products, (first + i, j), const(0, f32)),
            )

    def each_tile(self, values: Inliner, live: Dim, multiply: TileBody) -> None:
        """Calls ``multiply`` for the register tiles of a block."""
        b, height = self.b, self.config.tile.rows
        if self.symbolic:
            whole, rest = divmod(self.config.tiles, height)
            count = values.simplifier(minimum(index(ceil_div(live, height)), whole))
            with b.loop("tile", count) as t:
                inside = values.nested()
                inside.bind(t, whole)
                multiply(inside, inside.simplifier(t * height), height)
            if rest:
                with b.when(values.simplifier(index(live) > whole * height)):
                    multiply(values.nested(), index(whole * height), rest)
            return
        for start, many, size in positions(self.config.tiles, height):
            with b.loop("tile", many) as t:
                inside = values.nested()
                inside.bind(t, many)
                multiply(inside, inside.simplifier(t * size + start), size)

    def transform_outputs(
        self, values: Inliner, block: _Block, products: Buffer, stored: int, panel: Expr, columns: int
    ) -> None:
        """Aᵀ products A of every tile of a block, with the epilogue, at the positions that exist."""
        b, config, c = self.b, self.config, self.found.conv
        m = self.outputs
        groups = column_groups(columns, self.lanes)
        extents = (config.images, config.rows, config.columns)
        with b.grid(["image", "tile_row", "tile_column"], extents) as (image, row, column):
            for v, extent in zip((image, row, column), extents, strict=True):
                values.bind(v, extent)
            local = values.nested()
            first = [local.simplifier((block.row + row) * m), local.simplifier((block.column + column) * m)]
            named = zip(("down", "across"), first, c.out[1:], strict=True)
            counts = [self.within(local, name, at, n) for name, at, n in named]
            held = [index(n) > 0 for n in counts]
            with b.when(local.simplifier(held[0] & held[1])):
                tile = (image * config.rows + row) * config.columns + column
                out = b.allocate("outputs", f32, (m * m, columns))
                for channel, inside in each_column(b, local.nested(), groups):
                    self.finish_tile(inside, products, out, stored, tile, channel)
                with b.loop("y", index(counts[0])) as y, b.loop("x", index(counts[1])) as x:
                    local.bind(y, m)
                    local.bind(x, m)
                    finish = Epilogue(self.task, c.stage, c.reduce, b)
                    for channel, inside in each_column(b, local.nested(), groups):
                        place = (index(0), first[0] + y, first[1] + x)
                        axes = c.axes(block.image + image, panel * self.found.width + channel, place)
                        finish.element(inside, out[inside.simplifier(y * m + x), channel], axes)

    def finish_tile(
        self, values: Inliner, products: Buffer, out: Buffer, stored: int, tile: Expr, channel: Expr
    ) -> None:
        """out = Aᵀ products A for one tile and channel."""
        b, form = self.b, self.sizes.form
        at = [values.simplifier(position * stored + tile) for position in range(self.sizes.positions)]
        both_sides(
            b, form.to_outputs,
            lambda i, j: products[at[i * form.inputs + j], channel],
            lambda i, j, value: b.store(out, (i * form.outputs + j, channel), value),
        )  # fmt: skip

    def within(self, values: Inliner, name: str, first: Expr, extent: Dim) -> Dim:
        """Positions of a tile from ``first`` on that exist."""
        known = static_size(extent)
        if known is not None and known % self.outputs == 0:
            blocks = self.config.rows if name == "down" else self.config.columns
            if known // self.outputs % blocks == 0:
                return self.outputs
        count = self.b.let(name, values.simplifier(maximum(minimum(index(extent) - first, self.outputs), 0)))
        values.bind_value(count, self.outputs)
        return static_size(count) if static_size(count) is not None else count  # type: ignore[return-value]
