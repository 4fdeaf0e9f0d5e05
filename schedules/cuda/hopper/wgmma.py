"""Products by warpgroups: sums in registers, both operands in shared memory."""

from __future__ import annotations

from dataclasses import dataclass

from taskmap.ir.algebra.mapping import TaskMapping, repeat, spatial
from taskmap.ir.builder import Builder, region
from taskmap.ir.construct import as_expr, cast, const, index, minimum
from taskmap.ir.isa.table import Instruction, instruction_named
from taskmap.ir.nodes import Buffer, Expr, LoopKind, Scope
from taskmap.ir.types import i32
from taskmap.ir.workers import THREAD
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.cuda.hopper.matmul_config import ROWS, WARPGROUP, HopperConfig
from taskmap.schedules.cuda.hopper.stage import StageTile
from taskmap.schedules.cuda.matmul.problem_view import Finish, Test, in_vectors


@dataclass(frozen=True, slots=True)
class WgmmaMultiplier:
    """The multiplier of a block: the sums of all its warpgroups. ``number``: the warpgroup of a thread. once: there is
    a single stage, whose first product sets the sums; otherwise they begin as 0."""

    b: Builder
    c: HopperConfig
    instruction: Instruction
    number: Expr
    total: Buffer
    once: bool

    @staticmethod
    def open(b: Builder, c: HopperConfig, number: Expr, *, once: bool) -> WgmmaMultiplier:
        """Allocates the accumulators."""
        found = instruction_named(c.multiplier)
        assert found.owner_c is not None
        owner = spatial(c.groups, 1) * repeat(c.rows // ROWS, 1) * found.owner_c
        total = b.allocate("total", c.spec.c, (c.block_m, c.block_n), Scope.REGISTER, owner=owner)
        return WgmmaMultiplier(b, c, found, number, total, once)

    def begin(self) -> None:
        """Sets the sums to 0, if products are only added to them."""
        owner = self.total.owner
        if self.once or owner is None:
            return
        with self.b.mapped(["i", "j"], owner, THREAD % owner.num_workers) as (i, j):
            self.b.store(self.total, (i, j), as_expr(0, self.c.spec.c))

    def multiply(self, left: StageTile, right: StageTile, stage: Expr) -> None:
        """Issues total += left @ right of one stage."""
        c, b = self.c, self.b
        b.invoke(instruction_named("wgmma_fence"))
        turned = [as_expr(int(not t.along_k)) for t in (left, right)] if c.spec.a.bytes == 2 else []
        with b.loop("kk", c.block_k // c.spec.k, LoopKind.UNROLLED) as kk:
            for i in range(0, c.rows, ROWS):
                first = self.number * c.rows + i
                b.invoke(
                    self.instruction,
                    *turned,
                    region(self.total, (first, 0), (ROWS, c.block_n)),
                    left.descriptor(first, kk * c.spec.k, stage),
                    right.descriptor(index(0), kk * c.spec.k, stage),
                    cast(minimum(kk, 1), i32) if self.once else const(1, i32),
                )
        b.invoke(instruction_named("wgmma_commit"))

    def hold(self) -> None:
        """Prevents the compiler from moving reads of the sums above this point."""
        c, b = self.c, self.b
        first = (self.number * c.rows, index(0))
        b.invoke(instruction_named("wgmma_hold"), as_expr(c.sums), region(self.total, first, (c.rows, c.block_n)))

    def finish(self, values: Inliner, width: int, test: Test, body: Finish) -> None:
        """Calls ``body`` for every element of the tile for which ``test`` holds, in pairs of columns if ``width``
        allows."""
        lanes = min(2, width)
        worker = THREAD % (self.c.groups * WARPGROUP)
        in_vectors(self.b, self.total, self.pairs(lanes), worker, lanes, values, test, body)

    def pairs(self, lanes: int) -> TaskMapping:
        """Ownership of vectors of ``lanes`` neighbouring columns of the tile."""
        c = self.c
        inner = repeat(1, c.block_n // 8) * spatial(4, 1) * repeat(2, 1) * spatial(8, 4) * repeat(1, 2 // lanes)
        return spatial(c.groups, 1) * repeat(c.rows // ROWS, 1) * inner
