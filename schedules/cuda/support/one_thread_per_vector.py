"""One thread for each work item: threads of a warp take neighbouring items."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from taskmap.ir.algebra.mapping import spatial
from taskmap.ir.construct import ceil_div, product, static_size
from taskmap.ir.nodes import Dim, Expr
from taskmap.ir.target import GpuTarget
from taskmap.ir.task import Task
from taskmap.ir.workers import THREAD
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.common.positions import unravel
from taskmap.schedules.cuda.support.launch import WARP, Launch
from taskmap.schedules.cuda.support.vectors import fills

_THREADS = 256
_FEWEST_THREADS = 2 * WARP


def block_size(items: Dim, target: GpuTarget) -> int:
    """Threads of a block: fewer if a small task would leave multiprocessors without work."""
    known = static_size(items)
    threads = _THREADS
    while known is not None and threads > _FEWEST_THREADS and known < threads * target.cores:
        threads //= 2
    return threads


@contextmanager
def one_thread_each(
    task: Task, items: Sequence[Dim], target: GpuTarget
) -> Iterator[tuple[Launch, Inliner, list[Expr]]]:
    """Opens a kernel in which one thread computes one work item: (launch, values, the item's position along
    ``items``)."""
    count = product(items)
    threads = block_size(count, target)
    launch = Launch(task, (ceil_div(count, threads),), threads)
    b = launch.b
    values, (block,) = launch.begin()
    with b.mapped(["lane"], spatial(threads), THREAD) as (lane,):
        values.bind(lane, threads)
        item = b.let("unit", values.simplifier(block * threads + lane))
        inside = values.nested()
        with b.when(True if fills(count, threads) else item < count):
            inside.bind(item, count)
            yield launch, inside, list(unravel(item, items, inside.simplifier))
