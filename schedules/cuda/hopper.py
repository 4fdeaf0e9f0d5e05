"""The matrix-multiplication template for Hopper: a ring of stages is filled, warpgroups multiply from it.

    warpgroup that fetches: for each part of k:  wait until a stage is empty;  both tiles -> the stage
    warpgroups of 4 warps:  for each part of k:  wait until the stage is full; total += left @ right (wgmma)
                                                 the stage before is empty again
    epilogue on the tile, in registers: whatever follows the product

Factors that lie in memory as they are come by the copy engine, for which one thread asks: it counts bytes, and fills
what lies beyond the product with zeros. Others come through the threads of their warpgroup, prologues computed on the
way (``hopper_stage.py``): its four warps then arrive at the barrier of a full stage, after the fence that shows their
writes to wgmma. Asynchronous copies are waited for some stages later.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from taskmap.ir.builder import region
from taskmap.ir.construct import as_expr, cast, ceil_div, constant_dim, eq, index
from taskmap.ir.errors import ScheduleError
from taskmap.ir.instructions import instruction_named
from taskmap.ir.nodes import Buffer, Expr, ExprLike, Kernel, Scope
from taskmap.ir.target import Target
from taskmap.ir.types import f32, i32, i64, tf32
from taskmap.ir.workers import THREAD
from taskmap.schedules.access import require_count
from taskmap.schedules.cuda import hopper_stage
from taskmap.schedules.cuda.hopper_config import ROWS, WARPGROUP, HopperConfig
from taskmap.schedules.cuda.hopper_engine import Wgmma
from taskmap.schedules.cuda.hopper_stage import Arrival, Feed, StageTile, SwizzledTile, Way, arrival, open_tile
from taskmap.schedules.cuda.launch import WARP
from taskmap.schedules.cuda.product import Frame, Product
from taskmap.schedules.values import Values

__all__ = ["HopperConfig", "arrivals", "filling_clocks", "schedule_hopper", "validity"]

_MOST_SUMS = 128


def validity(p: Product, c: HopperConfig, target: Target) -> str | None:
    """Why ``c`` cannot compute ``p`` on ``target``; None when it can."""
    found = instruction_named(c.engine)
    if not found.targets(target):
        return f"{target} has no {c.engine}, which needs {found.targets}"
    types = (p.left.expr.dtype, p.right.expr.dtype, p.accumulate)
    wanted = tuple(f32 if t == tf32 else t for t in (c.spec.a, c.spec.b, c.spec.c))  # f32 is rounded to tf32 on the way
    if types != wanted:
        return f"{c.engine} does not multiply {types[0]} by {types[1]} into {types[2]}"
    if c.groups not in (1, 2):
        return f"one or two warpgroups multiply, not {c.groups}"
    if c.block_m % (c.groups * ROWS):
        return f"{c.groups} warpgroups of {ROWS} rows do not divide {c.block_m}"
    if c.block_n != c.spec.n:
        return f"{c.engine} has {c.spec.n} columns, not {c.block_n}"
    if c.stages < 2:
        return "one stage leaves nothing to fetch while another is multiplied"
    if c.sums > _MOST_SUMS:
        return f"{c.sums} sums of a thread leave no registers for the rest"
    if target.shared_per_block and c.shared_bytes > target.shared_per_block:
        return f"it needs {c.shared_bytes} bytes of shared memory, and a block has {target.shared_per_block}"
    ways = arrivals(p, c)
    return ways if isinstance(ways, str) else None


def arrivals(p: Product, c: HopperConfig) -> tuple[Arrival, Arrival] | str:
    """How the factors come to a stage; or why one of them cannot."""
    found = []
    for name, f, extent, kind in (("left", p.left, c.block_m, c.spec.a), ("right", p.right, c.block_n, c.spec.b)):
        how = arrival(p.task, f, p.c.batch, extent, kind)
        if isinstance(how, str):
            return f"the {name} factor does not come to a stage: {how}"
        found.append(how)
    return found[0], found[1]


def filling_clocks(p: Product, c: HopperConfig) -> float:
    """Clocks that the threads of a block take to fill a stage."""
    ways = arrivals(p, c)
    if isinstance(ways, str):
        return 0.0
    return sum(hopper_stage.filling_clocks(f, w) for f, w in zip((p.left, p.right), ways, strict=True))


def schedule_hopper(p: Product, config: HopperConfig, target: Target) -> Kernel:
    """The template filled in. Raises ScheduleError with the reason when the configuration does not fit."""
    reason = validity(p, config, target)
    if reason is not None:
        raise ScheduleError(f"{p.task.name!r} cannot be computed as {config}", why=f"{reason}.")
    require_count(p.task, p.task.outputs, p.stage.shape)
    return _Hopper(p, config).kernel()


@dataclass(slots=True)
class _Hopper:
    p: Product
    c: HopperConfig
    ways: tuple[Arrival, Arrival] = field(init=False)
    frame: Frame = field(init=False)
    full: Buffer = field(init=False)
    empty: Buffer = field(init=False)

    def kernel(self) -> Kernel:
        p, c = self.p, self.c
        found = arrivals(p, c)
        assert not isinstance(found, str)
        self.ways = found
        self.frame = Frame(p, (c.block_m, c.block_n), c.group, c.threads)
        values = self.frame.begin()
        b = self.frame.launch.b
        left = open_tile(b, "left", c.spec.a, c.stages, c.block_m, found[0])
        right = open_tile(b, "right", c.spec.b, c.stages, c.block_n, found[1])
        self.full, self.empty = (b.allocate(name, i64, (c.stages,), Scope.SHARED) for name in ("full", "empty"))
        by_engine = any(w.way is Way.BOXES for w in found)
        by_threads = any(w.way is not Way.BOXES for w in found)
        with b.when(THREAD < 1):
            for stage in range(c.stages):
                self.at(self.full, index(stage), "init", by_engine + by_threads * WARPGROUP // WARP)
                self.at(self.empty, index(stage), "init", c.groups * WARPGROUP // WARP)
            b.invoke(instruction_named("fence_mbarrier_init"))
        b.barrier()
        registers = c.registers(by_threads=by_threads)
        number = b.let("warpgroup", values.simplifier(THREAD // WARPGROUP))
        values.bind(number, c.groups + 1)
        with b.when(number < c.groups):
            if registers:
                b.invoke(instruction_named("setmaxnreg_inc"), as_expr(registers[1]))
            self.consume(values.nested(), number if c.groups > 1 else index(0), left, right)
        with b.otherwise():
            if registers:
                b.invoke(instruction_named("setmaxnreg_dec"), as_expr(registers[0]))
            if by_threads:
                self.produce(values.nested(), left, right)
            else:
                with b.when(self.is_first()):
                    self.produce(values.nested(), left, right)
        kernel = self.frame.launch.kernel(f"cuda.hopper({c})")
        return replace(kernel, maps=tuple(t.map for t in (left, right) if t.map))

    def is_first(self) -> Expr:
        """Whether a thread is the first of those that fetch."""
        return eq(THREAD, self.c.groups * WARPGROUP)

    def at(self, barriers: Buffer, stage: Expr, action: str, *values: ExprLike) -> None:
        """A step of one mbarrier."""
        given = (cast(as_expr(v, i32), i32) for v in values)
        self.frame.launch.b.invoke(instruction_named(f"mbarrier_{action}"), region(barriers, (stage,), (1,)), *given)

    def steps(self) -> Expr:
        """Parts of k."""
        return index(ceil_div(self.p.k, self.c.block_k))

    @property
    def lag(self) -> int:
        """How many steps after it was begun an asynchronous copy is waited for. A stage is given back one step after
        it was multiplied, so that two stages are never on their way."""
        return self.c.stages - 2 if any(w.way is Way.COPIES for w in self.ways) else 0

    def produce(self, values: Values, left: StageTile, right: StageTile) -> None:
        """Stage after stage is filled."""
        b, c, frame, p = self.frame.launch.b, self.c, self.frame, self.p
        tiles = ((left, frame.row), (right, frame.column))
        boxed = [t for t, w in zip(tiles, self.ways, strict=True) if w.way is Way.BOXES]
        copied, computed = (
            [
                self.feed(f, tile, first, w)
                for f, (tile, first), w in zip((p.left, p.right), tiles, self.ways, strict=True)
                if w.way is way
            ]
            for way in (Way.COPIES, Way.VALUES)
        )
        for feed in computed:
            feed.open(f"{feed.tile.buffer.name}_next")
        # What a thread holds while it waits for a stage leaves few registers for another factor's way.
        early = len(computed) == 1 or c.registers(by_threads=True) is None
        # Unrolled, the assembler would hold the addresses of several steps.
        with b.loop("step", self.steps(), unroll=1) as step:
            values.bind(step, self.steps())
            stage = values.simplifier(step % c.stages)
            k0 = values.simplifier(step * c.block_k)
            for feed in computed if early else ():
                feed.early(values, k0)
            self.at(self.empty, stage, "wait", values.simplifier((step // c.stages + 1) % 2))
            if boxed:
                self.ask(values, boxed, stage, k0, alone=not (copied or computed))
            for feed in copied:
                feed.send(values, stage, k0)
            if copied:
                b.invoke(instruction_named("cp_async_commit"))
            for feed in computed:
                feed.late(values, stage, k0, early=early)
            if copied or computed:
                with b.when(step >= self.lag):
                    if copied:
                        b.invoke(instruction_named("cp_async_wait"), as_expr(self.lag))
                    self.publish(values.simplifier((step + (c.stages - self.lag)) % c.stages))
        self.settle(values)

    def feed(self, f: object, tile: StageTile, first: Expr, how: Arrival) -> Feed:
        """How threads fill a tile."""
        c, p = self.c, self.p
        factor = p.left if f is p.left else p.right
        assert how.share is not None
        seen = SwizzledTile(tile.buffer, tile.along_k, f is p.left)
        b = self.frame.launch.b
        return Feed(
            b, factor, self.frame.fixed, first, tile.extent, c.block_k, p.k, how.share, WARPGROUP, seen, how.parts
        )

    def ask(self, values: Values, boxed: list[tuple[StageTile, Expr]], stage: Expr, k0: Expr, *, alone: bool) -> None:
        """The copy engine is asked for the boxes of a stage, by one thread."""
        b, frame = self.frame.launch.b, self.frame
        batch = [frame.fixed[v] for v, _ in self.p.c.batch]
        count = sum(t.extent for t, _ in boxed) * 128
        with b.when(True if alone else self.is_first()):
            self.at(self.full, stage, "arrive_expect_tx", count)
            for tile, first in boxed:
                assert tile.boxes is not None
                assert tile.map is not None
                for box in range(tile.count):
                    at = tile.boxes.coordinates(batch, first + box * tile.line, k0)
                    to = region(tile.buffer, (stage, box, 0, 0), (1, 1, *tile.buffer.shape[2:]))
                    where = (cast(values.simplifier(i), i32) for i in at)
                    fetch = instruction_named(f"tma_load_{len(at)}d")
                    b.invoke(fetch, to, tile.map, region(self.full, (stage,), (1,)), *where)

    def publish(self, stage: Expr) -> None:
        """A stage is full, as far as the threads of a warp had to fill it."""
        b = self.frame.launch.b
        b.invoke(instruction_named("fence_proxy_async"))
        b.invoke(instruction_named("warp_sync"))
        with b.when(eq(THREAD % WARP, 0)):
            self.at(self.full, stage, "arrive")

    def settle(self, values: Values) -> None:
        """The last copies are waited for."""
        if not self.lag:
            return
        b, c = self.frame.launch.b, self.c
        b.invoke(instruction_named("cp_async_wait"), as_expr(0))
        with b.loop("late", self.lag) as late:
            inside = values.nested()
            inside.bind(late, self.lag)
            step = self.steps() - self.lag + late
            with b.when(step >= 0):
                self.publish(inside.simplifier((step + c.stages) % c.stages))

    def consume(self, values: Values, number: Expr, left: StageTile, right: StageTile) -> None:
        """A warpgroup multiplies its rows, and finishes them."""
        b, c = self.frame.launch.b, self.c
        engine = Wgmma.open(b, c, number, once=constant_dim(self.steps()) == 1)
        # Unrolled, the assembler would have products of different steps wait for each other.
        with b.loop("step", self.steps(), unroll=1) as step:
            inside = values.nested()
            inside.bind(step, self.steps())
            stage = inside.simplifier(step % c.stages)
            self.at(self.full, stage, "wait", inside.simplifier(step // c.stages % 2))
            engine.multiply(left, right, stage)
            b.invoke(instruction_named("wgmma_wait"), as_expr(1))
            with b.when((step > 0) & eq(THREAD % WARP, 0)):
                self.at(self.empty, inside.simplifier((step + (c.stages - 1)) % c.stages), "arrive")
        b.invoke(instruction_named("wgmma_wait"), as_expr(0))
        engine.hold()
        self.part(values)
        self.frame.epilogue(values, engine)

    def part(self, values: Values) -> None:
        """The epilogue is kept apart from the products. In one basic block with the last wait, the assembler may take
        its reads of sums for reads of unfinished ones, and would then run all products one after the other; a wait
        loop, for what has long arrived, ends the block."""
        last = values.simplifier(self.steps() - 1)
        with self.frame.launch.b.when(last >= 0):
            self.at(self.full, values.simplifier(last % self.c.stages), "wait", last // self.c.stages % 2)
