"""The two products of attention by warpgroups, and the registers between them."""

from __future__ import annotations

from dataclasses import dataclass

from taskmap.ir.algebra.mapping import repeat, spatial
from taskmap.ir.builder import Builder, region
from taskmap.ir.construct import as_expr, cast, const, index
from taskmap.ir.isa.table import Instruction, instruction_named
from taskmap.ir.nodes import Buffer, Expr, ExprLike, Scope
from taskmap.ir.types import f32, i32
from taskmap.schedules.cuda.attention.problem_view import AttentionTask
from taskmap.schedules.cuda.hopper.attention_config import HopperAttentionConfig, K, instructions_of
from taskmap.schedules.cuda.hopper.matmul_config import ROWS, WARPGROUP
from taskmap.schedules.cuda.hopper.stage import StageTile


@dataclass(frozen=True, slots=True)
class WgmmaProducts:
    """The registers of a block: ``scores`` of a tile of keys, ``weights`` computed from them, ``sums`` of weighted
    values."""

    b: Builder
    c: HopperAttentionConfig
    depth: int
    width: int
    group: Expr
    worker: Expr
    instructions: tuple[Instruction, Instruction]
    scores: Buffer
    weights: Buffer
    sums: Buffer

    @staticmethod
    def open(b: Builder, t: AttentionTask, c: HopperAttentionConfig, group: Expr, worker: Expr) -> WgmmaProducts:
        """Allocates all registers; the sums are 0."""
        kind = t.q.expr.dtype
        instructions = instructions_of(c.keys, t.width, kind)
        held = instructions[1].owner_a
        assert held is not None
        sums = b.allocate("sums", f32, (c.queries, t.width), Scope.REGISTER, owner=c.owner(t.width))
        with b.mapped(["i", "d"], c.owner(t.width), worker) as (i, d):
            b.store(sums, (i, d), 0.0)
        scores = b.allocate("scores", f32, (c.queries, c.keys), Scope.REGISTER, owner=c.owner(c.keys))
        owner = spatial(c.groups, 1) * repeat(1, c.keys // K) * held
        weights = b.allocate("weights", kind, (c.queries, c.keys), Scope.REGISTER, owner=owner)
        return WgmmaProducts(b, c, t.depth, t.width, group, worker, instructions, scores, weights, sums)

    def rows(self, buffer: Buffer, column: int, columns: int) -> tuple[Buffer, tuple[ExprLike, ...], tuple[int, ...]]:
        """The part of a buffer that belongs to this warpgroup's queries."""
        return buffer, (self.group * ROWS, column), (ROWS, columns)

    def score(self, queries: StageTile, keys: StageTile, stage: Expr) -> None:
        """Issues scores = queries @ keys."""
        b = self.b
        b.invoke(instruction_named("wgmma_fence"))
        for kk in range(0, self.depth, K):
            b.invoke(
                self.instructions[0],
                as_expr(0),
                as_expr(0),
                region(*self.rows(self.scores, 0, self.c.keys)),
                queries.descriptor(self.group * ROWS, index(kk), index(0)),
                keys.descriptor(index(0), index(kk), stage),
                const(int(kk > 0), i32),
            )
        b.invoke(instruction_named("wgmma_commit"))

    def weigh(self, values: StageTile, stage: Expr) -> None:
        """Issues sums += weights @ values."""
        b = self.b
        b.invoke(instruction_named("wgmma_fence"))
        for kk in range(0, self.c.keys, K):
            b.invoke(
                self.instructions[1],
                as_expr(1),
                region(*self.rows(self.sums, 0, self.width)),
                region(*self.rows(self.weights, kk, K)),
                values.descriptor(index(0), index(kk), stage),
                const(1, i32),
            )
        b.invoke(instruction_named("wgmma_commit"))

    def wait(self, pending: int) -> None:
        """Waits until at most ``pending`` of the issued products are unfinished."""
        self.b.invoke(instruction_named("wgmma_wait"), as_expr(pending))

    def hold(self, buffer: Buffer) -> None:
        """Prevents the compiler from moving reads of the sums above this point."""
        columns = int(buffer.shape[1])  # type: ignore[arg-type]  # tiles have plain sizes
        slots = as_expr(ROWS * columns // WARPGROUP)
        self.b.invoke(instruction_named("wgmma_hold"), slots, region(*self.rows(buffer, 0, columns)))

    def store_weight(self, i: Expr, j: Expr, weight: Expr) -> None:
        """Stores a weight as an operand of the second product."""
        self.b.store(self.weights, (i, j), cast(weight, self.weights.dtype))

    def keep(self, i: Expr, j: Expr, weight: Expr) -> None:
        """Stores a weight in place of its score, while the weights of the previous tile are still being multiplied."""
        self.b.store(self.scores, (i, j), weight)

    def use_kept(self) -> None:
        """Moves the kept weights to the operand of the second product."""
        with self.b.mapped(["i", "j"], self.c.owner(self.c.keys), self.worker) as (i, j):
            self.store_weight(i, j, self.scores[i, j])
