"""The weight gradient of a convolution: correlates a still tensor with a tensor that moves under each tap.

    out[i, j, taps] = sum over images and positions p of still[n, i, p] * moving[n, j, p * stride + taps * dilation]

    parallel over (group, blocks of j, panels of i):
        for each image, plane, block of rows and columns:
            two tiles: the still one, and the moving one with its padding            a core's own copies
            for each tap, tile of j:   sums += moving (shifted by the tap) x still     (microkernel)
        epilogue on the sums

Each tap is a matrix product whose sum runs over positions. For a depthwise convolution, vectors run over channels.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast as typed

from taskmap.ir.analysis.simplify import Simplifier
from taskmap.ir.construct import ceil_div, index, maximum, minimum, static_size
from taskmap.ir.loops import column_groups, parallel_grid
from taskmap.ir.nodes import Dim, Expr, Kernel, Load, Reduce, Scope, Var
from taskmap.ir.target import CpuTarget
from taskmap.ir.task import Task
from taskmap.ir.visit import walk_exprs
from taskmap.schedules.common.access import require_count
from taskmap.schedules.common.convolution_geometry import DIMENSIONS, Convolution, is_planar, phases, positions
from taskmap.schedules.common.epilogue import Epilogue
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.common.loops import each_column
from taskmap.schedules.common.sampled_equality import equal_on_samples
from taskmap.schedules.cpu.convolution.base import ConvolutionBase
from taskmap.schedules.cpu.convolution.input_tile import InputTile
from taskmap.schedules.cpu.matmul.microkernel import choose_tile, emit_tile

_SUMS = 128 << 10
_STRIPS = 256 << 10
_POSITIONS = 128
"""Target number of positions in a block: the sums are reloaded once for each block and tap."""
_COLUMNS = 128

OfBlock = Callable[[Inliner, Expr, tuple[Expr, ...], tuple[Dim, Dim]], None]
"""The work on a block: (values, image, first position, numbers of rows and columns of positions)."""


def schedule_correlation(task: Task, target: CpuTarget) -> Kernel | None:
    """The template's kernel, or None for a task that is not anchored by the gradient of a convolution's weight."""
    conv = find_correlation(task)
    if conv is None:
        return None
    require_count(task, task.outputs, conv.stage.shape)
    return _Correlation(task, conv, target).kernel()


def find_correlation(task: Task) -> Convolution | None:
    """The geometry of the moving tensor, as if it were convolved; ``w`` is the load of the still one."""
    if task.anchor is None:
        return None
    stage = task.stages[task.anchor]
    attrs = dict(stage.attrs)
    reduces = [e for e in walk_exprs(stage.body) if isinstance(e, Reduce)]
    if "correlation" not in attrs or len(reduces) != 1 or len(stage.axes) not in (3, 4, 5):
        return None
    (reduction,) = reduces
    loads = [e for e in walk_exprs(reduction.body) if isinstance(e, Load)]
    kernel = [static_size(n) or 0 for n in stage.shape]
    if len(loads) != 2 or len(reduction.axes) != len(stage.axes) - 1 or not all(kernel):
        return None
    still, moving = loads
    rank = len(stage.axes) - 2
    strides, paddings, dilations = typed("tuple[tuple[int, ...], ...]", attrs["correlation"])
    groups = typed(int, attrs["groups"])
    rows, columns, *taps = kernel

    def three(values: Sequence[Dim], fill: int) -> tuple[Dim, ...]:
        return (*[fill] * (DIMENSIONS - rank), *values)

    known = [typed("tuple[int, ...]", three(v, f)) for v, f in ((taps, 1), (strides, 1), (paddings, 0), (dilations, 1))]
    conv = Convolution(
        stage, reduction, moving.buffer, still, reduction.axes[0][1], groups,
        channels=columns, out_channels=rows // groups, image=three(moving.buffer.shape[2:], 1),
        out=three([n for _, n in reduction.axes[1:]], 1), kernel=known[0],
        phases=tuple(phases(k, s, p, d, transposed=False) for k, s, p, d in zip(*known, strict=True)),
        order=tuple(range(DIMENSIONS - rank, DIMENSIONS)),
    )  # fmt: skip
    return conv if _matches(conv, still, moving) else None


def _matches(conv: Convolution, still: Load, moving: Load) -> bool:
    """True if the loads are those of a correlation, clamped to the image; checked on samples."""
    simplifier = Simplifier()
    stage, (n, *place) = conv.stage, (v for v, _ in conv.reduce.axes)
    for v, size in (*zip(stage.axes, stage.shape, strict=True), *conv.reduce.axes):
        simplifier.bind(v, size)
    i, j, *taps = stage.axes
    if not equal_on_samples(still.indices, (n, i, *place), simplifier, still.buffer.shape):
        return False
    expected = [n, i // conv.out_channels * conv.channels + j]
    window = (p for (p,) in conv.spatial(conv.phases))
    for p, o, k, size in zip(window, place, taps, moving.buffer.shape[2:], strict=True):
        expected.append(maximum(minimum(o * p.stride + k * p.dilation + p.shift, index(size) - 1), 0))
    return equal_on_samples(moving.indices, expected, simplifier, moving.buffer.shape)


@dataclass(slots=True)
class _Correlation(ConvolutionBase):
    @property
    def still(self) -> Convolution:
        """The still tensor as the input of a convolution that reads it position by position."""
        c = self.conv
        window = phases(1, 1, 0, 1, False)
        x = typed(Load, c.w).buffer
        return replace(c, x=x, image=c.out, kernel=(1,) * DIMENSIONS, phases=(window,) * DIMENSIONS)

    def kernel(self) -> Kernel:
        c = self.conv
        grouped = c.groups > 1 and c.channels == 1 and c.out_channels == 1
        note = self.depthwise() if grouped else self.dense()
        return self.finished(note)

    def block(self, channels: int) -> tuple[int, int]:
        """Rows and columns of positions in a block, for input tiles of ``channels`` channels in total."""
        c = self.conv
        columns = min(static_size(c.out[2]) or _COLUMNS, _COLUMNS)
        rows = max(1, min(-(-_POSITIONS // columns), static_size(c.out[1]) or _POSITIONS))
        room = _STRIPS // self.accumulate.bytes
        while rows > 1 and InputTile(c, rows, columns, channels).size > room:
            rows -= 1
        while columns > 16 and InputTile(c, rows, columns, channels).size > room:
            columns = -(-columns // 2)
        return rows, columns

    def dense(self) -> str:
        """Every row of a group with every column of it."""
        c, b = self.conv, self.b
        cores = self.target.cores
        tile = choose_tile(c.channels, c.out_channels, self.target, self.lanes)
        vectors = tile.vectors
        taps = math.prod(c.kernel)
        while vectors > 1 and c.groups * -(-c.out_channels // (vectors * self.lanes)) < cores:
            vectors -= 1
        width = vectors * self.lanes
        panels = -(-c.out_channels // width)
        most = max(1, _SUMS // (taps * width * self.accumulate.bytes))
        wanted = max(-(-c.channels // most), min(-(-cores // (c.groups * panels)), -(-c.channels // tile.rows)))
        size = -(-c.channels // wanted)
        size = min(c.channels, max(1, -(-size // tile.rows) * tile.rows if size < most else size))
        values = Inliner(self.task, b)
        extents = [c.groups, -(-c.channels // size), panels]
        names = ["group", "block", "panel"]
        with parallel_grid(b, names, extents, values.simplifier, True, 1 << 62) as (group, block, panel):
            for fits_j, j_size, j_first in _edges(block, c.channels, size):
                for fits_i, i_size, i_first in _edges(panel, c.out_channels, width):
                    with b.when(values.simplifier(fits_j & fits_i)):
                        inside = values.nested()
                        self.part(inside, group, j_first, j_size, i_first, i_size, tile.rows)
        return f"cpu.correlation(tile={tile.rows}x{width}, block={size})"

    def part(
        self, values: Inliner, group: Expr, j_first: Expr, j_size: int, i_first: Expr, i_size: int, height: int
    ) -> None:
        """All taps for some j and some i of a group."""
        c, b = self.conv, self.b
        groups = column_groups(i_size, self.lanes)
        sums = b.allocate("sums", self.accumulate, (math.prod(c.kernel) * j_size, i_size), init=0.0)
        rows, columns = self.block(j_size + i_size)
        still = InputTile(self.still, rows, columns, i_size)
        moving = InputTile(c, rows, columns, j_size, is_planar(c))

        def multiply(inside: Inliner, n: Expr, first: tuple[Expr, ...], counts: tuple[Dim, Dim]) -> None:
            fixed = still.load(b, inside, n, first, group * c.out_channels + i_first, self.accumulate, self.lanes)
            slid = moving.load(b, inside, n, first, group * c.channels + j_first, self.accumulate, self.lanes)
            zero = (index(0), index(0), index(0))
            still_phase, phase = (tuple(p for (p,) in s.conv.phases) for s in (still, moving))
            with b.grid(["k0", "k1", "k2"], c.kernel) as tap:
                for v, extent in zip(tap, c.kernel, strict=True):
                    inside.bind(v, extent)
                number = (tap[0] * c.kernel[1] + tap[1]) * c.kernel[2] + tap[2]
                for start, many, size in positions(j_size, height):
                    with b.loop("tile", many) as t:
                        deep = inside.nested()
                        deep.bind(t, many)
                        j0 = t * size + start

                        def a(at: Sequence[Expr], j: Expr, local: Inliner, j0: Expr = j0) -> Expr:
                            return slid[moving.at(phase, at[0], at[1], tap, j0 + j)]

                        def right(at: Sequence[Expr], i: Expr, local: Inliner) -> Expr:
                            return fixed[still.at(still_phase, at[0], at[1], zero, i)]

                        row = deep.simplifier(number * j_size + j0)
                        emit_tile(b, deep, size, groups, counts, a, right, sums, self.accumulate, row=row, add=True)

        self.each_block(values, rows, columns, multiply)

        def position(row: Expr, i: Expr) -> dict[Var, Expr]:
            tap = row // j_size
            place = (tap // (c.kernel[1] * c.kernel[2]), tap // c.kernel[2] % c.kernel[1], tap % c.kernel[2])
            out = (group * c.out_channels + i_first + i, j_first + row % j_size, *c.spatial(place))
            return dict(zip(c.stage.axes, out, strict=True))

        Epilogue(self.task, c.stage, c.reduce, b).emit(values, sums, math.prod(c.kernel) * j_size, position, groups)

    def each_block(self, values: Inliner, rows: int, columns: int, body: OfBlock) -> None:
        """body(values, image, first position, (rows, columns)) for all positions of all images."""
        c, b = self.conv, self.b
        extents = [c.batch, c.out[0], ceil_div(c.out[1], rows), ceil_div(c.out[2], columns)]
        with b.grid(["image", "plane", "rows", "columns"], [index(e) for e in extents]) as (n, z, y, x):
            inside = values.nested()
            for v, extent in zip((n, z, y, x), extents, strict=True):
                inside.bind(v, extent)
            first = (z, inside.simplifier(y * rows), inside.simplifier(x * columns))
            counts = [
                self.count(inside, f, s, e) for f, s, e in zip(first[1:], (rows, columns), c.out[1:], strict=True)
            ]
            body(inside, n, first, (counts[0], counts[1]))

    def count(self, values: Inliner, first: Expr, size: int, extent: Dim) -> Dim:
        """The number of positions from ``first`` on, at most ``size``, below ``extent``."""
        known = static_size(extent)
        if known is not None and known % size == 0:
            return size
        count = self.b.let("count", values.simplifier(minimum(index(extent) - first, size)))
        values.bind_value(count, size)
        return static_size(count) or count

    def depthwise(self) -> str:
        """Depthwise: every channel alone."""
        c, b = self.conv, self.b
        size = min(c.groups, 4 * self.lanes)
        whole, rest = divmod(c.groups, size)
        values = Inliner(self.task, b)
        with parallel_grid(b, ["chunk"], [whole + (rest > 0)], values.simplifier, True, 1 << 62) as (chunk,):
            for fits, channels, first in _edges(chunk, c.groups, size):
                with b.when(values.simplifier(fits)):
                    self.channels(values.nested(), first, channels)
        return f"cpu.correlation_depthwise(channels={size})"

    def channels(self, values: Inliner, first_channel: Expr, size: int) -> None:
        """All taps of some channels: a sum for each tap stays in registers while the positions of a block pass. Blocks
        are added up afterwards, which loses fewer digits than one long sum."""
        c, b = self.conv, self.b
        taps = [tuple(map(index, tap)) for tap in itertools.product(*(range(k) for k in c.kernel))]
        groups = column_groups(size, self.lanes)
        sums = b.allocate("sums", self.accumulate, (len(taps), size), init=0.0)
        rows, columns = self.block(2 * size)
        still, moving = InputTile(self.still, rows, columns, size), InputTile(c, rows, columns, size)

        def add(inside: Inliner, n: Expr, first: tuple[Expr, ...], counts: tuple[Dim, Dim]) -> None:
            fixed = still.load(b, inside, n, first, first_channel, self.accumulate, self.lanes)
            slid = moving.load(b, inside, n, first, first_channel, self.accumulate, self.lanes)
            zero = (index(0), index(0), index(0))
            still_phase, phase = (tuple(p for (p,) in s.conv.phases) for s in (still, moving))
            for channel, _ in each_column(b, inside, groups):
                acc = b.allocate("acc", self.accumulate, (len(taps),), Scope.REGISTER)
                for t in range(len(taps)):
                    b.store(acc, t, 0.0)
                with b.grid(["y", "x"], [index(m) for m in counts]) as (y, x):
                    value = b.let("still", fixed[still.at(still_phase, y, x, zero, channel)])
                    for t, tap in enumerate(taps):
                        b.store(acc, t, acc[t] + value * slid[moving.at(phase, y, x, tap, channel)])
                for t in range(len(taps)):
                    b.store(sums, (t, channel), sums[t, channel] + acc[t])

        self.each_block(values, rows, columns, add)

        def position(row: Expr, channel: Expr) -> dict[Var, Expr]:
            place = (row // (c.kernel[1] * c.kernel[2]), row // c.kernel[2] % c.kernel[1], row % c.kernel[2])
            return dict(zip(c.stage.axes, (first_channel + channel, index(0), *c.spatial(place)), strict=True))

        Epilogue(self.task, c.stage, c.reduce, b).emit(values, sums, len(taps), position, groups)


def _edges(block: Expr, total: int, size: int) -> list[tuple[Expr, int, Expr]]:
    """(condition, size, start) for blocks of ``size`` out of ``total``, of which the last one is smaller."""
    whole, rest = divmod(total, size)
    cases = [(block < whole, size, minimum(block, whole - 1) * size)] if whole else []
    return [*cases, (block >= whole, rest, index(whole * size))] if rest else cases
