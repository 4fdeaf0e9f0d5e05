"""The inverse of a task mapping: from a task to the worker that does it and the slot in its list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from taskmap.ir.algebra import radix
from taskmap.ir.algebra.assignment import Assignment
from taskmap.ir.algebra.digits import DigitMap, Holder
from taskmap.ir.algebra.radix import Number
from taskmap.ir.algebra.table import TableFinder
from taskmap.ir.errors import IndexOutOfRangeError
from taskmap.ir.util.wording import by, listed

Finder = DigitMap | TableFinder


@dataclass(frozen=True, slots=True)
class Inverse:
    """task -> (worker, slot) of `mapping`. Each finder does the lookup for one part of the composition.

    In f * g the task t is task t div d_g of f and t mod d_g of g; the worker is worker_f · n_g + worker_g, and the slot
    is slot_f · len(g(worker_g)) + slot_g.
    """

    mapping: Assignment
    finders: tuple[Finder, ...] = field(repr=False)

    def __call__(self, *task: Number) -> tuple[Number, Number]:
        """The worker and slot of a task; the first worker where several share it. Indices may be symbolic.

        Raises IndexOutOfRangeError for a task outside the task shape or without a worker, MappingError for a symbolic
        task of a mapping given by a function.
        """
        worker: Number = 0
        slot: Number = 0
        workers = slots = 1
        for part, finder, inner in reversed(
            list(zip(self.mapping.parts, self.finders, self._split(task), strict=True))
        ):
            part_worker, part_slot = finder.locate(inner)
            worker = radix.plus(radix.times(part_worker, workers), worker)
            slot = radix.plus(radix.times(part_slot, slots), slot)
            workers *= part.num_workers
            slots *= part.count(part_worker)
        return worker, slot

    def all(self, *task: int) -> list[Holder]:
        """Every (worker, slot) of the task, in increasing order: empty for a task without a worker."""
        found = [(0, 0, 1)]  # worker, slot, and the number of slots of that worker, over the parts seen so far
        workers = 1
        for part, finder, inner in reversed(
            list(zip(self.mapping.parts, self.finders, self._split(task), strict=True))
        ):
            outer = [(worker, slot, part.count(worker)) for worker, slot in finder.holders(inner)]
            found = [(w * workers + w0, s * n0 + s0, n * n0) for w, s, n in outer for w0, s0, n0 in found]
            workers *= part.num_workers
        return sorted((worker, slot) for worker, slot, _ in found)

    def _split(self, task: Sequence[Number]) -> list[tuple[Number, ...]]:
        """The task as one task per part: each index is a mixed-radix number with one digit per part."""
        shape = self.mapping.task_shape
        outside = len(task) != len(shape) or any(
            isinstance(index, int) and not 0 <= index < extent for index, extent in zip(task, shape, strict=True)
        )
        if outside:
            raise IndexOutOfRangeError(
                f"{self.mapping} has no task {tuple(task)}", why=f"its tasks lie inside {by(shape)}."
            )
        extents = zip(*(part.task_shape for part in self.mapping.parts), strict=True)
        along = [radix.split(index, each) for index, each in zip(task, extents, strict=True)]
        return [tuple(digits) for digits in zip(*along, strict=True)] or [()] * len(self.finders)


def holders_of(mapping: Assignment) -> Inverse:
    """The (worker, slot) pairs of each task, in any mapping."""
    return Inverse(mapping, tuple(part.finder() for part in mapping.parts))


def flaw(mapping: Assignment) -> str:
    """A counterexample to the partition: a task not done exactly once, and its workers. Empty for a partition."""
    witnesses = [part.witness() for part in mapping.parts]
    if all(witness is None for witness in witnesses):
        return ""
    task = (0,) * len(mapping.task_shape)
    for part, witness in zip(mapping.parts, witnesses, strict=True):
        inner = witness or (0,) * len(task)
        task = tuple(t * d + i for t, d, i in zip(task, part.task_shape, inner, strict=True))
    return f"task {task} is done by {_who(holders_of(mapping).all(*task))}"


def _who(holders: list[Holder]) -> str:
    if not holders:
        return "no worker"
    workers = sorted({worker for worker, _ in holders})
    if len(workers) == 1:
        return f"worker {workers[0]} {len(holders)} times"
    return f"workers {listed(workers)}"
