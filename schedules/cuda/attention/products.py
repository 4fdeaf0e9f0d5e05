"""The two products of attention, by tensor cores or CUDA cores, and the ownership of their elements.

Every warp has whole rows of scores and of sums, and four neighbouring lanes own a row, so softmax needs only shuffles.
With CUDA cores, threads own elements in the layout of tensor-core fragments.
"""

from __future__ import annotations

from dataclasses import dataclass

from taskmap.ir.algebra.mapping import TaskMapping, repeat, replicate, spatial
from taskmap.ir.builder import Builder, region
from taskmap.ir.construct import as_expr, cast, index
from taskmap.ir.isa.specs import MatMulSpec
from taskmap.ir.isa.table import instruction_named, instructions_for
from taskmap.ir.nodes import Buffer, Expr, LoopKind, Scope
from taskmap.ir.target import GpuTarget
from taskmap.ir.types import DType, bf16, f16, f32
from taskmap.ir.workers import THREAD
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.cuda.matmul.shared_tile import SharedTile, padded_tile
from taskmap.schedules.cuda.support.launch import WARP

_M, _N, _K = 16, 8, 16
_C = repeat(2, 1) * spatial(8, 4) * repeat(1, 2)
"""Ownership of a 16×8 accumulator by a warp."""
_C_ROWS = repeat(2) * spatial(8) * replicate(4, rank=1)


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    """multiplier: "simt", or the name of a tensor-core instruction. rows: queries of one of ``warps`` warps. keys: keys
    of a tile. stages: tiles of keys in shared memory, 2 if they are copied asynchronously. split: the number of blocks
    that share the keys of their queries."""

    multiplier: str
    warps: int
    rows: int
    keys: int
    stages: int = 2
    split: int = 1

    @property
    def queries(self) -> int:
        """Queries of a block."""
        return self.warps * self.rows

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.warps * WARP

    def __str__(self) -> str:
        shared = f", split={self.split}" if self.split > 1 else ""
        tile = f"queries={self.queries}, keys={self.keys}, warps={self.warps}, stages={self.stages}"
        return f"{self.multiplier}, {tile}{shared}"

    @staticmethod
    def multiplier_for(dtype: DType, target: GpuTarget) -> str:
        """The tensor-core instruction for products of ``dtype``, or "simt"."""
        if dtype not in (f16, bf16):
            return "simt"
        found = instructions_for(target, MatMulSpec(_M, _N, _K, dtype, dtype, f32)).instructions
        return next((i.name for i in found if i.family == "mma" and i.work == _M * _N * _K), "simt")

    def unfit(self, dtype: DType, target: GpuTarget) -> str | None:
        """The reason why no configuration supports elements of ``dtype``, or None."""
        if self.rows % _M or self.keys % (2 * _N):
            return f"fragments of {_M}×{2 * _N} do not divide {self.rows} queries by {self.keys} keys"
        if self.threads > 1024:
            return f"a block would have {self.threads} threads, more than the limit of 1024"
        if self.stages not in (1, 2):
            return f"there must be one or two stages, not {self.stages}"
        if self.multiplier == "simt":
            return None if dtype in (f16, bf16, f32) else f"sums of {dtype} are not of f32"
        found = instruction_named(self.multiplier)
        if not found.targets(target):
            return f"{target} has no {self.multiplier}"
        spec = found.spec
        assert isinstance(spec, MatMulSpec)
        return None if spec.a == dtype else f"{self.multiplier} does not multiply {dtype}"

    def owner(self, columns: int) -> TaskMapping:
        """Ownership of the elements of the block's queries × ``columns``."""
        return spatial(self.warps, 1) * repeat(self.rows // _M, columns // _N) * _C

    @property
    def row_owner(self) -> TaskMapping:
        """Ownership of per-query values: the four lanes that own its row."""
        return spatial(self.warps) * repeat(self.rows // _M) * _C_ROWS


@dataclass(frozen=True, slots=True)
class Products:
    """The registers of a block: ``scores`` of a tile of keys, ``weights`` computed from them, ``sums`` of weighted
    values."""

    b: Builder
    c: AttentionConfig
    kind: DType
    width: int
    row: Expr
    scores: Buffer
    weights: Buffer
    sums: Buffer

    @staticmethod
    def open(b: Builder, c: AttentionConfig, values: Inliner, width: int, kind: DType) -> Products:
        """Allocates all registers; the sums are 0."""
        warp = b.let("warp", values.simplifier(THREAD // WARP))
        values.bind(warp, c.warps)
        sums = b.allocate("sums", f32, (c.queries, width), Scope.REGISTER, owner=c.owner(width))
        with b.mapped(["i", "d"], c.owner(width), THREAD) as (i, d):
            b.store(sums, (i, d), 0.0)
        scores = b.allocate("scores", f32, (c.queries, c.keys), Scope.REGISTER, owner=c.owner(c.keys))
        if c.multiplier == "simt":
            weights = padded_tile(b, "weights", f32, 1, c.queries, c.keys, along_k=True, is_left=True).buffer
        else:
            held = instruction_named(c.multiplier).owner_a
            assert held is not None
            owner = spatial(c.warps, 1) * repeat(c.rows // _M, c.keys // _K) * held
            weights = b.allocate("weights", kind, (c.queries, c.keys), Scope.REGISTER, owner=owner)
        return Products(b, c, kind, width, values.simplifier(warp * c.rows), scores, weights, sums)

    def score(self, values: Inliner, queries: SharedTile, keys: SharedTile, depth: int, stage: Expr) -> None:
        """scores = queries @ keys."""
        b, c = self.b, self.c
        with b.mapped(["i", "j"], c.owner(c.keys), THREAD) as (i, j):
            b.store(self.scores, (i, j), 0.0)
        if c.multiplier == "simt":
            self.by_threads(self.scores, queries, keys, c.keys, depth, stage)
            return
        left = self.left_fragment()
        right = self.right_fragment(c.keys)
        with b.loop("kk", depth // _K, LoopKind.UNROLLED) as step:
            values.bind(step, depth // _K)
            for row in range(0, c.rows, _M):
                read_fragments(b, values, queries, left, (self.row + row, _M), (step * _K, _K), index(0))
            for key in range(0, c.keys, 2 * _N):
                read_fragments(b, values, keys, right, (index(key), 2 * _N), (step * _K, _K), stage)
            self.multiply(self.scores, left, index(0), right, c.keys)

    def weigh(self, values: Inliner, tile: SharedTile, stage: Expr) -> None:
        """sums += weights @ values."""
        b, c = self.b, self.c
        if c.multiplier == "simt":
            b.barrier()
            self.by_threads(self.sums, SharedTile(self.weights, True, True), tile, self.width, c.keys, stage)
            return
        right = self.right_fragment(self.width)
        with b.loop("kk", c.keys // _K, LoopKind.UNROLLED) as step:
            values.bind(step, c.keys // _K)
            for d in range(0, self.width, 2 * _N):
                read_fragments(b, values, tile, right, (index(d), 2 * _N), (step * _K, _K), stage)
            self.multiply(self.sums, self.weights, step * _K, right, self.width)

    def left_fragment(self) -> Buffer:
        """Registers for a k-tile of the queries, 16 along k."""
        held = instruction_named(self.c.multiplier).owner_a
        assert held is not None
        owner = spatial(self.c.warps, 1) * repeat(self.c.rows // _M, 1) * held
        return self.b.allocate("a", self.kind, (self.c.queries, _K), Scope.REGISTER, owner=owner)

    def right_fragment(self, columns: int) -> Buffer:
        """Registers for a k-tile of the keys or values, 16 along k, which all warps hold."""
        held = instruction_named(self.c.multiplier).owner_b
        assert held is not None
        owner = replicate(self.c.warps, rank=2) * repeat(1, columns // _N) * held
        return self.b.allocate("b", self.kind, (_K, columns), Scope.REGISTER, owner=owner)

    def multiply(self, to: Buffer, left: Buffer, kk: Expr, right: Buffer, columns: int) -> None:
        """to += left @ right for the rows of this warp, 16 along k from ``kk`` on."""
        found = instruction_named(self.c.multiplier)
        for i in range(0, self.c.rows, _M):
            for j in range(0, columns, _N):
                self.b.invoke(
                    found,
                    region(to, (self.row + i, j), (_M, _N)),
                    region(left, (self.row + i, kk), (_M, _K)),
                    region(right, (0, j), (_K, _N)),
                )

    def by_threads(
        self, to: Buffer, left: SharedTile, right: SharedTile, columns: int, depth: int, stage: Expr
    ) -> None:
        """to += left @ right, each thread for the elements that it owns."""
        b = self.b
        with b.loop("kk", depth, unroll=4) as kk, b.mapped(["i", "j"], self.c.owner(columns), THREAD) as (i, j):
            x, y = left.buffer[0, i, kk], right.buffer[stage, kk, j]
            b.store(to, (i, j), to[i, j] + cast(x, f32) * cast(y, f32))

    def store_weight(self, i: Expr, j: Expr, weight: Expr) -> None:
        """Stores a weight as an operand of the second product."""
        where = (index(0), i, j) if self.c.multiplier == "simt" else (i, j)
        self.b.store(self.weights, where, cast(as_expr(weight), self.weights.dtype))


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
