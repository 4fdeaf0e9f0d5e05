"""The tile of the running block, and the number of blocks.

tile(64, 64).to(BLOCK)     a block for each tile, numbered by rows, by columns, or in groups of rows
.split_sum(4)              four blocks for each tile; number // tiles is the part of its sum
.persistent()              a block for each multiprocessor, which takes tiles in turns
to(CLUSTER)                the same with clusters of neighbouring blocks
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from taskmap.ir import nodes as ir
from taskmap.ir.analysis.positions import unravel
from taskmap.ir.builder import Builder
from taskmap.ir.construct import index, minimum, product, static_size
from taskmap.ir.decompose.steps import TileStep
from taskmap.ir.workers import BLOCKS, MULTIPROCESSORS

_MOST_SLOW = 65535
"""The blocks of a grid along each of its axes but the fastest, at most."""


@dataclass(slots=True)
class Grid:
    """The blocks of a kernel. shape: their number in each dimension. tile, part: the numbers of the running block's
    tile and of its part of the sum. turn: the number of tiles that the block has done. cluster: the blocks that
    share a tile of this step."""

    shape: list[ir.Dim] = field(default_factory=list)
    tile: ir.Expr = field(default_factory=lambda: index(0))
    part: ir.Expr = field(default_factory=lambda: index(0))
    turn: ir.Expr = field(default_factory=lambda: index(0))
    cluster: int = 1
    is_persistent: bool = False

    @contextmanager
    def tiles(self, b: Builder, step: TileStep, counts: dict[str, ir.Dim]) -> Iterator[dict[str, ir.Expr]]:
        """The position of each tile of the running block, along the axes of ``counts``: the body may be a loop's."""
        order = step.order
        long = [a for a in order if static_size(counts[a]) != 1]
        linear = step.group or step.parts > 1 or step.persistent or self.cluster > 1
        slow = [static_size(counts[a]) for a in long[:-1]]
        if not linear and len(slow) < len(BLOCKS) and all(n is not None and n <= _MOST_SLOW for n in slow):
            # Neighbouring blocks differ in the fastest axis.
            self.shape += [counts[a] for a in reversed(long)] or [1]
            at = dict(zip(reversed(long), BLOCKS, strict=False))
            yield {a: at.get(a, index(0)) for a in order}
            return
        tiles = product([counts[a] for a in order])
        number = BLOCKS[0] // self.cluster
        if step.persistent:
            self.is_persistent = True
            workers = MULTIPROCESSORS // self.cluster
            self.shape = [workers * self.cluster]
            mine = b.let("tiles", (index(tiles) + (workers - 1) - number) // workers)
            with b.loop("turn", mine, unroll=1) as self.turn:
                self.tile = b.let("tile", self.turn * workers + number)
                yield grouped(b, step, counts, self.tile) if step.group > 1 else position(self.tile, counts, order)
            return
        self.shape.append(product([tiles, step.parts * self.cluster]))
        self.tile = number
        if step.parts > 1:
            self.part, self.tile = b.let("part", BLOCKS[0] // tiles), b.let("tile", BLOCKS[0] % tiles)
        yield grouped(b, step, counts, self.tile) if step.group > 1 else position(self.tile, counts, order)


def grouped(b: Builder, step: TileStep, counts: Mapping[str, ir.Dim], tile: ir.Expr) -> dict[str, ir.Expr]:
    """The position of a tile, numbered in groups of ``group`` rows of tiles, column by column inside a group."""
    rows = step.group
    *lead, m, n = (c.axis for c in step.cuts)
    down, across = index(counts[m]), index(counts[n])
    batched = any(static_size(counts[a]) != 1 for a in lead)
    number = b.let("number", tile % (down * across)) if batched else tile
    first = b.let("first", number // (across * rows) * rows)
    height = b.let("height", minimum(down - first, index(rows)))
    inside = b.let("inside", number % (across * rows))
    at = position(tile // (down * across) if batched else index(0), counts, lead)
    return {**at, m: first + inside % height, n: inside // height}


def position(number: ir.Expr, counts: Mapping[str, ir.Dim], order: Sequence[str]) -> dict[str, ir.Expr]:
    """The position with a row-major number along the axes of ``order``, the first axis slowest; in the order in which
    kernels compute the indices, the fastest first."""
    return dict(list(zip(order, unravel(number, [counts[a] for a in order]), strict=True))[::-1])
