"""The stages that one warpgroup fills and others use: their memory, their mbarriers, the operands that TMA copies.

a[128, 64], b[64, 256] of f16, prefetch(4)     four stages of 16 + 32 KB, in lines of 128 bytes with swizzled chunks
mbarriers                                      full: what was fetched is there; empty: all warps have read it
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from taskmap.ir import nodes as ir
from taskmap.ir.algebra.layout import Layout
from taskmap.ir.builder import Builder, region
from taskmap.ir.construct import as_expr, cast, const, index, load, minimum, static_size
from taskmap.ir.decompose.blocks.grid import Grid
from taskmap.ir.decompose.blocks.multicast import ClusterPartition, blocks_of_cluster, partition_of
from taskmap.ir.decompose.levels import Level
from taskmap.ir.decompose.pipeline import Steps
from taskmap.ir.decompose.refusal import refusal
from taskmap.ir.decompose.roles.boxes import ATOM, CHUNK, LINE, Boxes, boxes_of, swizzled_lines
from taskmap.ir.decompose.steps import MoveStep, TileStep, Tree
from taskmap.ir.decompose.views import OperandView
from taskmap.ir.isa.table import instruction_named
from taskmap.ir.types import i32, i64

Views = dict[str, OperandView]
FETCHING, WARP = 128, 32
"""The threads that fetch, and those that proceed together."""


@dataclass(frozen=True, slots=True)
class KeptStore:
    """Shared memory for the results of a block, the tiles of warpgroups, and how these leave it: by the boxes of TMA;
    None: by the copy that is the ``rest`` of the store."""

    tile: OperandView
    boxes: Boxes | None
    share: TileStep
    rest: Tree


@dataclass(frozen=True, slots=True)
class Ring:
    """Stages that a warpgroup fills. full, empty: their mbarriers. by_tma: the operands that TMA copies. readers: the
    blocks of the cluster that use what this block fetches. sent: the blocks that fetch an operand together, by its
    name. sets: the sum has a single part, whose first product sets it. group: the number of a thread's warpgroup. maps:
    those that the kernel takes. out: the store of results by way of shared memory."""

    stages: int
    full: ir.Buffer
    empty: ir.Buffer
    placed: Mapping[str, OperandView]
    by_tma: Mapping[str, Boxes]
    readers: int
    sent: Mapping[str, ClusterPartition]
    sets: bool
    group: ir.Expr = field(default_factory=lambda: index(0))
    maps: tuple[ir.TensorMap, ...] = ()
    out: KeptStore | None = None

    def barrier(self, b: Builder, of: ir.Buffer, stage: ir.Expr, action: str, *values: ir.ExprLike) -> None:
        """An action on the mbarrier of a stage."""
        given = (cast(as_expr(v, i32), i32) for v in values)
        b.invoke(instruction_named(f"mbarrier_{action}"), region(of, (stage,), (1,)), *given)


class RingSteps(Steps, Protocol):
    """Writes the other steps of the tree, with a ring."""

    ring: Ring | None
    grid: Grid

    def turn(self, number: ir.Expr, count: ir.Dim) -> tuple[ir.Expr, ir.Expr]: ...


def open_ring(
    e: RingSteps, ahead: Sequence[MoveStep], views: Views, results: Callable[[], KeptStore | None], *, sets: bool
) -> Ring:
    """Shared memory for the stages of moves, for the ``results`` if TMA stores them, and for the barriers, which need
    no alignment of theirs."""
    b, stages = e.b, ahead[0].stages
    placed: dict[str, OperandView] = {}
    by_tma: dict[str, Boxes] = {}
    sent: dict[str, ClusterPartition] = {}
    block = blocks_of_cluster(e.tree)
    for s in ahead:
        operand = s.after.operand(s.name)
        assert operand is not None
        sizes = s.after.static_shape(operand)
        assert sizes is not None
        _check(e.tree, s, sizes[-2:])
        rows, columns = sizes[-2:]
        layout = swizzled_lines(operand.dtype, rows, columns, stages, by_columns=s.by_columns)
        buffer = b.allocate(f"{s.name}_shared", operand.dtype, [stages, rows, columns], ir.Scope.SHARED, layout=layout)
        e.stages.guarded.add(buffer)
        there = [not a.startswith("batch") for a in operand.axes]
        placed[s.name] = OperandView.whole(buffer, operand.axes, there, [index(0)])
        shared = partition_of(block, operand.axes) if s.multicast and block is not None else None
        lines = (columns if s.by_columns else rows) // (shared.count if shared else 1)
        boxes = _boxes(e.tree, s, views[s.name], buffer, lines)
        if boxes is not None:
            by_tma[s.name] = boxes
            sent |= {s.name: shared} if shared else {}
    out = results()
    full, empty = (b.allocate(name, i64, (stages,), ir.Scope.SHARED) for name in ("full", "empty"))
    e.stages.guarded |= {full, empty}
    maps = (*(boxes.map for boxes in by_tma.values()), *([out.boxes.map] if out and out.boxes else []))
    return Ring(stages, full, empty, placed, by_tma, e.grid.cluster if sent else 1, sent, sets, maps=maps, out=out)


def _check(tree: Tree, s: MoveStep, sizes: Sequence[int]) -> None:
    """The stages of a move are lines that wgmma reads."""
    operand = s.after.operand(s.name)
    assert operand is not None
    if s.pad or s.swizzle:
        why = f"the stages of {s.name} have the layout that wgmma reads."
        raise refusal("kernel()", tree, why, "Leave out pad and swizzle.", where=s.source)
    lines, length = reversed(sizes) if s.by_columns else sizes
    line = LINE // operand.dtype.bytes
    if operand.dtype.bytes != 2 and not along_sum(s):
        word = "row" if s.by_columns else "column"
        raise refusal(
            "kernel()", tree, f"{s.name} is of {operand.dtype}: wgmma reads it in lines along the sum.",
            f"Store its stages by {word}: .storage({word!r}).", where=s.source,
        )  # fmt: skip
    if length % line or lines % 8:
        rows, columns = sizes
        raise refusal(
            "kernel()", tree, f"{s.name} is {rows}×{columns} × {operand.dtype}: its stages are not lines of 128 bytes.",
            f"Choose tiles with {'rows' if s.by_columns else 'columns'} of {line} elements.", where=s.source,
        )  # fmt: skip


def along_sum(s: MoveStep) -> bool:
    """True if the lines of an operand's stages run along the sum."""
    operand = s.after.operand(s.name)
    assert operand is not None
    return operand.axes[-2 if s.by_columns else -1] not in s.before.tiled


def _boxes(tree: Tree, s: MoveStep, view: OperandView, stage: ir.Buffer, lines: int) -> Boxes | None:
    """The boxes by which TMA copies an operand; None if threads copy it."""
    blocks = (t for t in tree.steps if isinstance(t, TileStep) and t.before.level is Level.KERNEL)
    strided = any(c.stride for t in blocks for c in t.cuts)
    if s.by is not None or len(s.how.steps) > 1 or strided or view.computed or view.buffer.dtype != stage.dtype:
        return None  # a decomposition is for threads
    return boxes_of(f"map_{s.name}", view.buffer, lines, by_columns=s.by_columns)


def warpgroup_operands(
    a: OperandView, b: OperandView, ring: Ring, number: ir.Expr
) -> tuple[list[ir.Expr], list[ir.Expr]]:
    """The operands of wgmma before its sums, and after them. number: of the product among those of a part; if the ring
    has a single part, product 0 sets the sums."""
    turned, after = [], []
    for view, sums in ((a, 1), (b, 0)):
        layout, at = view.buffer.layout, [0, 0, 0]
        assert isinstance(layout, Layout)
        at[1 + sums] = 1
        along = layout(*at) == 1
        lines = static_size(view.buffer.shape[1 + sums]) or 0
        turned.append(as_expr(int(not along)))
        after.append(_descriptor(view, CHUNK if along else lines * LINE))
    adds = cast(minimum(number, 1), i32) if ring.sets else const(1, i32)
    return turned if a.buffer.dtype.bytes == 2 else [], [*after, adds]


def _descriptor(view: OperandView, leading: int) -> ir.Expr:
    at = view.element([index(0)] * len(view.axes))
    args = (as_expr(LINE), load(view.buffer, at), const(leading, i32), const(ATOM, i32))
    return ir.Intrinsic(instruction_named("wgmma_descriptor"), args, i64, 1)
