"""Random task mappings, and a symbolic integer with only the operations that lowering may use."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import strategies as st

from taskmap.ir.algebra.mapping import TaskMapping, from_function, repeat, replicate, spatial

MOST = 2000


@dataclass(frozen=True, eq=False)
class Symbol:
    """An expression of named ints: + * // % with an int or Symbol on the right, and nothing else."""

    evaluate: Callable[[dict[str, int]], int]

    @staticmethod
    def named(name: str) -> Symbol:
        return Symbol(lambda values: values[name])

    def __add__(self, other: Symbol | int) -> Symbol:
        return Symbol(lambda values: self.evaluate(values) + value_of(other, values))

    def __mul__(self, other: Symbol | int) -> Symbol:
        return Symbol(lambda values: self.evaluate(values) * value_of(other, values))

    def __floordiv__(self, other: Symbol | int) -> Symbol:
        return Symbol(lambda values: self.evaluate(values) // value_of(other, values))

    def __mod__(self, other: Symbol | int) -> Symbol:
        return Symbol(lambda values: self.evaluate(values) % value_of(other, values))

    def __eq__(self, other: object) -> Symbol:  # type: ignore[override]
        return Symbol(
            lambda values: 0
        )  # builds an expression, as in many frameworks: whoever asks for its truth is wrong

    def __hash__(self) -> int:
        raise AssertionError("a symbolic value was hashed")

    def __bool__(self) -> bool:
        raise AssertionError("the truth of a symbolic value was asked for")


def value_of(value: Symbol | int, values: dict[str, int]) -> int:
    return value if isinstance(value, int) else value.evaluate(values)


def boxes(rank: int) -> st.SearchStrategy[TaskMapping]:
    """repeat or spatial with any order."""
    extents = st.lists(st.integers(1, 4), min_size=rank, max_size=rank)
    return st.builds(
        lambda atom, extents, order: atom(*extents, order=order),
        st.sampled_from([repeat, spatial]),
        extents,
        st.none() | st.permutations(range(rank)),
    )


def compositions(rank: int, most: int = 4) -> st.SearchStrategy[TaskMapping]:
    """Compositions of repeat and spatial."""
    return st.lists(boxes(rank), min_size=1, max_size=most).map(_composed)


@st.composite
def functions(draw: st.DrawFn, rank: int) -> TaskMapping:
    """Any lists of tasks: uneven, overlapping, incomplete."""
    shape = tuple(draw(st.integers(1, 3)) for _ in range(rank))
    task = st.tuples(*(st.integers(0, extent - 1) for extent in shape))
    lists = draw(st.lists(st.lists(task, max_size=3), min_size=1, max_size=4))
    return from_function(lambda worker: lists[worker], shape, len(lists), name="drawn")


def mappings(rank: int, most: int = 3) -> st.SearchStrategy[TaskMapping]:
    """Compositions of everything there is."""
    shared = st.integers(1, 3).map(lambda workers: replicate(workers, rank=rank))
    return st.lists(boxes(rank) | shared | functions(rank), min_size=1, max_size=most).map(_composed)


def _composed(factors: list[TaskMapping]) -> TaskMapping:
    """The product of as many of the factors as keep it small enough to list."""
    result = factors[0]
    for factor in factors[1:]:
        if _size(result) * _size(factor) <= MOST:
            result = result * factor
    return result


def _size(mapping: TaskMapping) -> int:
    return math.prod(mapping.task_shape) * mapping.num_workers * max(mapping.num_slots, 1)
