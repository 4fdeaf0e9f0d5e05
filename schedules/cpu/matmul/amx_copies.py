"""Copies of operands as tiles: rows of a that tiles cannot be loaded from, and panels of b in groups of neighbours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd

from taskmap.ir.builder import Builder
from taskmap.ir.construct import cast, ceil_div, const, index, minimum, static_size
from taskmap.ir.loops import column_groups
from taskmap.ir.nodes import Buffer, Dim, Expr, LoopKind, Var
from taskmap.ir.target import CpuTarget
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.common.loops import each_column
from taskmap.schedules.cpu.matmul.amx_operands import TileOperands
from taskmap.schedules.cpu.matmul.template import position_on

Fixed = Mapping[Var, Expr]
"""The indices of the batch."""
_LINES = 128
"""Bytes that the hardware fetches together: a pair of lines."""
_ROWS = 32
"""Rows of b that are copied to several panels in turn: as many pairs of lines stay in the first-level cache."""
_MOST_COPIES = 512 << 10
"""Bytes of the copies of panels, at most."""


def copy_rows(
    b: Builder,
    values: Inliner,
    operands: TileOperands,
    target: CpuTarget,
    fixed: Fixed,
    first: Expr,
    to: Buffer,
    tile: Expr,
    start: int = 0,
) -> None:
    """Rows of a from row ``first`` on, and from step ``start`` of the sum on, as tile number ``tile`` of ``to``.

    Beyond the last row the last one is repeated, beyond the end of the sum are zeros. ``to``: [tiles, steps, rows,
    terms of a step].
    """
    c, unit = operands.contraction, operands.unit
    depth = unit.depth
    whole, rest = divmod(operands.k, depth)
    lanes = min(operands.run, target.lanes(unit.tiles.spec.a.bytes if operands.is_stored else 4))

    def copy(inside: Inliner, row: Expr, step: Expr, i: Expr, terms: int, at: Expr) -> None:
        for k, each in each_column(b, inside, column_groups(terms, lanes)):
            where = {**fixed, **_present(operands, row), **position_on(c.k, at + k)}
            b.store(to, (tile, step, i, k), cast(each.expand(c.a, where), to.dtype))

    with b.loop("row", unit.height) as i:
        values.bind(i, unit.height)
        row = values.simplifier(minimum(first + i, index(operands.m) - 1))
        with b.loop("step", whole - start) as step:
            values.bind(step, whole - start)
            copy(values.nested(), row, step, i, depth, (step + start) * depth)
        if rest:
            last = index(whole - start)
            for k, _ in each_column(b, values.nested(), column_groups(depth, lanes)):
                b.store(to, (tile, last, i, k), const(0, to.dtype))
            copy(values.nested(), row, last, i, rest, index(whole * depth))


def _present(operands: TileOperands, row: Expr) -> dict[Var, Expr]:
    """The position of a row; in a gap, that of the last row before it."""
    at = position_on(operands.contraction.m, row)
    if operands.present is not None:
        last = operands.contraction.m[-1][0]
        at[last] = minimum(at[last], operands.present - 1)
    return at


def copy_columns(
    b: Builder,
    operands: TileOperands,
    fixed: Fixed,
    panel: Expr,
    to: Buffer,
    values: Inliner,
    groups: Sequence[tuple[int, int]],
) -> None:
    """The columns of panel ``panel`` of b, in ``groups`` of vectors (empty: the rest of a symbolic number).

    ``to``: [1, groups of terms, columns, terms of a group]; what is not copied is left as it is.
    """
    c, unit = operands.contraction, operands.unit
    size, start = unit.tiles.group, panel * unit.width
    whole, rest = divmod(operands.k, size)

    def copy(inside: Inliner, group: Expr, place: Expr, column: Expr) -> None:
        where = {**fixed, **position_on(c.n, start + column), **position_on(c.k, group * size + place)}
        b.store(to, (0, group, column, place), cast(inside.expand(c.b, where), to.dtype))

    if operands.by_terms or not groups:
        count = sum(v * w for v, w in groups) if groups else index(operands.n) - start
        with b.loop("column", count) as column:
            values.bind(column, static_size(count) or unit.width)
            with b.loop("group", whole) as group:
                values.bind(group, whole)
                with b.loop("term", size, LoopKind.VECTOR) as place:
                    inside = values.nested()
                    inside.bind(place, size)
                    copy(inside, group, place, column)
            with b.loop("term", rest) as place:
                values.bind(place, rest)
                copy(values.nested(), index(whole), place, column)
        return

    def copy_group(inside: Inliner, group: Expr, terms: int) -> None:
        for column, each in each_column(b, inside, groups):
            for place in range(terms):
                copy(each, group, index(place), column)

    with b.loop("group", whole) as group:
        values.bind(group, whole)
        copy_group(values.nested(), group, size)
    if rest:
        copy_group(values.nested(), index(whole), rest)


def copied_together(operands: TileOperands, panels: int, all_panels: Dim) -> int:
    """Panels of b that are copied at a time: those whose rows lie in one pair of lines, if ``panels`` and
    ``all_panels`` are multiples of their number and no column or group of terms is missing."""
    unit, n, count = operands.unit, static_size(operands.n), static_size(all_panels)
    row = unit.width * unit.tiles.spec.b.bytes
    if n is None or count is None or n % unit.width or operands.k % unit.tiles.group or operands.by_terms:
        return 1
    most = min(_LINES // row, _MOST_COPIES // (operands.steps * unit.depth * row))
    return gcd(1 << max(most, 1).bit_length() - 1, panels, count)


def copy_panels(
    b: Builder, values: Inliner, operands: TileOperands, target: CpuTarget, fixed: Fixed, first: Expr, to: Buffer
) -> None:
    """The panels of b from panel ``first`` on, as many as ``to`` has: some rows of each in turn, so that lines are read
    while they are near.

    ``to``: [panels, groups of terms, columns, terms of a group].
    """
    c, unit = operands.contraction, operands.unit
    size, panels = unit.tiles.group, static_size(to.shape[0]) or 1
    groups, part = operands.k // size, _ROWS // size
    with b.loop("part", ceil_div(groups, part)) as p, b.loop("panel", panels) as panel:
        values.bind(p, -(-groups // part))
        values.bind(panel, panels)
        count = values.simplifier(minimum(groups - p * part, part))
        with b.loop("group", count) as g:
            values.bind(g, part)
            group = p * part + g
            for column, inside in each_column(b, values.nested(), column_groups(unit.width, target.lanes(4))):
                for place in range(size):
                    at = position_on(c.n, (first + panel) * unit.width + column)
                    where = {**fixed, **at, **position_on(c.k, group * size + place)}
                    b.store(to, (panel, group, column, index(place)), cast(inside.expand(c.b, where), to.dtype))
