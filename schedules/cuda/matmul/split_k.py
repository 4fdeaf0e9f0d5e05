"""Split-k: several blocks share a sum. Each adds part of the terms, and the last to arrive adds the parts.

    partials[part, tile] = the block's sums          in memory private to the launch
    arrived = counters[tile]++                       after a fence: a block that sees the number sees the sums
    the last:  total = partials[0, tile] + partials[1, tile] + ...    then the epilogue
               counters[tile] = 0                    for the next launch

The order of the parts is fixed, so a result does not depend on the block that arrives last. Method: the sample
"threadFenceReduction" of CUDA, for the split products of Osama et al., "Stream-K" (PPoPP 2023, section 3.2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod

from taskmap.ir.construct import as_expr, ceil_div, index, minimum, static_size
from taskmap.ir.last_block import arrive, reset
from taskmap.ir.nodes import Buffer, Dim, Expr, Kernel
from taskmap.ir.types import i32
from taskmap.ir.workers import BLOCKS
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.cuda.matmul.problem_view import Gemm, Multiplier, TileContext

LARGEST_WORKSPACE = 64 << 20
"""Bytes of partial sums beyond which split-k costs more than it saves."""

_WIDEST = 4
_AT_ONCE = 128
"""Bytes of partial sums that a thread requests before it adds the first."""


def tiles_of(p: Gemm, block: tuple[int, int]) -> int | None:
    """The number of tiles of a product; None if it is known only when the kernel runs."""
    m, n, *batch = (static_size(d) for d in (p.m, p.n, *p.batch))
    if m is None or n is None or None in batch:
        return None
    return -(-m // block[0]) * -(-n // block[1]) * prod(d or 0 for d in batch)


def partial_bytes(p: Gemm, block: tuple[int, int], split: int) -> int:
    """Memory for the partial sums of a product of known sizes."""
    return split * (tiles_of(p, block) or 0) * block[0] * block[1] * p.accumulate.bytes


def why_not_split(p: Gemm, block: tuple[int, int], depth: int, split: int) -> str | None:
    """The reason why ``split`` blocks cannot share each sum of a product in tiles of ``block``, ``depth`` terms at a
    time, or None if they can."""
    if split == 1:
        return None
    k = static_size(p.k)
    if k is None or tiles_of(p, block) is None:
        return "blocks can share sums only if all sizes are known"
    steps = -(-k // depth)
    if (split - 1) * -(-steps // split) >= steps:
        return f"{steps} k-tiles are not enough for {split} blocks"
    taken = partial_bytes(p, block, split)
    return f"the partial sums take {taken >> 20} MiB" if taken > LARGEST_WORKSPACE else None


def steps_of(steps: Dim, split: int, part: Expr, values: Inliner) -> tuple[Expr, Expr]:
    """Of ``steps`` k-tiles, the first one and the number of those that belong to part ``part`` of ``split``."""
    if split == 1:
        return index(0), index(steps)
    share = ceil_div(steps, split)
    first = values.simplifier(part * share)
    known = static_size(steps)
    even = known is not None and known % split == 0
    return first, index(share) if even else values.simplifier(minimum(index(share), index(steps) - first))


@dataclass(slots=True)
class Split:
    """Partial sums of the blocks that share a tile. synchronise: the barrier among the threads that hold them; first: a
    condition that holds in one of these threads."""

    frame: TileContext
    multiplier: Multiplier
    synchronise: Callable[[], None]
    first: Expr
    partials: Buffer = field(init=False)
    counters: Buffer = field(init=False)

    def __post_init__(self) -> None:
        frame = self.frame
        count = tiles_of(frame.p, frame.block)
        assert count is not None
        self.partials = Buffer("partials", self.multiplier.total.dtype, (frame.split, count, *frame.block))
        self.counters = Buffer("counters", i32, (count,))

    def kernel(self, kernel: Kernel) -> Kernel:
        """``kernel`` with the global memory that split-k needs."""
        return kernel.launched(workspace=(self.partials,), counters=(self.counters,))

    @contextmanager
    def last(self, values: Inliner) -> Iterator[Inliner]:
        """Runs its body in the last block of a tile only, with the multiplier's sums combined over all blocks."""
        b, split, total = self.frame.launch.b, self.frame.split, self.multiplier.total
        assert total.owner is not None
        mine = total.owner.num_slots * total.dtype.bytes
        tile = b.let("tile_number", self._number(values))
        values.bind(tile, self.counters.shape[0])

        def each(local: Inliner, body: Callable[[Expr, Expr, Expr], None]) -> None:
            self.multiplier.finish(local, _WIDEST, lambda *_: as_expr(True), lambda i, j, value, _: body(i, j, value))

        each(values.nested(), lambda i, j, value: b.store(self.partials, (self.frame.part, tile, i, j), value))
        with b.when(arrive(b, self.counters, tile, split, self.first, self.synchronise)):
            inside = values.nested()
            each(inside.nested(), lambda i, j, _: b.store(total, (i, j), as_expr(0, total.dtype)))
            with b.loop("block", split, unroll=max(1, _AT_ONCE // mine)) as other:
                local = inside.nested()
                local.bind(other, split)
                each(local, lambda i, j, v: b.store(total, (i, j), v + self.partials[other, tile, i, j]))
            yield inside
            with b.when(self.first):
                reset(b, self.counters, tile)

    def _number(self, values: Inliner) -> Expr:
        """The number of the block's tile among those of all products. The blocks of one product have neighbouring
        tiles, for each part of the sums in turn."""
        split, count = self.frame.split, tiles_of(self.frame.p, self.frame.block)
        batch = prod(static_size(d) or 1 for d in self.frame.p.batch)
        one = (count or 0) // batch
        return values.simplifier(BLOCKS[0] // (split * one) * one + BLOCKS[0] % one)
