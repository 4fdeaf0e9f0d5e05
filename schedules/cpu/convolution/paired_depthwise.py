"""Depthwise convolution of bf16, where an instruction multiplies pairs: rows of the input are interleaved two by two.

    strip[k, x, channel] = (row 2k, row 2k + 1)        each pair of rows once, for all taps and all columns
    even rows of output:   strip[k] · (w0, w1)  +  (strip[k + 1], 0) · (w2, 0)
    odd rows:              (0, strip[k]) · (0, w0)  +  strip[k + 1] · (w1, w2)

A sum of 3×3 products takes six instructions instead of nine multiply-adds, and no element is widened. Where a tap has
no partner, the other element is cleared, too: a zero weight alone would turn infinity into NaN. With a stride of two,
all rows are even ones. Sums are those of ``vdpbf16ps``, which flushes denormal numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from taskmap.ir.construct import ceil_div, const, eq, index, load, maximum, minimum, ramp, select, static_size
from taskmap.ir.isa.dots import LANE_DOTS
from taskmap.ir.loops import column_groups
from taskmap.ir.nodes import Buffer, Cast, Dim, Expr, Intrinsic, LoopKind, Scope
from taskmap.ir.types import bf16, f32
from taskmap.schedules.common.convolution_geometry import StridePhase
from taskmap.schedules.common.epilogue import Epilogue
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.common.loops import vector_loop
from taskmap.schedules.cpu.convolution.base import OutputBlock
from taskmap.schedules.cpu.convolution.depthwise import Depthwise, column_tiles
from taskmap.schedules.cpu.convolution.depthwise_config import PairedTap, rows_at_once, rows_together, tap_pairs
from taskmap.schedules.cpu.convolution.input_tile import InputTile

_INSTRUCTIONS = {entry.columns: entry for entry in LANE_DOTS}


@dataclass(frozen=True, slots=True)
class _Vector:
    """A vector of channels of a chunk that begins at channel ``start``: its first channel in the chunk, its lanes."""

    start: Expr
    channel: Expr
    lanes: int

    @property
    def pairs(self) -> Expr:
        """The places of its pairs."""
        return ramp(self.channel * 2, 1, 2 * self.lanes)


@dataclass(slots=True, kw_only=True)
class PairedDepthwise(Depthwise):
    """One channel in, one channel out, for each group, of bf16."""

    @property
    def form(self) -> str:
        """The part of the kernel's note that names the form."""
        return ", rows=paired"

    def chunk(self, values: Inliner, block: OutputBlock, start: Expr, channels: int, height: int) -> None:
        """All output positions of a block for some channels."""
        c, b = self.conv, self.b
        offsets = range(min(rows_together(c), block.rows))
        taps = [pair for offset in offsets for pair in tap_pairs(c, offset)]
        strip = self.paired_rows(values, block, start, channels)
        weights = self.paired_weights(values, block, start, channels, taps)
        alone = len(offsets) > rows_at_once(c)
        passes = [tap_pairs(c, offset) for offset in offsets] if alone else [taps]

        def of_phase(local: Inliner, phase: tuple[StridePhase, ...], rows: Dim, columns: Dim) -> None:
            first = 0
            for count, lanes in column_groups(channels, self.lanes):
                with b.loop("vector", count) as v:
                    inside = local.nested()
                    inside.bind(v, count)
                    vector = _Vector(start, v * lanes + first, lanes)
                    for pairs in passes:
                        held = [
                            [b.let("w", load(weights, (taps.index(pair), x, vector.pairs))) for x in range(c.kernel[2])]
                            for pair in pairs
                        ]
                        self.rows_of(inside.nested(), strip, block, phase, rows, columns, vector, pairs, held, height)
                first += count * lanes

        self.each_phase(values, block, of_phase)

    def paired_rows(self, values: Inliner, block: OutputBlock, start: Expr, channels: int) -> Buffer:
        """The padded input tile with its rows interleaved two by two, zeros outside the image."""
        c, b = self.conv, self.b
        tile = InputTile(c, -(-block.rows // rows_together(c)) * rows_together(c), block.columns, channels)
        pairs = ceil_div(tile.height, 2)
        strip = b.allocate("strip", bf16, (pairs, tile.width, 2 * channels))
        zero = const(0, bf16)
        first, left, right = tile.inside(b, values, block.first[2])
        with b.loop("strip_row", index(pairs)) as k:
            values.bind(k, static_size(pairs) or 1)
            local = values.nested()
            top = block.first[1] * c.phases[1][0].stride + c.low(1) + k * 2
            rows = [local.simplifier(top + half) for half in range(2)]
            exists = [b.let("inside", local.simplifier((row >= 0) & (row < c.image[1]))) for row in rows]
            held = [local.simplifier(maximum(minimum(row, index(c.image[1]) - 1), 0)) for row in rows]

            def copy(begin: Dim, end: Dim, image: bool, checked: bool = False) -> None:
                columns = end - begin if isinstance(begin, int) and isinstance(end, int) else index(end) - begin

                def put(channel: Expr, here: Inliner, *_: object) -> None:
                    at = here.simplifier(i + begin)
                    for half, (row, there) in enumerate(zip(held, exists, strict=True)):
                        got: Expr = zero
                        if image:
                            place = c.spatial((index(0), row, here.simplifier(first + at)))
                            got = here.element(c.x, (block.image, start + channel, *place))
                            got = select(there, got, zero) if checked else got
                        b.store(strip, (k, at, channel * 2 + half), got)

                with b.loop("copy", columns) as i:
                    here = local.nested()
                    here.bind(i, columns)
                    vector_loop(b, "copy_v", channels, self.lanes, here, put)

            copy(0, left, False)
            with b.when(exists[0] & exists[1]):
                copy(left, right, True)
            with b.otherwise():
                copy(left, right, True, checked=True)
            copy(right, tile.width, False)
        return strip

    def paired_weights(
        self, values: Inliner, block: OutputBlock, start: Expr, channels: int, taps: Sequence[PairedTap]
    ) -> Buffer:
        """The weights of each pair of taps and each column of the window, zeros for a missing tap."""
        c, b = self.conv, self.b
        copy = b.allocate("weights", bf16, (len(taps), c.kernel[2], 2 * channels))
        weight = c.w
        while isinstance(weight, Cast):
            weight = weight.a
        zero = (index(0), index(0), index(0))
        phase = [only for (only,) in c.phases]

        def put(channel: Expr, here: Inliner, *_: object) -> None:
            at = c.axes(block.image, start + channel, zero)
            for number, pair in enumerate(taps):
                for column in range(c.kernel[2]):
                    for half, tap in enumerate(pair.taps):
                        place = self.kernel_at(phase, (index(0), index(tap or 0), index(column)))
                        got = const(0, bf16) if tap is None else here.expand(weight, {**at, **c.taps(index(0), place)})
                        b.store(copy, (number, column, channel * 2 + half), got)

        vector_loop(b, "weights_v", channels, self.lanes, values.nested(), put)
        return copy

    def rows_of(
        self,
        values: Inliner,
        strip: Buffer,
        block: OutputBlock,
        phase: Sequence[StridePhase],
        rows: Dim,
        columns: Dim,
        vector: _Vector,
        pairs: Sequence[PairedTap],
        weights: Sequence[Sequence[Expr]],
        height: int,
    ) -> None:
        """One vector of channels: all columns of those rows that ``pairs`` are the taps of."""
        b, together = self.b, rows_together(self.conv)
        with b.loop("row", index(ceil_div(rows, together))) as y:
            values.bind(y, -(-block.rows // together))
            for begin, many, size in column_tiles(columns, height):
                with b.loop("tile", many) as t:
                    inside = values.nested()
                    inside.bind(t, many)
                    column = t * size + begin
                    sums = self.multiply(inside, strip, phase[2], (y, column), size, vector, pairs, weights)
                    for offset, acc in sums.items():
                        row = inside.simplifier(y * together + offset)
                        last = not (isinstance(rows, int) and rows % together == 0) and offset > 0
                        with b.when(row < rows if last else True):
                            self.finish(inside, acc, block, phase, row, column, size, vector)

    def multiply(
        self,
        values: Inliner,
        strip: Buffer,
        along: StridePhase,
        at: tuple[Expr, Expr],
        size: int,
        vector: _Vector,
        pairs: Sequence[PairedTap],
        weights: Sequence[Sequence[Expr]],
    ) -> dict[int, Buffer]:
        """The sums of ``size`` columns from ``at`` (pair of rows, column), for each row that they belong to."""
        b, lanes, dot = self.b, vector.lanes, _INSTRUCTIONS[vector.lanes]
        low = self.conv.low(2)
        sums = {
            offset: b.allocate("acc", f32, (size, lanes), Scope.REGISTER)
            for offset in dict.fromkeys(p.offset for p in pairs)
        }
        with b.loop("lane", lanes, LoopKind.VECTOR) as lane:
            for acc in sums.values():
                for i in range(size):
                    b.store(acc, (i, lane), 0.0)
        reads = {
            (i * along.stride + t * along.dilation + along.shift - low) for i in range(size) for t in range(along.taps)
        }
        for row in dict.fromkeys(p.row for p in pairs):
            for read in sorted(reads):
                uses = [
                    (n, p, i, t)
                    for n, p in enumerate(pairs)
                    if p.row == row
                    for t in range(along.taps)
                    for i in range(size)
                    if i * along.stride + t * along.dilation + along.shift - low == read
                ]
                place = (at[0] + row, at[1] * along.stride + read)
                elements = {
                    keep: self.pair(values, strip, place, vector, keep)
                    for keep in dict.fromkeys(p.alone for _, p, _, _ in uses)
                }
                for n, p, i, t in uses:
                    acc, where = sums[p.offset], (i, ramp(0, 1, lanes))
                    args = (acc[where], elements[p.alone][ramp(0, 1, 2 * lanes)], weights[n][t])
                    b.store(acc, where, Intrinsic(dot, args, f32, lanes))
        return sums

    def pair(
        self, values: Inliner, strip: Buffer, place: tuple[Expr, Expr], vector: _Vector, alone: int | None
    ) -> Buffer:
        """The elements of two rows in a register; ``alone``: the only half to keep."""
        b = self.b
        register = b.allocate("pair", bf16, (2 * vector.lanes,), Scope.REGISTER)
        with b.loop("lane", 2 * vector.lanes, LoopKind.VECTOR) as lane:
            inside = values.nested()
            inside.bind(lane, 2 * vector.lanes)
            got = strip[place[0], place[1], vector.channel * 2 + lane]
            b.store(register, (lane,), got if alone is None else select(eq(lane % 2, alone), got, const(0, bf16)))
        return register

    def finish(
        self,
        values: Inliner,
        acc: Buffer,
        block: OutputBlock,
        phase: Sequence[StridePhase],
        row: Expr,
        column: Expr,
        size: int,
        vector: _Vector,
    ) -> None:
        """The epilogue of ``size`` sums."""
        c, b = self.conv, self.b
        finish = Epilogue(self.task, c.stage, c.reduce, b)
        with b.loop("lane", vector.lanes, LoopKind.VECTOR) as lane:
            inside = values.nested()
            inside.bind(lane, vector.lanes)
            for i in range(size):
                place = self.output(phase, block, row, column + i)
                channel = vector.start + vector.channel + lane
                finish.element(inside.nested(), acc[i, lane], c.axes(block.image, channel, place))
