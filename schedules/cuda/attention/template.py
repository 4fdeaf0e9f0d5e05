"""The attention template for GPUs: softmax(scores) v in blocks of queries and keys, with all intermediates in
registers.

    a block takes a tile of queries; each warp some of its rows
    for each tile of keys:     the next tiles of keys and values are in flight
        s = q kᵀ               the definition of a score (scale, mask, causality) comes from the operator
        m' = max(m, rows of s);  p = exp(s - m')         four neighbouring lanes own a row
        o = o · exp(m - m') + p v
    out = o / l

The sums of s = q kᵀ lie where the instruction needs the left operand of p v, so weights never leave their registers.
Methods: Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018); Dao, "FlashAttention-2" (2023).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from taskmap.ir.construct import as_expr, ceil_div, index, minimum
from taskmap.ir.isa.table import instruction_named
from taskmap.ir.nodes import Dim, Expr, Kernel, Var
from taskmap.ir.target import GpuTarget
from taskmap.ir.types import f32
from taskmap.ir.workers import BLOCKS, THREAD
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.cuda.attention.problem_view import AttentionTask, is_plain
from taskmap.schedules.cuda.attention.products import AttentionConfig, Products
from taskmap.schedules.cuda.attention.softmax import Softmax
from taskmap.schedules.cuda.attention.split_keys import Join, why_not_split
from taskmap.schedules.cuda.matmul.copy_to_shared import SharedTileLoader
from taskmap.schedules.cuda.matmul.shared_tile import SharedTile, padded_bytes, padded_tile
from taskmap.schedules.cuda.matmul.split_k import steps_of
from taskmap.schedules.cuda.support.launch import WARP, Launch
from taskmap.schedules.cuda.support.tile_partition import TilePartition

_COPIES = (4, 8, 16)
_MOST_HELD, _MOST_HELD_WITH_MASKS = 176, 160
_NARROW = 80
Step = Callable[[Inliner, Expr, Expr], None]
"""The work on a tile of keys: (values, its first key, its stage)."""


def validity(t: AttentionTask, c: AttentionConfig, target: GpuTarget) -> str | None:
    """The reason why ``c`` cannot compute ``t`` on ``target``, or None if it can."""
    types = {f.expr.dtype for f in (t.q, t.k, t.v)}
    if len(types) != 1:
        return f"queries, keys and values have {len(types)} different types"
    unfit = c.unfit(next(iter(types)), target)
    if unfit:
        return unfit
    if c.stages == 2 and not is_asynchronous(t, target):
        return "two stages need asynchronous copies, which need operands that lie in memory unchanged"
    for f, extent, depth in ((t.q, c.queries, t.depth), (t.k, c.keys, t.depth), (t.v, t.width, c.keys)):
        found = f.shared_out(extent, depth, c.threads)
        if isinstance(found, str):
            return found
    needed = shared_bytes(t, c)
    shared = why_not_split(t, c)
    if shared is not None:
        return shared
    if target.shared_per_block and needed > target.shared_per_block:
        return f"it needs {needed} bytes of shared memory, but a block has {target.shared_per_block}"
    return None


def shared_bytes(t: AttentionTask, c: AttentionConfig) -> int:
    """Shared memory of a block."""
    kind, stages = t.q.expr.dtype, c.stages
    total = padded_bytes(kind, 1, c.queries, t.depth, along_k=True)
    total += padded_bytes(kind, stages, c.keys, t.depth, along_k=True)
    total += padded_bytes(kind, stages, t.width, c.keys, along_k=False)
    return total + (0 if c.multiplier != "simt" else padded_bytes(f32, 1, c.queries, c.keys, along_k=True))


def space(t: AttentionTask, target: GpuTarget) -> list[AttentionConfig]:
    """Configurations, the most promising first: 128 queries to a block, and for wide heads 32 to a warp, which halves
    the reads of shared memory. The sums, scores and weights of a thread must leave registers for the rest."""
    multiplier = AttentionConfig.multiplier_for(t.q.expr.dtype, target)
    stages = 2 if is_asynchronous(t, target) else 1
    room = _MOST_HELD if is_plain(t) else _MOST_HELD_WITH_MASKS
    found = []
    for warps in (8, 4, 2, 1):
        for rows in (32, 16):
            for keys in (128, 64, 32):
                held = rows * (t.width + keys + keys // 2) // WARP
                if held <= room and not (multiplier == "simt" and (keys > 32 or rows > 16)):
                    found.append(AttentionConfig(multiplier, warps, rows, keys, stages))
    rows = 32 if t.width > _NARROW else 16
    return sorted(found, key=lambda c: (c.queries > 128, -c.queries, c.rows != rows, abs(c.keys - 64)))


def is_asynchronous(t: AttentionTask, target: GpuTarget) -> bool:
    """True if keys and values are copied to shared memory asynchronously."""
    return (
        target.capability >= 80
        and all(f.direct and f.bytes in _COPIES for f in (t.q, t.k, t.v))
        and t.q.along_k
        and t.k.along_k
        and not t.v.along_k
    )


def kernel_with(t: AttentionTask, c: AttentionConfig) -> Kernel:
    """The template's kernel in a configuration that fits."""
    return _Template(t, c).kernel()


@dataclass(slots=True)
class _Template:
    t: AttentionTask
    c: AttentionConfig
    launch: Launch = field(init=False)
    fixed: dict[Var, Expr] = field(default_factory=dict)
    first: Expr = field(default_factory=lambda: index(0))
    tiles: list[SharedTile] = field(default_factory=list)
    start: Expr = field(default_factory=lambda: index(0))

    def kernel(self) -> Kernel:
        t, c, a = self.t, self.c, self.t.a
        batch = a.stage.shape[0]
        blocks = ceil_div(t.rows, c.queries)
        self.launch = Launch(t.task, (batch, t.heads, blocks, c.split), c.threads)
        b = self.launch.b
        values, (n, h, number, part) = self.launch.begin()
        # Blocks that see many keys start first; short ones fill the end.
        number = values.simplifier(index(blocks) - 1 - number) if a.causal else number
        self.first = b.let("first", values.simplifier(number * c.queries))
        self.fixed = {a.stage.axes[0]: n, t.head: h}
        kind = t.q.expr.dtype
        tiles = [
            padded_tile(b, "queries", kind, 1, c.queries, t.depth, along_k=True, is_left=True),
            padded_tile(b, "keys", kind, c.stages, c.keys, t.depth, along_k=True, is_left=False),
            padded_tile(b, "values", kind, c.stages, t.width, c.keys, along_k=False, is_left=False),
        ]
        self.tiles = tiles
        products = Products.open(b, c, values, t.width, kind)
        softmax = Softmax(b, t, c, THREAD, self.first, (n, h))
        softmax.begin()

        def step(place: Inliner, key: Expr, stage: Expr) -> None:
            products.score(place.nested(), tiles[0], tiles[1], t.depth, stage)
            softmax.finish_scores(place.nested(), products.scores, key)
            shrink = softmax.to_weights(products.scores, products.store_weight)
            softmax.rescale(products.sums, shrink)
            products.weigh(place.nested(), tiles[2], stage)

        number_of_blocks = self.blocks(values)
        if c.split > 1:
            self.start, number_of_blocks = steps_of(number_of_blocks, c.split, part, values)
            self.start = b.let("start", self.start)
        if c.stages == 2:
            self.in_stages(values, number_of_blocks, step)
        else:
            self.through_registers(values, number_of_blocks, step)
        softmax.gather()
        if c.split == 1:
            softmax.finish(values.nested(), products.sums)
            return self.launch.kernel(f"cuda.attention({c})")
        tile = b.let("tile", values.simplifier(BLOCKS[0] // c.split))
        join = Join(b, t, c, softmax, products, tile, part)
        with join.last(values) as last:
            softmax.finish(last, products.sums)
        return join.kernel(self.launch.kernel(f"cuda.attention({c})"))

    def staging(self, which: int, key: Expr) -> SharedTileLoader:
        """The loader of the tile of queries (0), keys (1) or values (2); keys and values from ``key`` on."""
        t, c = self.t, self.c
        depth = t.a.dot.axes[0][1]
        f, first, extent, deep, size = (
            (t.q, self.first, c.queries, t.depth, depth),
            (t.k, key, c.keys, t.depth, depth),
            (t.v, index(0), t.width, c.keys, t.a.keys),
        )[which]
        how = f.shared_out(extent, deep, c.threads)
        assert isinstance(how, TilePartition)
        return SharedTileLoader(
            self.launch.b, f, self.fixed, first, extent, deep, size, how, c.threads, self.tiles[which]
        )

    def blocks(self, values: Inliner) -> Dim:
        """The tiles of keys that the block's queries may see."""
        a, c = self.t.a, self.c
        every = ceil_div(a.keys, c.keys)
        if not a.causal:
            return every
        last = self.t.seen(self.first, c.queries)[1]
        reach = values.simplifier(minimum(index(every), (last + c.keys) // c.keys))
        return self.launch.b.let("blocks", reach)

    def in_stages(self, values: Inliner, blocks: Dim, step: Step) -> None:
        """Two stages: the next keys and values are copied while the current ones are computed."""
        b, c = self.launch.b, self.c
        commit, wait = instruction_named("cp_async_commit"), instruction_named("cp_async_wait")

        def issue(number: Expr, local: Inliner) -> None:
            key = local.simplifier((self.start + number) * c.keys)
            stage = local.simplifier(number % 2)
            self.staging(1, key).copy_async(local.nested(), stage, index(0))
            self.staging(2, key).copy_async(local.nested(), stage, key)

        self.staging(0, index(0)).copy_async(values.nested(), index(0), index(0))
        issue(index(0), values)
        b.invoke(commit)
        with b.loop("block", blocks) as number:
            inside = values.nested()
            inside.bind(number, ceil_div(self.t.a.keys, c.keys))
            b.invoke(wait, as_expr(0))
            b.barrier()
            with b.when(number + 1 < blocks):
                issue(inside.simplifier(number + 1), inside)
            b.invoke(commit)
            step(inside.nested(), inside.simplifier((self.start + number) * c.keys), inside.simplifier(number % 2))

    def through_registers(self, values: Inliner, blocks: Dim, step: Step) -> None:
        """One stage: keys and values are computed, or loaded, when they are needed."""
        b, c = self.launch.b, self.c

        def fill(which: int, local: Inliner, key: Expr, k0: Expr) -> None:
            s = self.staging(which, key)
            s.allocate(("queries_next", "keys_next", "values_next")[which])
            s.load(local.nested(), k0)
            s.store_tile(local.nested(), index(0))

        fill(0, values, index(0), index(0))
        with b.loop("block", blocks) as number:
            inside = values.nested()
            inside.bind(number, ceil_div(self.t.a.keys, c.keys))
            key = inside.simplifier((self.start + number) * c.keys)
            b.barrier()
            fill(1, inside, key, index(0))
            fill(2, inside, key, key)
            b.barrier()
            step(inside.nested(), key, index(0))
