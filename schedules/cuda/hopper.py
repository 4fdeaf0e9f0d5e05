"""The matrix-multiplication template for Hopper: the copy engine fills a ring of stages, warpgroups multiply from it.

    a producing thread:     for each part of k:  wait until a stage is empty;  both tiles -> the stage, counted in bytes
    warpgroups of 4 warps:  for each part of k:  wait until the stage is full; total += left @ right (wgmma)
                                                 the stage before is empty again
    epilogue on the tile, in registers: whatever follows the product

Factors travel as they lie in memory: what is computed on the way goes by the other template, through registers. Sizes
beyond the product are filled with zeros by the copy engine.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from taskmap.ir.builder import region
from taskmap.ir.construct import as_expr, cast, ceil_div, const, eq, index, load
from taskmap.ir.errors import ScheduleError
from taskmap.ir.instruction_specs import MatMulSpec
from taskmap.ir.instructions import Instruction, instruction_named
from taskmap.ir.mapping import TaskMapping, repeat, spatial
from taskmap.ir.nodes import Buffer, Expr, ExprLike, Intrinsic, Kernel, LoopKind, Scope, TensorMap
from taskmap.ir.target import Target
from taskmap.ir.types import i32, i64
from taskmap.ir.workers import THREAD
from taskmap.schedules.access import require_count
from taskmap.schedules.cuda.launch import WARP
from taskmap.schedules.cuda.product import Finish, Frame, Product, Test
from taskmap.schedules.cuda.tensor_box import LINE_BYTES, Boxes, boxes_of
from taskmap.schedules.values import Values

_WARPGROUP = 128
_ROWS = 64
_ATOM = 1024
"""Bytes of eight lines, after which a swizzle repeats."""
_LARGEST_BOX = 256
_MOST_SUMS = 128
_FETCHING, _MULTIPLYING = 40, 232
"""Registers of a thread that fetches, and of one that multiplies, of two warpgroups that do."""


@dataclass(frozen=True, slots=True)
class HopperConfig:
    """A block's tile in elements, shared among ``groups`` warpgroups by rows; stages: parts of k on their way or at
    work, each 128 bytes long. group: how many rows of tiles are computed side by side, for the second-level cache."""

    engine: str
    block_m: int
    block_n: int
    groups: int = 2
    stages: int = 4
    group: int = 8

    @property
    def threads(self) -> int:
        """Threads of a block: the warpgroups that multiply and one that fetches."""
        return (self.groups + 1) * _WARPGROUP

    @property
    def rows(self) -> int:
        """Rows of one warpgroup."""
        return self.block_m // self.groups

    @property
    def spec(self) -> MatMulSpec:
        """The product of one instruction."""
        spec = instruction_named(self.engine).spec
        assert isinstance(spec, MatMulSpec)
        return spec

    @property
    def block_k(self) -> int:
        """Terms in a stage."""
        return LINE_BYTES // self.spec.a.bytes

    @property
    def stage_bytes(self) -> int:
        """Shared memory of a stage."""
        return (self.block_m + self.block_n) * LINE_BYTES

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block, barriers among it."""
        return self.stages * (self.stage_bytes + 16)

    def __str__(self) -> str:
        tile = f"{self.block_m}x{self.block_n}x{self.block_k}"
        return f"{self.engine}, tile={tile}, groups={self.groups}, stages={self.stages}, group={self.group}"


def validity(p: Product, c: HopperConfig, target: Target) -> str | None:
    """Why ``c`` cannot compute ``p`` on ``target``; None when it can."""
    found = instruction_named(c.engine)
    if not found.targets(target):
        return f"{target} has no {c.engine}, which needs {found.targets}"
    types = (p.left.expr.dtype, p.right.expr.dtype, p.accumulate)
    if types != (c.spec.a, c.spec.b, c.spec.c):
        return f"{c.engine} does not multiply {types[0]} by {types[1]} into {types[2]}"
    if c.block_m % (c.groups * _ROWS):
        return f"{c.groups} warpgroups of {_ROWS} rows do not divide {c.block_m}"
    if c.block_n != c.spec.n:
        return f"{c.engine} has {c.spec.n} columns, not {c.block_n}"
    if c.stages < 2:
        return "one stage leaves nothing to fetch while another is multiplied"
    if c.groups not in (1, 2):
        return f"one or two warpgroups multiply, not {c.groups}"
    sums = c.block_m * c.block_n // (c.groups * _WARPGROUP)
    if sums > _MOST_SUMS:
        return f"{sums} sums of a thread leave no registers for the rest"
    if target.shared_per_block and c.shared_bytes > target.shared_per_block:
        return f"it needs {c.shared_bytes} bytes of shared memory, and a block has {target.shared_per_block}"
    for name, f, extent in (("left", p.left, c.block_m), ("right", p.right, c.block_n)):
        boxes = boxes_of(p.task, f, p.c.batch)
        if isinstance(boxes, str):
            return f"the copy engine cannot fetch the {name} factor: {boxes}"
        if not boxes.along_k and (boxes.view.dtype.bytes != 2 or extent % boxes.line):
            return f"the {name} factor is not contiguous along k, and {c.engine} cannot take it otherwise"
        if boxes.along_k and extent > _LARGEST_BOX:
            return f"a box has at most {_LARGEST_BOX} lines, not {extent}"
    return None


def schedule_hopper(p: Product, config: HopperConfig, target: Target) -> Kernel:
    """The template filled in. Raises ScheduleError with the reason when the configuration does not fit."""
    reason = validity(p, config, target)
    if reason is not None:
        raise ScheduleError(f"{p.task.name!r} cannot be computed as {config}", why=f"{reason}.")
    require_count(p.task, p.task.outputs, p.stage.shape)
    return _Hopper(p, config).kernel()


@dataclass(slots=True)
class _Tile:
    """One factor in shared memory: boxes of lines of 128 bytes, for each stage; ``extent`` of its rows or columns."""

    boxes: Boxes
    map: TensorMap
    buffer: Buffer
    extent: int

    @property
    def count(self) -> int:
        """Boxes in a stage."""
        return 1 if self.boxes.along_k else self.extent // self.boxes.line

    def descriptor(self, first: Expr, kk: Expr, stage: Expr) -> Expr:
        """The operand of one instruction: from row (or column) ``first`` on, its terms from ``kk`` on."""
        line = self.boxes.line
        along_k = self.boxes.along_k
        where = (stage, index(0), first, kk) if along_k else (stage, first // line, kk, index(0))
        leading = 16 if along_k else int(self.buffer.shape[2]) * LINE_BYTES  # type: ignore[arg-type]  # tiles have plain sizes
        args = (as_expr(LINE_BYTES), load(self.buffer, where), const(leading, i32), const(_ATOM, i32))
        return Intrinsic(instruction_named("wgmma_descriptor"), args, i64, 1)


@dataclass(slots=True)
class _Hopper:
    p: Product
    c: HopperConfig
    frame: Frame = field(init=False)

    def kernel(self) -> Kernel:
        p, c = self.p, self.c
        self.frame = Frame(p, (c.block_m, c.block_n), c.group, c.threads)
        values = self.frame.begin()
        b = self.frame.launch.b
        left, right = self.tile("left", c.block_m), self.tile("right", c.block_n)
        full, empty = (b.allocate(name, i64, (c.stages,), Scope.SHARED) for name in ("full", "empty"))
        with b.when(THREAD < 1):
            for stage in range(c.stages):
                self.at(full, index(stage), "init", 1)
                self.at(empty, index(stage), "init", c.groups * _WARPGROUP // WARP)
            b.invoke(instruction_named("fence_mbarrier_init"))
        b.barrier()
        number = b.let("warpgroup", values.simplifier(THREAD // _WARPGROUP))
        values.bind(number, c.groups + 1)
        with b.when(number < c.groups):
            if c.groups > 1:
                b.invoke(instruction_named("setmaxnreg_inc"), as_expr(_MULTIPLYING))
            self.consume(values.nested(), number if c.groups > 1 else index(0), left, right, full, empty)
        with b.otherwise():
            if c.groups > 1:
                b.invoke(instruction_named("setmaxnreg_dec"), as_expr(_FETCHING))
            with b.when(eq(THREAD, c.groups * _WARPGROUP)):
                self.produce(values.nested(), left, right, full, empty)
        kernel = self.frame.launch.kernel(f"cuda.hopper({c})")
        return replace(kernel, maps=(left.map, right.map))

    def tile(self, name: str, extent: int) -> _Tile:
        """Shared memory of a factor, and how the copy engine sees it."""
        f = self.p.left if name == "left" else self.p.right
        boxes = boxes_of(self.p.task, f, self.p.c.batch)
        assert isinstance(boxes, Boxes)
        lines = extent if boxes.along_k else self.c.block_k
        count = 1 if boxes.along_k else extent // boxes.line
        shape = (self.c.stages, count, lines, boxes.line)
        buffer = self.frame.launch.b.allocate(name, f.expr.dtype, shape, Scope.SHARED)
        return _Tile(boxes, boxes.map(f"map_{name}", lines), buffer, extent)

    def at(self, barriers: Buffer, stage: Expr, action: str, *values: ExprLike) -> None:
        """A step of one mbarrier."""
        given = (cast(as_expr(v, i32), i32) for v in values)
        self.frame.launch.b.invoke(instruction_named(f"mbarrier_{action}"), region(barriers, (stage,), (1,)), *given)

    def steps(self) -> Expr:
        """Parts of k."""
        return index(ceil_div(self.p.k, self.c.block_k))

    def produce(self, values: Values, left: _Tile, right: _Tile, full: Buffer, empty: Buffer) -> None:
        """One thread fills stage after stage."""
        b, c, frame = self.frame.launch.b, self.c, self.frame
        batch = [frame.fixed[v] for v, _ in self.p.c.batch]
        with b.loop("step", self.steps()) as step:
            values.bind(step, self.steps())
            stage = values.simplifier(step % c.stages)
            self.at(empty, stage, "wait", values.simplifier((step // c.stages + 1) % 2))
            self.at(full, stage, "arrive_expect_tx", c.stage_bytes)
            for tile, first in ((left, frame.row), (right, frame.column)):
                for box in range(tile.count):
                    at = tile.boxes.coordinates(batch, first + box * tile.boxes.line, step * c.block_k)
                    fetch = instruction_named(f"tma_load_{len(at)}d")
                    shape = (1, 1, *tile.buffer.shape[2:])
                    to = region(tile.buffer, (stage, box, 0, 0), shape)
                    where = (cast(values.simplifier(i), i32) for i in at)
                    b.invoke(fetch, to, tile.map, region(full, (stage,), (1,)), *where)

    def consume(self, values: Values, number: Expr, left: _Tile, right: _Tile, full: Buffer, empty: Buffer) -> None:
        """A warpgroup multiplies its rows, and finishes them."""
        b, c = self.frame.launch.b, self.c
        engine = Wgmma.open(self, number)
        # Unrolled, the assembler would have products of different steps wait for each other.
        with b.loop("step", self.steps(), unroll=1) as step:
            inside = values.nested()
            inside.bind(step, self.steps())
            stage = inside.simplifier(step % c.stages)
            self.at(full, stage, "wait", inside.simplifier(step // c.stages % 2))
            engine.multiply(left, right, stage)
            b.invoke(instruction_named("wgmma_wait"), as_expr(1))
            with b.when((step > 0) & eq(THREAD % WARP, 0)):
                self.at(empty, inside.simplifier((step + (c.stages - 1)) % c.stages), "arrive")
        b.invoke(instruction_named("wgmma_wait"), as_expr(0))
        engine.hold()
        self.frame.epilogue(values, engine)


@dataclass(frozen=True, slots=True)
class Wgmma:
    """The engine of a block: the sums of all its warpgroups."""

    h: _Hopper
    instruction: Instruction
    number: Expr
    total: Buffer

    @staticmethod
    def open(h: _Hopper, number: Expr) -> Wgmma:
        """Accumulators, set to 0."""
        c, b = h.c, h.frame.launch.b
        found = instruction_named(c.engine)
        assert found.owner_c is not None
        owner = spatial(c.groups, 1) * repeat(c.rows // _ROWS, 1) * found.owner_c
        total = b.allocate("total", c.spec.c, (c.block_m, c.block_n), Scope.REGISTER, owner=owner)
        with b.mapped(["i", "j"], owner, THREAD % owner.num_workers) as (i, j):
            b.store(total, (i, j), as_expr(0, c.spec.c))
        return Wgmma(h, found, number, total)

    def multiply(self, left: _Tile, right: _Tile, stage: Expr) -> None:
        """total += left @ right of one stage, begun but not waited for."""
        c, b = self.h.c, self.h.frame.launch.b
        b.invoke(instruction_named("wgmma_fence"))
        turned = [as_expr(int(not t.boxes.along_k)) for t in (left, right)] if c.spec.a.bytes == 2 else []
        with b.loop("kk", c.block_k // c.spec.k, LoopKind.UNROLLED) as kk:
            for i in range(0, c.rows, _ROWS):
                first = self.number * c.rows + i
                b.invoke(
                    self.instruction,
                    *turned,
                    region(self.total, (first, 0), (_ROWS, c.block_n)),
                    left.descriptor(first, kk * c.spec.k, stage),
                    right.descriptor(index(0), kk * c.spec.k, stage),
                    const(1, i32),
                )
        b.invoke(instruction_named("wgmma_commit"))

    def hold(self) -> None:
        """Sums are read only from here on."""
        c, b = self.h.c, self.h.frame.launch.b
        slots = self.total.owner.num_slots if self.total.owner else 0
        first = (self.number * c.rows, index(0))
        b.invoke(instruction_named("wgmma_hold"), as_expr(slots), region(self.total, first, (c.rows, c.block_n)))

    def finish(self, values: Values, width: int, test: Test, body: Finish) -> None:
        """``body`` for every element of the tile, in pairs of columns where ``width`` allows, where ``test`` holds."""
        c, b = self.h.c, self.h.frame.launch.b
        lanes = min(2, width)
        with b.mapped(["i", "g"], self.pairs(lanes), THREAD % (c.groups * _WARPGROUP)) as (i, g):
            values.bind(i, c.block_m)
            values.bind(g, c.block_n // lanes)
            with b.when(test(i, g * lanes, values)), b.loop("v", lanes, LoopKind.VECTOR) as v:
                inside = values.nested()
                inside.bind(v, lanes)
                j = g * lanes + v
                body(i, j, self.total[i, j], inside)

    def pairs(self, lanes: int) -> TaskMapping:
        """Who holds which ``lanes`` neighbouring columns of the tile."""
        c = self.h.c
        inner = repeat(1, c.block_n // 8) * spatial(4, 1) * repeat(2, 1) * spatial(8, 4) * repeat(1, 2 // lanes)
        return spatial(c.groups, 1) * repeat(c.rows // _ROWS, 1) * inner
