"""Results that TMA stores: the threads that hold a tile write it to shared memory, as lines of 128 bytes, and go on.

    store=lambda copy: copy.move("src", SHARED).tile(64, 256).to(WARPGROUP).done().asynchronous()

    each warpgroup:  until what it sent of the last tile has been read    only of persistent blocks
                     its sums -> its part of the tile;  it meets;  one thread issues its boxes
    in the end:      until all has arrived

Memory receives whole lines, and nothing beyond the end. Where lines are not aligned to 16 bytes, threads store what
they hold.
"""

from __future__ import annotations

from taskmap.ir import nodes as ir
from taskmap.ir.construct import as_expr, cast, const, eq, index
from taskmap.ir.decompose.blocks.tiles import numbers_of
from taskmap.ir.decompose.copies import clipping
from taskmap.ir.decompose.levels import Level
from taskmap.ir.decompose.refusal import refusal
from taskmap.ir.decompose.roles.boxes import LINE, boxes_of, swizzled_lines
from taskmap.ir.decompose.roles.ring import FETCHING, BoxedStore, RingSteps
from taskmap.ir.decompose.steps import AccumulateStep, DoneStep, MoveStep, Step, TileStep, Tree
from taskmap.ir.decompose.views import OperandView, tiled
from taskmap.ir.isa.table import instruction_named
from taskmap.ir.types import i32
from taskmap.ir.workers import THREAD

_FIRST_BARRIER = 2
"""Barrier 0 belongs to all threads, barrier 1 to those that hold sums."""


def is_boxed(store: Tree) -> bool:
    """True if TMA makes the last half of a store."""
    last = store.steps[-1]
    return isinstance(last, DoneStep) and last.asynchronous


def open_store(e: RingSteps, step: AccumulateStep, view: OperandView) -> BoxedStore | None:
    """The memory of a store by TMA; None if threads store what they hold."""
    if not is_boxed(step.store):
        return None
    kept, share, *rest = step.store.steps
    group = next((s for s in e.tree.steps if isinstance(s, TileStep) and s.level is Level.WARPGROUP), None)
    operand = step.before.operand(step.before.accumulated)
    assert operand is not None
    sizes = step.before.static_shape(operand)
    assert sizes is not None
    if not (_is_plain(kept) and isinstance(share, TileStep) and _alike(share, group) and len(rest) == 1):
        why = "each warpgroup stores what it has multiplied, by way of shared memory."
        way_out = "Write move('src', SHARED).tile(...).to(WARPGROUP).done().asynchronous(), tiled as the product."
        raise refusal("kernel()", step.store, why, way_out, where=step.store.steps[-1].source)
    rows, columns = (c.width for c in share.cuts[-2:])
    boxes = None if columns % (LINE // view.buffer.dtype.bytes) else boxes_of(f"map_{operand.name}", view.buffer, rows)
    if boxes is None:
        return None
    dtype, shape = view.buffer.dtype, sizes[-2:]
    name = f"{operand.name}_shared"
    buffer = e.b.allocate(name, dtype, list(shape), ir.Scope.SHARED, layout=swizzled_lines(dtype, *shape))
    e.stages.guarded.add(buffer)
    there = [not a.startswith("batch") for a in operand.axes]
    return BoxedStore(OperandView.whole(buffer, operand.axes, there), boxes, share)


def _is_plain(step: Step) -> bool:
    """True for a move to shared memory whose layout is left to lowering."""
    if not isinstance(step, MoveStep) or step.scope is not ir.Scope.SHARED:
        return False
    return not (step.pad or step.swizzle or step.by_columns or step.by or len(step.how.steps) > 1)


def _alike(share: TileStep, group: TileStep | None) -> bool:
    """True if both give the same tiles to the same warpgroups."""
    if group is None or share.level is not group.level or share.cuts != group.cuts or share.order != group.order:
        return False
    return all(share.before.extent(c.axis) == group.before.extent(c.axis) for c in share.cuts)


def store_boxes(e: RingSteps, out: BoxedStore, total: OperandView, view: OperandView, sizes: tuple[int, ...]) -> None:
    """The sums ``total`` of a tile go to ``view``. If that is in no memory, an epilogue takes the place of the Move to
    it, and its results go to shared memory."""
    b, ring = e.b, e.ring
    assert ring is not None

    def meet() -> None:
        """The threads of a warpgroup wait for each other."""
        number = cast(index(ring.group + _FIRST_BARRIER), i32)
        b.invoke(instruction_named("barrier_sync"), number, const(FETCHING, i32))

    if e.grid.is_persistent:  # a thread that sent nothing has nothing to wait for
        b.invoke(instruction_named("tma_wait_read"), as_expr(0))
        meet()
    to = view if view.computed else out.tile
    b.move(to.region(sizes), total.region(sizes), **(clipping(total, to) if view.computed else {}))
    b.invoke(instruction_named("fence_proxy_async"))
    meet()
    mine = tiled(out.share, {"src": out.tile, "dst": view}, numbers_of(b, out.share, ring.group))
    *_, rows, columns = (c.width for c in out.share.cuts)
    line = LINE // out.tile.buffer.dtype.bytes
    first, where = (mine[name].region((1,) * len(sizes)).start for name in ("src", "dst"))
    with b.when(eq(THREAD % FETCHING, 0)):
        for at in range(0, columns, line):
            box = ir.Region(out.tile.buffer, (first[0], first[1] + at), (rows, line))
            out.boxes.store(b, box, (*where[:-1], where[-1] + at))
        b.invoke(instruction_named("tma_commit"))


def close_store(e: RingSteps) -> None:
    """Waits until all that was sent has arrived."""
    e.b.invoke(instruction_named("tma_wait"), as_expr(0))
