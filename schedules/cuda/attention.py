"""The attention template for GPUs: softmax(scores) v in blocks of queries and keys, everything between in registers.

    a block takes a tile of queries; each warp some of its rows
        for each tile of keys:     the next tiles of keys and values are on their way
            s = q kᵀ               what a score is (scale, mask, causality) comes from the operator's definition
            m' = max(m, rows of s);  p = exp(s - m')         a row is held by four neighbouring lanes
            o = o · exp(m - m') + p v
        out = o / l

The sums of s = q kᵀ lie where the instruction wants the left factor of p v, so weights never leave their registers.
Methods: Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018); Dao, "FlashAttention-2" (2023).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from taskmap.ir.construct import as_expr, call, cast, ceil_div, const, constant_dim, eq, index, maximum, minimum, select
from taskmap.ir.errors import ScheduleError
from taskmap.ir.instructions import instruction_named
from taskmap.ir.mapping import repeat, spatial
from taskmap.ir.nodes import Buffer, Dim, Expr, Intrinsic, Kernel, Load, LoopKind, Scope, Var
from taskmap.ir.target import Target
from taskmap.ir.task import Task
from taskmap.ir.types import f32, i32
from taskmap.ir.visit import children
from taskmap.ir.workers import THREAD
from taskmap.schedules.access import require_count
from taskmap.schedules.cpu.attention_match import Attention, find_attention
from taskmap.schedules.cpu.epilogue import Epilogue
from taskmap.schedules.cuda.attention_engine import AttentionConfig, Products
from taskmap.schedules.cuda.factor import Factor, analyse, bare
from taskmap.schedules.cuda.launch import WARP, Launch
from taskmap.schedules.cuda.share import Share, share
from taskmap.schedules.cuda.shared_tile import SharedTile, padded_bytes, padded_tile
from taskmap.schedules.cuda.staging import Staging
from taskmap.schedules.cuda.vectors import fills
from taskmap.schedules.values import Values

_LOG2_E = 1 / math.log(2)
_COPIES = (4, 8, 16)
_MOST_HELD, _MOST_HELD_WITH_MASKS = 176, 160
_NARROW = 80

Step = Callable[[Values, Expr, Expr], None]
"""What is done with a tile of keys: (values, its first key, its stage)."""


@dataclass(frozen=True, slots=True)
class AttentionTask:
    """An attention and its factors; ``depth`` and ``width``: of keys and values, in whole fragments."""

    task: Task
    a: Attention
    q: Factor
    k: Factor
    v: Factor

    @property
    def depth(self) -> int:
        """Elements of a query and of a key."""
        return _padded(self.a.dot.axes[0][1])

    @property
    def width(self) -> int:
        """Elements of a value."""
        return _padded(self.a.stage.shape[3])


def _padded(size: Dim) -> int:
    return -(-(constant_dim(size) or 0) // 16) * 16


def find_attention_task(task: Task) -> AttentionTask | None:
    """The attention that anchors a task, if it has one whose sums are of f32."""
    a = find_attention(task)
    if a is None or a.dot.dtype != f32:
        return None
    batch, heads, query, place = zip(a.stage.axes, a.stage.shape, strict=True)
    position = a.v.indices[2]
    if not isinstance(position, Var):
        return None
    outer, depth, keys = (batch, heads), (a.dot.axes[0],), a.keys
    q = analyse(task, a.dot.body.a, outer, (query,), depth)  # type: ignore[attr-defined]  # find_attention saw a product
    k = analyse(task, a.dot.body.b, outer, ((a.key, keys),), depth)  # type: ignore[attr-defined]
    v = analyse(task, bare(a.v), outer, (place,), ((position, keys),))
    return AttentionTask(task, a, q, k, v)


def validity(t: AttentionTask, c: AttentionConfig, target: Target) -> str | None:
    """Why ``c`` cannot compute ``t`` on ``target``; None when it can."""
    types = {f.expr.dtype for f in (t.q, t.k, t.v)}
    if len(types) != 1:
        return f"queries, keys and values are of {len(types)} types"
    unfit = c.unfit(next(iter(types)), target)
    if unfit:
        return unfit
    if c.stages == 2 and not is_asynchronous(t, target):
        return "two stages are filled by asynchronous copies, of tensors that lie in memory as they are"
    for f, extent, depth in ((t.q, c.queries, t.depth), (t.k, c.keys, t.depth), (t.v, t.width, c.keys)):
        found = _share(f, extent, depth, c)
        if isinstance(found, str):
            return found
    needed = shared_bytes(t, c)
    if target.shared_per_block and needed > target.shared_per_block:
        return f"it needs {needed} bytes of shared memory, and a block has {target.shared_per_block}"
    return None


def _share(f: Factor, extent: int, depth: int, c: AttentionConfig) -> Share | str:
    rows, columns = (extent, depth) if f.along_k else (depth, extent)
    return share(rows, columns // f.lanes, c.threads)


def shared_bytes(t: AttentionTask, c: AttentionConfig) -> int:
    """Shared memory of a block."""
    kind, stages = t.q.expr.dtype, c.stages
    total = padded_bytes(kind, 1, c.queries, t.depth, along_k=True)
    total += padded_bytes(kind, stages, c.keys, t.depth, along_k=True)
    total += padded_bytes(kind, stages, t.width, c.keys, along_k=False)
    return total + (0 if c.engine != "simt" else padded_bytes(f32, 1, c.queries, c.keys, along_k=True))


def schedule_attention(task: Task, target: Target, config: AttentionConfig | None = None) -> Kernel | None:
    """The template's kernel, or None for a task that is not anchored by an attention that it takes.

    Raises ScheduleError with the reason when ``config`` does not fit.
    """
    t = find_attention_task(task)
    if t is None:
        return None
    chosen = config or choose(t, target)
    if chosen is None:
        return None
    reason = validity(t, chosen, target)
    if reason is not None:
        raise ScheduleError(f"{task.name!r} cannot be computed as {chosen}", why=f"{reason}.")
    require_count(task, task.outputs, t.a.stage.shape)
    return _Template(t, chosen).kernel()


def choose(t: AttentionTask, target: Target) -> AttentionConfig | None:
    """The default configuration: the largest tile that the GPU can be filled with; None when none fits."""
    fitting = [c for c in space(t, target) if validity(t, c, target) is None]
    batch, heads, queries = (constant_dim(d) or 64 for d in t.a.stage.shape[:3])
    enough = [c for c in fitting if batch * heads * -(-queries // c.queries) >= target.cores]
    return next(iter(enough or fitting[-1:]), None)


def space(t: AttentionTask, target: Target) -> list[AttentionConfig]:
    """Configurations, the likely best first: 128 queries to a block, and of wide heads 32 to a warp, which halves what
    is read of shared memory. What a thread holds of sums, scores and weights has to leave registers for the rest."""
    engine = AttentionConfig.engine_for(t.q.expr.dtype, target)
    stages = 2 if is_asynchronous(t, target) else 1
    room = _MOST_HELD if is_plain(t) else _MOST_HELD_WITH_MASKS
    found = []
    for warps in (8, 4, 2, 1):
        for rows in (32, 16):
            for keys in (128, 64, 32):
                held = rows * (t.width + keys + keys // 2) // WARP
                if held <= room and not (engine == "simt" and (keys > 32 or rows > 16)):
                    found.append(AttentionConfig(engine, warps, rows, keys, stages))
    rows = 32 if t.width > _NARROW else 16
    return sorted(found, key=lambda c: (c.queries > 128, -c.queries, c.rows != rows, abs(c.keys - 64)))


def is_plain(t: AttentionTask) -> bool:
    """Whether sizes are known and a score reads nothing but its query and key."""
    sizes = (*t.a.stage.shape, t.a.keys)
    return all(constant_dim(d) is not None for d in sizes) and not _reads_more(t.a.score, t.a.dot)


def _reads_more(e: Expr, dot: Expr) -> bool:
    """Whether an expression reads memory outside of ``dot``."""
    return e is not dot and (isinstance(e, Load) or any(_reads_more(c, dot) for c in children(e)))


def is_asynchronous(t: AttentionTask, target: Target) -> bool:
    """Whether keys and values go to shared memory behind the threads' backs."""
    return (
        target.capability >= 80
        and all(f.direct and f.bytes in _COPIES for f in (t.q, t.k, t.v))
        and t.q.along_k
        and t.k.along_k
        and not t.v.along_k
    )


@dataclass(slots=True)
class _Template:
    t: AttentionTask
    c: AttentionConfig
    launch: Launch = field(init=False)
    fixed: dict[Var, Expr] = field(default_factory=dict)
    first: Expr = field(default_factory=lambda: index(0))
    tiles: list[SharedTile] = field(default_factory=list)

    def kernel(self) -> Kernel:
        t, c, a = self.t, self.c, self.t.a
        batch, heads, queries, _ = a.stage.shape
        blocks = ceil_div(queries, c.queries)
        self.launch = Launch(t.task, (batch, heads, blocks), c.threads)
        b = self.launch.b
        values, (n, h, number) = self.launch.begin()
        # Blocks that see many keys begin first, and short ones fill up the end.
        number = values.simplifier(index(blocks) - 1 - number) if a.causal else number
        self.first = b.let("first", values.simplifier(number * c.queries))
        self.fixed = dict(zip(a.stage.axes[:2], (n, h), strict=True))
        kind = t.q.expr.dtype
        tiles = [
            padded_tile(b, "queries", kind, 1, c.queries, t.depth, along_k=True, is_left=True),
            padded_tile(b, "keys", kind, c.stages, c.keys, t.depth, along_k=True, is_left=False),
            padded_tile(b, "values", kind, c.stages, t.width, c.keys, along_k=False, is_left=False),
        ]
        self.tiles = tiles
        products = Products.open(b, c, values, t.width, kind)
        top, total = self.of_rows("top", -math.inf), self.of_rows("total", 0.0)

        def step(place: Values, key: Expr, stage: Expr) -> None:
            products.score(place.nested(), tiles[0], tiles[1], t.depth, stage)
            self.finish_scores(place.nested(), products, key)
            self.soften(products, top, total)
            products.weigh(place.nested(), tiles[2], stage)

        if c.stages == 2:
            self.in_stages(values, step)
        else:
            self.through_registers(values, step)
        self.finish(values.nested(), products, total)
        return self.launch.kernel(f"cuda.attention({c})")

    def staging(self, which: int, key: Expr) -> Staging:
        """How the tile of queries (0), keys (1) or values (2) is filled; keys and values from ``key`` on."""
        t, c = self.t, self.c
        depth = t.a.dot.axes[0][1]
        f, first, extent, deep, size = (
            (t.q, self.first, c.queries, t.depth, depth),
            (t.k, key, c.keys, t.depth, depth),
            (t.v, index(0), t.width, c.keys, t.a.keys),
        )[which]
        how = _share(f, extent, deep, c)
        assert isinstance(how, Share)
        return Staging(self.launch.b, f, self.fixed, first, extent, deep, size, how, c.threads, self.tiles[which])

    def blocks(self, values: Values) -> Dim:
        """Tiles of keys that the block's queries may see."""
        a, c = self.t.a, self.c
        every = ceil_div(a.keys, c.keys)
        if not a.causal:
            return every
        reach = values.simplifier(minimum(index(every), (self.first + (c.queries + c.keys - 1)) // c.keys))
        return self.launch.b.let("blocks", reach)

    def in_stages(self, values: Values, step: Step) -> None:
        """Two stages: the next keys and values are copied while these are worked on."""
        b, c = self.launch.b, self.c
        commit, wait = instruction_named("cp_async_commit"), instruction_named("cp_async_wait")
        blocks = self.blocks(values)

        def issue(number: Expr, local: Values) -> None:
            key = local.simplifier(number * c.keys)
            stage = local.simplifier(number % 2)
            self.staging(1, key).copy(local.nested(), stage, index(0))
            self.staging(2, key).copy(local.nested(), stage, key)

        self.staging(0, index(0)).copy(values.nested(), index(0), index(0))
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
            step(inside.nested(), inside.simplifier(number * c.keys), inside.simplifier(number % 2))

    def through_registers(self, values: Values, step: Step) -> None:
        """One stage: keys and values are computed, or loaded, when their turn comes."""
        b, c = self.launch.b, self.c

        def fill(which: int, local: Values, key: Expr, k0: Expr) -> None:
            s = self.staging(which, key)
            s.open(("queries_next", "keys_next", "values_next")[which])
            s.fetch(local.nested(), k0)
            s.put(local.nested(), index(0))

        fill(0, values, index(0), index(0))
        with b.loop("block", self.blocks(values)) as number:
            inside = values.nested()
            inside.bind(number, ceil_div(self.t.a.keys, c.keys))
            key = inside.simplifier(number * c.keys)
            b.barrier()
            fill(1, inside, key, index(0))
            fill(2, inside, key, key)
            b.barrier()
            step(inside.nested(), key, index(0))

    def of_rows(self, name: str, start: float) -> Buffer:
        """Registers for something of every query."""
        b, owner = self.launch.b, self.c.row_owner
        held = b.allocate(name, f32, (self.c.queries,), Scope.REGISTER, owner=owner)
        with b.mapped(["i"], owner, THREAD) as (i,):
            b.store(held, (i,), start)
        return held

    def finish_scores(self, values: Values, products: Products, key: Expr) -> None:
        """Products become scores, minus infinity beyond the last key."""
        a, c, b = self.t.a, self.c, self.launch.b
        with b.mapped(["i", "j"], c.owner(c.keys), THREAD) as (i, j):
            values.bind(i, c.queries)
            values.bind(j, c.keys)
            inside = values.nested()
            query = inside.simplifier(minimum(self.first + i, index(a.queries) - 1))
            held = inside.simplifier(key + j)
            if not fills(a.keys, c.keys):
                held = inside.simplifier(minimum(held, index(a.keys) - 1))
            inside.folded = {**inside.folded, id(a.dot): products.scores[i, j]}
            axes = {**self.fixed, a.stage.axes[2]: query, a.key: held}
            value = cast(inside.expand(a.score, axes), f32)
            if not fills(a.keys, c.keys):
                value = select(inside.simplifier(key + j < a.keys), value, const(-math.inf, f32))
            b.store(products.scores, (i, j), value)

    def soften(self, products: Products, top: Buffer, total: Buffer) -> None:
        """Scores become weights relative to the running maximum; what was summed so far is rescaled to it."""
        c, b = self.c, self.launch.b
        rows, scores = c.row_owner, products.scores
        best = self.of_rows("best", -math.inf)
        with b.mapped(["i", "j"], c.owner(c.keys), THREAD) as (i, j):
            b.store(best, (i,), maximum(best[i], scores[i, j]))
        self.share_rows(best, lambda x, y: maximum(x, y))
        shrink = b.allocate("shrink", f32, (c.queries,), Scope.REGISTER, owner=rows)
        with b.mapped(["i"], rows, THREAD) as (i,):
            new = b.let("new", maximum(top[i], best[i]))
            safe = b.let("safe", select(eq(new, const(-math.inf, f32)), const(0.0, f32), new))
            b.store(shrink, (i,), self.power(top[i] - safe))
            b.store(top, (i,), new)
            b.store(best, (i,), safe)
            b.store(total, (i,), total[i] * shrink[i])
        with b.mapped(["i", "j"], c.owner(c.keys), THREAD) as (i, j):
            weight = b.let("weight", self.power(scores[i, j] - best[i]))
            b.store(total, (i,), total[i] + weight)
            products.store_weight(i, j, weight)
        with b.mapped(["i", "d"], c.owner(self.t.width), THREAD) as (i, d):
            b.store(products.sums, (i, d), products.sums[i, d] * shrink[i])

    def power(self, x: Expr) -> Expr:
        """exp(x): of half types by way of powers of two, which the hardware has."""
        return call("exp", x) if self.t.q.expr.dtype == f32 else call("exp2", x * const(_LOG2_E, f32))

    def share_rows(self, held: Buffer, combine: Callable[[Expr, Expr], Expr]) -> None:
        """Something of every query, taken together over the four lanes that hold its row."""
        b, shuffle = self.launch.b, instruction_named("shuffle_xor")
        with b.mapped(["i"], self.c.row_owner, THREAD) as (i,):
            value = held[i]
            for distance in (1, 2):
                other = Intrinsic(shuffle, (index(WARP), value, const(distance, i32)), f32, 1)
                value = b.let("both", combine(value, b.let("other", other)))
            b.store(held, (i,), value)

    def finish(self, values: Values, products: Products, total: Buffer) -> None:
        """out = o / l, and whatever follows, for the queries that exist."""
        a, c, b = self.t.a, self.c, self.launch.b
        self.share_rows(total, lambda x, y: x + y)
        with b.mapped(["i"], c.row_owner, THREAD) as (i,):
            safe = select(eq(total[i], const(0.0, f32)), const(1.0, f32), total[i])
            b.store(total, (i,), const(1.0, f32) / safe)
        width = a.stage.shape[3]
        lanes = 2 if fills(width, 2) else 1
        pairs = spatial(c.warps, 1) * repeat(c.rows // 16, self.t.width // 8)
        pairs = pairs * repeat(2, 1) * spatial(8, 4) * repeat(1, 2 // lanes)
        out = Epilogue(self.t.task, a.stage, a.dot, b)
        with b.mapped(["i", "g"], pairs, THREAD) as (i, g):
            values.bind(i, c.queries)
            values.bind(g, self.t.width // lanes)
            test = as_expr(True)
            if not fills(a.queries, c.queries):
                test = test & values.simplifier(self.first + i < a.queries)
            if not fills(width, self.t.width):
                test = test & values.simplifier(g * lanes < width)
            with b.when(test), b.loop("v", lanes, LoopKind.VECTOR) as v:
                inside = values.nested()
                inside.bind(v, lanes)
                d = inside.simplifier(g * lanes + v)
                position = {**self.fixed, a.stage.axes[2]: self.first + i, a.stage.axes[3]: d}
                result = cast(products.sums[i, d] * total[i], a.stage.out.dtype)
                out.replace(inside.nested(), result, position)
