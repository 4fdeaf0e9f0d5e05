"""Prefetches of packed weights: while a core multiplies with one panel, it fetches the next one line by line.

    for each tile t of a block:   for k:   multiply;   prefetch line t · steps + k of the next panel

The tiles of a block read the same panel, so they share out the lines of the next. A processor's own prefetcher begins
anew at each page, and the first tile of each panel would wait for lines from the last-level cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from taskmap.ir.analysis.contraction import BYTES
from taskmap.ir.construct import index, minimum, product, static_size
from taskmap.ir.nodes import Buffer, Cast, Dim, Expr, Load, Region
from taskmap.ir.types import f32
from taskmap.ir.visit import walk_exprs
from taskmap.schedules.cpu.matmul.amx_blocking import LINE
from taskmap.schedules.cpu.matmul.amx_operands import is_row_major

Ahead = Callable[[Sequence[Expr]], list[Region]]
"""Lines to prefetch, by the indices of a step of the sum."""

_DISTANCE = 64 * LINE
"""Bytes from what a step reads to what it prefetches: more than a core reads in the latency of memory."""


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


@dataclass(frozen=True, slots=True)
class LaterTerms:
    """The packed bytes that steps of the sum read a fixed time after a step reads its own, where few rows are
    multiplied and memory is the limit. run: neighbouring terms that share an element."""

    stored: Buffer
    run: int

    def lines(self, panel: Expr, first: Expr, k: Sequence[Dim]) -> Ahead | None:
        """The lines that each step prefetches, of a sum along axes of these extents from term ``first`` on; None if the
        extents are not known."""
        width = static_size(self.stored.shape[-1])
        if width is None or width % self.run or static_size(product(list(k[1:]))) is None:
            return None
        each = width // self.run

        def lines(at: Sequence[Expr]) -> list[Region]:
            step = index(0)
            for i, extent in zip(at, k, strict=True):
                step = step * extent + i
            begin = (first + step) * each + _DISTANCE
            return [Region(self.stored, (panel, index(0), begin + i), (1, 1, 1)) for i in range(0, each, LINE)]

        return lines


def stored_bytes(b: Expr, packed: int | None, terms: int | None) -> LaterTerms | None:
    """The largest of the tensors of bytes from which an operand is computed, whose panels lie one after another; None
    if there is none, or the operand is not packed."""
    loads = [e for e in walk_exprs(b) if isinstance(e, Load) and e.buffer.dtype in BYTES and e.buffer.rank == 3]
    if packed is None or terms is None or not loads:
        return None
    found = max((e.buffer for e in loads), key=lambda buffer: static_size(product(buffer.shape)) or 0)
    runs = static_size(found.shape[1])
    return LaterTerms(found, terms // runs) if runs and terms % runs == 0 and is_row_major(found) else None
