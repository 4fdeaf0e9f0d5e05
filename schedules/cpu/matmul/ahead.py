"""Prefetches of packed weights: while a core multiplies with one panel, it fetches the next one line by line.

    for each tile t of a block:   for k:   multiply;   prefetch line t · steps + k of the next panel

The tiles of a block read the same panel, so they share out the lines of the next. A processor's own prefetcher begins
anew at each page, and the first tile of each panel would wait for lines from the last-level cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from taskmap.ir.construct import index, minimum, product, static_size
from taskmap.ir.nodes import Buffer, Cast, Dim, Expr, Load, Region
from taskmap.ir.types import f32
from taskmap.schedules.cpu.matmul.amx_blocking import LINE
from taskmap.schedules.cpu.matmul.amx_operands import is_row_major

Ahead = Callable[[Sequence[Expr]], list[Region]]
"""Lines to prefetch, by the indices of a step of the sum."""


@dataclass(frozen=True, slots=True)
class NextPanel:
    """The part of packed weights after the one that a block multiplies with: it begins ``behind`` elements after the
    beginning of panel ``panel`` of ``stored``, and has as many terms as the block's part, of ``width`` columns. calls:
    the tiles of a block, which share it out."""

    stored: Buffer
    panel: Expr
    behind: Expr
    width: int
    calls: int

    def lines(self, number: Expr, k: Sequence[Dim]) -> Ahead | None:
        """The lines that tile ``number`` of a block prefetches in each step of a sum along axes of these extents; None
        if the length of a panel is not known."""
        steps = static_size(product(list(k)))
        if steps is None:
            return None
        each = LINE // self.stored.dtype.bytes
        total = -(-steps * self.width // each)
        share = -(-total // (self.calls * steps))
        call = minimum(number, -(-total // (share * steps)) - 1)

        def lines(at: Sequence[Expr]) -> list[Region]:
            step = index(0)
            for i, extent in zip(at, k, strict=True):
                step = step * extent + i
            first = self.behind + (call * steps + step) * (share * each)
            rest = [index(0)] * (self.stored.rank - 2)
            ones = (1,) * self.stored.rank
            return [Region(self.stored, (self.panel, *rest, first + i * each), ones) for i in range(share)]

        return lines


def stored_weights(b: Expr, packed: int | None) -> Buffer | None:
    """The memory of a packed operand, whose panels lie one after another; None if it is not packed, or not in f32."""
    while isinstance(b, Cast):
        b = b.a
    if packed is None or not isinstance(b, Load) or b.buffer.dtype != f32 or not is_row_major(b.buffer):
        return None
    return b.buffer
