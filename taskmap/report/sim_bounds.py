"""Lower bounds on kernel times on the simulated GPU, from the counts of one simulated run of each.

Operations and bytes hold for any kernel of a task; these bounds hold for the given kernel: its L2 traffic, its bank
conflicts in shared memory, its waves of blocks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import numpy as np

from taskmap.backend.cuda.source import CudaSource
from taskmap.backend.sim.roofline import roofline
from taskmap.backend.sim.run import run
from taskmap.backend.store.objects import KernelStore
from taskmap.ir.analysis.cost import Sizes, known_size
from taskmap.ir.errors import TaskmapError
from taskmap.ir.nodes import Buffer
from taskmap.ir.target import GpuTarget
from taskmap.ir.task import Task
from taskmap.report.records import SimulatedBound

TOTAL_SECONDS = 30.0
KERNEL_SECONDS = 10.0
MOST_BYTES = 1 << 28
_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}

Kernel = tuple[CudaSource, Task, Sizes]


def simulated_bounds(
    kernels: Iterable[Kernel],
    gpu: GpuTarget,
    store: KernelStore,
    total_seconds: float = TOTAL_SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, SimulatedBound]:
    """The bounds by symbol, in order, of the kernels that can be simulated within the time."""
    found: dict[str, SimulatedBound] = {}
    deadline = clock() + total_seconds
    for source, task, sizes in kernels:
        left = deadline - clock()
        if left <= 0:
            break
        made = _bound(source, task, sizes, gpu, store, min(left, KERNEL_SECONDS))
        if made is not None:
            found[source.symbol] = made
    return found


def _bound(
    source: CudaSource, task: Task, sizes: Sizes, gpu: GpuTarget, store: KernelStore, seconds: float
) -> SimulatedBound | None:
    """The bound of one kernel, run on zeros: values do not change the counts, except as indices."""
    try:
        buffers = (*task.inputs, *task.outputs)
        if sum(_span(b, sizes) * b.dtype.bytes for b in buffers) > MOST_BYTES:
            return None
        arrays = [np.zeros(_span(b, sizes), _WORDS[b.dtype.bytes]) for b in buffers]
        footprint = sum(array.nbytes for array in arrays)
        arrays += [np.zeros(1, np.int32)] if source.needs_error else []
        values = [known_size(v, sizes) for v in task.dims]
        report = run(source, arrays, values, raises=False, seconds=seconds, store=store)
    except (TaskmapError, MemoryError, KeyError):
        return None  # the report omits it
    if report.problems or not report.counters:
        return None
    made = roofline(report.counters, footprint, gpu)
    return SimulatedBound(gpu.name, made.seconds, made.bound, tuple(made.seconds_of.items()))


def _span(buffer: Buffer, sizes: Sizes) -> int:
    """The number of elements from the first to the last, both included."""
    shape = [known_size(n, sizes) for n in buffer.shape]
    if 0 in shape:
        return 0
    if buffer.strides is None:
        return int(np.prod(shape, dtype=np.int64))
    strides = [known_size(s, sizes) for s in buffer.strides]
    reach = sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    return known_size(buffer.offset, sizes) + reach + 1
