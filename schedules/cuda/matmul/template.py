"""The matmul template for GPUs: any contraction whose operands can be read element by element.

    a block takes a tile of the product                    neighbouring blocks share reads in the L2 cache
    for each k-tile:    the next k-tile -> registers       the prologue is computed on the way
                        total += left @ right              by tensor cores
                        registers -> shared memory         into the other stage
    epilogue on the tile, in registers

Operands that lie in memory unchanged are copied asynchronously, through as many stages as the configuration says, and
not through registers. Products by CUDA cores are the same schedule as a tree (``simt``).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from taskmap.ir.construct import as_expr, ceil_div, index
from taskmap.ir.errors import ScheduleError
from taskmap.ir.isa.table import instruction_named
from taskmap.ir.nodes import Expr, Kernel
from taskmap.ir.target import GpuTarget
from taskmap.ir.types import f32, tf32
from taskmap.ir.workers import THREAD
from taskmap.schedules.common.access import require_count
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.cuda.matmul.config import MatmulConfig, sizes_fit
from taskmap.schedules.cuda.matmul.copy_to_shared import SharedTileLoader
from taskmap.schedules.cuda.matmul.mma import MmaMultiplier, spec_of
from taskmap.schedules.cuda.matmul.operand import Operand
from taskmap.schedules.cuda.matmul.problem_view import Gemm, TileContext
from taskmap.schedules.cuda.matmul.shared_tile import padded_bytes, swizzled_bytes, swizzled_tile
from taskmap.schedules.cuda.matmul.simt import schedule_simt
from taskmap.schedules.cuda.matmul.split_k import Split, steps_of, why_not_split
from taskmap.schedules.cuda.support.tile_partition import TilePartition

_COPIES = (4, 8, 16)
NOT_ROUNDED = "operands of f32 may be rounded to tf32 only if the option tf32 or PyTorch's settings allow it"


def validity(p: Gemm, c: MatmulConfig, target: GpuTarget) -> str | None:
    """The reason why ``c`` cannot compute ``p`` on ``target``, or None if it can."""
    unfit = sizes_fit(c, target) or _multiplier_fits(p, c, target)
    unfit = unfit or why_not_split(p, (c.block_m, c.block_n), c.block_k, c.split)
    if unfit:
        return unfit
    if not is_asynchronous(p, c, target) and c.stages > 2:
        return "operands that are loaded through registers need two stages"
    for f, extent in ((p.left, c.block_m), (p.right, c.block_n)):
        shared_out = f.shared_out(extent, c.block_k, c.threads)
        if isinstance(shared_out, str):
            return shared_out
    needed = shared_bytes(p, c)
    if target.shared_per_block and needed > target.shared_per_block:
        return f"it needs {needed} bytes of shared memory, but a block has {target.shared_per_block}"
    return None


def is_asynchronous(p: Gemm, c: MatmulConfig, target: GpuTarget) -> bool:
    """True if both operands are copied to shared memory asynchronously."""
    if target.capability < 80:
        return False
    copied = all(f.direct and f.bytes in _COPIES for f in (p.left, p.right))
    return copied and all(f.along_k == _tile_along_k(f, c) for f in (p.left, p.right))


def _multiplier_fits(p: Gemm, c: MatmulConfig, target: GpuTarget) -> str | None:
    """The reason why the multiplier does not support these operands, or None if it does."""
    if c.multiplier == "simt":
        return None
    found = instruction_named(c.multiplier)
    spec = spec_of(found)
    if not found.targets(target):
        return f"{target} has no {c.multiplier}, which needs {found.targets}"
    types = (p.left.expr.dtype, p.right.expr.dtype, p.accumulate)
    wanted = tuple(f32 if t == tf32 else t for t in (spec.a, spec.b, spec.c))  # loads round f32 to tf32
    if types != wanted:
        return f"{c.multiplier} does not multiply {types[0]} by {types[1]} into {types[2]}"
    if tf32 in (spec.a, spec.b) and not target.tf32:
        return NOT_ROUNDED
    for name, tile, own in (("m", c.warp_m, spec.m), ("n", c.warp_n, spec.n), ("k", c.block_k, spec.k)):
        if tile % own:
            return f"along {name}, {own} of {c.multiplier} do not divide {tile}"
    return None


def shared_bytes(p: Gemm, c: MatmulConfig) -> int:
    """Shared memory of a block."""
    size = padded_bytes if c.multiplier == "simt" else swizzled_bytes
    return sum(
        size(f.expr.dtype, c.stages, extent, c.block_k, along_k=_tile_along_k(f, c))
        for f, extent in ((p.left, c.block_m), (p.right, c.block_n))
    )


def _tile_along_k(f: Operand, c: MatmulConfig) -> bool:
    """CUDA cores read neighbouring rows and columns. Fragments of 2-byte elements are read along either axis, others
    along k."""
    if c.multiplier == "simt":
        return False
    return f.along_k or f.expr.dtype.bytes != 2


def schedule_product(p: Gemm, config: MatmulConfig, target: GpuTarget) -> Kernel:
    """Instantiates the template. Raises ScheduleError with the reason if the configuration does not fit."""
    reason = validity(p, config, target)
    if reason is not None:
        raise ScheduleError(f"{p.task.name!r} cannot be computed as {config}", why=f"{reason}.")
    require_count(p.task, p.task.outputs, p.stage.shape)
    if config.multiplier == "simt":
        return schedule_simt(p, config, asynchronous=is_asynchronous(p, config, target), target=target)
    return _Matmul(p, config, target).kernel()


@dataclass(slots=True)
class _Matmul:
    p: Gemm
    config: MatmulConfig
    target: GpuTarget
    frame: TileContext = field(init=False)

    def kernel(self) -> Kernel:
        p, c = self.p, self.config
        self.frame = TileContext(p, (c.block_m, c.block_n), c.group, c.threads, c.split)
        values = self.frame.begin()
        b = self.frame.launch.b
        multiplier = MmaMultiplier.open(b, c, p.accumulate, values)
        left = self.staging("left", p.left, self.frame.row, c.block_m)
        right = self.staging("right", p.right, self.frame.column, c.block_n)
        if is_asynchronous(p, c, self.target):
            self.in_stages(values, multiplier, left, right)
        else:
            self.through_registers(values, multiplier, left, right)
        note = f"cuda.matmul({c})"
        if c.split == 1:
            self.frame.epilogue(values.nested(), multiplier)
            return self.frame.launch.kernel(note)
        split = Split(self.frame, multiplier, b.barrier, THREAD < 1)
        with split.last(values) as inside:
            self.frame.epilogue(inside, multiplier)
        return split.kernel(self.frame.launch.kernel(note))

    def staging(self, name: str, f: Operand, first: Expr, extent: int) -> SharedTileLoader:
        c, b = self.config, self.frame.launch.b
        turned = _tile_along_k(f, c)
        tile = swizzled_tile(b, name, f.expr.dtype, c.stages, extent, c.block_k, along_k=turned, is_left=name == "left")
        how = f.shared_out(extent, c.block_k, c.threads)
        assert isinstance(how, TilePartition)
        return SharedTileLoader(b, f, self.frame.fixed, first, extent, c.block_k, self.p.k, how, c.threads, tile)

    def steps(self, values: Inliner) -> tuple[Expr, Expr]:
        """The first k-tile of this block, and their number."""
        b, c = self.frame.launch.b, self.config
        start, count = steps_of(ceil_div(self.p.k, c.block_k), c.split, self.frame.part, values)
        return b.let("start", start), b.let("steps", count)

    def through_registers(
        self, values: Inliner, multiplier: MmaMultiplier, left: SharedTileLoader, right: SharedTileLoader
    ) -> None:
        """Two stages: one is multiplied while the next one loads."""
        b, c = self.frame.launch.b, self.config
        start, steps = self.steps(values)
        for s, name in ((left, "left"), (right, "right")):
            s.allocate(f"{name}_next")
            s.load(values.nested(), values.simplifier(start * c.block_k))
            s.store_tile(values.nested(), index(0))
        b.barrier()
        with b.loop("step", steps, unroll=1) as step:
            inside = values.nested()
            inside.bind(step, steps)
            more = inside.simplifier(step + 1 < steps)
            with b.when(more):
                for s in (left, right):
                    s.load(inside.nested(), inside.simplifier((start + step + 1) * c.block_k))
            multiplier.multiply(inside.nested(), left.tile, right.tile, inside.simplifier(step % 2))
            with b.when(more):
                for s in (left, right):
                    s.store_tile(inside.nested(), inside.simplifier((step + 1) % 2))
            b.barrier()

    def in_stages(
        self, values: Inliner, multiplier: MmaMultiplier, left: SharedTileLoader, right: SharedTileLoader
    ) -> None:
        """A ring of stages: all but the one in use are in flight. Every step commits a copy group, if necessary an
        empty one, so that a group's age identifies its stage."""
        b, c = self.frame.launch.b, self.config
        start, steps = self.steps(values)
        commit, wait = instruction_named("cp_async_commit"), instruction_named("cp_async_wait")

        def issue(number: Expr, local: Inliner) -> None:
            with b.when(local.simplifier(number < steps)):
                for s in (left, right):
                    stage = local.simplifier(number % c.stages)
                    s.copy_async(local.nested(), stage, local.simplifier((start + number) * c.block_k))
            b.invoke(commit)

        for number in range(c.stages - 1):
            issue(index(number), values)
        with b.loop("step", steps, unroll=1) as step:
            inside = values.nested()
            inside.bind(step, steps)
            b.invoke(wait, as_expr(c.stages - 2))
            b.barrier()
            issue(inside.simplifier(step + (c.stages - 1)), inside)
            multiplier.multiply(inside.nested(), left.tile, right.tile, inside.simplifier(step % c.stages))
