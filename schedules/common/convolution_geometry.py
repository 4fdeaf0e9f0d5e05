"""The geometry of a convolution, read from its stage.

A transposed convolution of stride s is s ordinary convolutions in each dimension, one for each remainder of the
output's position: each reads the image with stride 1, through every s-th element of the mirrored kernel. Source: Shi et
al., "Is the deconvolution layer the same as a convolutional layer?" (2016).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar
from typing import cast as typed

from taskmap.ir.analysis.simplify import Simplifier
from taskmap.ir.construct import ceil_div, index, maximum, minimum, static_size
from taskmap.ir.lower.flatten import strides_of
from taskmap.ir.nodes import Buffer, Dim, Expr, Load, Reduce, Var
from taskmap.ir.task import Stage, Task
from taskmap.ir.visit import walk_exprs
from taskmap.ir.winograd import ATTRIBUTE
from taskmap.schedules.common.sampled_equality import equal_on_samples

DIMENSIONS = 3
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StridePhase:
    """One dimension of a window, for the output positions ``first``, ``first + every``, ...

    At position ``first + q * every``, tap t of ``taps`` reads the element ``q * stride + t * dilation + shift`` of the
    image and the element ``tap + t * tap_step`` of the kernel.
    """

    first: int
    every: int
    taps: int
    tap: int
    tap_step: int
    stride: int
    dilation: int
    shift: int

    def count(self, out: Dim) -> Dim:
        """The number of this phase's positions in an output dimension of extent ``out``."""
        return ceil_div(out - self.first, self.every)

    @property
    def last(self) -> int:
        """The shift of the last tap."""
        return self.shift + (self.taps - 1) * self.dilation


def phases(kernel: int, stride: int, padding: int, dilation: int, transposed: bool) -> tuple[StridePhase, ...]:
    """The phases of one dimension: ``stride`` of them for a transposed convolution, else one."""
    if not transposed:
        return (StridePhase(0, 1, kernel, 0, 1, stride, dilation, -padding),)
    found = []
    for first in range(stride):
        # Tap k of output o = q * stride + first reads element (o + padding - k * dilation) / stride, if integral.
        taps = [k for k in range(kernel) if (first + padding - k * dilation) % stride == 0]
        if not taps:
            found.append(StridePhase(first, stride, 0, 0, 0, 1, 1, 0))
            continue
        step = taps[1] - taps[0] if len(taps) > 1 else stride
        shift = (first + padding - taps[-1] * dilation) // stride
        found.append(
            StridePhase(first, stride, len(taps), taps[-1], -step, 1, max(1, step * dilation // stride), shift)
        )
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution stage over (planes, rows, columns); one of fewer dimensions has a single plane, or row.

    ``x`` and ``w`` are the tensors that it loads. Channels are per group. Channels and kernel are static; the batch,
    the image and the output may be symbolic. ``order`` maps each spatial dimension of the tensors to one of these
    three.
    """

    stage: Stage
    reduce: Reduce
    x: Buffer
    w: Expr
    batch: Dim
    groups: int
    channels: int
    out_channels: int
    image: tuple[Dim, ...]
    out: tuple[Dim, ...]
    kernel: tuple[int, ...]
    phases: tuple[tuple[StridePhase, ...], ...]
    order: tuple[int, ...]

    @property
    def depthwise(self) -> bool:
        """One channel in and one out per group."""
        return self.groups > 1 and self.channels == 1 and self.out_channels == 1

    def steps(self, d: int) -> Dim:
        """The number of positions in a dimension's first phase, which has the most."""
        return self.phases[d][0].count(self.out[d])

    def low(self, d: int) -> int:
        """The smallest shift of a dimension."""
        return min(p.shift for p in self.phases[d] if p.taps)

    def reach(self, d: int) -> int:
        """The number of image elements that the taps of one position span, over all phases."""
        return max(p.last for p in self.phases[d] if p.taps) - self.low(d) + 1

    def spatial(self, place: Sequence[T]) -> tuple[T, ...]:
        """Selects from (plane, row, column) in the order of the tensors' own dimensions."""
        return tuple(place[d] for d in self.order)

    def axes(self, n: Expr, channel: Expr, position: tuple[Expr, ...]) -> dict[Var, Expr]:
        """The stage's axes at an output position (plane, row, column)."""
        return dict(zip(self.stage.axes, (n, channel, *self.spatial(position)), strict=True))

    def taps(self, channel: Expr, position: tuple[Expr, ...]) -> dict[Var, Expr]:
        """The summed axes at one element (plane, row, column) of the kernel."""
        return dict(zip((v for v, _ in self.reduce.axes), (channel, *self.spatial(position)), strict=True))


def find_convolution(task: Task) -> Convolution | None:
    """The convolution that anchors a task, if its channels and kernel are static, else None."""
    if task.anchor is None:
        return None
    stage = task.stages[task.anchor]
    attrs = dict(stage.attrs)
    reduces = [e for e in walk_exprs(stage.body) if isinstance(e, Reduce)]
    if "dilation" not in attrs or len(reduces) != 1 or len(stage.axes) not in (3, 4, 5):
        return None
    (reduction,) = reduces
    loads = [e for e in walk_exprs(reduction.body) if isinstance(e, Load)]
    factors = [e for e in walk_exprs(reduction.body) if getattr(e, "op", "") == "mul" and e.dtype.is_float]
    weights = {e.buffer for e in loads[1:]}
    if len(weights) != 1 or len(reduction.axes) != len(stage.axes) - 1 or not factors:
        return None
    if len(loads) != 2 and ATTRIBUTE not in attrs:
        return None
    x = loads[0].buffer
    order = _order(x.shape[2:], stage.shape[2:])
    groups = typed(int, attrs["groups"])
    channels, *kernel = (static_size(d) or 0 for _, d in reduction.axes)
    out_channels = static_size(stage.shape[1]) or 0
    if not channels or not out_channels or not all(kernel) or static_size(x.shape[1]) is None:
        return None

    def three(values: object, fill: int) -> tuple[int, ...]:
        made = [fill] * DIMENSIONS
        for d, value in zip(order, typed("tuple[int, ...]", values), strict=True):
            made[d] = value
        return tuple(made)

    window = zip(
        three(kernel, 1),
        three(attrs["stride"], 1),
        three(attrs["padding"], 0),
        three(attrs["dilation"], 1),
        strict=True,
    )
    conv = Convolution(
        stage, reduction, x, factors[0].b, stage.shape[0], groups,  # type: ignore[attr-defined]  # a multiplication has b
        channels=channels, out_channels=out_channels // groups,
        image=three(x.shape[2:], 1), out=three(stage.shape[2:], 1), kernel=three(kernel, 1),
        phases=tuple(phases(*one, transposed=bool(attrs.get("transposed"))) for one in window),
        order=order,
    )  # fmt: skip
    return conv if _slides(conv, loads[0], attrs) else None


def _order(image: Sequence[Dim], out: Sequence[Dim]) -> tuple[int, ...]:
    """Assigns planes, rows and columns to the dimensions. The last dimension with more than one position becomes the
    columns, over which the innermost loops run."""
    first = DIMENSIONS - len(out)
    single = [static_size(n) == static_size(m) == 1 for n, m in zip(image, out, strict=True)]
    ordered = sorted(range(len(out)), key=lambda d: not single[d])
    return tuple(first + ordered.index(d) for d in range(len(out)))


def _slides(conv: Convolution, x: Load, attrs: dict[str, object]) -> bool:
    """True if ``x`` is read exactly at the window of this convolution, clamped to the image; checked on samples,
    because the template follows the attributes and not the stage's definition."""
    stage, (channel, *taps) = conv.stage, (v for v, _ in conv.reduce.axes)
    simplifier = Simplifier()
    for v, size in (*zip(stage.axes, stage.shape, strict=True), *conv.reduce.axes):
        simplifier.bind(v, size)
    batch, out_channel, *out = stage.axes
    expected = [batch, out_channel // conv.out_channels * conv.channels + channel]
    strides, paddings, dilations = (typed("tuple[int, ...]", attrs[k]) for k in ("stride", "padding", "dilation"))
    for o, k, n, s, p, d in zip(out, taps, x.buffer.shape[2:], strides, paddings, dilations, strict=True):
        position = (o + p - k * d) // s if attrs.get("transposed") else o * s + k * d - p
        expected.append(maximum(minimum(position, index(n) - 1), 0))
    return len(x.indices) == len(expected) and equal_on_samples(x.indices, expected, simplifier, x.buffer.shape)


def is_matrix_product(conv: Convolution) -> bool:
    """True if each output position needs one position of the image only, and all of its channels."""
    return conv.groups == 1 and all(len(p) == 1 and p[0].taps == 1 and p[0].shift == 0 for p in conv.phases)


def is_planar(conv: Convolution) -> bool:
    """True if the column step is the contiguous one in the input's memory."""
    steps = [static_size(s) for s in strides_of(conv.x)]
    column = conv.order.index(DIMENSIONS - 1)
    return steps[2 + column] == 1 and static_size(conv.x.shape[1]) != 1


def positions(count: int, height: int) -> list[tuple[int, int, int]]:
    """Tiles of ``height`` that cover ``count`` positions, as (first, number of tiles, size); a smaller tile takes the
    rest."""
    whole, rest = divmod(count, height)
    parts = [(0, whole, height)] if whole else []
    return [*parts, (whole * height, 1, rest)] if rest else parts
