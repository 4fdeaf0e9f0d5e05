"""Block sizes of products on tile registers: rows and panels of one iteration of the parallel loop, steps of a part.

A panel that is longer than the first-level cache is multiplied in parts: all rows of the block by one part of it, then
by the next, with sums that stay in the second-level cache between them. Rows whose lines fall on a few sets of the
first-level cache, or straddle two lines, are then copied as tiles.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod

from taskmap.ir.construct import static_size
from taskmap.ir.target import CpuTarget
from taskmap.schedules.cpu.matmul.amx_operands import TileOperands
from taskmap.schedules.cpu.support.balance import blocks, makespan

_STACK = 1 << 20
"""Bytes of a copied block of rows and a copied panel, at most."""
_PART, _LEAST_PANEL = 16 << 10, 32 << 10
"""Bytes of a panel's part, and of a panel that is not divided: at most two thirds of a first-level cache."""
_MOST_SUMS = 256 << 10
"""Bytes of the sums of a block."""
LINE, _SETS, _MOST_IN_SET = 64, 64, 4
"""Bytes of a line, sets of the first-level cache, and the lines of a's tiles that one set may hold beside b's."""
_PANELS_PER_COPY = 8
"""Panels against which copied rows are multiplied, at least."""
_UNKNOWN = 512
"""The extent assumed for a symbolic size."""
_STEP = 70
"""Cycles of one step of a whole call of the microkernel."""
_EPILOGUE = 600
"""Cycles of storing the sums of one call of the microkernel, with their epilogue."""
_TASK = 1500
"""Cycles of starting an iteration."""
_COPY, _PACK = 12, 8
"""Bytes copied per cycle, and bytes of panels of b."""
_FAR, _NEAR = 10, 32
"""Bytes per cycle from the third-level cache, and from the second."""


@dataclass(frozen=True, slots=True)
class BlockSizes:
    """``rows`` of a, whole calls of the microkernel, against ``panels`` of b. ``part``: the steps of the sum that are
    added for all rows before the next ones; 0 if there is one part."""

    rows: int
    panels: int
    part: int = 0


def block_sizes(operands: TileOperands, target: CpuTarget) -> BlockSizes | None:
    """The block sizes of least estimated time on all cores; None if a row of copies takes too much memory."""
    unit = operands.unit
    m, n = static_size(operands.m) or _UNKNOWN, static_size(operands.n) or _UNKNOWN
    batch = prod(static_size(d) or 1 for _, d in operands.contraction.batch)
    tile_bytes = operands.steps * unit.depth * unit.tiles.spec.a.bytes * unit.height
    panel_bytes = _panel_bytes(operands)
    most = max(_STACK - (panel_bytes if operands.packed is None else 0), 0) // tile_bytes
    high, wide = -(-m // unit.height), -(-n // unit.width)
    if not most:
        return None
    if operands.rows is not None:
        most = max(most, 64)
    b_rate = _NEAR if panel_bytes * wide <= target.l2 // 2 else _FAR

    def seconds(rows: int, panels: int) -> float:
        def work(tiles: int, group: int) -> float:
            copied = tiles * tile_bytes / (_NEAR if operands.rows is not None else _COPY)
            again = tiles * tile_bytes * (group - 1) / (_FAR if tiles * tile_bytes > target.l2 // 2 else 1e9)
            packed = group * panel_bytes / (b_rate if operands.packed is not None else _PACK)
            each = tiles * group * (operands.steps * _STEP * unit.high / 2 + _EPILOGUE)
            return each + copied + again + packed + _TASK

        cut = [work(t, g) for t in blocks(high, rows) for g in blocks(wide, panels)]
        return makespan(cut * min(batch, 4 * target.cores), target.cores)

    sizes = [(r, p) for r in _sizes(min(high, most)) for p in _sizes(wide)]
    rows, panels = min(sizes, key=lambda size: seconds(*size))
    return BlockSizes(rows * unit.height, panels, _part(operands, rows) if rows > 1 else 0)


def _part(operands: TileOperands, tiles: int) -> int:
    """Steps of a part; 0 if the panel stays in the first-level cache, or if sums would take too much memory."""
    unit, steps = operands.unit, operands.steps
    sums = tiles * unit.height * unit.width * unit.tiles.spec.c.bytes
    if _panel_bytes(operands) <= _LEAST_PANEL or sums > _MOST_SUMS:
        return 0
    parts = -(-_panel_bytes(operands) // _PART)
    return -(-steps // parts)


def _panel_bytes(operands: TileOperands) -> int:
    unit = operands.unit
    return operands.steps * unit.depth * unit.tiles.spec.b.bytes * unit.width


def copies_rows(operands: TileOperands) -> bool:
    """True if tiles of rows in memory are better copied than loaded again and again: against several panels, if they
    share sets of the first-level cache with others or straddle its lines; not beside copies of b, which need the
    cache."""
    panels = -(-(static_size(operands.n) or _UNKNOWN) // operands.unit.width)
    if operands.rows is None or operands.packed is None:
        return False
    if panels < _PANELS_PER_COPY or _panel_bytes(operands) <= _LEAST_PANEL:
        return False
    size = operands.rows.stride * operands.unit.tiles.spec.a.bytes
    return size % LINE != 0 or _SETS // gcd(size // LINE, _SETS) * _MOST_IN_SET < operands.unit.height


def _sizes(most: int) -> list[int]:
    """Numbers up to ``most`` that divide it into equal parts, as far as possible."""
    return sorted({-(-most // parts) for parts in range(1, min(most, 24) + 1)}, reverse=True)
