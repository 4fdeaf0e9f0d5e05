"""Products by CUDA cores: every thread holds a part of the tile in registers.

    owner = spatial(warps) * repeat(..) * spatial(4, 8) * repeat(4, 4)      ownership of the tile's elements
    for k in depth:   a, b = a column and a row of the operands in registers;    c[i, j] += a[i] * b[j]

Method: the matrix multiplication of Hidet (Ding et al., ASPLOS 2023, section 5.1), written in task mappings.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from taskmap.ir.algebra.mapping import TaskMapping, repeat, replicate, spatial
from taskmap.ir.builder import Builder
from taskmap.ir.construct import as_expr, cast
from taskmap.ir.nodes import Buffer, Expr, LoopKind, Scope
from taskmap.ir.types import DType
from taskmap.ir.workers import THREAD
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.cuda.matmul.config import MatmulConfig
from taskmap.schedules.cuda.matmul.problem_view import Finish, Test, in_vectors
from taskmap.schedules.cuda.matmul.shared_tile import SharedTile

_LANES = (4, 8)
_WIDEST = 4


@dataclass(frozen=True, slots=True)
class SimtMultiplier:
    """The multiplier of a block."""

    b: Builder
    config: MatmulConfig
    dtype: DType
    total: Buffer

    @staticmethod
    def open(b: Builder, config: MatmulConfig, dtype: DType) -> SimtMultiplier:
        """Allocates accumulators, set to 0."""
        shape = (config.block_m, config.block_n)
        total = b.allocate("total", dtype, shape, Scope.REGISTER, owner=owner_of(config))
        with b.mapped(["i", "j"], owner_of(config), THREAD) as (i, j):
            b.store(total, (i, j), as_expr(0, dtype))
        return SimtMultiplier(b, config, dtype, total)

    def multiply(self, values: Inliner, left: SharedTile, right: SharedTile, stage: Expr) -> None:
        """total += left @ right, of one stage of shared memory."""
        b, c = self.b, self.config
        (down, across), (rm, rn), (vm, vn) = _shape(c)
        rows = spatial(down) * replicate(across, rank=1) * repeat(rm) * spatial(4) * replicate(8, rank=1)
        columns = replicate(down, rank=1) * spatial(across) * repeat(rn) * replicate(4, rank=1) * spatial(8)
        a = b.allocate("a", self.dtype, (c.block_m,), Scope.REGISTER, owner=rows * repeat(vm))
        w = b.allocate("b", self.dtype, (c.block_n,), Scope.REGISTER, owner=columns * repeat(vn))
        with b.loop("kk", c.block_k, unroll=8) as kk:
            values.bind(kk, c.block_k)
            for held, tile, mapping, width in ((a, left, rows, vm), (w, right, columns, vn)):
                self.read(values.nested(), held, tile, mapping, width, stage, kk)
            with b.mapped(["i", "j"], owner_of(c), THREAD) as (i, j):
                b.store(self.total, (i, j), self.total[i, j] + a[i] * w[j])

    def read(
        self, values: Inliner, held: Buffer, tile: SharedTile, mapping: TaskMapping, width: int, stage: Expr, kk: Expr
    ) -> None:
        """Reads this thread's part of one column of the left operand, or of one row of the right one."""
        b = self.b
        with b.mapped(["g"], mapping, THREAD) as (g,):
            values.bind(g, mapping.task_shape[0])
            with b.loop("v", width, LoopKind.VECTOR) as v:
                inside = values.nested()
                inside.bind(v, width)
                at = g * width + v
                b.store(held, (at,), cast(tile.buffer[tile.at(stage, at, kk, inside)], self.dtype))

    def finish(self, values: Inliner, width: int, test: Test, body: Finish) -> None:
        """Calls ``body`` for every element of the tile for which ``test`` holds, in vectors of up to ``width``
        columns."""
        (down, across), (rm, rn), (vm, vn) = _shape(self.config)
        lanes = math.gcd(vn, width)
        groups = spatial(down, across) * repeat(rm, rn) * spatial(4, 8) * repeat(vm, vn // lanes)
        in_vectors(self.b, self.total, groups, THREAD, lanes, values, test, body)


def _shape(c: MatmulConfig) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
    """Warps, repeats and vector lengths, each along m and n."""
    tile = c.thread_tile
    vectors = math.gcd(tile[0], _WIDEST), math.gcd(tile[1], _WIDEST)
    return c.warps, (tile[0] // vectors[0], tile[1] // vectors[1]), vectors


def owner_of(c: MatmulConfig) -> TaskMapping:
    """Ownership of the elements of the block's tile."""
    warps, repeats, vectors = _shape(c)
    return spatial(*warps) * repeat(*repeats) * spatial(*_LANES) * repeat(*vectors)
