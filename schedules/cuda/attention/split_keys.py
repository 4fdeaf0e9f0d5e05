"""Attention whose keys several blocks share: each computes the sums of its part, and the last to arrive combines them.

    stats[part, tile] = m, l;  partials[part, tile] = o          in memory private to the launch
    arrived = counters[tile]++                                   after a fence: who sees the number sees the parts
    the last:  m' = max(m, m_part);  l, o = l · 2^(m - m') + l_part · 2^(m_part - m'), likewise o      part after part
               counters[tile] = 0                                for the next launch

The order of the parts is fixed, so a result does not depend on the block that arrives last. Methods: Dao et al.,
"Flash-Decoding for long-context inference" (2023); the protocol of ``matmul/split_k.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from taskmap.ir.algebra.mapping import repeat, spatial
from taskmap.ir.builder import Builder
from taskmap.ir.construct import as_expr, const, eq, load, maximum, select, static_size
from taskmap.ir.isa.table import instruction_named
from taskmap.ir.nodes import Buffer, Expr, Intrinsic, Kernel, LoopKind, Scope
from taskmap.ir.types import f32, i32
from taskmap.ir.workers import THREAD
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.cuda.attention.problem_view import AttentionTask
from taskmap.schedules.cuda.attention.products import AttentionConfig, Products
from taskmap.schedules.cuda.attention.softmax import Softmax
from taskmap.schedules.cuda.matmul.split_k import LARGEST_WORKSPACE
from taskmap.schedules.cuda.support.vectors import fills

_LANES = 4
"""The lanes that own a row."""
_PAIR = 2
_KEY = 33
"""Clock cycles in which a warp takes 16 queries past a key and a value of 64 elements (an H100: past 128 in 2.5 us)."""
_JOIN = 5500
"""Clock cycles in which the last block combines the parts, on an H100."""


def tiles_of(t: AttentionTask, c: AttentionConfig) -> int | None:
    """The number of tiles of queries over all heads; None if it is known only when the kernel runs."""
    batch, heads, rows = (static_size(d) for d in (t.a.stage.shape[0], t.heads, t.rows))
    if batch is None or heads is None or rows is None:
        return None
    return batch * heads * -(-rows // c.queries)


def saves_time(t: AttentionTask, c: AttentionConfig) -> bool:
    """True if ``c.split`` blocks that share known keys are faster than one block with all of them."""
    keys = static_size(t.a.keys)
    if keys is None or c.multiplier == "simt":
        return True
    alone = keys * _KEY * c.rows / 16 * (t.depth + t.width) / 128
    return alone * (1 - 1 / c.split) > _JOIN


def why_not_split(t: AttentionTask, c: AttentionConfig) -> str | None:
    """The reason why ``c.split`` blocks cannot share the keys, or None if they can."""
    if c.split == 1:
        return None
    count, keys = tiles_of(t, c), static_size(t.a.keys)
    if count is None or keys is None:
        return "blocks can share keys only if all sizes are known"
    if t.a.causal:
        return "the number of keys that a causal query sees depends on the query"
    tiles = -(-keys // c.keys)
    if (c.split - 1) * -(-tiles // c.split) >= tiles:
        return f"{tiles} tiles of keys are not enough for {c.split} blocks"
    taken = c.split * count * c.queries * (t.width + 2) * f32.bytes
    return f"the partial sums take {taken >> 20} MiB" if taken > LARGEST_WORKSPACE else None


@dataclass(slots=True)
class Join:
    """The partial results of the blocks that share a tile, number ``tile`` of ``count``; this block computes
    ``part``."""

    b: Builder
    t: AttentionTask
    c: AttentionConfig
    softmax: Softmax
    products: Products
    tile: Expr
    part: Expr
    stats: Buffer = field(init=False)
    partials: Buffer = field(init=False)
    counters: Buffer = field(init=False)

    def __post_init__(self) -> None:
        c, count = self.c, tiles_of(self.t, self.c)
        assert count is not None
        self.stats = Buffer("stats", f32, (c.split, count, 2, c.queries))
        self.partials = Buffer("partials", f32, (c.split, count, c.queries, self.t.width))
        self.counters = Buffer("counters", i32, (count,))

    def kernel(self, kernel: Kernel) -> Kernel:
        """``kernel`` with the global memory that the combination needs."""
        return kernel.launched(workspace=(self.stats, self.partials), counters=(self.counters,))

    @contextmanager
    def last(self, values: Inliner) -> Iterator[Inliner]:
        """Runs its body in the last block of a tile only, with its rows combined over all keys."""
        b, split = self.b, self.c.split
        self.store(values.nested())
        arrived = b.allocate("arrived", i32, (1,), Scope.SHARED)
        fence = instruction_named("fence_gpu")
        b.barrier()
        with b.when(THREAD < 1):
            b.invoke(fence)
            b.store(arrived, 0, self.atomic("add", 1))
            b.invoke(fence)
        b.barrier()
        with b.when(eq(arrived[0], const(split - 1, i32))):
            self.clear()
            with b.loop("block", split, unroll=1) as other:
                inside = values.nested()
                inside.bind(other, split)
                self.add(inside, other)
            yield values.nested()
            with b.when(THREAD < 1):
                b.evaluate(self.atomic("exch", 0))

    def store(self, values: Inliner) -> None:
        """Stores this block's part; for each row, one of its lanes stores the maximum and the sum."""
        b, s = self.b, self.softmax
        with b.mapped(["i"], self.c.row_owner, THREAD) as (i,), b.when(self.exists(values, i) & self.is_first_lane):
            b.store(self.stats, (self.part, self.tile, 0, i), s.top[i])
            b.store(self.stats, (self.part, self.tile, 1, i), s.total[i])

        def one(i: Expr, d: Expr) -> None:
            b.store(self.partials, (self.part, self.tile, i, d), self.products.sums[i, d])

        self.pairs(values, one)

    def clear(self) -> None:
        """Stores the initial state: no part seen yet."""
        b, s, sums = self.b, self.softmax, self.products.sums
        with b.mapped(["i"], self.c.row_owner, THREAD) as (i,):
            b.store(s.top, (i,), -math.inf)
            b.store(s.total, (i,), 0.0)
        with b.mapped(["i", "d"], self.c.owner(self.t.width), THREAD) as (i, d):
            b.store(sums, (i, d), 0.0)

    def add(self, values: Inliner, other: Expr) -> None:
        """Adds another block's part, relative to the greater maximum of both."""
        b, s, sums = self.b, self.softmax, self.products.sums
        never = const(-math.inf, f32)
        shrink, grow = (b.allocate(n, f32, (self.c.queries,), Scope.REGISTER, owner=self.c.row_owner) for n in "ab")
        with b.mapped(["i"], self.c.row_owner, THREAD) as (i,):
            b.store(shrink, (i,), 1.0)
            b.store(grow, (i,), 0.0)
            with b.when(self.exists(values, i)):
                top = b.let("theirs", self.stats[other, self.tile, 0, i])
                total = b.let("their_total", self.stats[other, self.tile, 1, i])
                new = b.let("new", maximum(s.top[i], top))
                safe = b.let("safe", select(eq(new, never), const(0.0, f32), new))
                b.store(shrink, (i,), s.power(s.top[i] - safe))
                b.store(grow, (i,), s.power(top - safe))
                b.store(s.top, (i,), new)
                b.store(s.total, (i,), s.total[i] * shrink[i] + total * grow[i])

        def one(i: Expr, d: Expr) -> None:
            theirs = self.partials[other, self.tile, i, d]
            b.store(sums, (i, d), sums[i, d] * shrink[i] + theirs * grow[i])

        self.pairs(values, one)

    def pairs(self, values: Inliner, body: Callable[[Expr, Expr], None]) -> None:
        """Calls ``body`` for every element of the rows that exist, in pairs of neighbours."""
        b, c, width = self.b, self.c, self.t.width
        owner = spatial(c.warps, 1) * repeat(c.rows // 16, width // 8) * repeat(2, 1) * spatial(8, 4)
        with b.mapped(["i", "g"], owner, THREAD) as (i, g):
            values.bind(i, c.queries)
            values.bind(g, width // _PAIR)
            with b.when(self.exists(values, i)), b.loop("v", _PAIR, LoopKind.VECTOR) as v:
                inside = values.nested()
                inside.bind(v, _PAIR)
                body(i, inside.simplifier(g * _PAIR + v))

    @property
    def is_first_lane(self) -> Expr:
        """True in the first of the lanes that own a row."""
        return eq(THREAD % _LANES, 0)

    def exists(self, values: Inliner, i: Expr) -> Expr:
        """True if a row is one of the attention's."""
        whole = fills(self.t.rows, self.c.queries)
        return as_expr(True) if whole else values.simplifier(self.softmax.first + i < self.t.rows)

    def atomic(self, action: str, value: int) -> Expr:
        """The tile's counter before it was changed."""
        operands = (load(self.counters, (self.tile,)), const(value, i32))
        return Intrinsic(instruction_named(f"atomic_{action}_i32"), operands, i32, 1)
