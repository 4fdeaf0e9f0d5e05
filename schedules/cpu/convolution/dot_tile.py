"""A tile of dot products: for convolutions with few output channels, whose vectors run along the sum instead.

    for tap, vector of input channels:   acc[i, j] += image[i] * weights[j]      rows × output channels, each a vector
    out[i, j] = sum of the lanes of acc[i, j]

With vectors of output channels, five of them would use five lanes of sixteen. Weights are packed in panels of one
column, so that neighbouring input channels are adjacent.
"""

from __future__ import annotations

from collections.abc import Sequence

from taskmap.ir.builder import Builder
from taskmap.ir.construct import call, cast, index, lane_reduce, load, ramp
from taskmap.ir.nodes import Buffer, Dim, LoopKind, Scope
from taskmap.ir.target import CpuTarget
from taskmap.ir.types import DType
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.cpu.matmul.summed_loops import Element, steps_over

_MOST_ROWS = 8
_MOST_VECTORS = 32
"""Vectors of input channels: with more, a lane would add too many terms of f32 one after another."""


def suits_dots(columns: Dim, channels: Dim, lanes: int) -> bool:
    """True if a convolution from ``channels`` input to ``columns`` output channels is best computed by dot products:
    output channels would fill at most half a vector, and input channels fill whole ones."""
    if not isinstance(columns, int) or not isinstance(channels, int) or lanes == 1:
        return False
    return 2 * columns <= lanes and 0 < channels <= _MOST_VECTORS * lanes and channels % lanes == 0


def dot_registers(rows: int, columns: int) -> int:
    """Vector registers of a tile: its sums, the weights, and an element of the image."""
    return rows * columns + columns + 1


def dot_rows(extent: int | None, columns: int, target: CpuTarget) -> int:
    """Rows of the tallest tile that fits the registers, made even where ``extent`` rows need several tiles."""
    most = max(1, min(_MOST_ROWS, (target.vector_registers - 1 - columns) // columns))
    if extent is None:
        return most
    return -(-extent // -(-extent // most)) if extent else 1


def emit_dots(
    b: Builder,
    values: Inliner,
    shape: tuple[int, int],
    k: Sequence[Dim],
    a: Element,
    element_b: Element,
    out: Buffer,
    accumulate: DType,
    lanes: int,
) -> None:
    """Multiplies a tile of ``shape`` (rows, columns) into the local buffer ``out``.

    k: extents of the summed axes, the innermost a multiple of ``lanes`` and contiguous in both operands; a, element_b:
    as in ``matmul.register_tile.emit_tile``. The sums of the lanes are added at the end, so a long sum consists of
    ``lanes`` short ones.
    """
    rows, columns = shape
    *outer, channels = k
    assert isinstance(channels, int)
    acc = b.allocate("acc", accumulate, (rows * columns, lanes), Scope.REGISTER)
    with b.loop("lane", lanes, LoopKind.VECTOR) as lane:
        for i in range(rows * columns):
            b.store(acc, (i, lane), 0.0)
        with steps_over(b, [*outer, channels // lanes]) as (*taps, vector):
            inside = values.nested()
            inside.bind(lane, lanes)
            for v, extent in zip((*taps, vector), (*outer, channels // lanes), strict=True):
                inside.bind(v, extent)
            at = (*taps, vector * lanes + lane)
            weights = [b.let("w", cast(element_b(at, index(j), inside), accumulate)) for j in range(columns)]
            for i in range(rows):
                element = b.let("x", cast(a(at, index(i), inside), accumulate))
                for j, w in enumerate(weights):
                    place = (index(i * columns + j), lane)
                    b.store(acc, place, call("fma", element, w, acc[place]))
    for i in range(rows):
        for j in range(columns):
            whole = load(acc, (index(i * columns + j), ramp(0, 1, lanes)))
            b.store(out, (i, j), lane_reduce("sum", whole))
