"""Products by tensor cores: every warp multiplies fragments, with the element ownership that the instruction requires.

    total: spatial(warps) * repeat(..) * owner_c         left, right: the same with owner_a and owner_b
    for kk in depth:   ldmatrix of left and right;   mma for each pair of fragments

The owners come from the instruction table, so one multiplier serves every mma instruction.
"""

from __future__ import annotations

from dataclasses import dataclass

from taskmap.ir.algebra.mapping import TaskMapping, repeat, replicate, spatial
from taskmap.ir.builder import Builder, region
from taskmap.ir.construct import as_expr
from taskmap.ir.isa.specs import MatMulSpec
from taskmap.ir.isa.table import Instruction, instruction_named
from taskmap.ir.nodes import Buffer, Expr, Intrinsic, LoopKind, Scope
from taskmap.ir.types import DType, f32, tf32
from taskmap.ir.workers import THREAD
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.cuda.matmul.config import MatmulConfig
from taskmap.schedules.cuda.matmul.problem_view import Finish, Test, in_vectors
from taskmap.schedules.cuda.matmul.shared_tile import SharedTile
from taskmap.schedules.cuda.support.launch import WARP, place_of


@dataclass(frozen=True, slots=True)
class MmaMultiplier:
    """The multiplier of a block; ``place`` is the warp's position along m and n."""

    b: Builder
    config: MatmulConfig
    instruction: Instruction
    total: Buffer
    left: Buffer
    right: Buffer
    place: tuple[Expr, ...]

    @staticmethod
    def open(b: Builder, config: MatmulConfig, dtype: DType, values: Inliner) -> MmaMultiplier:
        """Allocates accumulators, set to 0, and fragments of one step along k."""
        found = instruction_named(config.multiplier)
        spec = spec_of(found)
        down, across = config.warps
        place = place_of(spatial(down, across), THREAD // WARP, values)
        named = tuple(b.let(f"warp_{axis}", i) for axis, i in zip("mn", place, strict=True))
        for i, count in zip(named, (down, across), strict=True):
            values.bind(i, count)
        owner = owner_of(config)
        total = b.allocate("total", dtype, (config.block_m, config.block_n), Scope.REGISTER, owner=owner)
        with b.mapped(["i", "j"], owner, THREAD) as (i, j):
            b.store(total, (i, j), as_expr(0, dtype))
        rows, columns = config.warp_m // spec.m, config.warp_n // spec.n
        assert found.owner_a is not None
        assert found.owner_b is not None
        held_a = spatial(down, 1) * replicate(across, rank=2) * repeat(rows, 1) * found.owner_a
        held_b = replicate(down, rank=2) * spatial(1, across) * repeat(1, columns) * found.owner_b
        left = b.allocate("a", spec.a, (config.block_m, spec.k), Scope.REGISTER, owner=held_a)
        right = b.allocate("b", spec.b, (spec.k, config.block_n), Scope.REGISTER, owner=held_b)
        return MmaMultiplier(b, config, found, total, left, right, named)

    def multiply(self, values: Inliner, left: SharedTile, right: SharedTile, stage: Expr) -> None:
        """total += left @ right, of one stage of shared memory."""
        b, c = self.b, self.config
        spec = spec_of(self.instruction)
        row, column = self.place[0] * c.warp_m, self.place[1] * c.warp_n
        rounds = spec.a == tf32
        raw = [self.unrounded(x) if rounds else x for x in (self.left, self.right)]
        # Rounding holds fragments twice, and interleaved steps would spill.
        kind, unroll = (LoopKind.SERIAL, 2) if rounds else (LoopKind.UNROLLED, 0)
        with b.loop("kk", c.block_k // spec.k, kind, unroll=unroll) as step:
            values.bind(step, c.block_k // spec.k)
            kk = step * spec.k
            for i in range(0, c.warp_m, spec.m):
                read_fragments(b, values, left, raw[0], (row + i, spec.m), (kk, spec.k), stage)
            pair = 2 * spec.n if c.warp_n % (2 * spec.n) == 0 else spec.n
            for j in range(0, c.warp_n, pair):
                read_fragments(b, values, right, raw[1], (column + j, pair), (kk, spec.k), stage)
            if rounds:
                self.round(raw[0], self.left)
                self.round(raw[1], self.right)
            for i in range(0, c.warp_m, spec.m):
                for j in range(0, c.warp_n, spec.n):
                    b.invoke(
                        self.instruction,
                        region(self.total, (row + i, column + j), (spec.m, spec.n)),
                        region(self.left, (row + i, 0), (spec.m, spec.k)),
                        region(self.right, (0, column + j), (spec.k, spec.n)),
                    )

    def unrounded(self, held: Buffer) -> Buffer:
        """Registers for f32 elements before they are rounded into ``held``."""
        return self.b.allocate(f"{held.name}_exact", f32, held.shape, Scope.REGISTER, owner=held.owner)

    def round(self, exact: Buffer, held: Buffer) -> None:
        """Rounds f32 to the nearest tf32; the instruction would truncate."""
        b, to_nearest = self.b, instruction_named("round_tf32")
        assert held.owner is not None
        with b.mapped(["i", "j"], held.owner, THREAD) as (i, j):
            b.store(held, (i, j), Intrinsic(to_nearest, (exact[i, j],), tf32, 1))

    def finish(self, values: Inliner, width: int, test: Test, body: Finish) -> None:
        """Calls ``body`` for every element of the tile for which ``test`` holds, in pairs of columns if ``width``
        allows."""
        c, spec = self.config, spec_of(self.instruction)
        lanes = min(2, width)
        inner = repeat(spec.m // 8, 1) * spatial(8, 4) * repeat(1, 2 // lanes)
        held = spatial(*c.warps) * repeat(c.warp_m // spec.m, c.warp_n // spec.n) * inner
        in_vectors(self.b, self.total, held, THREAD, lanes, values, test, body)


def read_fragments(
    b: Builder, values: Inliner, tile: SharedTile, held: Buffer, mn: tuple[Expr, int], k: tuple[Expr, int], stage: Expr
) -> None:
    """Loads part of an operand, (first, extent) along mn and k, from shared memory into its fragments, by whole 8×8
    matrices.

    ``held`` has all of mn, and the current k-tile.
    """
    size = tile.buffer.dtype.bytes
    turned = "" if tile.along_k else "_trans"
    suffix = "" if size == 2 else f"_b{8 * size}"
    load = instruction_named(f"ldmatrix_x{mn[1] * k[1] * size // 128}{turned}{suffix}")
    origin = values.simplifier(mn[0])
    first = tile.at(stage, origin, k[0], values)
    to, shape = ((origin, 0), (mn[1], k[1])) if tile.is_left else ((0, origin), (k[1], mn[1]))
    b.invoke(load, region(held, to, shape), region(tile.buffer, first, tile.shape(mn[1], k[1])))


def spec_of(instruction: Instruction) -> MatMulSpec:
    """The product that an mma instruction computes."""
    assert isinstance(instruction.spec, MatMulSpec)
    return instruction.spec


def owner_of(c: MatmulConfig) -> TaskMapping:
    """Ownership of the elements of the block's tile."""
    found = instruction_named(c.multiplier)
    spec = spec_of(found)
    assert found.owner_c is not None
    return spatial(*c.warps) * repeat(c.warp_m // spec.m, c.warp_n // spec.n) * found.owner_c
