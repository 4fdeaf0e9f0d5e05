"""The matmul template for Hopper: a producer fills a ring of stages, consumer warpgroups multiply from it.

    producer warpgroup:             for each k-tile:  wait until a stage is empty;  both tiles -> the stage
    warpgroups of 4 warps:          for each k-tile:  wait until the stage is full; total += left @ right (wgmma)
                                                      release the previous stage
                                    epilogue on the tile, in registers

TMA loads operands that lie in memory unchanged: one thread issues the copies, and TMA counts bytes and fills positions
beyond the product with zeros. The threads of the producer warpgroup load the others, with prologues computed on the way
(``stage.py``): its four warps then arrive at the barrier of a full stage, after the fence that makes their writes
visible to wgmma. Asynchronous copies are waited for some stages later.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from taskmap.ir.builder import region
from taskmap.ir.construct import as_expr, cast, ceil_div, const, eq, index, static_size
from taskmap.ir.errors import ScheduleError
from taskmap.ir.isa.table import instruction_named
from taskmap.ir.nodes import Buffer, Expr, ExprLike, Kernel, Load, Scope
from taskmap.ir.target import GpuTarget
from taskmap.ir.types import f32, i32, i64, tf32
from taskmap.ir.visit import walk_exprs
from taskmap.ir.workers import BLOCKS, THREAD
from taskmap.schedules.common.access import require_count
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.cuda.hopper import stage as hopper_stage
from taskmap.schedules.cuda.hopper.matmul_config import ROWS, WARPGROUP, HopperConfig
from taskmap.schedules.cuda.hopper.stage import (
    LoadPath,
    LoadPlan,
    ProducerLoader,
    StageTile,
    SwizzledTile,
    open_tile,
    plan_load,
)
from taskmap.schedules.cuda.hopper.tma_descriptor import TmaDescriptor
from taskmap.schedules.cuda.hopper.tma_store import TmaStore, output_boxes, output_bytes
from taskmap.schedules.cuda.hopper.wgmma import WgmmaMultiplier
from taskmap.schedules.cuda.matmul.problem_view import Gemm, TileContext
from taskmap.schedules.cuda.matmul.split_k import Split, steps_of, tiles_of, why_not_split
from taskmap.schedules.cuda.support.launch import WARP, number_of_warpgroup
from taskmap.schedules.cuda.support.vectors import fills

__all__ = ["HopperConfig", "filling_clocks", "plan_loads", "schedule_hopper", "validity"]

_MOST_SUMS = 128
_PAIR = 2


def validity(p: Gemm, c: HopperConfig, target: GpuTarget) -> str | None:
    """The reason why ``c`` cannot compute ``p`` on ``target``, or None if it can."""
    found = instruction_named(c.multiplier)
    if not found.targets(target):
        return f"{target} has no {c.multiplier}, which needs {found.targets}"
    types = (p.left.expr.dtype, p.right.expr.dtype, p.accumulate)
    wanted = tuple(f32 if t == tf32 else t for t in (c.spec.a, c.spec.b, c.spec.c))  # loads round f32 to tf32
    if types != wanted:
        return f"{c.multiplier} does not multiply {types[0]} by {types[1]} into {types[2]}"
    if c.groups not in (1, 2):
        return f"one or two warpgroups multiply, not {c.groups}"
    if c.block_m % (c.groups * ROWS):
        return f"{c.groups} warpgroups of {ROWS} rows do not divide {c.block_m}"
    if c.block_n != c.spec.n:
        return f"{c.multiplier} has {c.spec.n} columns, not {c.block_n}"
    if c.stages < 2:
        return "a single stage cannot be loaded while it is multiplied"
    if c.sums > _MOST_SUMS:
        return f"{c.sums} sums of a thread leave no registers for the rest"
    needed = c.shared_bytes + (output_bytes(p, c) if c.boxed else 0)
    if target.shared_per_block and needed > target.shared_per_block:
        return f"it needs {needed} bytes of shared memory, but a block has {target.shared_per_block}"
    ways = plan_loads(p, c)
    if isinstance(ways, str):
        return ways
    return _why_not_persistent(p, c, target, ways) or _why_not_stored(p, c) or _why_not_split(p, c)


def _why_not_persistent(p: Gemm, c: HopperConfig, target: GpuTarget, ways: tuple[LoadPlan, LoadPlan]) -> str | None:
    """The reason why persistent blocks cannot compute the product, or None if they can."""
    if not c.persistent:
        return None
    if any(w.path is not LoadPath.TMA for w in ways):
        return "persistent blocks need TMA loads of both operands"
    count = tiles_of(p, (c.block_m, c.block_n))
    if count is None:
        return "blocks can be persistent only if all sizes are known"
    return f"{count} tiles do not outnumber {target.cores} multiprocessors" if count <= target.cores else None


def _why_not_split(p: Gemm, c: HopperConfig) -> str | None:
    """The reason why blocks cannot share sums, or None if they can."""
    if c.split > 1 and (c.persistent or c.boxed):
        return "split-k excludes persistent blocks and TMA stores: the last block of a tile stores its result by itself"
    if c.split < 1:
        return f"{c.split} blocks cannot share a sum"
    return why_not_split(p, (c.block_m, c.block_n), c.block_k, c.split)


def _why_not_stored(p: Gemm, c: HopperConfig) -> str | None:
    """The reason why TMA cannot store the result, or None if it can."""
    found = output_boxes(p, c) if c.boxed else None
    return f"TMA cannot store the result: {found}" if isinstance(found, str) else None


def plan_loads(p: Gemm, c: HopperConfig) -> tuple[LoadPlan, LoadPlan] | str:
    """The load paths of both operands, or the reason why one of them has none."""
    found = []
    for name, f, extent, kind in (("left", p.left, c.block_m, c.spec.a), ("right", p.right, c.block_n, c.spec.b)):
        how = plan_load(p.task, f, p.c.batch, extent, kind)
        if isinstance(how, str):
            return f"the {name} operand cannot reach a stage: {how}"
        found.append(how)
    return found[0], found[1]


def filling_clocks(p: Gemm, c: HopperConfig) -> float:
    """Clock cycles that the threads of a block take to fill a stage."""
    ways = plan_loads(p, c)
    if isinstance(ways, str):
        return 0.0
    return sum(hopper_stage.filling_clocks(f, w) for f, w in zip((p.left, p.right), ways, strict=True))


def schedule_hopper(p: Gemm, config: HopperConfig, target: GpuTarget) -> Kernel:
    """Instantiates the template. Raises ScheduleError with the reason if the configuration does not fit."""
    reason = validity(p, config, target)
    if reason is not None:
        raise ScheduleError(f"{p.task.name!r} cannot be computed as {config}", why=f"{reason}.")
    require_count(p.task, p.task.outputs, p.stage.shape)
    return _Hopper(p, config, target).kernel()


@dataclass(slots=True)
class _Hopper:
    p: Gemm
    c: HopperConfig
    target: GpuTarget
    tma_store: TmaStore | None = None
    ways: tuple[LoadPlan, LoadPlan] = field(init=False)
    frame: TileContext = field(init=False)
    full: Buffer = field(init=False)
    empty: Buffer = field(init=False)
    start: Expr = field(init=False)
    count: Expr = field(init=False)
    shared: Split | None = None

    def kernel(self) -> Kernel:
        p, c = self.p, self.c
        found = plan_loads(p, c)
        assert not isinstance(found, str)
        self.ways = found
        self.frame = TileContext(p, (c.block_m, c.block_n), c.group, c.threads, c.split)
        values = self.frame.open() if c.persistent else self.frame.begin()
        b = self.frame.launch.b
        start, count = steps_of(ceil_div(p.k, c.block_k), c.split, self.frame.part, values)
        self.start, self.count = b.let("start", start), b.let("steps", count)
        left = open_tile(b, "left", c.spec.a, c.stages, c.block_m, found[0])
        right = open_tile(b, "right", c.spec.b, c.stages, c.block_n, found[1])
        boxes = output_boxes(p, c) if c.boxed else None
        self.tma_store = TmaStore.open(b, c, boxes) if isinstance(boxes, TmaDescriptor) else None
        self.full, self.empty = (b.allocate(name, i64, (c.stages,), Scope.SHARED) for name in ("full", "empty"))
        by_tma = any(w.path is LoadPath.TMA for w in found)
        by_threads = any(w.path is not LoadPath.TMA for w in found)
        with b.when(THREAD < 1):
            for stage in range(c.stages):
                self.barrier(self.full, index(stage), "init", by_tma + by_threads * WARPGROUP // WARP)
                self.barrier(self.empty, index(stage), "init", c.groups * WARPGROUP // WARP)
            b.invoke(instruction_named("fence_mbarrier_init"))
        b.barrier()
        registers = c.registers(by_threads=by_threads)
        number = number_of_warpgroup(b, c.groups + 1, values)
        with b.when(number < c.groups):
            if registers:
                b.invoke(instruction_named("setmaxnreg_inc"), as_expr(registers[1]))
            self.consume(values.nested(), number if c.groups > 1 else index(0), left, right)
        with b.otherwise():
            if registers:
                b.invoke(instruction_named("setmaxnreg_dec"), as_expr(registers[0]))
            # One thread suffices to issue TMA copies.
            with b.when(True if by_threads else self.is_first()):
                self.each_tile(values.nested(), lambda inside, before: self.produce(inside, before, left, right))
        kernel = self.frame.launch.kernel(f"cuda.hopper({c})")
        kernel = self.shared.kernel(kernel) if self.shared else kernel
        kernel = kernel.launched(grid=(self.target.cores,)) if c.persistent else kernel
        return kernel.launched(maps=tuple(t.map for t in (left, right, self.tma_store) if t and t.map))

    def is_first(self) -> Expr:
        """True in the first of the producer's threads."""
        return eq(THREAD, self.c.groups * WARPGROUP)

    def barrier(self, barriers: Buffer, stage: Expr, action: str, *values: ExprLike) -> None:
        """An action on one mbarrier."""
        given = (cast(as_expr(v, i32), i32) for v in values)
        self.frame.launch.b.invoke(instruction_named(f"mbarrier_{action}"), region(barriers, (stage,), (1,)), *given)

    def steps(self) -> Expr:
        """The k-tiles that the block multiplies."""
        return self.count

    def each_tile(self, values: Inliner, body: Callable[[Inliner, Expr], None]) -> None:
        """Calls ``body`` for each tile of the block, with the number of k-tiles before it."""
        if not self.c.persistent:
            body(values, index(0))
            return
        frame, b, blocks = self.frame, self.frame.launch.b, self.target.cores
        count = tiles_of(self.p, frame.block) or 0
        mine = b.let("tiles", values.simplifier((index(count - 1 + blocks) - BLOCKS[0]) // blocks))
        with b.loop("turn", mine, unroll=1) as turn:
            inside = values.nested()
            inside.bind(turn, -(-count // blocks))
            number = b.let("number", inside.simplifier(turn * blocks + BLOCKS[0]))
            inside.bind(number, count)
            frame.select_tile(inside, number)
            body(inside, inside.simplifier(turn * self.steps()))

    def turn(self, values: Inliner, number: Expr) -> tuple[Expr, Expr]:
        """The stage of a k-tile by its number, and the parity of the number of times it was filled before."""
        s, stages = values.simplifier, self.c.stages
        return s(number % stages), s(number // stages % 2)

    @property
    def lag(self) -> int:
        """The number of steps between issuing an asynchronous copy and waiting for it. A stage is released one step
        after its product, so two stages are never in flight."""
        return self.c.stages - 2 if any(w.path is LoadPath.CP_ASYNC for w in self.ways) else 0

    def produce(self, values: Inliner, before: Expr, left: StageTile, right: StageTile) -> None:
        """The producer: fills stage after stage."""
        b, c, frame, p = self.frame.launch.b, self.c, self.frame, self.p
        tiles = ((left, frame.row), (right, frame.column))
        boxed = [t for t, w in zip(tiles, self.ways, strict=True) if w.path is LoadPath.TMA]
        copied, computed = (
            [
                self.loader(f, tile, first, w)
                for f, (tile, first), w in zip((p.left, p.right), tiles, self.ways, strict=True)
                if w.path is way
            ]
            for way in (LoadPath.CP_ASYNC, LoadPath.REGISTERS)
        )
        for feed in computed:
            feed.allocate(f"{feed.tile.buffer.name}_next")
        # What a thread holds while it waits for a stage leaves few registers for loading another operand.
        early = len(computed) == 1 or c.registers(by_threads=True) is None
        # Unrolled, the assembler would hold the addresses of several steps.
        with b.loop("step", self.steps(), unroll=1) as step:
            values.bind(step, self.steps())
            stage, parity = self.turn(values, values.simplifier(before + step))
            k0 = values.simplifier((self.start + step) * c.block_k)
            for feed in computed if early else ():
                feed.prefetch(values, k0)
            self.barrier(self.empty, stage, "wait", values.simplifier((parity + 1) % 2))
            if boxed:
                self.issue_tma(values, boxed, stage, k0, alone=not (copied or computed))
            for feed in copied:
                feed.issue_copies(values, stage, k0)
            if copied:
                b.invoke(instruction_named("cp_async_commit"))
            for feed in computed:
                feed.commit(values, stage, k0, early=early)
            if copied or computed:
                with b.when(step >= self.lag):
                    if copied:
                        b.invoke(instruction_named("cp_async_wait"), as_expr(self.lag))
                    self.signal_full(values.simplifier((step + (c.stages - self.lag)) % c.stages))
        self.drain(values)

    def loader(self, f: object, tile: StageTile, first: Expr, how: LoadPlan) -> ProducerLoader:
        """The loader by which threads fill a tile."""
        c, p = self.c, self.p
        factor = p.left if f is p.left else p.right
        assert how.partition is not None
        seen = SwizzledTile(tile.buffer, tile.along_k, f is p.left)
        b = self.frame.launch.b
        return ProducerLoader(
            b, factor, self.frame.fixed, first, tile.extent, c.block_k, p.k, how.partition, WARPGROUP, seen, how.parts
        )

    def issue_tma(
        self, values: Inliner, boxed: list[tuple[StageTile, Expr]], stage: Expr, k0: Expr, *, alone: bool
    ) -> None:
        """One thread issues the TMA copies of a stage's boxes."""
        b, frame = self.frame.launch.b, self.frame
        batch = [frame.fixed[v] for v, _ in self.p.c.batch]
        count = sum(t.extent for t, _ in boxed) * 128
        with b.when(True if alone else self.is_first()):
            self.barrier(self.full, stage, "arrive_expect_tx", count)
            for tile, first in boxed:
                assert tile.boxes is not None
                assert tile.map is not None
                for box in range(tile.count):
                    at = tile.boxes.coordinates(batch, first + box * tile.line, k0)
                    to = region(tile.buffer, (stage, box, 0, 0), (1, 1, *tile.buffer.shape[2:]))
                    where = (cast(values.simplifier(i), i32) for i in at)
                    fetch = instruction_named(f"tma_load_{len(at)}d")
                    b.invoke(fetch, to, tile.map, region(self.full, (stage,), (1,)), *where)

    def signal_full(self, stage: Expr) -> None:
        """Marks a stage as full after the writes of a warp's threads."""
        b = self.frame.launch.b
        b.invoke(instruction_named("fence_proxy_async"))
        b.invoke(instruction_named("warp_sync"))
        with b.when(eq(THREAD % WARP, 0)):
            self.barrier(self.full, stage, "arrive")

    def drain(self, values: Inliner) -> None:
        """Waits for the last copies."""
        if not self.lag:
            return
        b, c = self.frame.launch.b, self.c
        b.invoke(instruction_named("cp_async_wait"), as_expr(0))
        with b.loop("late", self.lag) as late:
            inside = values.nested()
            inside.bind(late, self.lag)
            step = self.steps() - self.lag + late
            with b.when(step >= 0):
                self.signal_full(inside.simplifier((step + c.stages) % c.stages))

    def consume(self, values: Inliner, number: Expr, left: StageTile, right: StageTile) -> None:
        """A consumer: a warpgroup multiplies its rows of each tile and finishes them."""
        multiplier = WgmmaMultiplier.open(self.frame.launch.b, self.c, number, once=static_size(self.steps()) == 1)
        whole = fills(self.p.m, self.c.block_m) and fills(self.p.n, self.c.block_n)
        if self.tma_store and not (whole or self.is_clipped):
            self.tma_store.clear(values.nested(), multiplier.pairs(_PAIR))
        self.each_tile(values, lambda inside, before: self.compute(inside, before, multiplier, left, right))
        if self.tma_store:
            self.tma_store.close()

    def compute(
        self, values: Inliner, before: Expr, multiplier: WgmmaMultiplier, left: StageTile, right: StageTile
    ) -> None:
        """One tile, from the first product to the result."""
        b, c, tma_store = self.frame.launch.b, self.c, self.tma_store
        multiplier.begin()
        # Unrolled, the assembler would have products of different steps wait for each other.
        with b.loop("step", self.steps(), unroll=1) as step:
            inside = values.nested()
            inside.bind(step, self.steps())
            stage, parity = self.turn(inside, inside.simplifier(before + step))
            self.barrier(self.full, stage, "wait", parity)
            multiplier.multiply(left, right, stage)
            b.invoke(instruction_named("wgmma_wait"), as_expr(1))
            with b.when((step > 0) & eq(THREAD % WARP, 0)):
                self.barrier(self.empty, inside.simplifier((before + step + (c.stages - 1)) % c.stages), "arrive")
        b.invoke(instruction_named("wgmma_wait"), as_expr(0))
        multiplier.hold()
        self.part(values, before)
        if c.split > 1:
            self.shared = Split(self.frame, multiplier, self.synchronise, THREAD < 1)
            with self.shared.last(values) as last:
                self.frame.epilogue(last, multiplier)
            return
        if tma_store and c.persistent:
            tma_store.reuse(multiplier.number)
        self.frame.epilogue(values, multiplier, tma_store.put if tma_store else None, clipped=self.is_clipped)
        if tma_store:
            tma_store.send(values, self.frame, multiplier.number)

    @property
    def is_clipped(self) -> bool:
        """True if a tile is finished beyond the product's sizes too: TMA stores nothing there, and the epilogue reads
        no memory."""
        anchor = self.p.task.stages.index(self.p.stage)
        after = [e for s in self.p.task.stages[anchor + 1 :] for e in walk_exprs(s.body) if isinstance(e, Load)]
        return self.tma_store is not None and not any(e.buffer in self.p.task.inputs for e in after)

    def synchronise(self) -> None:
        """Synchronises the threads that multiply."""
        threads = const(self.c.groups * WARPGROUP, i32)
        self.frame.launch.b.invoke(instruction_named("barrier_sync"), const(1, i32), threads)

    def part(self, values: Inliner, before: Expr) -> None:
        """Separates the epilogue from the products. In one basic block with the last wait, the assembler may mistake
        the epilogue's reads of sums for reads of unfinished ones, and would then serialise all products. A loop that
        waits for a barrier that completed long ago ends the block. If another tile follows, the last stage is released
        here."""
        b = self.frame.launch.b
        with b.when(self.steps() > 0):
            stage, parity = self.turn(values, values.simplifier(before + self.steps() - 1))
            self.barrier(self.full, stage, "wait", parity)
            if self.c.persistent:
                b.invoke(instruction_named("warp_sync"))
                with b.when(eq(THREAD % WARP, 0)):
                    self.barrier(self.empty, stage, "arrive")
