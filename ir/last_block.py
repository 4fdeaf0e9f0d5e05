"""The last of several blocks to arrive: it sees what the others have written to memory.

    partials[part] = a block's result          in memory private to the launch
    arrived = counters[at]++                   after a fence: a block that sees the number sees the partials
    the last block combines the partials, in an order that is always the same, and resets the counter

Method: the sample "threadFenceReduction" of CUDA.
"""

from __future__ import annotations

from collections.abc import Callable

from taskmap.ir.builder import Builder
from taskmap.ir.construct import const, eq, load
from taskmap.ir.isa.table import instruction_named
from taskmap.ir.nodes import Buffer, Expr, Intrinsic, Scope
from taskmap.ir.types import i32


def arrive(
    b: Builder,
    counters: Buffer,
    at: Expr,
    parts: int,
    first: Expr,
    synchronise: Callable[[], None],
    alone: bool = False,
) -> Expr:
    """The condition that this block is the last of ``parts`` to arrive at the counter ``at``.

    first: holds in one thread of the block, which counts. synchronise: emits the block's barrier. alone: that thread
    has stored all partials of the block.
    """
    arrived = b.allocate("arrived", i32, (1,), Scope.SHARED)
    if not alone:
        synchronise()
    fence = instruction_named("fence_gpu")
    with b.when(first):
        b.invoke(fence)
        b.store(arrived, 0, _atomic("add", counters, at, 1))
        b.invoke(fence)
    synchronise()
    return eq(arrived[0], const(parts - 1, i32))


def reset(b: Builder, counters: Buffer, at: Expr) -> None:
    """Set the counter ``at`` back to 0 for the next launch. One thread of the last block calls this."""
    b.evaluate(_atomic("exch", counters, at, 0))


def _atomic(action: str, counters: Buffer, at: Expr, value: int) -> Expr:
    """The counter before it was changed."""
    return Intrinsic(instruction_named(f"atomic_{action}_i32"), (load(counters, (at,)), const(value, i32)), i32, 1)
