"""Results that are kept in shared memory first: a warpgroup writes what it holds there, and memory gets whole lines.

    store=lambda copy: copy.move("src", SHARED).tile(64, 256).to(WARPGROUP).done().asynchronous()               by TMA
    store=lambda copy: copy.move("src", SHARED).tile(64, 256).to(WARPGROUP).done(by=repeat(16, 8) * spatial(4, 32))

    each warpgroup:  until what it sent of the last tile has been read    only of persistent blocks
                     its sums -> its part of the tile;  it meets
                     by TMA: one thread issues its boxes, as lines of 128 bytes;  else its threads copy by the mapping
    in the end:      until all that TMA sends has arrived

Memory receives nothing beyond the end. TMA needs lines that are aligned to 16 bytes: of others, threads store what they
hold, unless a mapping is given. By it the threads of a warp write neighbours, whatever the stride of a row.
"""

from __future__ import annotations

from taskmap.ir import nodes as ir
from taskmap.ir.construct import as_expr, cast, const, eq, index
from taskmap.ir.decompose.blocks.tiles import numbers_of
from taskmap.ir.decompose.copies import clipping, strides_in_shared
from taskmap.ir.decompose.levels import Level
from taskmap.ir.decompose.refusal import refusal
from taskmap.ir.decompose.roles.boxes import LINE, boxes_of, swizzled_lines
from taskmap.ir.decompose.roles.ring import FETCHING, KeptStore, RingSteps
from taskmap.ir.decompose.steps import AccumulateStep, DoneStep, MoveStep, Step, TileStep, Tree
from taskmap.ir.decompose.views import OperandView, tiled
from taskmap.ir.isa.table import instruction_named
from taskmap.ir.types import i32
from taskmap.ir.workers import THREAD

_PARTS = 3  # the steps of a store by way of shared memory: to it, tiles, from it
PAD = 16
"""Bytes between rows in shared memory that a mapping reads: a warp, which writes 16 bytes to each of eight rows, has no
bank conflicts."""
_FIRST_BARRIER = 2
"""Barrier 0 belongs to all threads, barrier 1 to those that hold sums."""


def is_by_tma(store: Tree) -> bool:
    """True if TMA makes the last half of a store."""
    last = store.steps[-1]
    return isinstance(last, DoneStep) and last.asynchronous


def is_kept(store: Tree) -> bool:
    """True if warpgroups store their results by way of shared memory, by TMA or by a mapping."""
    if is_by_tma(store):
        return True
    last, share = store.steps[-1], store.steps[1] if len(store.steps) == _PARTS else None
    by_mapping = isinstance(last, DoneStep) and last.mapping is not None
    return by_mapping and isinstance(share, TileStep) and share.level is Level.WARPGROUP


def open_store(e: RingSteps, step: AccumulateStep, view: OperandView) -> KeptStore | None:
    """The memory of results that are kept; None if threads store what they hold."""
    if not is_kept(step.store):
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
    dtype, shape, name = view.buffer.dtype, list(sizes[-2:]), f"{operand.name}_shared"
    boxes = None
    if is_by_tma(step.store):
        boxes = None if columns % (LINE // dtype.bytes) else boxes_of(f"map_{operand.name}", view.buffer, rows)
        if boxes is None:
            return None
        buffer = e.b.allocate(name, dtype, shape, ir.Scope.SHARED, layout=swizzled_lines(dtype, *shape))
    else:
        strides = strides_in_shared(shape, PAD // dtype.bytes, by_columns=False)
        buffer = e.b.allocate(name, dtype, shape, ir.Scope.SHARED, strides=strides)
    e.stages.guarded.add(buffer)
    there = [not a.startswith("batch") for a in operand.axes]
    return KeptStore(OperandView.whole(buffer, operand.axes, there), boxes, share, Tree(share.after, tuple(rest)))


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


def store_kept(e: RingSteps, out: KeptStore, total: OperandView, view: OperandView, sizes: tuple[int, ...]) -> None:
    """The sums ``total`` of a tile go to ``view``. If that is in no memory, an epilogue takes the place of the Move to
    it, and its results go to shared memory."""
    b, ring = e.b, e.ring
    assert ring is not None

    def meet() -> None:
        """The threads of a warpgroup wait for each other."""
        number = cast(index(ring.group + _FIRST_BARRIER), i32)
        b.invoke(instruction_named("barrier_sync"), number, const(FETCHING, i32))

    if e.grid.is_persistent:  # a thread that sent nothing has nothing to wait for
        if out.boxes is not None:
            b.invoke(instruction_named("tma_wait_read"), as_expr(0))
        meet()
    to = view if view.computed else out.tile
    b.move(to.region(sizes), total.region(sizes), **(clipping(total, to) if view.computed else {}))
    if out.boxes is not None:
        b.invoke(instruction_named("fence_proxy_async"))
    meet()
    mine = tiled(out.share, {"src": out.tile, "dst": view}, numbers_of(b, out.share, ring.group))
    *_, rows, columns = (c.width for c in out.share.cuts)
    if out.boxes is None:
        e.copies.through(out.rest, mine["src"], mine["dst"])
        return
    line = LINE // out.tile.buffer.dtype.bytes
    first, where = (mine[name].region((1,) * len(sizes)).start for name in ("src", "dst"))
    with b.when(eq(THREAD % FETCHING, 0)):
        for at in range(0, columns, line):
            box = ir.Region(out.tile.buffer, (first[0], first[1] + at), (rows, line))
            out.boxes.store(b, box, (*where[:-1], where[-1] + at))
        b.invoke(instruction_named("tma_commit"))


def close_store(e: RingSteps, out: KeptStore) -> None:
    """Waits until all that TMA sends has arrived."""
    if out.boxes is not None:
        e.b.invoke(instruction_named("tma_wait"), as_expr(0))
