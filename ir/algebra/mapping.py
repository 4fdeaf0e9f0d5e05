"""Task mappings: the assignment of tasks to workers, and the order in which each worker does its tasks.

A task mapping has a task shape d, a number of workers n, and for each worker w in [0, n) an ordered list of tasks, each
an index tuple below d. There are three atoms, a function for everything else, and one operation:

    repeat(*d)     one worker does every task, in row-major order
    spatial(*d)    one worker per task, numbered row-major
    replicate(n)   n workers all do the same single task
    f * g          each task of f becomes a block of g's: task shape d_f ⊙ d_g, n_f · n_g workers, and
                   (f * g)(w) = [ t_f ⊙ d_g + t_g   for t_f in f(w div n_g)   for t_g in g(w mod n_g) ]

``*`` is associative, repeat(1, ..., 1) is its identity, and every composition of repeat and spatial is a partition:
each task is done exactly once. The same object says which thread loads an element, which lane holds an element of a
register tile, and where an MMA instruction expects each operand element. After: task mappings of Hidet (Ding et al.,
ASPLOS 2023, section 4); inverse, equality, sharing and certificates are added here.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from taskmap.ir.algebra import radix
from taskmap.ir.algebra.assignment import Assignment, Part
from taskmap.ir.algebra.certify import Certificate, certify
from taskmap.ir.algebra.digits import Digit, DigitMap, coalesce
from taskmap.ir.algebra.draw import draw
from taskmap.ir.algebra.grid_picture import Drawing
from taskmap.ir.algebra.inverse import Inverse, flaw, holders_of
from taskmap.ir.algebra.layout import Layout, column_major
from taskmap.ir.algebra.loops import OnWorker
from taskmap.ir.algebra.shape_stride import ShapeStride
from taskmap.ir.algebra.table import tabulate
from taskmap.ir.algebra.thread_value import of_mapping
from taskmap.ir.errors import MappingError

__all__ = ["TaskMapping", "from_function", "repeat", "replicate", "spatial"]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TaskMapping(Assignment):
    """A task mapping. Made by repeat, spatial, replicate, from_function and ``*``; immutable, equal by meaning.

    Its data, and what follows from them alone, are those of an Assignment.
    """

    def __mul__(self, inner: TaskMapping) -> TaskMapping:
        """The composition: a task of self becomes a block of inner's tasks, a worker of self a group of its workers."""
        if not isinstance(inner, TaskMapping):
            return NotImplemented
        if len(self.task_shape) != len(inner.task_shape):
            raise MappingError(
                f"cannot compose {self.text} with {inner.text}",
                why=f"their tasks have {len(self.task_shape)} and {len(inner.task_shape)} dimensions.",
                hint="Give the smaller one dimensions of extent 1.",
            )
        shape = tuple(a * b for a, b in zip(self.task_shape, inner.task_shape, strict=True))
        return TaskMapping(shape, _normal((*self.parts, *inner.parts)), f"{self.text} * {inner.text}")

    def __eq__(self, other: object) -> bool:
        """True if in both the same workers do the same tasks in the same order, however they were written."""
        if not isinstance(other, TaskMapping):
            return NotImplemented
        if self.parts == other.parts:
            return True
        if self._counts() != other._counts():
            return False
        if all(isinstance(part, DigitMap) for part in (*self.parts, *other.parts)):
            return False  # the digits are a normal form: they differ, so the mappings do
        return self._lists_equal(other)

    def __hash__(self) -> int:
        return hash(self._counts())

    def inverse(self) -> Inverse:
        """The function task -> (worker, slot). MappingError, with an example, if the mapping is not a partition."""
        if not self.is_partition:
            raise MappingError(
                f"{self.text} has no inverse",
                why=f"{flaw(self)}.",
                hint="A composition of repeat and spatial alone always has one.",
            )
        return holders_of(self)

    def holders(self) -> Inverse:
        """The same lookup for any mapping: ``.all(*task)`` lists every (worker, slot) of a task."""
        return holders_of(self)

    def on(self, worker: Any) -> OnWorker[TaskMapping]:
        """The tasks of one worker, for a loop: iterate if worker is an int, call ``lower`` if it is symbolic."""
        return OnWorker(self, worker)

    def draw(self, *, slots: bool = False, limit: int = 32) -> Drawing:
        """A picture: a grid of tasks with the worker in each cell (``worker:slot`` with slots=True).

        Prints as text, and has ``.svg()`` and ``.save(path)``. At most `limit` cells are drawn along each axis.
        """
        return draw(self, slots=slots, limit=limit)

    def certify(
        self, *, layout: Layout | None = None, scope: str = "global", target: str = "cuda:sm_80", bytes: int = 4
    ) -> Certificate:
        """Prove or refute claims about how the mapping accesses a memory: see taskmap.ir.algebra.certify."""
        return certify(self, layout=layout, scope=scope, target=target, bytes=bytes)

    def shape_stride(self, layout: Layout | None = None) -> ShapeStride:
        """(workers, slots) -> address of the task in layout, in shape:stride notation (CuTe's thread-value layout).

        layout: column-major over the task shape by default. MappingError or LayoutError if the notation cannot
        express it.
        """
        return of_mapping(self, layout or column_major(*self.task_shape))

    def _counts(self) -> tuple[tuple[int, ...], int, int]:
        """Numbers that equal mappings share: the task shape, the workers, and the (worker, task) pairs."""
        return self.task_shape, self.num_workers, math.prod(part.num_pairs for part in self.parts)

    def _lists_equal(self, other: TaskMapping) -> bool:
        """Compare worker by worker; only needed when one holds a table, and tables are small."""
        compared = 0
        for worker in range(self.num_workers):
            if compared > radix.LARGEST:
                raise MappingError(
                    f"cannot tell whether {self.text} equals {other.text}",
                    why=f"functions are compared task by task, and the first {radix.LARGEST} tasks are equal.",
                    hint="Write both as compositions of repeat, spatial and replicate.",
                )
            tasks = self(worker)
            if tasks != other(worker):
                return False
            compared += max(len(tasks), 1)
        return True


def repeat(*extents: int, order: Sequence[int] | None = None) -> TaskMapping:
    """One worker does all tasks of shape `extents`, row-major, or by `order`: the dimensions, slowest first."""
    digits = _box("repeat", extents, order)
    return TaskMapping(extents, (DigitMap(extents, (), digits),), _written("repeat", extents, order))


def spatial(*extents: int, order: Sequence[int] | None = None) -> TaskMapping:
    """One worker per task of shape `extents`, row-major, or by `order`: the dimensions, slowest first."""
    digits = _box("spatial", extents, order)
    return TaskMapping(extents, (DigitMap(extents, digits, ()),), _written("spatial", extents, order))


def replicate(workers: int, *, rank: int) -> TaskMapping:
    """`workers` workers that all do the same single task, of `rank` dimensions of extent 1.

    For an operand that several lanes hold: in replicate(4, rank=2) * spatial(8, 4), workers w, w + 32, w + 64 and w +
    96 share their task; in spatial(8, 4) * replicate(4, rank=2), four neighbours do.
    """
    _check_extents("replicate", (workers,))
    shape = (1,) * operator.index(rank)
    return TaskMapping(
        shape, (DigitMap(shape, coalesce([Digit(workers, 0, 0)]), ()),), f"replicate({workers}, rank={rank})"
    )


def from_function(
    tasks: Callable[[Any], Iterable[Any]], task_shape: Sequence[int], num_workers: int, *, name: str | None = None
) -> TaskMapping:
    """The mapping in which worker w does tasks(w), a list of index tuples below task_shape.

    The function is called once per worker, when the mapping is made. If each worker does one task and the function is
    pure arithmetic (+ * // %), the mapping can also be lowered for a symbolic worker. Raises MappingError for tasks out
    of range, and for more than a million of them.
    """
    shape = tuple(task_shape)
    name = name or str(getattr(tasks, "__name__", "function"))
    _check_extents("from_function", (*shape, num_workers))
    text = f"from_function({name}, {shape}, {num_workers})"
    return TaskMapping(shape, (tabulate(tasks, shape, num_workers, name),), text)


def _normal(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Compose neighbouring DigitMaps and drop identities, so that most equal mappings have equal parts."""
    result: list[Part] = []
    for part in parts:
        last = result[-1] if result else None
        if isinstance(part, DigitMap) and isinstance(last, DigitMap):
            result[-1] = last.compose(part)
        elif last and _is_identity(last):
            result[-1] = part
        elif last is None or not _is_identity(part):
            result.append(part)
    return tuple(result)


def _is_identity(part: Part) -> bool:
    return isinstance(part, DigitMap) and math.prod(part.task_shape) == part.num_workers == 1


def _box(atom: str, extents: tuple[int, ...], order: Sequence[int] | None) -> tuple[Digit, ...]:
    """The digits of a number that counts through a box, with the dimensions in this order."""
    _check_extents(atom, extents)
    dims = range(len(extents)) if order is None else order
    if sorted(dims) != list(range(len(extents))):
        raise MappingError(
            f"{_written(atom, extents, order)} has an invalid order",
            why=f"order lists each of the dimensions 0 to {len(extents) - 1} once, from slowest to fastest.",
        )
    return coalesce(Digit(extents[dim], dim, 1) for dim in dims)


def _check_extents(atom: str, extents: tuple[int, ...]) -> None:
    for extent in extents:
        if isinstance(extent, bool) or not isinstance(extent, int) or extent < 1:
            raise MappingError(
                f"{atom} cannot have the extent {extent!r}",
                why="extents and numbers of workers are positive ints, known when the kernel is built.",
                hint="For a symbolic size, map a tile of it and loop over the tiles.",
            )


def _written(atom: str, extents: tuple[int, ...], order: Sequence[int] | None) -> str:
    arguments = [str(extent) for extent in extents]
    if order is not None and list(order) != list(range(len(extents))):
        arguments.append(f"order={tuple(order)}")
    return f"{atom}({', '.join(arguments)})"
