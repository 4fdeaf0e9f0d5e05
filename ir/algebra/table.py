"""The form of a task mapping given by a function: a table, computed once and checked.

The table makes the mapping a value: it cannot change later, it has an equality and a hash, and a task out of range is
found where the mapping is made.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from taskmap.ir.algebra import radix
from taskmap.ir.algebra.digits import Holder, Task
from taskmap.ir.algebra.radix import Number
from taskmap.ir.errors import MappingError
from taskmap.ir.util.wording import by


@dataclass(frozen=True, slots=True)
class TableFinder:
    """The holders of each task of a table, for many lookups."""

    where: dict[Task, list[Holder]]

    def holders(self, task: Task) -> list[Holder]:
        """All workers that do the task, in increasing order, with their slots."""
        return self.where.get(task, [])

    def locate(self, task: tuple[Number, ...]) -> tuple[Number, Number]:
        """The first worker that does the task, and its slot."""
        if not all(isinstance(index, int) for index in task):
            raise MappingError(
                f"cannot find the worker of the symbolic task {task}",
                why="the mapping is given by a function, so its inverse is a table.",
                hint="Write it as a composition of repeat, spatial and replicate.",
            )
        holders = self.holders(task)
        if not holders:
            raise MappingError(f"no worker does task {task}")
        return holders[0]


@dataclass(frozen=True, slots=True)
class TableMap:
    """table[worker] lists the worker's tasks. `rule` is the function behind it, kept to lower a symbolic worker."""

    task_shape: tuple[int, ...]
    table: tuple[tuple[Task, ...], ...]
    name: str = field(compare=False)
    rule: Callable[[Any], Iterable[Any]] = field(compare=False)

    @property
    def num_workers(self) -> int:
        return len(self.table)

    @property
    def num_slots(self) -> int:
        """The largest number of tasks of one worker."""
        return max(map(len, self.table))

    @property
    def num_pairs(self) -> int:
        """Number of (worker, task) pairs."""
        return sum(map(len, self.table))

    @property
    def is_covering(self) -> bool:
        return len(self.finder().where) == math.prod(self.task_shape)

    @property
    def is_partition(self) -> bool:
        return self.witness() is None

    def count(self, worker: int) -> int:
        """The number of tasks of the worker."""
        return len(self.table[worker])

    def tasks(self, worker: int) -> list[Task]:
        """The worker's tasks in order."""
        return list(self.table[worker])

    def lower(
        self, worker: Number, fresh_var: Callable[[int], Number]
    ) -> tuple[tuple[tuple[Number, int], ...], tuple[Number, ...]]:
        """No loops, and the function's own expression of the worker; only if each worker does exactly one task."""
        if any(len(tasks) != 1 for tasks in self.table):
            raise MappingError(
                f"cannot lower {self.name!r} for a symbolic worker",
                why="it is given by a function, and its workers do not do exactly one task each.",
                hint="Compose a repeat with a function that gives one task.",
            )
        (task,) = self.rule(worker)
        return (), tuple(task)

    def finder(self) -> TableFinder:
        """The object that implements `locate` and `holders`."""
        where: dict[Task, list[Holder]] = {}
        for worker, tasks in enumerate(self.table):
            for slot, task in enumerate(tasks):
                where.setdefault(task, []).append((worker, slot))
        return TableFinder(where)

    def witness(self) -> Task | None:
        """A task that is not done exactly once, preferably one without a worker; None for a partition."""
        holders = self.finder().holders
        missing = (task for task in self._every_task() if not holders(task))
        repeated = (task for task in self._every_task() if len(holders(task)) > 1)
        return next(itertools.chain(missing, repeated), None)

    def _every_task(self) -> Iterable[Task]:
        return itertools.product(*map(range, self.task_shape))


def tabulate(
    rule: Callable[[Any], Iterable[Any]], task_shape: tuple[int, ...], num_workers: int, name: str
) -> TableMap:
    """The table of rule(worker) for every worker. MappingError for a task that is not an index into task_shape."""
    table: list[tuple[Task, ...]] = []
    size = 0
    for worker in range(num_workers):
        tasks = tuple(tuple(task) for task in rule(worker))
        for task in tasks:
            _check(task, task_shape, worker, name)
        table.append(tasks)
        size += max(len(tasks), 1)
        if size > radix.LARGEST:
            raise MappingError(
                f"the mapping {name!r} is too large to be given by a function",
                why=f"its table would hold more than {radix.LARGEST} workers and tasks.",
                hint="Compose a small function with repeat and spatial.",
            )
    return TableMap(task_shape, tuple(table), name, rule)


def _check(task: Task, task_shape: tuple[int, ...], worker: int, name: str) -> None:
    inside = len(task) == len(task_shape) and all(
        isinstance(index, int) and 0 <= index < extent for index, extent in zip(task, task_shape, strict=False)
    )
    if not inside:
        raise MappingError(
            f"the mapping {name!r} gives worker {worker} the task {task}",
            why=f"a task is a tuple of {len(task_shape)} ints inside the task shape {by(task_shape)}.",
        )
