"""Sums that several workers share: each adds a part of the terms, and one of them adds the parts, in order.

blocks     partials[part, tile] = total
           the last block of a tile to arrive:  total = partials[0, tile] + partials[1, tile] + ...
warps      for each part but the first:  its warps: shared = total;  those of the first part: total += shared
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

from taskmap.ir import nodes as ir
from taskmap.ir.algebra.mapping import TaskMapping, repeat
from taskmap.ir.algebra.quotient import quotient
from taskmap.ir.builder import Builder
from taskmap.ir.construct import as_expr, ceil_div, const, eq, index, load, maximum, minimum, static_size
from taskmap.ir.decompose.blocks.grid import Grid
from taskmap.ir.decompose.refusal import refusal
from taskmap.ir.decompose.steps import AccumulateStep, SplitStep, TileStep, Tree
from taskmap.ir.decompose.views import OperandView
from taskmap.ir.last_block import arrive, reset
from taskmap.ir.types import i32
from taskmap.ir.workers import THREAD

_WIDEST = 4
"""Neighbours that a thread adds at once."""
_AT_ONCE = 128
"""Bytes of parts that a thread requests before it adds the first."""


@dataclass(frozen=True, slots=True)
class SumSegment:
    """The parts of ``split`` that the running block adds: ``count``, from number ``first`` on. whole: of the sum.
    filled: no block has none."""

    split: SplitStep
    first: ir.Expr
    count: ir.Expr
    whole: ir.Dim
    filled: bool


def share_of(b: Builder, tree: Tree, outer: TileStep, grid: Grid) -> SumSegment | None:
    """The share of the running block in the first split of the sum, if blocks share the tiles of ``outer``."""
    if outer.parts == 1:
        return None
    following = (s for before, s in pairwise(tree.steps) if isinstance(before, AccumulateStep))
    split, whole = next(following, None), outer.before.extent(outer.before.summed)
    if not isinstance(split, SplitStep):
        why = "blocks share the parts of the first split, and none follows accumulate_in."
        raise refusal(f"split_sum({outer.parts})", tree, why, "Write split(...) after it.", where=outer.source)
    steps = ceil_div(whole, split.size)
    each = ceil_div(steps, outer.parts)
    first = b.let("first_step", grid.part * each)
    known, size = static_size(steps), static_size(each)
    if known is not None and known % outer.parts == 0:
        return SumSegment(split, first, index(each), whole, filled=True)
    left = maximum(minimum(index(each), index(steps) - first), index(0))
    filled = known is not None and size is not None and (outer.parts - 1) * size < known
    return SumSegment(split, first, b.let("own_steps", left), whole, filled)


@dataclass(slots=True)
class SharedReduction:
    """The parts of the sums ``total`` of a block's tile. threads: of the block; synchronise: its barrier.
    workspace, counters: memory of the launch, for the kernel."""

    b: Builder
    tree: Tree
    threads: int
    synchronise: Callable[[], None]
    workspace: list[ir.Buffer]
    counters: list[ir.Buffer]

    @property
    def are_shared(self) -> bool:
        """True if several workers share a sum."""
        return any(isinstance(s, TileStep) and s.parts > 1 for s in self.tree.steps)

    def is_first(self, total: OperandView, grid: Grid) -> ir.Expr:
        """True for the workers that begin with the first value of the sum; the others begin with 0."""
        assert total.buffer.owner is not None
        return eq(grid.part, 0) & _is_part(0, total.buffer.owner)

    def of_warps(self, total: OperandView) -> None:
        """Adds what the workers of a block share, in order: afterwards the first threads hold the sums."""
        b, shared, owner = self.b, total.buffer, total.buffer.owner
        if owner is None or not any(isinstance(s, TileStep) and s.part is not None for s in self.tree.steps):
            return
        across = b.allocate("parts", shared.dtype, shared.shape, ir.Scope.SHARED)
        whole, held = (ir.Region(x, (index(0),) * x.rank, x.shape) for x in (across, shared))
        for part in range(1, self.threads // owner.num_workers):
            with b.when(_is_part(part, owner)):
                b.move(whole, held)
            with b.when(_is_part(0, owner)):
                self.each(owner, lambda at: b.store(shared, at, shared[at] + across[at]))

    @contextmanager
    def of_blocks(self, total: OperandView, grid: Grid) -> Iterator[None]:
        """Runs its body in the last block of a tile, whose first threads then hold the sums of all blocks."""
        b, held = self.b, total.buffer
        outer = next((s for s in self.tree.steps if isinstance(s, TileStep) and s.parts > 1 and s.part is None), None)
        if outer is None:
            yield
            return
        tiles = 1
        for cut in outer.cuts:
            known = static_size(outer.before.extent(cut.axis))
            if known is None:
                why = f"memory for the parts of all tiles cannot have a symbolic size, and {cut.axis} has one."
                way_out = f"Give it: .kernel({cut.axis}=...)."
                raise refusal(f"split_sum({outer.parts})", self.tree, why, way_out, where=outer.source)
            tiles *= -(-known // cut.width)
        owner = held.owner
        assert owner is not None
        partials = ir.Buffer("partials", held.dtype, (outer.parts, tiles, *held.shape))
        arrived = ir.Buffer("arrivals", i32, (tiles,))
        self.workspace.append(partials)
        self.counters.append(arrived)
        zeros = (index(0),) * held.rank
        first, mine = THREAD < 1, as_expr(True) if owner.num_workers >= self.threads else _is_part(0, owner)
        with b.when(mine):
            to = ir.Region(partials, (grid.part, grid.tile, *zeros), (1, 1, *held.shape))
            b.move(to, ir.Region(held, zeros, held.shape))
        last = b.let("last", arrive(b, arrived, grid.tile, outer.parts, first, self.synchronise))
        with b.when(last):
            with b.when(mine):
                self.each(owner, lambda at: b.store(held, at, const(0, held.dtype)))
                mine_bytes = owner.num_slots * held.dtype.bytes
                with b.loop("part", outer.parts, unroll=max(1, _AT_ONCE // mine_bytes)) as part:
                    self.each(owner, lambda at: b.store(held, at, held[at] + load(partials, (part, grid.tile, *at))))
            yield
            with b.when(first):
                reset(b, arrived, grid.tile)

    def each(self, owner: TaskMapping, body: Callable[[tuple[ir.Expr, ...]], None]) -> None:
        """``body`` for each element that a thread holds, in vectors of neighbours of a row."""
        lanes, ones = _WIDEST, [1] * (len(owner.task_shape) - 1)
        while (vectors := quotient(owner, repeat(*ones, lanes))) is None:
            lanes //= 2
        names = [f"i{d}" for d in range(len(owner.task_shape))]
        worker, kind = THREAD % owner.num_workers, ir.LoopKind.VECTOR
        with self.b.mapped(names, vectors, worker) as (*at, last), self.b.loop("v", lanes, kind) as v:
            body((*at, last * lanes + v))


def _is_part(part: int, owner: TaskMapping) -> ir.Expr:
    count = owner.num_workers
    mine = (part + 1) * count > THREAD
    return mine if part == 0 else (part * count <= THREAD) & mine
