"""The paths by which operands reach the stages of a ring on Hopper.

TMA copies boxes of tensors that lie in memory unchanged. The threads of a warpgroup load everything else: by
asynchronous copies of chunks, with zeros if a condition fails, as for the windows of a convolution; or as elements that
are computed on the way, in registers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from taskmap.ir.construct import product, static_size
from taskmap.ir.task import Task
from taskmap.ir.types import DType
from taskmap.schedules.cuda.hopper.matmul_config import WARPGROUP
from taskmap.schedules.cuda.hopper.tma_descriptor import LINE_BYTES, TmaDescriptor, boxes_of
from taskmap.schedules.cuda.matmul.operand import Axes, Operand
from taskmap.schedules.cuda.support.tile_partition import TilePartition

_LARGEST_BOX = 256
_COPIES = (4, 8, 16)
_COPY_CLOCKS, _TURN_CLOCKS, _ELEMENT_CLOCKS, _LATENCY = 12, 30, 5, 600
"""Of a copy whose row's place is held in registers; of one in a loop of turns, where it is computed at each k-tile."""
_COPIES_AT_ONCE, _HELD = 16, 56
"""The most copies that a thread begins in one turn, and its registers for what does not change from k-tile to k-tile:
the place of a row, and the coordinates that conditions ask for."""
_CHUNKS_AT_ONCE, _BYTES_AT_ONCE = 16, 128
"""The most a thread has in flight through its registers."""


class LoadPath(Enum):
    """The path by which an operand reaches a stage."""

    TMA = "by TMA"
    CP_ASYNC = "by cp.async"
    REGISTERS = "through registers"


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """An operand's load path and its layout in a stage. ``boxes``: its TMA descriptor. ``partition``: if threads load
    it, the mapping of chunks to threads for one of ``parts`` parts; parts run one after another, so that a thread has
    enough registers for the loads in flight."""

    path: LoadPath
    along_k: bool
    boxes: TmaDescriptor | None = None
    partition: TilePartition | None = None
    parts: int = 1


def filling_clocks(f: Operand, how: LoadPlan) -> float:
    """A rough estimate of the clock cycles that threads take to fill a stage with an operand: addresses and tests of
    every chunk; for those that go through registers, also the latency of memory for every part, and the instructions
    that compute an element."""
    if how.partition is None:
        return 0.0
    chunks = how.parts * how.partition.repeats[0] * how.partition.repeats[1]
    if how.path is LoadPath.CP_ASYNC:
        return float(chunks * (_COPY_CLOCKS if how.parts == 1 else _TURN_CLOCKS))
    return float(how.parts * _LATENCY + chunks * (_TURN_CLOCKS + f.lanes * _ELEMENT_CLOCKS))


def plan_load(task: Task, f: Operand, batch: Axes, extent: int, kind: DType) -> LoadPlan | str:
    """The load path of ``extent`` rows (or columns) of an operand into a stage of elements of ``kind``, or the reason
    why it has none."""
    boxes = boxes_of(task, f, batch)
    if isinstance(boxes, TmaDescriptor) and _why_not_boxes(boxes, extent, kind) is None:
        return LoadPlan(LoadPath.TMA, boxes.along_k, boxes)
    line = LINE_BYTES // kind.bytes
    along_k = f.along_k or kind.bytes != 2 or extent % line != 0
    whole = f.shared_out(extent, line, WARPGROUP)
    if isinstance(whole, str):
        return whole
    copied = f.direct and f.bytes in _COPIES and along_k == f.along_k and kind == f.expr.dtype
    held = 1 + _is_wide(task) + (len(f.mn) - 1 if f.guarded else 0)
    most = min(_COPIES_AT_ONCE, _HELD // held) if copied else min(_CHUNKS_AT_ONCE, max(1, _BYTES_AT_ONCE // f.bytes))
    down, across = whole.repeats
    parts = next((n for n in range(1, down + 1) if down % n == 0 and down // n * across <= most), down)
    part = replace(whole, rows=whole.rows // parts, repeats=(down // parts, across))
    return LoadPlan(LoadPath.CP_ASYNC if copied else LoadPath.REGISTERS, along_k, None, part, parts)


def _is_wide(task: Task) -> bool:
    """True if the place of an element in memory may not fit 32 bits."""
    sizes = [static_size(product(b.shape)) for b in task.inputs]
    return any(n is None or n >= 1 << 31 for n in sizes)


def _why_not_boxes(boxes: TmaDescriptor, extent: int, kind: DType) -> str | None:
    """The reason why boxes do not fit a tile of ``extent`` rows, or None if they do."""
    if boxes.view.dtype != kind:
        return f"its elements are rounded to {kind}"
    if not boxes.along_k and (kind.bytes != 2 or extent % boxes.line):
        return "it is not contiguous along k, as wgmma requires"
    if boxes.along_k and extent > _LARGEST_BOX:
        return f"a box has at most {_LARGEST_BOX} lines, not {extent}"
    return None
