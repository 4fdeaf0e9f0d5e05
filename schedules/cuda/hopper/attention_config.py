"""Configurations of attention by warpgroups, and their requirements on queries, keys and values."""

from __future__ import annotations

from dataclasses import dataclass, replace

from taskmap.ir.algebra.mapping import TaskMapping, repeat, replicate, spatial
from taskmap.ir.construct import static_size
from taskmap.ir.isa.hopper import accumulator
from taskmap.ir.isa.table import Instruction, instruction_named
from taskmap.ir.nodes import Expr, Var
from taskmap.ir.target import GpuTarget
from taskmap.ir.types import DType, bf16, f16
from taskmap.ir.visit import substitute
from taskmap.schedules.cuda.attention.problem_view import AttentionTask, is_plain, shared_heads
from taskmap.schedules.cuda.hopper.matmul_config import ROWS, WARPGROUP
from taskmap.schedules.cuda.hopper.tma_descriptor import LINE_BYTES, TmaDescriptor, boxes_of
from taskmap.schedules.cuda.matmul.operand import Operand
from taskmap.schedules.cuda.support.launch import WARP

K = 16
"""The k extent of one instruction."""
LINE = LINE_BYTES // 2
"""Elements of a box's line."""
_MOST_COLUMNS = 256
_MOST_HELD, _MOST_HELD_WITH_MASKS = 176, 160
"""The most words of sums, scores and weights that leave a thread enough registers for the rest."""


@dataclass(frozen=True, slots=True)
class HopperAttentionConfig:
    """groups: warpgroups that multiply, of 64 queries each. keys: keys of a tile. stages: tiles of keys, and of values,
    in shared memory. overlap: the softmax of one tile runs while the previous tile's values are multiplied."""

    groups: int
    keys: int
    stages: int = 2
    overlap: bool = True

    @property
    def queries(self) -> int:
        """Queries of a block."""
        return self.groups * ROWS

    @property
    def warps(self) -> int:
        """Warps that multiply."""
        return self.groups * WARPGROUP // WARP

    @property
    def rows(self) -> int:
        """Queries of a warp."""
        return ROWS * WARP // WARPGROUP

    @property
    def threads(self) -> int:
        """Threads of a block: the consumer warpgroups and one producer."""
        return (self.groups + 1) * WARPGROUP

    def owner(self, columns: int) -> TaskMapping:
        """Ownership of the elements of the block's queries × ``columns``."""
        return spatial(self.groups, 1) * accumulator(columns)

    @property
    def row_owner(self) -> TaskMapping:
        """Ownership of per-query values: the four lanes that own its row."""
        return spatial(self.warps) * repeat(2) * spatial(8) * replicate(4, rank=1)

    def held(self, width: int) -> int:
        """Words of sums, scores and weights of one thread."""
        return ROWS * (width + self.keys + self.keys // 2) // WARPGROUP

    def shared_bytes(self, t: AttentionTask) -> int:
        """Shared memory of a block, including barriers."""
        deep, wide = (-(-n // LINE) * LINE_BYTES for n in (t.depth, t.width))
        return self.queries * deep + self.stages * (self.keys * (deep + wide) + 32) + 16

    def __str__(self) -> str:
        way = "overlapped" if self.overlap else "in turn"
        return f"wgmma, queries={self.queries}, keys={self.keys}, stages={self.stages}, {way}"


def space(t: AttentionTask, target: GpuTarget) -> list[HopperAttentionConfig]:
    """Configurations, the most promising first: 128 queries to a block, and as many keys as registers allow."""
    if target.isa != "sm_90a":
        return []
    room = _MOST_HELD if is_plain(t) else _MOST_HELD_WITH_MASKS
    found = [
        HopperAttentionConfig(groups, keys, stages, overlap)
        for groups in (2, 1)
        for keys in (128, 64, 32)
        for stages in (2, 3)
        for overlap in (True, False)
    ]
    return [c for c in found if c.held(t.width) <= room]


def validity(t: AttentionTask, c: HopperAttentionConfig, target: GpuTarget) -> str | None:
    """The reason why ``c`` cannot compute ``t`` on ``target``, or None if it can."""
    if t.packed > 1:
        return f"the few queries of {t.packed} heads make one product, which would leave a warpgroup mostly idle"
    kinds = {f.expr.dtype for f in (t.q, t.k, t.v)}
    if len(kinds) != 1 or not kinds <= {f16, bf16}:
        return f"wgmma multiplies two operands of f16 or bf16, not {', '.join(sorted(map(str, kinds)))}"
    if c.groups not in (1, 2) or c.stages < 1:
        return f"one or two warpgroups multiply from one stage or more, not {c.groups} from {c.stages}"
    if c.keys % K or c.keys > _MOST_COLUMNS or t.width > _MOST_COLUMNS:
        return f"an instruction takes multiples of {K} keys and values, up to {_MOST_COLUMNS}"
    weigh = instructions_of(c.keys, t.width, t.q.expr.dtype)[1]
    if not weigh.targets(target):
        return f"{target} has no {weigh.name}, which needs {weigh.targets}"
    if c.held(t.width) > _MOST_HELD:
        return f"{c.held(t.width)} words of sums, scores and weights leave a thread no registers for the rest"
    needed = c.shared_bytes(t)
    if target.shared_per_block and needed > target.shared_per_block:
        return f"it needs {needed} bytes of shared memory, but a block has {target.shared_per_block}"
    for name, f in (("queries", t.q), ("keys", t.k), ("values", t.v)):
        found = heads_of(t, f)
        if isinstance(found, str):
            return f"TMA cannot load the {name}: {found}"
        if found.boxes.along_k != (f is not t.v):
            return f"the {name} are not contiguous along a head"
    return None


def instructions_of(keys: int, width: int, kind: DType) -> tuple[Instruction, Instruction]:
    """The instructions for scores and for weighted values."""
    return (
        instruction_named(f"wgmma_m64n{keys}k{K}_{kind}_f32"),
        instruction_named(f"wgmma_ra_m64n{width}k{K}_{kind}_f32"),
    )


@dataclass(frozen=True, slots=True)
class Heads:
    """The boxes of an operand, and the number of neighbouring heads that share them."""

    boxes: TmaDescriptor
    shared: int

    def batch(self, n: Expr, head: Expr) -> list[Expr]:
        """The position along the batch axes of the boxes."""
        return [n, head // self.shared, head % self.shared]


def heads_of(t: AttentionTask, f: Operand) -> Heads | str:
    """The operand as TMA reads it, or the reason why TMA cannot.

    If heads share keys, an operand depends on its head by head // size: a head is seen as two axes, of which the second
    has step 0.
    """
    (batch, n), (head, heads) = zip(t.a.stage.axes[:2], t.a.stage.shape[:2], strict=True)
    size = shared_heads(t.task, ((batch, n), (head, heads)), (f,))
    count = static_size(heads)
    if size == 1 or count is None:
        return _heads(boxes_of(t.task, f, ((batch, n), (head, heads), (Var("one"), 1))), 1)
    group, place = Var("group"), Var("place")
    apart = replace(f, expr=substitute(f.expr, {head: group * size + place}))
    return _heads(boxes_of(t.task, apart, ((batch, n), (group, count // size), (place, size))), size)


def _heads(boxes: TmaDescriptor | str, shared: int) -> Heads | str:
    return boxes if isinstance(boxes, str) else Heads(boxes, shared)
