"""The matmul template for Hopper: a producer fills a ring of stages, consumer warpgroups multiply from it.

    producer warpgroup:             for each k-tile:  wait until a stage is empty;  both tiles -> the stage
    warpgroups of 4 warps:          for each k-tile:  wait until the stage is full; total += left @ right (wgmma)
                                                      release the previous stage
                                    epilogue on the tile, in registers; to memory from there, or by TMA

The kernel is that of a tree (``strategy``); here are the limits of its configurations. An operand comes by TMA, by
cp.async or through registers (``load_plan``).
"""

from __future__ import annotations

from taskmap.ir.decompose.roles.kept_store import PAD
from taskmap.ir.errors import ScheduleError
from taskmap.ir.isa.table import instruction_named
from taskmap.ir.nodes import Kernel
from taskmap.ir.target import GpuTarget
from taskmap.ir.types import f32, tf32
from taskmap.schedules.common.access import require_count
from taskmap.schedules.cuda.hopper import load_plan
from taskmap.schedules.cuda.hopper.load_plan import LoadPath, LoadPlan, plan_load
from taskmap.schedules.cuda.hopper.matmul_config import ROWS, HopperConfig
from taskmap.schedules.cuda.hopper.strategy import schedule_strategy
from taskmap.schedules.cuda.hopper.tma_descriptor import TmaDescriptor, output_boxes
from taskmap.schedules.cuda.matmul.problem_view import Gemm
from taskmap.schedules.cuda.matmul.split_k import tiles_of, why_not_split

__all__ = ["HopperConfig", "filling_clocks", "plan_loads", "schedule_hopper", "validity"]

_MOST_SUMS = 128


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
    needed = c.shared_bytes + (_kept_bytes(p, c) if c.boxed else 0)
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
    """The reason why the result cannot go through shared memory, or None if it can."""
    found = output_boxes(p, c.block_n, aligned=False) if c.boxed else None
    return f"the result cannot be stored as whole lines: {found}" if isinstance(found, str) else None


def _kept_bytes(p: Gemm, c: HopperConfig) -> int:
    """Shared memory of a result; its rows lie apart where threads store them."""
    row = c.block_n * p.task.outputs[0].dtype.bytes
    return c.block_m * (row if isinstance(output_boxes(p, c.block_n), TmaDescriptor) else row + PAD)


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
    return sum(load_plan.filling_clocks(f, w) for f, w in zip((p.left, p.right), ways, strict=True))


def schedule_hopper(p: Gemm, config: HopperConfig, target: GpuTarget) -> Kernel:
    """Instantiates the template. Raises ScheduleError with the reason if the configuration does not fit."""
    reason = validity(p, config, target)
    if reason is not None:
        raise ScheduleError(f"{p.task.name!r} cannot be computed as {config}", why=f"{reason}.")
    require_count(p.task, p.task.outputs, p.stage.shape)
    plans = plan_loads(p, config)
    assert not isinstance(plans, str)
    return schedule_strategy(p, config, target, plans)
