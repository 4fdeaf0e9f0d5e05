"""What a convolution's template needs to know: its geometry, read from the stage, and the strip of input it works on.

A strip is the part of one image that some rows of output need, padded, in a core's own memory: with it the inner
loops have no border to look out for, whatever the padding, and a prologue is evaluated once for each element.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast as typed

from taskmap.ir.builder import Builder
from taskmap.ir.construct import const, constant_dim, maximum, minimum
from taskmap.ir.lower.flatten import strides_of
from taskmap.ir.nodes import Buffer, Dim, Expr, Load, Reduce, Var
from taskmap.ir.simplify import Simplifier
from taskmap.ir.task import Stage, Task
from taskmap.ir.types import DType
from taskmap.ir.visit import walk_exprs
from taskmap.schedules.cpu.loops import vector_loop
from taskmap.schedules.sampling import agree
from taskmap.schedules.values import Values


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution stage over (rows, columns); a one-dimensional one has a single row.

    ``x`` and ``w`` are the tensors it loads. Channels are per group. Sizes are static, the batch may be symbolic.
    """

    stage: Stage
    reduce: Reduce
    x: Buffer
    w: Expr
    batch: Dim
    groups: int
    channels: int
    out_channels: int
    image: tuple[int, int]
    out: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    rank: int

    @property
    def depthwise(self) -> bool:
        """One channel in and one out per group."""
        return self.groups > 1 and self.channels == 1 and self.out_channels == 1

    def axes(self, n: Expr, channel: Expr, row: Expr, column: Expr) -> dict[Var, Expr]:
        """The stage's axes at an output position."""
        spatial = (row, column) if self.rank == 2 else (column,)
        return dict(zip(self.stage.axes, (n, channel, *spatial), strict=True))

    def taps(self, channel: Expr, row: Expr, column: Expr) -> dict[Var, Expr]:
        """The summed axes at one tap of the window."""
        spatial = (row, column) if self.rank == 2 else (column,)
        return dict(zip((v for v, _ in self.reduce.axes), (channel, *spatial), strict=True))


def find_convolution(task: Task) -> Convolution | None:
    """The convolution that anchors a task, if it is one of one or two dimensions with static sizes, not transposed."""
    if task.anchor is None:
        return None
    stage = task.stages[task.anchor]
    attrs = dict(stage.attrs)
    reduces = [e for e in walk_exprs(stage.body) if isinstance(e, Reduce)]
    if "dilation" not in attrs or attrs.get("transposed") or len(reduces) != 1 or len(stage.axes) not in (3, 4):
        return None
    (fold,) = reduces
    loads = [e for e in walk_exprs(fold.body) if isinstance(e, Load)]
    factors = [e for e in walk_exprs(fold.body) if getattr(e, "op", "") == "mul" and e.dtype.is_float]
    if len(loads) != 2 or len(fold.axes) != len(stage.axes) - 1 or not factors:
        return None
    x = loads[0].buffer
    rank = len(stage.axes) - 2
    sizes = [constant_dim(d) for d in (*x.shape[1:], *stage.shape[1:], *(d for _, d in fold.axes))]
    if any(s is None for s in sizes):
        return None
    groups = typed(int, attrs["groups"])

    def pair(values: object, fill: int) -> tuple[int, int]:
        given = typed("tuple[int, ...]", values)
        return (given[0], given[1]) if rank == 2 else (fill, given[0])

    conv = Convolution(
        stage, fold, x, factors[0].b, stage.shape[0], groups,  # type: ignore[attr-defined]  # a multiplication has b
        channels=typed(int, fold.axes[0][1]), out_channels=typed(int, stage.shape[1]) // groups,
        image=pair(x.shape[2:], 1), out=pair(stage.shape[2:], 1), kernel=pair([d for _, d in fold.axes[1:]], 1),
        stride=pair(attrs["stride"], 1), padding=pair(attrs["padding"], 0), dilation=pair(attrs["dilation"], 1),
        rank=rank,
    )  # fmt: skip
    return conv if _slides(conv, loads[0]) else None


def _slides(conv: Convolution, x: Load) -> bool:
    """Whether ``x`` is read where the window of a convolution lies, held inside the image, tried on samples: what the
    attributes say is what the template does."""
    stage, (channel, *taps) = conv.stage, (v for v, _ in conv.reduce.axes)
    simplifier = Simplifier()
    for v, size in (*zip(stage.axes, stage.shape, strict=True), *conv.reduce.axes):
        simplifier.bind(v, size)
    batch, out_channel, *out = stage.axes
    expected = [batch, out_channel // conv.out_channels * conv.channels + channel]
    first = 2 - conv.rank
    for d, (o, k) in enumerate(zip(out, taps, strict=True), start=first):
        position = o * conv.stride[d] + k * conv.dilation[d] - conv.padding[d]
        expected.append(maximum(minimum(position, conv.image[d] - 1), 0))
    return len(x.indices) == len(expected) and agree(x.indices, expected, simplifier, x.buffer.shape)


@dataclass(frozen=True, slots=True)
class Strip:
    """``rows`` rows of output's worth of padded input: (rows, columns, channels), or (rows, channels, columns) when the
    input's columns lie closer together than its channels."""

    conv: Convolution
    rows: int
    channels: int
    planar: bool

    @property
    def height(self) -> int:
        """Rows of input."""
        c = self.conv
        return (self.rows - 1) * c.stride[0] + (c.kernel[0] - 1) * c.dilation[0] + 1

    @property
    def width(self) -> int:
        """Columns of input, padding included."""
        c = self.conv
        return (c.out[1] - 1) * c.stride[1] + (c.kernel[1] - 1) * c.dilation[1] + 1

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of the local buffer."""
        inner = (self.channels, self.width) if self.planar else (self.width, self.channels)
        return (self.height, *inner)

    def at(self, row: Expr, column: Expr, channel: Expr) -> tuple[Expr, Expr, Expr]:
        """Indices of an element of the buffer."""
        return (row, channel, column) if self.planar else (row, column, channel)

    def load(
        self, b: Builder, values: Values, n: Expr, first_row: Expr, first_channel: Expr, dtype: DType, lanes: int
    ) -> Buffer:
        """Fill a strip for output rows from ``first_row`` on: input channels from ``first_channel`` on, zeros
        outside.
        """
        c = self.conv
        buffer = b.allocate("strip", dtype, self.shape)
        zero = const(0, dtype)
        left = min(c.padding[1], self.width)
        inner = max(0, min(self.width - left, c.image[1]))
        with b.loop("strip_row", self.height) as r:
            values.bind(r, self.height)
            image_row = values.simplifier(first_row * c.stride[0] + r - c.padding[0])
            inside = (image_row >= 0) & (image_row < c.image[0])
            row = maximum(minimum(image_row, c.image[0] - 1), 0)

            def copy(columns: int, start: int, value: bool) -> None:
                local = values.nested()

                def put(column: Expr, channel: Expr, here: Values) -> None:
                    place = column + (start - c.padding[1])
                    spatial = (row, place) if c.rank == 2 else (place,)
                    got = here.at(c.x, (n, first_channel + channel, *spatial)) if value else zero
                    b.store(buffer, self.at(r, column + start, channel), got)

                outer, vector = (self.channels, columns) if self.planar else (columns, self.channels)
                with b.loop("copy", outer) as i:
                    local.bind(i, outer)
                    deep = local.nested()
                    vector_loop(
                        b, "copy_v", vector, lanes, deep,
                        lambda j, here, *_: put(j, i, here) if self.planar else put(i, j, here),
                    )  # fmt: skip

            with b.when(values.simplifier(inside)):
                if left:
                    copy(left, 0, False)
                if inner:
                    copy(inner, left, True)
                if self.width > left + inner:
                    copy(self.width - left - inner, left + inner, False)
            with b.otherwise():
                copy(self.width, 0, False)
        return buffer


def is_planar(conv: Convolution) -> bool:
    """Whether a column step is the contiguous one in the input's memory."""
    steps = [constant_dim(s) for s in strides_of(conv.x)]
    return steps[-1] == 1 and constant_dim(conv.x.shape[1]) != 1


def strip_rows(conv: Convolution, channels: int, element_bytes: int, budget: int, multiple_of: int) -> int:
    """How many rows of output a strip should serve: as many as its budget of bytes allows, in a number of blocks
    that is a multiple of ``multiple_of`` where that is possible."""
    best = 1
    for rows in range(1, conv.out[0] + 1):
        strip = Strip(conv, rows, channels, False)
        if strip.height * strip.width * channels * element_bytes > budget and rows > 1:
            break
        blocks = -(-conv.out[0] // rows)
        waste = blocks * rows - conv.out[0]
        if waste == 0 or waste < rows // 4 + 1:
            even = blocks % multiple_of == 0 or blocks >= 4 * multiple_of
            if even or best == 1:
                best = rows
    return best


def positions(count: int, height: int) -> list[tuple[int, int, int]]:
    """(first, how many, size): tiles of ``height`` that cover ``count`` positions, the rest in one smaller tile."""
    whole, rest = divmod(count, height)
    parts = [(0, whole, height)] if whole else []
    return [*parts, (whole * height, 1, rest)] if rest else parts
