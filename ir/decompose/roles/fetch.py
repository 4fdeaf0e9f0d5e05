"""The role of the warpgroup that fetches: it fills the stages of a ring.

    for each part:   what goes through registers is loaded, as far as they hold it
                     wait until its stage is empty
                     one thread: TMA                 threads: cp.async, or from registers
                     the stage is full               of asynchronous copies: some parts later, when they have landed

TMA copies operands that lie in aligned lines, and counts their bytes. Other copies are made by all threads, tile after
tile if the move says so (``move("a", SHARED, lambda copy: copy.tile(16, 64).done())``): a thread then needs registers
for one of them only. A fence makes their writes visible to wgmma.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from taskmap.ir import nodes as ir
from taskmap.ir.algebra.mapping import TaskMapping
from taskmap.ir.construct import as_expr, eq, index, static_size
from taskmap.ir.decompose.blocks.grid import position
from taskmap.ir.decompose.blocks.tiles import count
from taskmap.ir.decompose.copies import CopyEmitter, clipping, is_asynchronous
from taskmap.ir.decompose.ownership import elements_of, in_elements, with_leading_dims, without_dims
from taskmap.ir.decompose.roles.ring import FETCHING, WARP, RingSteps, Views
from taskmap.ir.decompose.steps import DoneStep, MoveStep, SplitStep, TileStep, Tree
from taskmap.ir.decompose.views import OperandView, tiled
from taskmap.ir.isa.table import instruction_named
from taskmap.ir.workers import THREAD


@dataclass(frozen=True, slots=True)
class _ThreadCopy:
    """A copy by threads. turns: its tiles, made one after another; None: it is made at once. rest: the copy of one.
    mapping: of its chunks, or elements. held: registers that it goes through; None: it is asynchronous, or goes by way
    of other memory."""

    step: MoveStep
    turns: TileStep | None
    rest: Tree
    mapping: TaskMapping | None
    asynchronous: bool
    held: OperandView | None

    @property
    def sizes(self) -> tuple[int, ...]:
        found = self.rest.root.static_shape(self.rest.root.operands[0])
        assert found is not None
        return found


def fetch(e: RingSteps, split: SplitStep, ahead: Sequence[MoveStep], views: Views, *, spare: bool) -> None:
    """The loop over the parts of a sum. spare: a thread has registers for several operands."""
    b, ring = e.b, e.ring
    assert ring is not None
    first = e.part(split, views, index(0))
    copies = [_thread_copy(e, s, first[s.name]) for s in ahead if s.name not in ring.by_tma]
    through = [c for c in copies if c.held is not None]
    early = [c for c in through if c.turns is None] if spare or len(through) == 1 else []
    waits = any(c.asynchronous for c in copies)
    lag = ring.stages - 2 if waits else 0  # a stage is released one part after its use
    count = e.count(split)

    def filled(stage: ir.Expr) -> None:
        """The writes of a warp to a stage are done."""
        b.invoke(instruction_named("fence_proxy_async"))
        b.invoke(instruction_named("warp_sync"))
        with b.when(eq(THREAD % WARP, 0)):
            ring.barrier(b, ring.full, stage, "arrive")

    with b.loop("part", count, unroll=1) as number:
        stage, turn = e.turn(number, count)
        parts = e.part(split, views, number)
        for c in early:
            _load(e, c, parts[c.step.name])
        ring.barrier(b, ring.empty, stage, "wait", (turn + 1) % 2)
        if ring.by_tma:
            with b.when(eq(THREAD, e.threads) if copies else True):
                _by_tma(e, parts, stage)
        for c in (c for c in copies if c.held is None):
            _copy(e, c, parts[c.step.name], stage)
        if waits:
            b.invoke(instruction_named("cp_async_commit"))
        for c in through:
            _through_registers(e, c, parts[c.step.name], stage, loaded=c in early)
        if copies:
            with b.when(number >= lag):
                if waits:
                    b.invoke(instruction_named("cp_async_wait"), as_expr(lag))
                filled(e.turn(number + (ring.stages - lag), count)[0])
    if not lag:
        return
    b.invoke(instruction_named("cp_async_wait"), as_expr(0))
    with b.loop("late", lag) as late:
        number = index(count) - lag + late
        with b.when(number >= 0):
            filled(e.turn(number + ring.stages, count)[0])


def _thread_copy(e: RingSteps, s: MoveStep, part: OperandView) -> _ThreadCopy:
    """The way of a copy by threads, of which ``part`` is the first."""
    ring, rest, turns = e.ring, s.how, None
    assert ring is not None
    if any(isinstance(x, MoveStep) for x in s.how.steps):
        return _ThreadCopy(s, None, s.how, None, asynchronous=False, held=None)
    step = s.how.steps[0]
    if isinstance(step, TileStep) and step.level is None:
        rest, turns = Tree(step.after, s.how.steps[1:]), step
        part = tiled(step, {"src": part}, {c.axis: index(0) for c in step.cuts})["src"]
    leaf = rest.steps[-1]
    given = s.by or (leaf.mapping if isinstance(leaf, DoneStep) else None)
    mapping = given or elements_of(rest, part.buffer.dtype.bytes, FETCHING)
    mapping = with_leading_dims(mapping, len(part.axes) - len(mapping.task_shape))
    made = _ThreadCopy(s, turns, rest, mapping, asynchronous=False, held=None)
    to = ring.placed[s.name]
    if s.asynchronous and is_asynchronous(part, to, made.sizes, mapping):
        return replace(made, asynchronous=True)
    owner = in_elements(mapping, made.sizes)
    owner = without_dims(owner, [d for d, view in enumerate(to.axes) if view is None])
    buffer = e.b.allocate(f"{s.name}_next", part.buffer.dtype, owner.task_shape, ir.Scope.REGISTER, owner=owner)
    return replace(made, held=OperandView.whole(buffer, to.names, [view is not None for view in to.axes]))


def _turns(e: RingSteps, c: _ThreadCopy, src: OperandView, dst: OperandView,
           body: Callable[[OperandView, OperandView], None]) -> None:  # fmt: skip
    """``body`` for each tile of a copy that is made one after another."""
    if c.turns is None:
        body(src, dst)
        return
    counts = {cut.axis: count(c.turns, cut) for cut in c.turns.cuts}
    total = math.prod(static_size(n) or 1 for n in counts.values())
    with e.b.loop("copied", total, unroll=1) as number:
        found = tiled(c.turns, {"src": src, "dst": dst}, position(number, counts, c.turns.order))
        body(found["src"], found["dst"])


def _copy(e: RingSteps, c: _ThreadCopy, part: OperandView, stage: ir.Expr) -> None:
    assert e.ring is not None
    made = CopyEmitter(e.b, FETCHING, THREAD % FETCHING)

    def one(src: OperandView, dst: OperandView) -> None:
        if c.mapping is None:
            made.through(c.rest, src, dst)
        else:
            made.divided(c.rest, src, dst, c.mapping, asynchronous=c.asynchronous, where=c.step)

    _turns(e, c, part, replace(e.ring.placed[c.step.name], lead=(stage,)), one)


def _through_registers(e: RingSteps, c: _ThreadCopy, part: OperandView, stage: ir.Expr, *, loaded: bool) -> None:
    assert e.ring is not None

    def one(src: OperandView, dst: OperandView) -> None:
        if not loaded:
            _load(e, c, src)
        _held(e, c, c.held, dst)

    _turns(e, c, part, replace(e.ring.placed[c.step.name], lead=(stage,)), one)


def _load(e: RingSteps, c: _ThreadCopy, src: OperandView) -> None:
    _held(e, c, src, c.held)


def _held(e: RingSteps, c: _ThreadCopy, src: OperandView | None, dst: OperandView | None) -> None:
    """One half of a copy by way of registers, by the threads that hold them."""
    assert src is not None
    assert dst is not None
    assert c.mapping is not None
    sharing = c.mapping.num_workers
    with e.b.when(True if sharing == FETCHING else sharing > THREAD % FETCHING):
        e.b.move(dst.region(c.sizes), src.region(c.sizes), **clipping(src, dst))


def _by_tma(e: RingSteps, parts: Views, stage: ir.Expr) -> None:
    """The TMA copies of a part: a box for each line along its matrices."""
    b, ring = e.b, e.ring
    assert ring is not None
    full = ir.Region(ring.full, (stage,), (1,))
    sizes = {name: [static_size(n) or 0 for n in ring.placed[name].buffer.shape[1:]] for name in ring.by_tma}
    sent = sum(math.prod(n) * ring.placed[name].buffer.dtype.bytes for name, n in sizes.items())
    ring.barrier(b, ring.full, stage, "arrive_expect_tx", sent)
    for name, boxes in ring.by_tma.items():
        to, shared = ring.placed[name].buffer, ring.sent.get(name)
        along = int(not boxes.by_columns)
        lines, line = sizes[name][1 - along] // (shared.count if shared else 1), boxes.map.box[-1]
        start = [v.at(index(0)) for v in parts[name].axes if v is not None]
        for box in range(sizes[name][along] // line):
            offsets = [index(0), index(0)]
            offsets[along], offsets[1 - along] = index(box * line), shared.number * lines if shared else index(0)
            extents = (line, lines) if boxes.by_columns else (lines, line)
            at = [*start[:-2], *(i + o for i, o in zip(start[-2:], offsets, strict=True))]
            boxes.load(b, ir.Region(to, (stage, *offsets), (1, *extents)), full, at, shared.blocks if shared else None)
