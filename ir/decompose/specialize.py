"""Warpgroups with different roles: one fetches the parts of a sum, the others multiply them (CUTLASS; Hopper).

    the last warpgroup      for each part:  wait until its stage is empty;  a, b -> the stage;  it is full
    the others              for each part:  wait until its stage is full;   c += a @ b (wgmma);  the last one is empty

TMA copies operands whose rows are aligned; one thread issues it. The threads of the warpgroup copy the others, and a
fence makes their writes visible to wgmma. Stages are stored as both write them: lines of 128 bytes, chunks swizzled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from taskmap.ir import nodes as ir
from taskmap.ir.algebra.layout import row_major
from taskmap.ir.builder import Builder, region
from taskmap.ir.construct import as_expr, cast, const, eq, index, load, static_size
from taskmap.ir.decompose.blocks.grid import Grid
from taskmap.ir.decompose.blocks.multicast import ClusterPartition, blocks_of_cluster, partition_of
from taskmap.ir.decompose.copies import CopyEmitter
from taskmap.ir.decompose.levels import Level
from taskmap.ir.decompose.pipeline import Steps
from taskmap.ir.decompose.refusal import refusal
from taskmap.ir.decompose.steps import AccumulateStep, MoveStep, SplitStep, TileStep, Tree
from taskmap.ir.decompose.views import OperandView
from taskmap.ir.isa.table import instruction_named
from taskmap.ir.lower.flatten import strides_of
from taskmap.ir.types import i32, i64
from taskmap.ir.workers import THREAD

Views = dict[str, OperandView]
FETCHING = 128
"""The threads that fetch."""
_LINE, _ATOM, _CHUNK, _WARP = 128, 1024, 16, 32
_REGISTERS, _FETCHERS = 1 << 16, 40


@dataclass(frozen=True, slots=True)
class Ring:
    """Stages that a warpgroup fills. full, empty: their mbarriers. by_tma: the maps of the operands that TMA copies.
    readers: the blocks of the cluster that use what this block fetches. sent: the blocks that fetch an operand
    together, by its name."""

    stages: int
    full: ir.Buffer
    empty: ir.Buffer
    placed: Mapping[str, OperandView]
    by_tma: Mapping[str, ir.TensorMap]
    readers: int
    sent: Mapping[str, ClusterPartition]

    @property
    def maps(self) -> tuple[ir.TensorMap, ...]:
        """The tensor maps that the kernel takes."""
        return tuple(self.by_tma.values())


class RingSteps(Steps, Protocol):
    """Writes the other steps of the tree, with a ring."""

    ring: Ring | None
    grid: Grid


def specialized(e: RingSteps, n: int, views: Views, each_tile: Callable[[Callable[[Views], None]], None]) -> None:
    """The work on the tiles of step ``n``, by warpgroups with two roles. each_tile: calls a function with the operands
    of every tile of the block."""
    b, (split, ahead) = e.b, _fetched(e.tree, n + 1)
    ring = e.ring = _open(e, split, ahead, views)
    by_tma, by_threads = len(ring.by_tma) > 0, len(ring.by_tma) < len(ahead)
    groups = e.threads // FETCHING
    with b.when(THREAD < 1):
        for stage in range(ring.stages):
            _barrier(b, ring.full, index(stage), "init", by_tma + by_threads * FETCHING // _WARP)
            _barrier(b, ring.empty, index(stage), "init", e.threads // _WARP * ring.readers)
        b.invoke(instruction_named("fence_mbarrier_init"))
    _meet(e)
    moved = groups > 1 and not by_threads
    each = _REGISTERS // (e.threads + FETCHING) // 8 * 8
    with b.when(groups > THREAD // FETCHING):
        if moved:
            most = (each * (groups + 1) - _FETCHERS) // groups // 8 * 8
            b.invoke(instruction_named("setmaxnreg_inc"), as_expr(min(most, 240)))
        each_tile(lambda inner: e.step(n + 1, inner))
    with b.otherwise():
        if moved:
            b.invoke(instruction_named("setmaxnreg_dec"), as_expr(_FETCHERS))
        with b.when(True if by_threads else eq(THREAD, e.threads)):
            each_tile(lambda inner: _fetch(e, split, ahead, inner))
    if ring.readers > 1:  # a block's memory must last while others write it
        _meet(e)


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
    stored = [s for step in tree.steps if isinstance(step, AccumulateStep) for s in step.store.steps]
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


def _open(e: RingSteps, split: SplitStep, ahead: Sequence[MoveStep], views: Views) -> Ring:
    """Shared memory for the stages, with its barriers."""
    b, stages = e.b, ahead[0].stages
    placed, maps, sent = {}, {}, {}
    block = blocks_of_cluster(e.tree)
    for s in ahead:
        operand = s.after.operand(s.name)
        assert operand is not None
        sizes = s.after.static_shape(operand)
        assert sizes is not None
        there = [not a.startswith("batch") for a in operand.axes]
        rows, columns = sizes[-2:]
        line = _LINE // operand.dtype.bytes
        if s.pad or s.by_columns or s.swizzle:
            why = f"the stages of {s.name} have the layout that wgmma reads."
            raise refusal("kernel()", e.tree, why, "Leave out pad, storage and swizzle.", where=s.source)
        if operand.dtype.bytes != 2 or columns % line or rows % 8:
            raise refusal(
                "kernel()", e.tree, f"{s.name} is {rows}×{columns} × {operand.dtype}: its stages are not lines of 128 "
                "bytes.", f"Choose tiles with columns of {line}, of 16-bit elements.", where=s.source,
            )  # fmt: skip
        layout = (row_major(stages, 1, columns // line) * row_major(1, rows, line)).swizzled(3, 3, 3)
        shape = [stages, rows, columns]
        buffer = b.allocate(f"{s.name}_shared", operand.dtype, shape, ir.Scope.SHARED, layout=layout)
        e.stages.guarded.add(buffer)
        placed[s.name] = OperandView.whole(buffer, operand.axes, there, [index(0)])
        plain = s.by is None and len(s.how.steps) == 1  # a decomposition is for threads
        if plain and not views[s.name].computed and _has_boxes(e.tree, views[s.name].buffer, rows):
            if s.multicast and block is not None:
                sent[s.name] = partition_of(block, operand.axes)
                rows //= sent[s.name].count
            box = (*[1] * (views[s.name].buffer.rank - 2), rows, line)
            maps[s.name] = ir.TensorMap(f"map_{s.name}", views[s.name].buffer, box, _LINE)
    full, empty = (b.allocate(name, i64, (stages,), ir.Scope.SHARED) for name in ("full", "empty"))
    e.stages.guarded |= {full, empty}
    return Ring(stages, full, empty, placed, maps, e.grid.cluster if sent else 1, sent)


def _has_boxes(tree: Tree, buffer: ir.Buffer, rows: int) -> bool:
    """True if TMA can copy parts of a tensor: rows aligned to 16 bytes, boxes of at most 256."""
    *others, last = (static_size(s) for s in strides_of(buffer))
    aligned = all(s and s * buffer.dtype.bytes % _CHUNK == 0 for s in others) and static_size(buffer.offset) == 0
    blocks = (s for s in tree.steps if isinstance(s, TileStep) and s.before.level is Level.KERNEL)
    plain = not any(c.stride for s in blocks for c in s.cuts)
    return plain and last == 1 and aligned and rows <= 256 and len(others) + 1 <= 5


def _barrier(b: Builder, of: ir.Buffer, stage: ir.Expr, action: str, *values: ir.ExprLike) -> None:
    given = (cast(as_expr(v, i32), i32) for v in values)
    b.invoke(instruction_named(f"mbarrier_{action}"), region(of, (stage,), (1,)), *given)


def _fetch(e: RingSteps, split: SplitStep, ahead: Sequence[MoveStep], views: Views) -> None:
    """The role of the last warpgroup."""
    b, ring = e.b, e.ring
    assert ring is not None
    sent = sum(_bytes(ring.placed[name].buffer) for name in ring.by_tma) // ring.stages
    by_threads = [s for s in ahead if s.name not in ring.by_tma]
    count = e.count(split)
    with b.loop("part", count, unroll=1) as number:
        stage, turn = _turn(e, number, count)
        parts = e.part(split, views, number)
        _barrier(b, ring.empty, stage, "wait", (turn + 1) % 2)
        if ring.by_tma:
            with b.when(eq(THREAD, e.threads) if by_threads else True):
                _barrier(b, ring.full, stage, "arrive_expect_tx", sent)
                for name in ring.by_tma:
                    _boxes(b, ring, name, parts[name], stage)
        for s in by_threads:
            to = replace(ring.placed[s.name], lead=(stage,))
            CopyEmitter(b, FETCHING, THREAD % FETCHING).copy(replace(s, asynchronous=False), parts[s.name], to)
        if by_threads:
            b.invoke(instruction_named("fence_proxy_async"))
            b.invoke(instruction_named("warp_sync"))
            with b.when(eq(THREAD % _WARP, 0)):
                _barrier(b, ring.full, stage, "arrive")


def _bytes(buffer: ir.Buffer) -> int:
    total = buffer.dtype.bytes
    for n in buffer.shape:
        total *= static_size(n) or 1
    return total


def _boxes(b: Builder, ring: Ring, name: str, part: OperandView, stage: ir.Expr) -> None:
    """The TMA copies of one operand: a box for each line of its columns."""
    boxed, to = ring.by_tma[name], ring.placed[name].buffer
    *_, rows, line = boxed.box
    columns = static_size(to.shape[-1]) or 0
    starts = [v.at(index(0)) for v in part.axes if v is not None]
    shared = ring.sent.get(name)
    first = shared.number * rows if shared else index(0)
    for box in range(columns // line):
        at = [*starts[:-2], starts[-2] + first, starts[-1] + box * line]
        given = [cast(as_expr(i), i32) for i in reversed(at)]
        target = ir.Region(to, (stage, first, index(box * line)), (1, rows, line))
        full = region(ring.full, (stage,), (1,))
        if shared is None:
            b.invoke(instruction_named(f"tma_load_{len(at)}d"), target, boxed, full, *given)
        else:
            b.invoke(instruction_named(f"tma_load_multicast_{len(at)}d"), target, boxed, full, shared.blocks, *given)


def multiplied(e: RingSteps, n: int, ahead: Sequence[MoveStep], views: Views) -> None:
    """The role of the other warpgroups: the loop of split ``n``, whose parts are fetched."""
    b, ring, split = e.b, e.ring, e.tree.steps[n]
    assert ring is not None
    assert isinstance(split, SplitStep)
    count = b.let("parts", e.count(split))
    with b.loop("part", count, unroll=1) as number:
        stage, turn = _turn(e, number, count)
        _barrier(b, ring.full, stage, "wait", turn % 2)
        parts = e.part(split, views, number)
        here = {name: replace(view, lead=(stage,)) for name, view in ring.placed.items()}
        b.invoke(instruction_named("wgmma_fence"))
        e.step(n + 1 + len(ahead), {**parts, **here})
        b.invoke(instruction_named("wgmma_commit"))
        b.invoke(instruction_named("wgmma_wait"), as_expr(1))
        _release(e, _turn(e, number + (ring.stages - 1), count)[0], number > 0)
    b.invoke(instruction_named("wgmma_wait"), as_expr(0))
    group = next(s for s in e.tree.steps[n:] if isinstance(s, TileStep) and s.level is Level.WARPGROUP)
    e.tile(group, views, lambda inner: _hold(b, group, inner[group.after.accumulated]))
    with b.when(count > 0):  # a wait in the past ends the block of instructions: sums are read after it
        stage, turn = _turn(e, count - 1, count)
        _barrier(b, ring.full, stage, "wait", turn % 2)
        if e.grid.is_persistent:  # another tile may follow, whose parts need the stage
            b.invoke(instruction_named("warp_sync"))
            _release(e, stage, as_expr(True))


def _release(e: RingSteps, stage: ir.Expr, if_read: ir.Expr) -> None:
    """A warp has read a stage: all blocks that fill it may do so again."""
    b, ring, lane = e.b, e.ring, THREAD % _WARP
    assert ring is not None
    with b.when(if_read & (eq(lane, 0) if ring.readers == 1 else lane < ring.readers)):
        if ring.readers == 1:
            _barrier(b, ring.empty, stage, "arrive")
        else:
            _barrier(b, ring.empty, stage, "arrive_remote", lane)


def _turn(e: RingSteps, number: ir.Expr, count: ir.Dim) -> tuple[ir.Expr, ir.Expr]:
    """The stage of a part of the running tile, and how often it was filled before."""
    assert e.ring is not None
    number = e.grid.turn * count + number
    return number % e.ring.stages, number // e.ring.stages


def _hold(b: Builder, group: TileStep, total: OperandView) -> None:
    """The compiler reads no sum before this."""
    operand = group.after.operand(group.after.accumulated)
    assert operand is not None
    sizes = group.after.static_shape(operand)
    assert sizes is not None
    *_, rows, columns = sizes
    b.invoke(instruction_named("wgmma_hold"), as_expr(rows * columns // FETCHING), total.region(sizes))


def warpgroup_operands(c: ir.Region, a: OperandView, b: OperandView) -> tuple[ir.Region | ir.Expr, ...]:
    """The operands of wgmma, with a contiguous along k, and b along n."""
    leading = (static_size(b.buffer.shape[1]) or 0) * _LINE
    first, second = (_descriptor(v, lead) for v, lead in ((a, _CHUNK), (b, leading)))
    return as_expr(0), as_expr(1), c, first, second, const(1, i32)


def _descriptor(view: OperandView, leading: int) -> ir.Expr:
    at = view.element([index(0)] * len(view.axes))
    args = (as_expr(_LINE), load(view.buffer, at), const(leading, i32), const(_ATOM, i32))
    return ir.Intrinsic(instruction_named("wgmma_descriptor"), args, i64, 1)
