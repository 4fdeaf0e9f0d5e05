"""The matmul template for GPUs: any contraction whose operands can be read element by element.

    a block takes a tile of the product                    neighbouring blocks share reads in the L2 cache
    for each k-tile:    the next k-tile -> registers       the prologue is computed on the way
                        c += a @ b                         by tensor cores, or by threads
                        registers -> shared memory         into the other stage
    epilogue on the tile, in registers

Operands that lie in memory unchanged are copied asynchronously, through as many stages as the configuration says, and
not through registers. The kernel is that of a tree (``strategy``); here are the limits of its configurations.
"""

from __future__ import annotations

from taskmap.ir.errors import ScheduleError
from taskmap.ir.isa.table import instruction_named
from taskmap.ir.nodes import Kernel
from taskmap.ir.target import GpuTarget
from taskmap.ir.types import f32, tf32
from taskmap.schedules.common.access import require_count
from taskmap.schedules.cuda.matmul.config import MatmulConfig, sizes_fit, spec_of
from taskmap.schedules.cuda.matmul.problem_view import Gemm
from taskmap.schedules.cuda.matmul.shared_tile import padded_bytes, swizzled_bytes
from taskmap.schedules.cuda.matmul.split_k import why_not_split
from taskmap.schedules.cuda.matmul.strategy import schedule_strategy

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
    return copied and all(f.along_k == f.tile_along_k(c.multiplier) for f in (p.left, p.right))


def _multiplier_fits(p: Gemm, c: MatmulConfig, target: GpuTarget) -> str | None:
    """The reason why the multiplier does not support these operands, or None if it does."""
    if c.multiplier == "simt":
        return None
    found = instruction_named(c.multiplier)
    spec = spec_of(c.multiplier)
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
        size(f.expr.dtype, c.stages, extent, c.block_k, along_k=f.tile_along_k(c.multiplier))
        for f, extent in ((p.left, c.block_m), (p.right, c.block_n))
    )


def schedule_product(p: Gemm, config: MatmulConfig, target: GpuTarget) -> Kernel:
    """Instantiates the template. Raises ScheduleError with the reason if the configuration does not fit."""
    reason = validity(p, config, target)
    if reason is not None:
        raise ScheduleError(f"{p.task.name!r} cannot be computed as {config}", why=f"{reason}.")
    require_count(p.task, p.task.outputs, p.stage.shape)
    return schedule_strategy(p, config, target, asynchronous=is_asynchronous(p, config, target))
