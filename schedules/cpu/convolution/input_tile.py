"""The padded input tile of a convolution.

An input tile is the part of one image that some rows of output need, padded, in a core's local memory. With it the
inner loops need no border checks, whatever the padding, and a prologue is evaluated once for each element. It covers a
block of columns if the image is too wide or its width symbolic; of a volume, it covers one plane of output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from taskmap.ir.builder import Builder
from taskmap.ir.construct import const, constant_value, index, maximum, minimum
from taskmap.ir.nodes import Buffer, Dim, Expr, Var
from taskmap.ir.types import DType
from taskmap.schedules.common.convolution_geometry import Convolution, StridePhase
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.common.loops import vector_loop


@dataclass(frozen=True, slots=True)
class TileRow:
    """A row of an input tile in ``buffer``, at ``place`` (plane, row). ``image``: the plane and the row of the image
    that it holds. ``columns``: the range (from, to) of its columns that lie in the image, where column i of the row is
    column ``start`` + i."""

    buffer: Buffer
    place: tuple[Expr, Expr]
    image: tuple[Expr, Expr]
    columns: tuple[Dim, Dim]
    start: Expr


Fill = Callable[[Inliner, TileRow], None]
"""Computes the part of a row that lies in the image."""


@dataclass(frozen=True, slots=True)
class InputTile:
    """The padded input of one plane, ``rows`` rows and ``columns`` columns of output (of each phase): planes, rows,
    columns and channels, or channels before columns if the input's columns are closer together in memory than its
    channels."""

    conv: Convolution
    rows: int
    columns: int
    channels: int
    planar: bool = False

    @property
    def gap(self) -> int:
        """The distance of neighbouring planes: planes between the taps are left out."""
        return self.conv.phases[0][0].dilation if len(self.conv.phases[0]) == 1 else 1

    @property
    def planes(self) -> int:
        """Planes of input."""
        return (self.conv.reach(0) - 1) // self.gap + 1

    @property
    def height(self) -> int:
        """Rows of input."""
        return (self.rows - 1) * self.conv.phases[1][0].stride + self.conv.reach(1)

    @property
    def width(self) -> int:
        """Columns of input, padding included."""
        return (self.columns - 1) * self.conv.phases[2][0].stride + self.conv.reach(2)

    @property
    def size(self) -> int:
        """Elements."""
        return self.planes * self.height * self.width * self.channels

    def at(
        self, phase: Sequence[StridePhase], row: Expr, column: Expr, taps: Sequence[Expr], channel: Expr
    ) -> tuple[Expr, ...]:
        """Indices of the element under ``taps`` of the window at a row and column of the tile's output."""
        c = self.conv
        z, y, x = (
            q * p.stride + t * p.dilation + (p.shift - c.low(d))
            for d, (q, p, t) in enumerate(zip((index(0), row, column), phase, taps, strict=True))
        )
        plane = taps[0] if self.gap > 1 else z
        return (plane, y, channel, x) if self.planar else (plane, y, x, channel)

    def load(
        self,
        b: Builder,
        values: Inliner,
        n: Expr,
        first: tuple[Expr, ...],
        first_channel: Expr,
        dtype: DType,
        lanes: int,
        fill: Fill | None = None,
    ) -> Buffer:
        """Fill the tile for output positions from ``first`` on (plane, row, column of the first phase): input channels
        from ``first_channel`` on, zeros outside. ``fill`` computes the elements; without it they are copied."""
        c = self.conv
        inner = (self.channels, self.width) if self.planar else (self.width, self.channels)
        buffer = b.allocate("strip", dtype, (self.planes, self.height, *inner))
        zero = const(0, dtype)
        start, left, right = self.inside(b, values, first[2])
        with b.grid(["plane", "strip_row"], [self.planes, self.height]) as (p, r):
            values.bind(p, self.planes)
            values.bind(r, self.height)
            local = values.nested()
            steps = (p * self.gap, r)
            place = [
                local.simplifier(first[d] * c.phases[d][0].stride + c.low(d) + steps[d]) for d in range(len(steps))
            ]
            inside = (place[0] >= 0) & (place[0] < c.image[0]) & (place[1] >= 0) & (place[1] < c.image[1])
            held = [maximum(minimum(i, index(size) - 1), 0) for i, size in zip(place, c.image, strict=False)]

            def copy(begin: Dim, end: Dim, value: bool) -> None:
                known = isinstance(begin, int) and isinstance(end, int)
                columns = end - begin if known else index(end) - begin

                def put(column: Expr, channel: Expr, here: Inliner) -> None:
                    at = here.simplifier(column + begin)
                    spatial = c.spatial((*held, here.simplifier(start + at)))
                    got = here.element(c.x, (n, first_channel + channel, *spatial)) if value else zero
                    b.store(buffer, (p, r, channel, at) if self.planar else (p, r, at, channel), got)

                outer, vector = (self.channels, columns) if self.planar else (columns, self.channels)
                with b.loop("copy", outer) as i:
                    here = local.nested()
                    here.bind(i, outer)
                    vector_loop(
                        b, "copy_v", vector, lanes, here,
                        lambda j, deep, *_: put(j, i, deep) if self.planar else put(i, j, deep),
                    )  # fmt: skip

            with b.when(local.simplifier(inside)):
                copy(0, left, False)
                if fill is None:
                    copy(left, right, True)
                else:
                    fill(local, TileRow(buffer, (p, r), (held[0], held[1]), (left, right), start))
                copy(right, self.width, False)
            with b.otherwise():
                copy(0, self.width, False)
        return buffer

    def inside(self, b: Builder, values: Inliner, first: Expr) -> tuple[Expr, Dim, Dim]:
        """The image column of the tile's first column, and the range (from, to) of the tile's columns that lie in the
        image."""
        c, width = self.conv, self.width
        start = values.simplifier(first * c.phases[2][0].stride + c.low(2))
        left = values.simplifier(minimum(maximum(-start, 0), width))
        right = values.simplifier(maximum(minimum(index(c.image[2]) - start, width), left))
        return start, self._named(b, values, "left", left), self._named(b, values, "right", right)

    def _named(self, b: Builder, values: Inliner, name: str, column: Expr) -> Dim:
        known = constant_value(column)
        if known is not None:
            return int(known)
        named = b.let(name, column)
        if isinstance(named, Var):
            values.bind_value(named, self.width)
        return named
