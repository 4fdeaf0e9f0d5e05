"""The TMA store of a Hopper product: the result goes through shared memory, and in boxes to global memory.

    each thread:                 finished elements -> lines of 128 bytes, swizzled, without bank conflicts
    the warpgroup synchronises;  one thread issues its boxes; nothing beyond the product's sizes is stored

So memory receives whole lines, and the threads that multiply do not wait for the stores.
"""

from __future__ import annotations

from dataclasses import dataclass

from taskmap.ir.algebra.layout import row_major
from taskmap.ir.algebra.mapping import TaskMapping
from taskmap.ir.builder import Builder, region
from taskmap.ir.construct import as_expr, cast, const, eq, index
from taskmap.ir.isa.table import instruction_named
from taskmap.ir.nodes import Buffer, Expr, LoopKind, Scope, TensorMap
from taskmap.ir.types import i32
from taskmap.ir.workers import THREAD
from taskmap.schedules.common.access import accesses
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.common.positions import positions_in
from taskmap.schedules.cuda.hopper.matmul_config import WARPGROUP, HopperConfig
from taskmap.schedules.cuda.hopper.tma_descriptor import TmaDescriptor, boxes_along
from taskmap.schedules.cuda.matmul.problem_view import Gemm, TileContext

_CHUNK = 16
_FIRST_BARRIER = 1
"""Barrier 0 belongs to all threads."""


def output_boxes(p: Gemm, c: HopperConfig) -> TmaDescriptor | str:
    """The descriptor by which TMA stores the result, or the reason why there is none."""
    if len(p.task.outputs) != 1:
        return f"there are {len(p.task.outputs)} outputs, and TMA stores one"
    (out,) = p.task.outputs
    axes = (*p.c.batch, *p.c.m, *p.c.n)
    position = p.position({v: v for v, _ in axes})
    where = positions_in(out, p.stage.out, [position[v] for v in p.stage.axes])
    variables, extents = [v for v, _ in axes], [d for _, d in axes]
    nothing = {out: lambda at: const(0, out.dtype)}
    (walk,) = accesses(p.task, variables, extents, [(out, where)], readers=nothing)
    boxes = boxes_along(walk, p.c.batch, p.c.m, p.c.n, along_k=True)
    if isinstance(boxes, TmaDescriptor) and c.block_n % boxes.line:
        return f"boxes of {boxes.line} columns do not divide {c.block_n}"
    return boxes


def output_bytes(p: Gemm, c: HopperConfig) -> int:
    """Shared memory for the result of a tile."""
    return c.block_m * c.block_n * p.task.outputs[0].dtype.bytes


@dataclass(frozen=True, slots=True)
class TmaStore:
    """A tile of the result in shared memory, in boxes of lines of 128 bytes."""

    b: Builder
    c: HopperConfig
    boxes: TmaDescriptor
    map: TensorMap
    buffer: Buffer

    @staticmethod
    def open(b: Builder, c: HopperConfig, boxes: TmaDescriptor) -> TmaStore:
        """Allocates shared memory for the tile."""
        shape = (c.block_n // boxes.line, c.block_m, boxes.line)
        chunk = (_CHUNK // boxes.view.dtype.bytes).bit_length() - 1
        layout = row_major(*shape).swizzled(3, chunk, 3)
        buffer = b.allocate("result", boxes.view.dtype, shape, Scope.SHARED, layout=layout)
        return TmaStore(b, c, boxes, boxes.map("map_result", c.rows), buffer)

    def clear(self, values: Inliner, pairs: TaskMapping) -> None:
        """Stores 0 in the part of the tile beyond the product's sizes. That part is sent, too, and not stored; so
        nothing reads uninitialised memory."""
        b, c = self.b, self.c
        lanes = c.block_n // pairs.task_shape[1]
        with b.mapped(["i", "g"], pairs, THREAD % (c.groups * WARPGROUP)) as (i, g):
            values.bind(i, c.block_m)
            values.bind(g, c.block_n // lanes)
            with b.loop("v", lanes, LoopKind.VECTOR) as v:
                inside = values.nested()
                inside.bind(v, lanes)
                self.put(i, g * lanes + v, const(0, self.buffer.dtype), inside)

    def put(self, i: Expr, j: Expr, value: Expr, values: Inliner) -> None:
        """Stores an element in the tile."""
        s, line = values.simplifier, self.boxes.line
        self.b.store(self.buffer, (s(j // line), s(i), s(j % line)), value)

    def reuse(self, number: Expr) -> None:
        """Waits until the previous tile has been read; for threads that sent nothing there is nothing to wait for."""
        self.b.invoke(instruction_named("tma_wait_read"), as_expr(0))
        self.synchronise(number)

    def send(self, values: Inliner, frame: TileContext, number: Expr) -> None:
        """Issues the stores of a warpgroup's rows."""
        b, c, line = self.b, self.c, self.boxes.line
        b.invoke(instruction_named("fence_proxy_async"))
        self.synchronise(number)
        batch = [frame.fixed[v] for v, _ in frame.p.c.batch]
        first = values.simplifier(number * c.rows)
        with b.when(eq(THREAD % WARPGROUP, 0)):
            for box in range(c.block_n // line):
                at = self.boxes.coordinates(batch, frame.row + first, frame.column + box * line)
                store = instruction_named(f"tma_store_{len(at)}d")
                given = (cast(values.simplifier(x), i32) for x in at)
                b.invoke(store, self.map, region(self.buffer, (box, first, 0), (1, c.rows, line)), *given)
            b.invoke(instruction_named("tma_commit"))

    def close(self) -> None:
        """Waits until the stores are complete."""
        self.b.invoke(instruction_named("tma_wait"), as_expr(0))

    def synchronise(self, number: Expr) -> None:
        """Synchronises all threads of a warpgroup."""
        barrier = cast(index(number + _FIRST_BARRIER), i32)
        self.b.invoke(instruction_named("barrier_sync"), barrier, const(WARPGROUP, i32))
