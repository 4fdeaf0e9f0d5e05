"""The normal form of a task mapping built from repeat, spatial and replicate: digits.

Write a worker number as a mixed-radix number, and a slot number (the position in a worker's list) as another. In any
composition of repeat and spatial, each digit of either moves the task by a fixed stride along one dimension, and the
moves add up:

    repeat(2, 1) * spatial(8, 4) * repeat(1, 2)      16×8 tasks
        worker = (8 along dim 0, stride 1) (4 along dim 1, stride 2)
        slot   = (2 along dim 0, stride 8) (2 along dim 1, stride 1)

Neighbouring digits that together count in equal steps are merged into one. The digits that remain are determined by the
mapping as a function: the fastest digit's stride is the first step f(1) - f(0), its extent is the length of the run of
equal steps, and so on upwards. Hence two mappings do the same work exactly when their digits are equal, whatever their
size and however they were written.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache

from taskmap.ir.algebra import radix
from taskmap.ir.algebra.radix import Number

Task = tuple[int, ...]
Holder = tuple[int, int]  # (worker, slot)


@dataclass(frozen=True, slots=True)
class Digit:
    """A digit with `extent` values, each moving the task by `stride` along `dim`. Stride 0: workers share tasks."""

    extent: int
    dim: int
    stride: int


def coalesce(digits: Iterable[Digit]) -> tuple[Digit, ...]:
    """The same digits, with neighbours that count in equal steps merged and digits of extent 1 dropped."""
    result: list[Digit] = []
    for fast in digits:
        if fast.extent == 1:
            continue
        slow = result[-1] if result else None
        if slow and slow.dim == fast.dim and slow.stride == fast.extent * fast.stride:
            result[-1] = Digit(slow.extent * fast.extent, fast.dim, fast.stride)
        else:
            result.append(fast)
    return tuple(result)


@dataclass(frozen=True, slots=True)
class DigitMap:
    """Worker and slot digits, slowest first and coalesced. The digits of one dimension make up its index."""

    task_shape: tuple[int, ...]
    workers: tuple[Digit, ...]
    slots: tuple[Digit, ...]

    @property
    def num_workers(self) -> int:
        return int(radix.product(digit.extent for digit in self.workers))

    @property
    def num_slots(self) -> int:
        return int(radix.product(digit.extent for digit in self.slots))

    @property
    def num_pairs(self) -> int:
        """Number of (worker, slot) pairs."""
        return self.num_workers * self.num_slots

    @property
    def is_covering(self) -> bool:
        return True

    @property
    def is_partition(self) -> bool:
        return all(digit.stride for digit in self.workers)

    def count(self, worker: int) -> int:
        """The number of tasks of the worker, equal for all workers."""
        return self.num_slots

    def compose(self, inner: DigitMap) -> DigitMap:
        """self * inner: inner's tasks tile each task of self, so self's strides grow by inner's shape."""

        def scaled(digits: tuple[Digit, ...]) -> list[Digit]:
            return [
                Digit(digit.extent, digit.dim, digit.stride * inner.task_shape[digit.dim] if digit.stride else 0)
                for digit in digits
            ]

        return DigitMap(
            tuple(a * b for a, b in zip(self.task_shape, inner.task_shape, strict=True)),
            coalesce([*scaled(self.workers), *inner.workers]),
            coalesce([*scaled(self.slots), *inner.slots]),
        )

    def indices(self, worker: Number, slot_digits: Iterable[Number]) -> tuple[Number, ...]:
        """The task of a worker at a slot, given by its digits. Either may be symbolic."""
        values = [*radix.split(worker, [digit.extent for digit in self.workers]), *slot_digits]
        moves = list(zip(values, [*self.workers, *self.slots], strict=True))
        return tuple(
            radix.combine((value, digit.stride) for value, digit in moves if digit.dim == dim)
            for dim in range(len(self.task_shape))
        )

    def tasks(self, worker: int) -> list[Task]:
        """The worker's tasks in order."""
        first = self.indices(worker, (0,) * len(self.slots))
        return [tuple(a + b for a, b in zip(first, move, strict=True)) for move in _moves(self)]

    def lower(
        self, worker: Number, fresh_var: Callable[[int], Number]
    ) -> tuple[tuple[tuple[Number, int], ...], tuple[Number, ...]]:
        """One loop per slot digit, slowest outermost, and the task inside them. The same formula as `tasks`."""
        variables = [fresh_var(digit.extent) for digit in self.slots]
        loops = tuple((var, digit.extent) for var, digit in zip(variables, self.slots, strict=True))
        return loops, self.indices(worker, variables)

    def locate(self, task: tuple[Number, ...]) -> tuple[Number, Number]:
        """The first worker that does the task, and its slot. The task's indices may be symbolic."""

        def number(digits: tuple[Digit, ...]) -> Number:
            values = [self._value(digit, task) for digit in digits]
            return radix.join(values, [digit.extent for digit in digits])

        return number(self.workers), number(self.slots)

    def _value(self, digit: Digit, task: tuple[Number, ...]) -> Number:
        if digit.stride == 0:
            return 0
        is_top = digit.stride * digit.extent == self.task_shape[digit.dim]
        return radix.digit(task[digit.dim], digit.stride, None if is_top else digit.extent)

    def holders(self, task: Task) -> list[Holder]:
        """All workers that do the task, in increasing order, with their slots."""
        first, slot = self.locate(task)
        weights = radix.weights([digit.extent for digit in self.workers])
        shared = [
            [value * weight for value in range(digit.extent if digit.stride == 0 else 1)]
            for digit, weight in zip(self.workers, weights, strict=True)
        ]
        return [(first + sum(offsets), slot) for offsets in itertools.product(*shared)]

    def finder(self) -> DigitMap:
        """The object that implements `locate` and `holders`: this one."""
        return self

    def witness(self) -> Task | None:
        """A task that is not done exactly once, or None."""
        return None if self.is_partition else (0,) * len(self.task_shape)


@lru_cache(maxsize=256)
def _moves(mapping: DigitMap) -> tuple[Task, ...]:
    """The offset of each slot's task from that of slot 0, the same for every worker."""
    every_slot = itertools.product(*(range(digit.extent) for digit in mapping.slots))
    return tuple(mapping.indices(0, slot_digits) for slot_digits in every_slot)
