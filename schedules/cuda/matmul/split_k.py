"""Sums that several blocks share: each adds up a part of the terms, and the last to arrive adds up the parts.

    partials[part, tile] = the block's sums          in memory that the launch has for itself
    arrived = counters[tile]++                       after a fence: who sees the number sees the sums
    the last:  total = partials[0, tile] + partials[1, tile] + ...    then what follows the product
               counters[tile] = 0                    for the next launch

The order of the parts is fixed, so a result does not depend on which block comes last. Method: the sample
"threadFenceReduction" of CUDA, for the split products of Osama et al., "Stream-K" (PPoPP 2023, section 3.2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import prod

from taskmap.ir.construct import as_expr, ceil_div, const, eq, index, load, minimum, static_size
from taskmap.ir.isa.table import instruction_named
from taskmap.ir.nodes import Buffer, Dim, Expr, Intrinsic, Kernel, Scope
from taskmap.ir.types import i32
from taskmap.ir.workers import BLOCKS
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.cuda.matmul.problem_view import Engine, Gemm, TileContext

LARGEST_WORKSPACE = 64 << 20
"""Bytes of partial sums beyond which they cost more than they save."""

_WIDEST = 4
_AT_ONCE = 128
"""Bytes of partial sums that a thread asks for before it adds the first."""


def tiles_of(p: Gemm, block: tuple[int, int]) -> int | None:
    """How many tiles a product has; None where that is known only when it runs."""
    m, n, *batch = (static_size(d) for d in (p.m, p.n, *p.batch))
    if m is None or n is None or None in batch:
        return None
    return -(-m // block[0]) * -(-n // block[1]) * prod(d or 0 for d in batch)


def partial_bytes(p: Gemm, block: tuple[int, int], split: int) -> int:
    """Memory for the partial sums of a product of known sizes."""
    return split * (tiles_of(p, block) or 0) * block[0] * block[1] * p.accumulate.bytes


def why_not_split(p: Gemm, block: tuple[int, int], depth: int, split: int) -> str | None:
    """Why ``split`` blocks cannot share each sum of a product in tiles of ``block``, ``depth`` terms at a time; None
    when they can."""
    if split == 1:
        return None
    k = static_size(p.k)
    if k is None or tiles_of(p, block) is None:
        return "blocks share sums only where all sizes are known"
    steps = -(-k // depth)
    if (split - 1) * -(-steps // split) >= steps:
        return f"{steps} parts of k leave one of {split} blocks without any"
    taken = partial_bytes(p, block, split)
    return f"the partial sums take {taken >> 20} MiB" if taken > LARGEST_WORKSPACE else None


def steps_of(steps: Dim, split: int, part: Expr, values: Inliner) -> tuple[Expr, Expr]:
    """Of ``steps`` parts of k, the first that the block has, which is number ``part`` of ``split``, and how many."""
    if split == 1:
        return index(0), index(steps)
    share = ceil_div(steps, split)
    first = values.simplifier(part * share)
    known = static_size(steps)
    even = known is not None and known % split == 0
    return first, index(share) if even else values.simplifier(minimum(index(share), index(steps) - first))


@dataclass(slots=True)
class Split:
    """What the blocks of a tile have of its sums. meet: how the threads that hold them wait for each other; first: a
    condition that holds in one of these."""

    frame: TileContext
    engine: Engine
    meet: Callable[[], None]
    first: Expr
    partials: Buffer = field(init=False)
    counters: Buffer = field(init=False)

    def __post_init__(self) -> None:
        frame = self.frame
        count = tiles_of(frame.p, frame.block)
        assert count is not None
        self.partials = Buffer("partials", self.engine.total.dtype, (frame.split, count, *frame.block))
        self.counters = Buffer("counters", i32, (count,))

    def kernel(self, kernel: Kernel) -> Kernel:
        """``kernel`` with the memory that this needs."""
        return replace(kernel, workspace=(self.partials,), counters=(self.counters,))

    @contextmanager
    def last(self, values: Inliner) -> Iterator[Inliner]:
        """What only the last block of a tile does, once the engine's sums are those of all."""
        b, split, total = self.frame.launch.b, self.frame.split, self.engine.total
        assert total.owner is not None
        mine = total.owner.num_slots * total.dtype.bytes
        tile = b.let("tile_number", self._number(values))
        values.bind(tile, self.counters.shape[0])

        def each(local: Inliner, body: Callable[[Expr, Expr, Expr], None]) -> None:
            self.engine.finish(local, _WIDEST, lambda *_: as_expr(True), lambda i, j, value, _: body(i, j, value))

        each(values.nested(), lambda i, j, value: b.store(self.partials, (self.frame.part, tile, i, j), value))
        arrived = b.allocate("arrived", i32, (1,), Scope.SHARED)
        self.meet()
        fence = instruction_named("fence_gpu")
        with b.when(self.first):
            b.invoke(fence)
            b.store(arrived, 0, self._atomic("add", tile, 1))
            b.invoke(fence)
        self.meet()
        with b.when(eq(arrived[0], const(split - 1, i32))):
            inside = values.nested()
            each(inside.nested(), lambda i, j, _: b.store(total, (i, j), as_expr(0, total.dtype)))
            with b.loop("block", split, unroll=max(1, _AT_ONCE // mine)) as other:
                local = inside.nested()
                local.bind(other, split)
                each(local, lambda i, j, v: b.store(total, (i, j), v + self.partials[other, tile, i, j]))
            yield inside
            with b.when(self.first):
                b.evaluate(self._atomic("exch", tile, 0))

    def _atomic(self, action: str, tile: Expr, value: int) -> Expr:
        """The tile's counter before it was changed."""
        operands = (load(self.counters, (tile,)), const(value, i32))
        return Intrinsic(instruction_named(f"atomic_{action}_i32"), operands, i32, 1)

    def _number(self, values: Inliner) -> Expr:
        """The number of the block's tile among those of all products: blocks of one have neighbouring tiles, for each
        part of the sums in turn."""
        split, count = self.frame.split, tiles_of(self.frame.p, self.frame.block)
        batch = prod(static_size(d) or 1 for d in self.frame.p.batch)
        one = (count or 0) // batch
        return values.simplifier(BLOCKS[0] // (split * one) * one + BLOCKS[0] % one)
