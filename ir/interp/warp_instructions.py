"""Exchanges between the lanes of a warp, and atomics by many threads, in numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskmap.ir.errors import InputError
from taskmap.ir.interp.definitions import convert
from taskmap.ir.isa.specs import AtomicSpec, ShuffleSpec, VoteSpec, WarpReduceSpec
from taskmap.ir.types import DType

Array = NDArray[Any]

LANES = 32


def shuffle(spec: ShuffleSpec, width: int, values: Array, others: Array) -> Array:
    """The value that each lane receives; ``values`` and ``others`` have one row for each of 32 lanes.

    PTX ISA, "shfl.sync": only the five low bits of ``others`` count. A butterfly may read an earlier segment.
    """
    lane, other = np.arange(LANES), np.asarray(others) & (LANES - 1)
    first = lane // width * width
    if spec.how == "idx":
        source = first + other % width
    elif spec.how == "up":
        source = np.where(lane - other >= first, lane - other, lane)
    elif spec.how == "down":
        source = np.where(lane + other < first + width, lane + other, lane)
    else:
        source = np.where((lane ^ other) < first + width, lane ^ other, lane)
    return np.asarray(np.asarray(values)[source])


def vote(spec: VoteSpec, votes: Array | None = None) -> Array:
    """The result of a vote in each of 32 lanes; votes are bools. elect takes none, and chooses lane 0."""
    if spec.how == "elect":
        return np.asarray(np.arange(LANES) == 0)
    if votes is None:
        raise InputError(f"{spec} needs a vote of every lane")
    ballots = np.asarray(votes, np.bool_)
    if spec.how == "ballot":
        bits = np.sum(ballots.astype(np.uint64) << np.arange(LANES, dtype=np.uint64)).astype(np.uint32)
        return np.full(LANES, bits, np.uint32).view(np.int32)
    return np.full(LANES, ballots.any() if spec.how == "any" else ballots.all())


def reduce(spec: WarpReduceSpec, values: Array) -> Array:
    """The reduction of 32 values, in every lane; sums wrap."""
    total = np.asarray(values)[0]
    with np.errstate(over="ignore"):
        for value in np.asarray(values)[1:]:
            total = _OPERATIONS[spec.op](total, value)
    return np.full(LANES, total)


def atomic(spec: AtomicSpec, memory: Array, places: Array, *values: Array) -> tuple[Array, Array]:
    """Memory afterwards, and the value before each worker's turn; the workers take turns in order.

    memory: (elements,); places: (workers,), each that of the first lane; values: (workers, lanes) each; for a
    compare-and-swap, first the expected values, then those to store. The hardware may choose any order of workers.
    """
    after, before = np.array(memory), np.zeros_like(values[-1])
    for worker, place in enumerate(np.asarray(places)):
        for lane in range(spec.lanes):
            old = after[place + lane]
            before[worker, lane] = old
            given = [value[worker, lane] for value in values]
            after[place + lane] = _changed(spec, old, *given)
    return after, before


def _changed(spec: AtomicSpec, old: Any, *given: Any) -> Any:
    if spec.op == "cas":
        expected, value = given
        return value if old == expected else old
    if spec.op == "exch":
        return given[0]
    with np.errstate(over="ignore"):
        return _rounded(_OPERATIONS[spec.op](old, given[0]), spec.dtype)


def _rounded(x: Any, dtype: DType) -> Any:
    return convert(np.asarray(x), dtype)[()]


_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
