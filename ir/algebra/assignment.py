"""The data of a task mapping: for each worker an ordered list of tasks, kept as a composition of parts."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass

from taskmap.ir.algebra import radix
from taskmap.ir.algebra.digits import DigitMap, Task
from taskmap.ir.algebra.table import TableMap
from taskmap.ir.errors import IndexOutOfRangeError, MappingError
from taskmap.ir.util.wording import by

Part = DigitMap | TableMap


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Assignment:
    """The tasks of each worker, in order. `TaskMapping` adds composition, comparison and lookups.

    parts: the mapping as a composition, slowest first, in normal form: no two neighbours are both DigitMaps.
    text: the expression it was written as.
    """

    task_shape: tuple[int, ...]
    parts: tuple[Part, ...]
    text: str

    @property
    def num_workers(self) -> int:
        """n; the workers are numbered 0 .. n-1."""
        return math.prod(part.num_workers for part in self.parts)

    @property
    def num_slots(self) -> int:
        """The length of the longest list of tasks."""
        return math.prod(part.num_slots for part in self.parts)

    @property
    def tasks_per_worker(self) -> int:
        """The number of tasks of each worker. MappingError if the lists differ in length, as from_function allows."""
        if not self._is_even:
            raise MappingError(
                f"{self.text} has no single number of tasks per worker",
                why="its workers have lists of different lengths.",
                hint="Ask for num_slots, the longest, or for len(mapping(worker)).",
            )
        return self.num_slots

    def __call__(self, worker: int) -> list[Task]:
        """The tasks of the worker, in order. IndexOutOfRangeError for a number outside [0, num_workers)."""
        worker = operator.index(worker)
        if not 0 <= worker < self.num_workers:
            raise IndexOutOfRangeError(f"{self.text} has no worker {worker}", why=f"it has {self.num_workers} workers.")
        tasks: list[Task] = [(0,) * len(self.task_shape)]
        for part, digit in zip(self.parts, radix.split(worker, [p.num_workers for p in self.parts]), strict=True):
            inner_tasks = part.tasks(digit)
            tasks = [
                tuple(t * d + i for t, d, i in zip(outer, part.task_shape, inner, strict=True))
                for outer in tasks
                for inner in inner_tasks
            ]
        return tasks

    @property
    def is_partition(self) -> bool:
        """True if each task is done by exactly one worker, exactly once."""
        return all(part.is_partition for part in self.parts)

    @property
    def is_covering(self) -> bool:
        """True if each task is done by at least one worker."""
        return all(part.is_covering for part in self.parts)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        tasks = math.prod(self.task_shape)
        each = f"{self.num_slots} each" if self._is_even else f"at most {self.num_slots} each"
        return (
            f"{self.text}        {by(self.task_shape)} task{'s' * (tasks != 1)}, "
            f"{self.num_workers} worker{'s' * (self.num_workers != 1)}, {each}"
        )

    @property
    def _is_even(self) -> bool:
        return math.prod(part.num_pairs for part in self.parts) == self.num_workers * self.num_slots
