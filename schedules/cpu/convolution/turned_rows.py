"""Results whose neighbours in memory are columns of the image: strips of columns are stored, channel by channel.

    strip[column, channel] = tiles of the microkernel
    turned[channel, column] = strip[column, channel]          squares of sixteen, among registers
    for channel:  epilogue and store, in vectors of columns

A tile of a few columns has results of all channels of a panel. Stored from there, each channel gets a few words, in a
line and a page of its own: for every tile, a core translates as many addresses as there are channels.
"""

from __future__ import annotations

from collections.abc import Sequence

from taskmap.ir.analysis import polynomial as poly
from taskmap.ir.analysis.simplify import Simplifier
from taskmap.ir.builder import Builder
from taskmap.ir.construct import index
from taskmap.ir.loops import column_groups
from taskmap.ir.lower.flatten import address
from taskmap.ir.nodes import Buffer, Expr, Var
from taskmap.ir.task import Task
from taskmap.schedules.common.convolution_geometry import Convolution
from taskmap.schedules.common.epilogue import Epilogue, Position
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.common.loops import each_column
from taskmap.schedules.common.positions import positions_in

STRIP = 64
"""The most columns of a strip: the strip and its transpose lie in the first-level cache."""
_SIDE = 16
"""Words along each side of a square that is transposed among registers; fewer columns or channels are not worth it."""


def stores_along_columns(task: Task, c: Convolution, columns: int, channels: int) -> bool:
    """True if results of ``channels`` are best stored by strips: all outputs have a row's columns side by side."""
    if columns < _SIDE or channels < _SIDE or any(len(p) != 1 for p in c.phases):
        return False
    channel, column = Var("channel"), Var("column")
    zero = index(0)
    axes = c.axes(zero, channel, (zero, zero, column))
    at = [axes[v] for v in c.stage.axes]
    simplifier = Simplifier()
    for out in task.outputs:
        place = simplifier.poly(address(out, positions_in(out, c.stage.out, at)))
        if out.dtype.bits != 32 or poly.linear_coefficient(place, column) != 1:
            return False
    return True


def put_tile(
    b: Builder, values: Inliner, tile: Buffer, strip: Buffer, first: Expr, rows: int, kept: Sequence[tuple[int, int]]
) -> None:
    """Copy the first ``rows`` rows of a tile to the strip, from row ``first`` on."""
    with b.loop("row", rows) as i:
        values.bind(i, rows)
        for j, _ in each_column(b, values, kept):
            b.store(strip, (first + i, j), tile[i, j])


def store_strip(b: Builder, values: Inliner, strip: Buffer, lanes: int, epilogue: Epilogue, position: Position) -> None:
    """The epilogue for all of a strip, at ``position`` of (column, channel)."""
    columns, channels = strip.shape
    assert isinstance(columns, int)
    assert isinstance(channels, int)
    groups = column_groups(columns, lanes)
    turned = b.allocate("turned", strip.dtype, (channels, columns))
    for i, _ in each_column(b, values.nested(), groups):
        with b.loop("square", channels // _SIDE) as square:
            for place in range(_SIDE):
                j = square * _SIDE + place
                b.store(turned, (j, i), b.let("word", strip[i, j]))
        with b.loop("channel", channels % _SIDE) as rest:
            j = rest + channels // _SIDE * _SIDE
            b.store(turned, (j, i), b.let("word", strip[i, j]))
    with b.loop("channel", channels) as channel:
        values.bind(channel, channels)
        for i, inside in each_column(b, values, groups):
            epilogue.element(inside, turned[channel, i], position(i, channel))
