"""An operand in the stages of a ring, in the layout that wgmma reads: lines of 128 bytes with swizzled chunks.

TMA loads boxes of tensors that lie in memory unchanged. The threads of a warpgroup load everything else: by
asynchronous copies of chunks, with zeros if a condition fails, as for the windows of a convolution; or as elements that
are computed on the way, in registers. Both write to the addresses that TMA would have written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum

from taskmap.ir.algebra.layout import row_major
from taskmap.ir.builder import Builder
from taskmap.ir.construct import as_expr, const, constant_value, index, load
from taskmap.ir.isa.table import instruction_named
from taskmap.ir.nodes import Buffer, Expr, Intrinsic, Scope, TensorMap
from taskmap.ir.task import Task
from taskmap.ir.types import DType, i32, i64, tf32
from taskmap.ir.workers import THREAD
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.cuda.hopper.matmul_config import WARPGROUP
from taskmap.schedules.cuda.hopper.tma_descriptor import LINE_BYTES, TmaDescriptor, boxes_of
from taskmap.schedules.cuda.matmul.copy_to_shared import SharedTileLoader
from taskmap.schedules.cuda.matmul.operand import Axes, Operand
from taskmap.schedules.cuda.matmul.shared_tile import SharedTile
from taskmap.schedules.cuda.support.tile_partition import TilePartition

_ATOM = 1024
"""Bytes of eight lines, the period of the swizzle."""
_LARGEST_BOX = 256
_COPIES = (4, 8, 16)
_CHUNK = 16
_COPY_CLOCKS, _ELEMENT_CLOCKS, _LATENCY = 30, 5, 600
_COPIES_AT_ONCE = 4
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
        return float(chunks * _COPY_CLOCKS)
    return float(how.parts * _LATENCY + chunks * (_COPY_CLOCKS + f.lanes * _ELEMENT_CLOCKS))


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
    most = _COPIES_AT_ONCE if copied else min(_CHUNKS_AT_ONCE, max(1, _BYTES_AT_ONCE // f.bytes))
    down, across = whole.repeats
    parts = next((n for n in range(1, down + 1) if down % n == 0 and down // n * across <= most), down)
    part = replace(whole, rows=whole.rows // parts, repeats=(down // parts, across))
    return LoadPlan(LoadPath.CP_ASYNC if copied else LoadPath.REGISTERS, along_k, None, part, parts)


def _why_not_boxes(boxes: TmaDescriptor, extent: int, kind: DType) -> str | None:
    """The reason why boxes do not fit a tile of ``extent`` rows, or None if they do."""
    if boxes.view.dtype != kind:
        return f"its elements are rounded to {kind}"
    if not boxes.along_k and (kind.bytes != 2 or extent % boxes.line):
        return "it is not contiguous along k, as wgmma requires"
    if boxes.along_k and extent > _LARGEST_BOX:
        return f"a box has at most {_LARGEST_BOX} lines, not {extent}"
    return None


@dataclass(frozen=True, slots=True)
class StageTile:
    """One operand in shared memory: for each stage, boxes of lines of 128 bytes; ``extent`` of its rows or columns."""

    buffer: Buffer
    along_k: bool
    extent: int
    boxes: TmaDescriptor | None = None
    map: TensorMap | None = None

    @property
    def line(self) -> int:
        """Elements of a line."""
        return LINE_BYTES // self.buffer.dtype.bytes

    @property
    def count(self) -> int:
        """Boxes in a stage."""
        return 1 if self.along_k else self.extent // self.line

    def descriptor(self, first: Expr, kk: Expr, stage: Expr) -> Expr:
        """The operand of one instruction: from row (or column) ``first`` and term ``kk`` on."""
        box, within = divmod(int(constant_value(kk) or 0), self.line)  # a symbolic one stays within the first box
        where = (
            (stage, index(box), first, index(within) if constant_value(kk) is not None else kk)
            if self.along_k
            else (stage, first // self.line, kk, index(0))
        )
        leading = _CHUNK if self.along_k else int(self.buffer.shape[2]) * LINE_BYTES  # type: ignore[arg-type]  # tiles have plain sizes
        args = (as_expr(LINE_BYTES), load(self.buffer, where), const(leading, i32), const(_ATOM, i32))
        return Intrinsic(instruction_named("wgmma_descriptor"), args, i64, 1)


def open_tile(b: Builder, name: str, kind: DType, stages: int, extent: int, how: LoadPlan) -> StageTile:
    """Shared memory for an operand of ``extent`` rows (or columns) that is loaded as ``how`` says."""
    line = LINE_BYTES // kind.bytes
    lines, count = (extent, 1) if how.along_k else (line, extent // line)
    shape = (stages, count, lines, line)
    # TMA swizzles by itself, so the tile is addressed as stored; threads write through the layout.
    chunk = (_CHUNK // kind.bytes).bit_length() - 1
    layout = None if how.boxes else row_major(*shape).swizzled(3, chunk, 3)
    buffer = b.allocate(name, kind, shape, Scope.SHARED, layout=layout)
    return StageTile(buffer, how.along_k, extent, how.boxes, how.boxes.map(f"map_{name}", lines) if how.boxes else None)


@dataclass(frozen=True, slots=True)
class SwizzledTile(SharedTile):
    """A stage's tile as the threads that fill it see it, from row ``mn`` and term ``k`` on."""

    mn: Expr = field(default_factory=lambda: index(0))
    k: Expr = field(default_factory=lambda: index(0))

    def at(self, stage: Expr, mn: Expr, k: Expr, values: Inliner) -> tuple[Expr, ...]:
        """The indices of an element."""
        line, s = LINE_BYTES // self.buffer.dtype.bytes, values.simplifier
        mn, k = self.mn + mn, self.k + k
        return (stage, index(0), s(mn), s(k)) if self.along_k else (stage, s(mn // line), s(k), s(mn % line))

    def shape(self, mn: int, k: int) -> tuple[int, ...]:  # type: ignore[override]  # a stage has boxes
        """The extents of a part of a stage."""
        return (1, 1, mn, k) if self.along_k else (1, 1, k, mn)


@dataclass(slots=True)
class ProducerLoader(SharedTileLoader):
    """Loads an operand through the threads of one warpgroup, in ``parts``."""

    parts: int = 1

    def issue_copies(self, values: Inliner, stage: Expr, k0: Expr) -> None:
        """Issues asynchronous copies of the tile whose sum begins at ``k0`` into stage ``stage``."""
        self.each_part(values, k0, lambda part, inside, k: part.copy_async(inside, stage, k))

    def prefetch(self, values: Inliner, k0: Expr) -> None:
        """The work before the stage is empty: loads the tile into registers, if they hold all of it."""
        if self.parts == 1:
            self.load(values.nested(), k0)

    def commit(self, values: Inliner, stage: Expr, k0: Expr, *, early: bool) -> None:
        """The remaining work: stores the tile in stage ``stage``."""
        if self.parts == 1 and early:
            self.store_tile(values.nested(), stage)
            return

        def one(part: ProducerLoader, inside: Inliner, k: Expr) -> None:
            part.load(inside.nested(), k)
            part.store_tile(inside.nested(), stage)

        self.each_part(values, k0, one)

    def each_part(self, values: Inliner, k0: Expr, body: Callable[[ProducerLoader, Inliner, Expr], None]) -> None:
        """Calls ``body`` for every part, with the beginning of its sum."""
        assert isinstance(self.tile, SwizzledTile)
        # Unrolled, the parts would need registers at the same time.
        with self.b.loop("part", self.parts, unroll=1) as number:
            inside = values.nested()
            inside.bind(number, self.parts)
            first = inside.simplifier(number * self.share.rows)
            if self.factor.along_k:
                part = replace(self, first=self.first + first, tile=replace(self.tile, mn=first))
            else:
                part = replace(self, tile=replace(self.tile, k=first))
                k0 = inside.simplifier(k0 + first)
            if hasattr(self, "held"):  # registers were opened, for all parts
                part.held = self.held
            body(part, inside, k0)

    def each_chunk(self, values: Inliner, body: Callable[[Expr, Expr, Inliner], None]) -> None:
        """Calls ``body`` for the chunks of a part that belong to this thread."""
        b, s = self.b, self.share
        mine = True if s.workers == WARPGROUP else s.workers > THREAD % WARPGROUP
        with b.when(mine), b.mapped(["row", "chunk"], s.mapping, THREAD % s.workers) as (row, chunk):
            inside = values.nested()
            inside.bind(row, s.rows)
            inside.bind(chunk, s.chunks)
            body(row, chunk, inside)

    def store_tile(self, values: Inliner, stage: Expr) -> None:
        """Stores the registers in stage ``stage`` of shared memory."""
        f, b = self.factor, self.b
        held = self.rounded() if self.tile.buffer.dtype == tf32 else self.held

        def one(row: Expr, chunk: Expr, inside: Inliner) -> None:
            def element(v: Expr, local: Inliner) -> None:
                inner = chunk * f.lanes + v
                mn, k = (row, inner) if f.along_k else (inner, row)
                b.store(self.tile.buffer, self.tile.at(stage, mn, k, local), held[row, chunk, v])

            self.lanes(inside, element, vector=self.tile.along_k == f.along_k)

        self.each_chunk(values, one)

    def rounded(self) -> Buffer:
        """Rounds the registers from f32 to the nearest tf32; the instruction would truncate."""
        b, held, to_nearest = self.b, self.held, instruction_named("round_tf32")
        assert held.owner is not None
        exact = b.allocate(f"{held.name}_rounded", tf32, held.shape, Scope.REGISTER, owner=held.owner)
        with b.mapped(["row", "chunk", "v"], held.owner, THREAD % self.share.workers) as at:
            b.store(exact, at, Intrinsic(to_nearest, (held[at],), tf32, 1))
        return exact
