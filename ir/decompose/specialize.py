"""Warpgroups with different roles: one fetches the parts of a sum, the others multiply them (CUTLASS; Hopper).

    the last warpgroup      for each part:  wait until its stage is empty;  a, b -> the stage;  it is full
    the others              for each part:  wait until its stage is full;   c += a @ b (wgmma);  the last one is empty
                            their results: from registers, or through shared memory by TMA

Registers move to the warpgroups that multiply, whose sums need them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from taskmap.ir import nodes as ir
from taskmap.ir.builder import Builder
from taskmap.ir.construct import as_expr, cast, const, eq, index, static_size
from taskmap.ir.decompose.levels import Level
from taskmap.ir.decompose.refusal import refusal
from taskmap.ir.decompose.roles.fetch import fetch
from taskmap.ir.decompose.roles.kept_store import close_store, is_kept, open_store
from taskmap.ir.decompose.roles.ring import FETCHING, WARP, KeptStore, RingSteps, Views, open_ring
from taskmap.ir.decompose.steps import AccumulateStep, MoveStep, SplitStep, TileStep, Tree
from taskmap.ir.decompose.views import OperandView
from taskmap.ir.isa.table import instruction_named
from taskmap.ir.types import i32, i64
from taskmap.ir.workers import THREAD

_REGISTERS, _MOST, _LEAST, _TURN = 1 << 16, 240, 24, 8
"""The registers of a block; the most, the fewest and the granularity of setmaxnreg."""
_FETCHERS, _BESIDES = 40, 64
"""The registers of a thread that issues TMA copies; those of a thread that multiplies, beside its sums."""


def specialized(e: RingSteps, n: int, views: Views, each_tile: Callable[[Callable[[Views], None]], None]) -> None:
    """The work on the tiles of step ``n``, by warpgroups with two roles. each_tile: calls a function with the operands
    of every tile of the block."""
    b, (split, ahead) = e.b, _fetched(e.tree, n + 1)
    groups = e.threads // FETCHING
    first = e.tree.steps[n + 1]

    def results() -> KeptStore | None:
        return open_store(e, first, views[first.before.accumulated]) if isinstance(first, AccumulateStep) else None

    ring = e.ring = open_ring(e, ahead, views, results, sets=_sets(e, n + 1, split))
    by_tma, by_threads = len(ring.by_tma) > 0, len(ring.by_tma) < len(ahead)
    with b.when(THREAD < 1):
        for stage in range(ring.stages):
            ring.barrier(b, ring.full, index(stage), "init", by_tma + by_threads * FETCHING // WARP)
            ring.barrier(b, ring.empty, index(stage), "init", e.threads // WARP * ring.readers)
        b.invoke(instruction_named("fence_mbarrier_init"))
    _meet(e)
    # The number of a warpgroup, from its warps' first lanes: the assembler sees that it is uniform.
    own = (index(WARP), cast(THREAD // FETCHING, i32), const(0, i32))
    group = b.let("warpgroup", cast(ir.Intrinsic(instruction_named("shuffle_idx"), own, i32, 1), i64))
    e.stages.varied.add(group)
    e.ring = replace(ring, group=group if groups > 1 else index(0))
    moved = _registers(e, n + 1, by_threads=by_threads)
    with b.when(group < groups):
        if moved:
            b.invoke(instruction_named("setmaxnreg_inc"), as_expr(moved[1]))
        each_tile(lambda inner: e.step(n + 1, inner))
        if ring.out:
            close_store(e, ring.out)
    with b.otherwise():
        if moved:
            b.invoke(instruction_named("setmaxnreg_dec"), as_expr(moved[0]))
        with b.when(True if by_threads else eq(THREAD, e.threads)):  # one thread suffices to issue TMA copies
            each_tile(lambda inner: fetch(e, split, ahead, inner, spare=moved is None))
    if ring.readers > 1:  # a block's memory must last while others write it
        _meet(e)


def _sets(e: RingSteps, n: int, split: SplitStep) -> bool:
    """True if the sum begins as 0 and has a single part."""
    step = e.tree.steps[n]
    value = getattr(step.init.root, "value", 0.0) if isinstance(step, AccumulateStep) else 1.0
    return value == 0 and static_size(e.count(split)) == 1


def _registers(e: RingSteps, n: int, *, by_threads: bool) -> tuple[int, int] | None:
    """The registers of a thread that fetches, and of one that multiplies; None: all have the same number."""
    groups = e.threads // FETCHING
    if groups == 1:
        return None
    each = _REGISTERS // (e.threads + FETCHING) // _TURN * _TURN
    if not by_threads:
        return _FETCHERS, min((each * (groups + 1) - _FETCHERS) // groups // _TURN * _TURN, _MOST)
    step = e.tree.steps[n].after
    total = step.operand(step.accumulated)
    sizes = step.static_shape(total) if total is not None else None
    sums = 1
    for size in sizes or ():
        sums *= size
    wanted = -(-(sums // e.threads + _BESIDES) // _TURN) * _TURN
    left = each - (wanted - each) * groups
    return None if wanted <= each or left < _LEAST else (left, wanted)


def _meet(e: RingSteps) -> None:
    """All threads of the block, or of the cluster if its blocks fetch for each other, wait for each other."""
    if e.ring is None or e.ring.readers == 1:
        e.b.barrier()
        return
    e.b.invoke(instruction_named("cluster_arrive"))
    e.b.invoke(instruction_named("cluster_wait"))


def _fetched(tree: Tree, n: int) -> tuple[SplitStep, list[MoveStep]]:
    """The split whose parts are fetched, and its moves. Raises ScheduleError for a tree of another form."""
    at = n + 1 if isinstance(tree.steps[n], AccumulateStep) else n
    split = tree.steps[at]
    ahead: list[MoveStep] = []
    for step in tree.steps[at + 1 :]:
        if not isinstance(step, MoveStep) or step.stages == 1:
            break
        ahead.append(step)
    rest = tree.steps[at + 1 + len(ahead) :]
    stores = [step.store for step in tree.steps if isinstance(step, AccumulateStep) and not is_kept(step.store)]
    stored = [s for store in stores for s in store.steps]
    if not isinstance(split, SplitStep) or not ahead:
        why = "no move is prefetched directly after the first split of the sum."
        way_out = "Write split(...).move(..., SHARED).prefetch(stages), then the moves of the others."
    elif any(isinstance(s, MoveStep) and s.scope is ir.Scope.SHARED for s in (*rest, *stored)):
        why = "the warpgroups that multiply share no other memory: a barrier of the block would wait for the other one."
        way_out = "Prefetch all moves to SHARED, and store from registers."
    elif any(isinstance(s, TileStep) and s.part for s in rest):
        why = "the workers of a block share sums by way of shared memory, behind barriers of the whole block."
        way_out = "Write split_sum after to(BLOCK), or leave out specialize."
    elif not any(isinstance(s, TileStep) and s.level is Level.WARPGROUP for s in rest):
        why, way_out = "no warpgroup multiplies.", "Tile to WARPGROUP after the moves."
    else:
        return split, ahead
    raise refusal("specialize(WARPGROUP, 'fetch')", tree, why, way_out, where=tree.steps[n - 1].source)


def multiplied(e: RingSteps, n: int, ahead: Sequence[MoveStep], views: Views) -> None:
    """The role of the other warpgroups: the loop of split ``n``, whose parts are fetched."""
    b, ring, split = e.b, e.ring, e.tree.steps[n]
    assert ring is not None
    assert isinstance(split, SplitStep)
    count = b.let("parts", e.count(split))
    with b.loop("part", count, unroll=1) as number:
        stage, turn = e.turn(number, count)
        ring.barrier(b, ring.full, stage, "wait", turn % 2)
        parts = e.part(split, views, number)
        here = {name: replace(view, lead=(stage,)) for name, view in ring.placed.items()}
        b.invoke(instruction_named("wgmma_fence"))
        e.step(n + 1 + len(ahead), {**parts, **here})
        b.invoke(instruction_named("wgmma_commit"))
        b.invoke(instruction_named("wgmma_wait"), as_expr(1))
        _release(e, e.turn(number + (ring.stages - 1), count)[0], number > 0)
    b.invoke(instruction_named("wgmma_wait"), as_expr(0))
    group = next(s for s in e.tree.steps[n:] if isinstance(s, TileStep) and s.level is Level.WARPGROUP)
    e.tile(group, views, lambda inner: _hold(b, group, inner[group.after.accumulated]))
    with b.when(count > 0):  # a wait in the past ends the block of instructions: sums are read after it
        stage, turn = e.turn(count - 1, count)
        ring.barrier(b, ring.full, stage, "wait", turn % 2)
        if e.grid.is_persistent:  # another tile may follow, whose parts need the stage
            b.invoke(instruction_named("warp_sync"))
            _release(e, stage, as_expr(True))


def _release(e: RingSteps, stage: ir.Expr, if_read: ir.Expr) -> None:
    """A warp has read a stage: all blocks that fill it may do so again."""
    b, ring, lane = e.b, e.ring, THREAD % WARP
    assert ring is not None
    with b.when(if_read & (eq(lane, 0) if ring.readers == 1 else lane < ring.readers)):
        if ring.readers == 1:
            ring.barrier(b, ring.empty, stage, "arrive")
        else:
            ring.barrier(b, ring.empty, stage, "arrive_remote", lane)


def _hold(b: Builder, group: TileStep, total: OperandView) -> None:
    """The compiler reads no sum before this."""
    operand = group.after.operand(group.after.accumulated)
    assert operand is not None
    sizes = group.after.static_shape(operand)
    assert sizes is not None
    *_, rows, columns = sizes
    b.invoke(instruction_named("wgmma_hold"), as_expr(rows * columns // FETCHING), total.region(sizes))
