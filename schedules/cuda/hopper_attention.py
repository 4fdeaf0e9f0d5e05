"""Attention on Hopper: the copy engine brings queries, keys and values, warpgroups multiply by wgmma.

    one thread of a warpgroup asks:   queries once;  a tile of keys and one of values for each stage of a ring
    each warpgroup, of 64 queries:
        s = q k₀ᵀ;  p = softmax of it                       both factors in shared memory, sums in registers
        for each further tile of keys:
            s = q kᵀ  and  o = o + p v  are begun           p is the left factor in registers, where its sums lay
            p' = softmax of s, as soon as it is there       while o + p v goes on
            o = o · exp(m - m')
        o = o + p v;  out = o / l

Method: Shah et al., "FlashAttention-3" (2024): asynchrony of the products of one warpgroup and between several. Heads
that share keys read one tensor; sizes beyond a head's are filled with zeros by the copy engine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from taskmap.ir.builder import Builder, region
from taskmap.ir.construct import as_expr, cast, ceil_div, const, constant_dim, eq, index, minimum, value_of
from taskmap.ir.instructions import Instruction, instruction_named
from taskmap.ir.instructions_hopper import accumulator
from taskmap.ir.mapping import TaskMapping, repeat, replicate, spatial
from taskmap.ir.nodes import Binary, Buffer, Expr, ExprLike, Kernel, Scope, Var
from taskmap.ir.target import Target
from taskmap.ir.task import Task
from taskmap.ir.types import DType, bf16, f16, f32, i32, i64
from taskmap.ir.visit import substitute, walk_exprs
from taskmap.ir.workers import THREAD
from taskmap.schedules.access import accesses
from taskmap.schedules.cuda.attention_softmax import Softmax
from taskmap.schedules.cuda.attention_task import AttentionTask, is_plain
from taskmap.schedules.cuda.factor import Axes, Factor
from taskmap.schedules.cuda.hopper_config import ROWS, WARPGROUP
from taskmap.schedules.cuda.hopper_stage import StageTile
from taskmap.schedules.cuda.launch import WARP, Launch
from taskmap.schedules.cuda.tensor_box import LINE_BYTES, Boxes, boxes_of
from taskmap.schedules.values import Values

_K = 16
_LINE = LINE_BYTES // 2
_MOST_COLUMNS = 256
_MOST_HELD, _MOST_HELD_WITH_MASKS = 176, 160
"""Words of sums, scores and weights that leave a thread registers for the rest."""
_FETCHING, _MULTIPLYING = 24, 240


@dataclass(frozen=True, slots=True)
class HopperAttentionConfig:
    """groups: warpgroups that multiply, of 64 queries each. keys: of a tile. stages: tiles of keys, and of values, in
    shared memory. overlap: softmax of one tile is computed while the tile before is weighed."""

    groups: int
    keys: int
    stages: int = 2
    overlap: bool = True

    @property
    def queries(self) -> int:
        """Queries of a block."""
        return self.groups * ROWS

    @property
    def warps(self) -> int:
        """Warps that multiply."""
        return self.groups * WARPGROUP // WARP

    @property
    def rows(self) -> int:
        """Queries of a warp."""
        return ROWS * WARP // WARPGROUP

    @property
    def threads(self) -> int:
        """Threads of a block: the warpgroups that multiply and one that fetches."""
        return (self.groups + 1) * WARPGROUP

    def owner(self, columns: int) -> TaskMapping:
        """Who holds which element of the block's queries × ``columns``."""
        return spatial(self.groups, 1) * accumulator(columns)

    @property
    def row_owner(self) -> TaskMapping:
        """Who holds what belongs to a query: the four lanes that hold its row."""
        return spatial(self.warps) * repeat(2) * spatial(8) * replicate(4, rank=1)

    def held(self, width: int) -> int:
        """Words of sums, scores and weights of one thread."""
        return ROWS * (width + self.keys + self.keys // 2) // WARPGROUP

    def shared_bytes(self, t: AttentionTask) -> int:
        """Shared memory of a block, barriers among it."""
        deep, wide = (-(-n // _LINE) * LINE_BYTES for n in (t.depth, t.width))
        return self.queries * deep + self.stages * (self.keys * (deep + wide) + 32) + 16

    def __str__(self) -> str:
        way = "overlapped" if self.overlap else "in turn"
        return f"wgmma, queries={self.queries}, keys={self.keys}, stages={self.stages}, {way}"


def space(t: AttentionTask, target: Target) -> list[HopperAttentionConfig]:
    """Configurations, the likely best first: 128 queries to a block, and as many keys as registers allow."""
    if target.isa != "sm_90a":
        return []
    room = _MOST_HELD if is_plain(t) else _MOST_HELD_WITH_MASKS
    found = [
        HopperAttentionConfig(groups, keys, stages, overlap)
        for groups in (2, 1)
        for keys in (128, 64, 32)
        for stages in (2, 3)
        for overlap in (True, False)
    ]
    return [c for c in found if c.held(t.width) <= room]


def validity(t: AttentionTask, c: HopperAttentionConfig, target: Target) -> str | None:
    """Why ``c`` cannot compute ``t`` on ``target``; None when it can."""
    kinds = {f.expr.dtype for f in (t.q, t.k, t.v)}
    if len(kinds) != 1 or not kinds <= {f16, bf16}:
        return f"wgmma multiplies two factors of f16 or bf16, not {', '.join(sorted(map(str, kinds)))}"
    if c.groups not in (1, 2) or c.stages < 1:
        return f"one or two warpgroups multiply from one stage or more, not {c.groups} from {c.stages}"
    if c.keys % _K or c.keys > _MOST_COLUMNS or t.width > _MOST_COLUMNS:
        return f"an instruction has multiples of {_K} keys and values, up to {_MOST_COLUMNS}"
    weigh = _weigh(c.keys, t.width, t.q.expr.dtype)[1]
    if not weigh.targets(target):
        return f"{target} has no {weigh.name}, which needs {weigh.targets}"
    if c.held(t.width) > _MOST_HELD:
        return f"{c.held(t.width)} words of sums, scores and weights leave a thread no registers for the rest"
    needed = c.shared_bytes(t)
    if target.shared_per_block and needed > target.shared_per_block:
        return f"it needs {needed} bytes of shared memory, and a block has {target.shared_per_block}"
    for name, f in (("queries", t.q), ("keys", t.k), ("values", t.v)):
        found = heads_of(t, f)
        if isinstance(found, str):
            return f"the copy engine cannot fetch the {name}: {found}"
        if found.boxes.along_k != (f is not t.v):
            return f"the {name} are not contiguous along a head"
    return None


def _weigh(keys: int, width: int, kind: DType) -> tuple[Instruction, Instruction]:
    """The instructions for scores and for weighted values."""
    return (
        instruction_named(f"wgmma_m64n{keys}k{_K}_{kind}_f32"),
        instruction_named(f"wgmma_ra_m64n{width}k{_K}_{kind}_f32"),
    )


@dataclass(frozen=True, slots=True)
class Heads:
    """The boxes of a factor, and how many neighbouring heads share them."""

    boxes: Boxes
    shared: int

    def batch(self, n: Expr, head: Expr) -> list[Expr]:
        """The position along the batch axes of the boxes."""
        return [n, head // self.shared, head % self.shared]


def heads_of(t: AttentionTask, f: Factor) -> Heads | str:
    """How the copy engine reads a factor; or why it cannot.

    Where heads share keys, a factor depends on its head by head // size: a head is seen as two axes, and the second one
    takes no steps.
    """
    (batch, n), (head, heads) = zip(t.a.stage.axes[:2], t.a.stage.shape[:2], strict=True)
    size = _shared_heads(t.task, f, ((batch, n), (head, heads)), head)
    count = constant_dim(heads)
    if size == 1 or count is None or count % size:
        return _heads(boxes_of(t.task, f, ((batch, n), (head, heads), (Var("one"), 1))), 1)
    group, place = Var("group"), Var("place")
    apart = replace(f, expr=substitute(f.expr, {head: group * size + place}))
    return _heads(boxes_of(t.task, apart, ((batch, n), (group, count // size), (place, size))), size)


def _heads(boxes: Boxes | str, shared: int) -> Heads | str:
    return boxes if isinstance(boxes, str) else Heads(boxes, shared)


def _shared_heads(task: Task, f: Factor, batch: Axes, head: Var) -> int:
    """The divisor by which the elements of a factor depend on their head."""
    axes = (*batch, *f.mn, *f.k)

    def read(values: Values) -> None:
        values.expand(f.expr, {})

    for walk in accesses(task, [v for v, _ in axes], [d for _, d in axes], (), read):
        for e in (e for i in walk.indices for e in walk_exprs(i)):
            if isinstance(e, Binary) and e.op == "floordiv" and e.a is head:
                return int(value_of(e.b) or 1)
    return 1


def schedule_hopper_attention(t: AttentionTask, c: HopperAttentionConfig) -> Kernel:
    """The template filled in, with a configuration that is known to fit."""
    return _Attention(t, c).kernel()


@dataclass(slots=True)
class _Operand:
    """A tile of queries, keys or values, and whence it comes."""

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
        """Where statements go."""
        return self.launch.b

    def kernel(self) -> Kernel:
        t, c, a = self.t, self.c, self.t.a
        batch, heads, queries, _ = a.stage.shape
        blocks = ceil_div(queries, c.queries)
        self.launch = Launch(t.task, (batch, heads, blocks), c.threads)
        values, (n, h, number) = self.launch.begin()
        b = self.b
        # Blocks that see many keys begin first, and short ones fill up the end.
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
                    self.at(o.full, index(stage), "init", 1)
                    if o.empty:
                        self.at(o.empty, index(stage), "init", c.warps)
            b.invoke(instruction_named("fence_mbarrier_init"))
        b.barrier()
        self.blocks = self.count(values)
        group = b.let("warpgroup", values.simplifier(THREAD // WARPGROUP))
        values.bind(group, c.groups + 1)
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
        return replace(kernel, maps=tuple(m for m in maps if m))

    def operand(self, name: str, f: Factor, stages: int, lines: int, width: int) -> _Operand:
        """Shared memory for ``lines`` lines of heads of ``width`` elements, in boxes of 128 bytes, and its barriers."""
        b = self.b
        heads = heads_of(self.t, f)
        assert isinstance(heads, Heads)
        count = -(-width // _LINE)
        buffer = b.allocate(name, f.expr.dtype, (stages, count, lines, _LINE), Scope.SHARED)
        full = b.allocate(f"{name}_full", i64, (stages,), Scope.SHARED)
        empty = None if f is self.t.q else b.allocate(f"{name}_empty", i64, (stages,), Scope.SHARED)
        boxes = heads.boxes
        tile = StageTile(buffer, boxes.along_k, count * _LINE, boxes, boxes.map(f"map_{name}", lines))
        return _Operand(tile, heads, full, empty)

    def count(self, values: Values) -> Expr:
        """Tiles of keys that the block's queries may see."""
        a, c = self.t.a, self.c
        every = index(ceil_div(a.keys, c.keys))
        if not a.causal:
            return every
        reach = values.simplifier(minimum(every, (self.first + (c.queries + c.keys - 1)) // c.keys))
        return self.b.let("blocks", reach)

    def at(self, barriers: Buffer, stage: Expr, action: str, *values: ExprLike) -> None:
        """A step of one mbarrier."""
        given = (cast(as_expr(v, i32), i32) for v in values)
        self.b.invoke(instruction_named(f"mbarrier_{action}"), region(barriers, (stage,), (1,)), *given)

    def produce(self, values: Values) -> None:
        """One thread fills stage after stage."""
        c, t, b = self.c, self.t, self.b
        self.fetch(values, self.q, self.first, index(0))
        with b.loop("block", self.blocks, unroll=1) as number:
            inside = values.nested()
            inside.bind(number, ceil_div(t.a.keys, c.keys))
            stage, turn = self.turn(inside, number)
            for o in (self.k, self.v):
                assert o.empty is not None
                self.at(o.empty, stage, "wait", inside.simplifier((turn + 1) % 2))
                self.fetch(inside, o, inside.simplifier(number * c.keys), stage)

    def turn(self, values: Values, number: Expr) -> tuple[Expr, Expr]:
        """The stage of a tile of keys, and how often it has been filled before, of which only the parity counts."""
        return values.simplifier(number % self.c.stages), values.simplifier(number // self.c.stages % 2)

    def fetch(self, values: Values, o: _Operand, line: Expr, stage: Expr) -> None:
        """The lines of a tile from ``line`` on, box after box."""
        b, tile = self.b, o.tile
        assert tile.map is not None
        boxes, lines, count = o.heads.boxes, int(tile.buffer.shape[2]), int(tile.buffer.shape[1])  # type: ignore[arg-type]  # plain sizes
        self.at(o.full, stage, "arrive_expect_tx", count * lines * LINE_BYTES)
        batch = o.heads.batch(*self.place)
        for box in range(count):
            column = index(box * _LINE)
            mn, k = (line, column) if boxes.along_k else (column, line)
            where = boxes.coordinates(batch, mn, k)
            to = region(tile.buffer, (stage, box, 0, 0), (1, 1, lines, _LINE))
            given = (cast(values.simplifier(i), i32) for i in where)
            load = instruction_named(f"tma_load_{len(where)}d")
            b.invoke(load, to, tile.map, region(o.full, (stage,), (1,)), *given)

    def consume(self, values: Values, group: Expr) -> None:
        """A warpgroup's queries, from the first tile of keys to the result."""
        t, c, b = self.t, self.c, self.b
        worker = THREAD % (c.groups * WARPGROUP)
        fixed = dict(zip(t.a.stage.axes[:2], self.place, strict=True))
        softmax = Softmax(b, t, c, worker, self.first, fixed)
        products = _Products.open(b, t, c, group, worker)
        softmax.begin()
        self.at(self.q.full, index(0), "wait", 0)

        def soften(inside: Values, key: Expr, store: Callable[[Expr, Expr, Expr], None]) -> Buffer:
            softmax.finish_scores(inside.nested(), products.scores, key)
            return softmax.soften(products.scores, store)

        if c.overlap:
            self.overlapped(values, products, softmax, soften)
        else:
            self.in_turn(values, products, softmax, soften)
        softmax.finish(values.nested(), products.sums)

    def in_turn(self, values: Values, products: _Products, softmax: Softmax, soften: _Soften) -> None:
        """One product, softmax, the other product."""
        c, b = self.c, self.b
        with b.loop("block", self.blocks, unroll=1) as number:
            inside = values.nested()
            inside.bind(number, ceil_div(self.t.a.keys, c.keys))
            stage, parity = self.turn(inside, number)
            self.at(self.k.full, stage, "wait", parity)
            products.score(self.q.tile, self.k.tile, stage)
            products.wait(0)
            products.hold(products.scores)
            self.release(self.k, stage)
            shrink = soften(inside, inside.simplifier(number * c.keys), products.store_weight)
            softmax.rescale(products.sums, shrink)
            self.at(self.v.full, stage, "wait", parity)
            products.weigh(self.v.tile, stage)
            products.wait(0)
            products.hold(products.sums)
            self.release(self.v, stage)

    def overlapped(self, values: Values, products: _Products, softmax: Softmax, soften: _Soften) -> None:
        """The scores of the next tile are begun before the values of this one are weighed."""
        c, b = self.c, self.b
        blocks = self.blocks
        self.at(self.k.full, index(0), "wait", 0)
        products.score(self.q.tile, self.k.tile, index(0))
        products.wait(0)
        products.hold(products.scores)
        self.release(self.k, index(0))
        soften(values.nested(), index(0), products.store_weight)
        with b.loop("block", values.simplifier(blocks - 1), unroll=1) as number:
            inside = values.nested()
            inside.bind(number, ceil_div(self.t.a.keys, c.keys))
            stage, parity = self.turn(inside, number)
            after, parity_after = self.turn(inside, inside.simplifier(number + 1))
            self.at(self.k.full, after, "wait", parity_after)
            products.score(self.q.tile, self.k.tile, after)
            self.at(self.v.full, stage, "wait", parity)
            products.weigh(self.v.tile, stage)
            products.wait(1)
            products.hold(products.scores)
            self.release(self.k, after)
            shrink = soften(inside, inside.simplifier((number + 1) * c.keys), products.keep)
            products.wait(0)
            products.hold(products.sums)
            self.release(self.v, stage)
            softmax.rescale(products.sums, shrink)
            products.settle()
        last, parity = self.turn(values, values.simplifier(blocks - 1))
        self.at(self.v.full, last, "wait", parity)
        products.weigh(self.v.tile, last)
        products.wait(0)
        products.hold(products.sums)

    def release(self, o: _Operand, stage: Expr) -> None:
        """A warp is done with a stage."""
        assert o.empty is not None
        with self.b.when(eq(THREAD % WARP, 0)):
            self.at(o.empty, stage, "arrive")


_Soften = Callable[[Values, Expr, Callable[[Expr, Expr, Expr], None]], Buffer]
"""Scores of the tile from a key on become weights: (values, key, what takes a weight); by how much sums shrink."""


@dataclass(frozen=True, slots=True)
class _Products:
    """The registers of a block: ``scores`` of a tile of keys, ``weights`` made of them, ``sums`` of weighted values."""

    b: Builder
    c: HopperAttentionConfig
    depth: int
    width: int
    group: Expr
    worker: Expr
    engines: tuple[Instruction, Instruction]
    scores: Buffer
    weights: Buffer
    sums: Buffer

    @staticmethod
    def open(b: Builder, t: AttentionTask, c: HopperAttentionConfig, group: Expr, worker: Expr) -> _Products:
        """All registers; the sums are 0."""
        kind = t.q.expr.dtype
        engines = _weigh(c.keys, t.width, kind)
        held = engines[1].owner_a
        assert held is not None
        sums = b.allocate("sums", f32, (c.queries, t.width), Scope.REGISTER, owner=c.owner(t.width))
        with b.mapped(["i", "d"], c.owner(t.width), worker) as (i, d):
            b.store(sums, (i, d), 0.0)
        scores = b.allocate("scores", f32, (c.queries, c.keys), Scope.REGISTER, owner=c.owner(c.keys))
        owner = spatial(c.groups, 1) * repeat(1, c.keys // _K) * held
        weights = b.allocate("weights", kind, (c.queries, c.keys), Scope.REGISTER, owner=owner)
        return _Products(b, c, t.depth, t.width, group, worker, engines, scores, weights, sums)

    def rows(self, buffer: Buffer, column: int, columns: int) -> tuple[Buffer, tuple[ExprLike, ...], tuple[int, ...]]:
        """The part of a buffer that belongs to this warpgroup's queries."""
        return buffer, (self.group * ROWS, column), (ROWS, columns)

    def score(self, queries: StageTile, keys: StageTile, stage: Expr) -> None:
        """scores = queries @ keys, begun."""
        b = self.b
        b.invoke(instruction_named("wgmma_fence"))
        for kk in range(0, self.depth, _K):
            b.invoke(
                self.engines[0],
                as_expr(0),
                as_expr(0),
                region(*self.rows(self.scores, 0, self.c.keys)),
                queries.descriptor(self.group * ROWS, index(kk), index(0)),
                keys.descriptor(index(0), index(kk), stage),
                const(int(kk > 0), i32),
            )
        b.invoke(instruction_named("wgmma_commit"))

    def weigh(self, values: StageTile, stage: Expr) -> None:
        """sums += weights @ values, begun."""
        b = self.b
        b.invoke(instruction_named("wgmma_fence"))
        for kk in range(0, self.c.keys, _K):
            b.invoke(
                self.engines[1],
                as_expr(1),
                region(*self.rows(self.sums, 0, self.width)),
                region(*self.rows(self.weights, kk, _K)),
                values.descriptor(index(0), index(kk), stage),
                const(1, i32),
            )
        b.invoke(instruction_named("wgmma_commit"))

    def wait(self, pending: int) -> None:
        """At most so many of what was begun is unfinished."""
        self.b.invoke(instruction_named("wgmma_wait"), as_expr(pending))

    def hold(self, buffer: Buffer) -> None:
        """Sums are read only from here on."""
        columns = int(buffer.shape[1])  # type: ignore[arg-type]  # tiles have plain sizes
        slots = as_expr(ROWS * columns // WARPGROUP)
        self.b.invoke(instruction_named("wgmma_hold"), slots, region(*self.rows(buffer, 0, columns)))

    def store_weight(self, i: Expr, j: Expr, weight: Expr) -> None:
        """What the second product multiplies by."""
        self.b.store(self.weights, (i, j), cast(weight, self.weights.dtype))

    def keep(self, i: Expr, j: Expr, weight: Expr) -> None:
        """A weight takes the place of its score, while those of the tile before are still multiplied."""
        self.b.store(self.scores, (i, j), weight)

    def settle(self) -> None:
        """What was kept is what the second product multiplies by next."""
        with self.b.mapped(["i", "j"], self.c.owner(self.c.keys), self.worker) as (i, j):
            self.store_weight(i, j, self.scores[i, j])
