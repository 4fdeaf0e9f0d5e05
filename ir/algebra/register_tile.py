"""Register tiles: a logical tile whose elements are spread over the registers of many workers.

Code indexes the tile by logical coordinates. The owner, a task mapping, says which worker holds the element and in
which slot; the slot is the register's number in that worker's own array. The accumulator of an m16n8 MMA is

    RegisterTile((16, 8), repeat(2, 1) * spatial(8, 4) * repeat(1, 2))       32 workers, 4 registers each
"""

from __future__ import annotations

from dataclasses import dataclass, field

from taskmap.ir.algebra.digits import Task
from taskmap.ir.algebra.inverse import Inverse, flaw
from taskmap.ir.algebra.mapping import TaskMapping, repeat
from taskmap.ir.algebra.radix import Number
from taskmap.ir.errors import MappingError
from taskmap.ir.util.wording import by

__all__ = ["RegisterTile", "is_in_order"]


def is_in_order(owner: TaskMapping) -> bool:
    """True if one worker holds every element of the tile in row-major order, so that slot and position coincide."""
    return owner.num_workers == 1 and owner == repeat(*owner.task_shape)


@dataclass(frozen=True, slots=True)
class RegisterTile:
    """A tile of `shape` elements, held by the workers of `owner`. Workers may share elements; every element has one.

    Raises MappingError if the owner has another shape, or leaves an element without a worker.
    """

    shape: tuple[int, ...]
    owner: TaskMapping
    _lookup: Inverse = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if tuple(self.shape) != self.owner.task_shape:
            raise MappingError(
                f"{self.owner} cannot own a register tile of shape {by(self.shape)}",
                why=f"it distributes {by(self.owner.task_shape)} elements.",
                hint="Compose it with a repeat or spatial until the shapes agree.",
            )
        if not self.owner.is_covering:
            raise MappingError(
                f"{self.owner} cannot own a register tile",
                why=f"{flaw(self.owner)}: that element would have no register.",
            )
        object.__setattr__(self, "_lookup", self.owner.holders())

    @property
    def num_workers(self) -> int:
        """The number of workers that together hold the tile."""
        return self.owner.num_workers

    @property
    def num_slots(self) -> int:
        """Registers (of one element) in each worker: the size of its array."""
        return self.owner.num_slots

    def locate(self, *coords: Number) -> tuple[Number, Number]:
        """(worker, slot) of the element; the first worker if several share it. Coordinates may be symbolic.

        IndexOutOfRangeError for coordinates outside the tile.
        """
        return self._lookup(*coords)

    def holders(self, *coords: int) -> list[tuple[int, int]]:
        """Every (worker, slot) that holds the element."""
        return self._lookup.all(*coords)

    def tile(self, worker: int) -> list[Task]:
        """The elements held by the worker; the position in the list is the slot."""
        return self.owner(worker)
