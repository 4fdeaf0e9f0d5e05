"""The tasks of one worker as a loop nest: repeats become loops, spatials become div and mod of the worker number."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from taskmap.ir.algebra import radix
from taskmap.ir.algebra.assignment import Assignment
from taskmap.ir.algebra.digits import Task
from taskmap.ir.algebra.radix import Number
from taskmap.ir.errors import MappingError

M = TypeVar("M", bound=Assignment)


class Lowered(NamedTuple):
    """``for var in range(extent)`` for each entry of loops, outermost first; inside them the task is `indices`."""

    loops: tuple[tuple[Number, int], ...]
    indices: tuple[Number, ...]


@dataclass(frozen=True, slots=True)
class OnWorker(Generic[M]):
    """The tasks of `worker`: iterate over them if it is an int, lower them if it is an expression.

    (repeat(4, 1) * spatial(16, 8)).on(w) lowers to

        for r in range(4):
            task = (r * 16 + w // 8, w % 8)
    """

    mapping: M
    worker: Any

    def __iter__(self) -> Iterator[Task]:
        if not isinstance(self.worker, int):
            raise MappingError(
                f"cannot iterate over the tasks of the symbolic worker {self.worker}",
                why="its number is known only when the kernel runs.",
                hint="In a kernel, write the loop in script; elsewhere, use .lower(worker, fresh_var).",
            )
        return iter(self.mapping(self.worker))

    def lower(self, worker: Number, fresh_var: Callable[[int], Number]) -> Lowered:
        """Loops and indices for `worker`, an int or any expression with ``+ * // %``, in [0, num_workers).

        worker: usually self.worker; a front end passes the expression of its own IR. fresh_var(extent): a new loop
        variable in [0, extent). A constant index is the int 0. Raises MappingError for a part given by a function
        whose workers do not do exactly one task each.
        """
        loops: list[tuple[Number, int]] = []
        indices: tuple[Number, ...] = (0,) * len(self.mapping.task_shape)
        parts = self.mapping.parts
        for part, digit in zip(parts, radix.split(worker, [p.num_workers for p in parts]), strict=True):
            part_loops, part_indices = part.lower(digit, fresh_var)
            loops.extend(part_loops)
            indices = tuple(
                radix.plus(radix.times(index, extent), inner)
                for index, extent, inner in zip(indices, part.task_shape, part_indices, strict=True)
            )
        return Lowered(tuple(loops), indices)
