"""Attention on Hopper: TMA loads queries, keys and values, warpgroups multiply by wgmma.

    one thread of the producer warpgroup issues:   queries once;  a tile of keys and of values for each stage of a ring
    each consumer warpgroup, of 64 queries:
        s = q k₀ᵀ;  p = softmax of it                       both operands in shared memory, sums in registers
        for each further tile of keys:
            s = q kᵀ  and  o = o + p v  are issued          p is the left operand, in the registers that held its sums
            p' = softmax of s, as soon as s is complete     while o + p v is still running
            o = o · exp(m - m')
        o = o + p v;  out = o / l

Method: Shah et al., "FlashAttention-3" (2024): asynchrony of the products of one warpgroup and between several. Heads
that share keys read one tensor; TMA fills positions beyond a head's sizes with zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from taskmap.ir.builder import Builder, region
from taskmap.ir.construct import as_expr, cast, ceil_div, eq, index, minimum
from taskmap.ir.isa.table import instruction_named
from taskmap.ir.nodes import Buffer, Expr, ExprLike, Kernel, Scope
from taskmap.ir.types import i32, i64
from taskmap.ir.workers import THREAD
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.cuda.attention.problem_view import AttentionTask
from taskmap.schedules.cuda.attention.softmax import Softmax
from taskmap.schedules.cuda.hopper.attention_config import LINE, Heads, HopperAttentionConfig, heads_of, space, validity
from taskmap.schedules.cuda.hopper.attention_wgmma import WgmmaProducts
from taskmap.schedules.cuda.hopper.matmul_config import WARPGROUP
from taskmap.schedules.cuda.hopper.stage import StageTile
from taskmap.schedules.cuda.hopper.tma_descriptor import LINE_BYTES
from taskmap.schedules.cuda.matmul.operand import Operand
from taskmap.schedules.cuda.support.launch import WARP, Launch, number_of_warpgroup

__all__ = ["HopperAttentionConfig", "schedule_hopper_attention", "space", "validity"]

_FETCHING, _MULTIPLYING = 24, 240
"""Registers of a producer thread, and of a consumer thread if there are two consumer warpgroups."""


def schedule_hopper_attention(t: AttentionTask, c: HopperAttentionConfig) -> Kernel:
    """Instantiates the template with a configuration that is known to fit."""
    return _Attention(t, c).kernel()


@dataclass(slots=True)
class _Operand:
    """A tile of queries, keys or values, and its source."""

    tile: StageTile
    heads: Heads
    full: Buffer
    empty: Buffer | None


@dataclass(slots=True)
class _Attention:
    t: AttentionTask
    c: HopperAttentionConfig
    launch: Launch = field(init=False)
    place: tuple[Expr, Expr] = field(init=False)
    first: Expr = field(init=False)
    blocks: Expr = field(init=False)
    q: _Operand = field(init=False)
    k: _Operand = field(init=False)
    v: _Operand = field(init=False)

    @property
    def b(self) -> Builder:
        """The builder."""
        return self.launch.b

    def kernel(self) -> Kernel:
        t, c, a = self.t, self.c, self.t.a
        batch, heads, queries, _ = a.stage.shape
        blocks = ceil_div(queries, c.queries)
        self.launch = Launch(t.task, (batch, heads, blocks), c.threads)
        values, (n, h, number) = self.launch.begin()
        b = self.b
        # Blocks that see many keys start first; short ones fill the end.
        number = values.simplifier(index(blocks) - 1 - number) if a.causal else number
        self.place = (b.let("batch", n), b.let("head", h))
        for v, d in zip(self.place, (batch, heads), strict=True):
            values.bind(v, d)
        self.first = b.let("first", values.simplifier(number * c.queries))
        values.bind(self.first, queries)
        self.q = self.operand("queries", t.q, 1, c.queries, t.depth)
        self.k = self.operand("keys", t.k, c.stages, c.keys, t.depth)
        self.v = self.operand("values", t.v, c.stages, c.keys, t.width)
        with b.when(THREAD < 1):
            for o in (self.q, self.k, self.v):
                for stage in range(int(o.full.shape[0])):  # type: ignore[arg-type]  # as many as there are stages
                    self.barrier(o.full, index(stage), "init", 1)
                    if o.empty:
                        self.barrier(o.empty, index(stage), "init", c.warps)
            b.invoke(instruction_named("fence_mbarrier_init"))
        b.barrier()
        self.blocks = self.count(values)
        group = number_of_warpgroup(b, c.groups + 1, values)
        with b.when(group < c.groups):
            if c.groups > 1:
                b.invoke(instruction_named("setmaxnreg_inc"), as_expr(_MULTIPLYING))
            self.consume(values.nested(), group if c.groups > 1 else index(0))
        with b.otherwise():
            if c.groups > 1:
                b.invoke(instruction_named("setmaxnreg_dec"), as_expr(_FETCHING))
            with b.when(eq(THREAD, c.groups * WARPGROUP)):
                self.produce(values.nested())
        kernel = self.launch.kernel(f"cuda.attention({c})")
        maps = (o.tile.map for o in (self.q, self.k, self.v))
        return kernel.launched(maps=tuple(m for m in maps if m))

    def operand(self, name: str, f: Operand, stages: int, lines: int, width: int) -> _Operand:
        """Shared memory for ``lines`` lines of heads of ``width`` elements, in boxes of 128 bytes, and its barriers."""
        b = self.b
        heads = heads_of(self.t, f)
        assert isinstance(heads, Heads)
        count = -(-width // LINE)
        buffer = b.allocate(name, f.expr.dtype, (stages, count, lines, LINE), Scope.SHARED)
        full = b.allocate(f"{name}_full", i64, (stages,), Scope.SHARED)
        empty = None if f is self.t.q else b.allocate(f"{name}_empty", i64, (stages,), Scope.SHARED)
        boxes = heads.boxes
        tile = StageTile(buffer, boxes.along_k, count * LINE, boxes, boxes.map(f"map_{name}", lines))
        return _Operand(tile, heads, full, empty)

    def count(self, values: Inliner) -> Expr:
        """The number of tiles of keys that the block's queries may see."""
        a, c = self.t.a, self.c
        every = index(ceil_div(a.keys, c.keys))
        if not a.causal:
            return every
        reach = values.simplifier(minimum(every, (self.first + (c.queries + c.keys - 1)) // c.keys))
        return self.b.let("blocks", reach)

    def barrier(self, barriers: Buffer, stage: Expr, action: str, *values: ExprLike) -> None:
        """An action on one mbarrier."""
        given = (cast(as_expr(v, i32), i32) for v in values)
        self.b.invoke(instruction_named(f"mbarrier_{action}"), region(barriers, (stage,), (1,)), *given)

    def produce(self, values: Inliner) -> None:
        """The producer: one thread fills stage after stage."""
        c, t, b = self.c, self.t, self.b
        self.load(values, self.q, self.first, index(0))
        with b.loop("block", self.blocks, unroll=1) as number:
            inside = values.nested()
            inside.bind(number, ceil_div(t.a.keys, c.keys))
            stage, turn = self.turn(inside, number)
            for o in (self.k, self.v):
                assert o.empty is not None
                self.barrier(o.empty, stage, "wait", inside.simplifier((turn + 1) % 2))
                self.load(inside, o, inside.simplifier(number * c.keys), stage)

    def turn(self, values: Inliner, number: Expr) -> tuple[Expr, Expr]:
        """The stage of a tile of keys, and the parity of the number of times it was filled before."""
        return values.simplifier(number % self.c.stages), values.simplifier(number // self.c.stages % 2)

    def load(self, values: Inliner, o: _Operand, line: Expr, stage: Expr) -> None:
        """Loads the lines of a tile from ``line`` on, box after box."""
        b, tile = self.b, o.tile
        assert tile.map is not None
        boxes, lines, count = o.heads.boxes, int(tile.buffer.shape[2]), int(tile.buffer.shape[1])  # type: ignore[arg-type]  # plain sizes
        self.barrier(o.full, stage, "arrive_expect_tx", count * lines * LINE_BYTES)
        batch = o.heads.batch(*self.place)
        for box in range(count):
            column = index(box * LINE)
            mn, k = (line, column) if boxes.along_k else (column, line)
            where = boxes.coordinates(batch, mn, k)
            to = region(tile.buffer, (stage, box, 0, 0), (1, 1, lines, LINE))
            given = (cast(values.simplifier(i), i32) for i in where)
            load = instruction_named(f"tma_load_{len(where)}d")
            b.invoke(load, to, tile.map, region(o.full, (stage,), (1,)), *given)

    def consume(self, values: Inliner, group: Expr) -> None:
        """A consumer: a warpgroup's queries, from the first tile of keys to the result."""
        t, c, b = self.t, self.c, self.b
        worker = THREAD % (c.groups * WARPGROUP)
        softmax = Softmax(b, t, c, worker, self.first, self.place)
        products = WgmmaProducts.open(b, t, c, group, worker)
        softmax.begin()
        self.barrier(self.q.full, index(0), "wait", 0)

        def to_weights(inside: Inliner, key: Expr, store: Callable[[Expr, Expr, Expr], None]) -> Buffer:
            softmax.finish_scores(inside.nested(), products.scores, key)
            return softmax.to_weights(products.scores, store)

        if c.overlap:
            self.overlapped(values, products, softmax, to_weights)
        else:
            self.in_turn(values, products, softmax, to_weights)
        softmax.gather()
        softmax.finish(values.nested(), products.sums)

    def in_turn(self, values: Inliner, products: WgmmaProducts, softmax: Softmax, to_weights: _ToWeights) -> None:
        """Runs one product, softmax, and the other product in sequence."""
        c, b = self.c, self.b
        with b.loop("block", self.blocks, unroll=1) as number:
            inside = values.nested()
            inside.bind(number, ceil_div(self.t.a.keys, c.keys))
            stage, parity = self.turn(inside, number)
            self.barrier(self.k.full, stage, "wait", parity)
            products.score(self.q.tile, self.k.tile, stage)
            products.wait(0)
            products.hold(products.scores)
            self.release(self.k, stage)
            shrink = to_weights(inside, inside.simplifier(number * c.keys), products.store_weight)
            softmax.rescale(products.sums, shrink)
            self.barrier(self.v.full, stage, "wait", parity)
            products.weigh(self.v.tile, stage)
            products.wait(0)
            products.hold(products.sums)
            self.release(self.v, stage)

    def overlapped(self, values: Inliner, products: WgmmaProducts, softmax: Softmax, to_weights: _ToWeights) -> None:
        """Issues the product for the scores of the next tile before the one for the values of this tile."""
        c, b = self.c, self.b
        blocks = self.blocks
        self.barrier(self.k.full, index(0), "wait", 0)
        products.score(self.q.tile, self.k.tile, index(0))
        products.wait(0)
        products.hold(products.scores)
        self.release(self.k, index(0))
        to_weights(values.nested(), index(0), products.store_weight)
        with b.loop("block", values.simplifier(blocks - 1), unroll=1) as number:
            inside = values.nested()
            inside.bind(number, ceil_div(self.t.a.keys, c.keys))
            stage, parity = self.turn(inside, number)
            after, parity_after = self.turn(inside, inside.simplifier(number + 1))
            self.barrier(self.k.full, after, "wait", parity_after)
            products.score(self.q.tile, self.k.tile, after)
            self.barrier(self.v.full, stage, "wait", parity)
            products.weigh(self.v.tile, stage)
            products.wait(1)
            products.hold(products.scores)
            self.release(self.k, after)
            shrink = to_weights(inside, inside.simplifier((number + 1) * c.keys), products.keep)
            # They arrived long ago: this loop only ends a basic block, or the assembler would wait for the products
            # before the softmax. Keys would not do: their stage has been released, and may have been filled again.
            self.barrier(self.q.full, index(0), "wait", 0)
            products.wait(0)
            products.hold(products.sums)
            self.release(self.v, stage)
            softmax.rescale(products.sums, shrink)
            products.use_kept()
        last, parity = self.turn(values, values.simplifier(blocks - 1))
        self.barrier(self.v.full, last, "wait", parity)
        products.weigh(self.v.tile, last)
        products.wait(0)
        products.hold(products.sums)

    def release(self, o: _Operand, stage: Expr) -> None:
        """A warp releases a stage."""
        assert o.empty is not None
        with self.b.when(eq(THREAD % WARP, 0)):
            self.barrier(o.empty, stage, "arrive")


_ToWeights = Callable[[Inliner, Expr, Callable[[Expr, Expr, Expr], None]], Buffer]
"""Turns the scores of the tile from a key on into weights: (values, key, consumer of a weight) -> the factors by which
sums shrink."""
