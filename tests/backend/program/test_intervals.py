"""Sets of addresses, against sets of integers."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from taskmap.backend.program.intervals import Interval, common, inward, joined, outward, without

some = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)))


def members(intervals: Iterable[Interval]) -> set[int]:
    return {i for start, end in intervals for i in range(start, end)}


def normal(intervals: list[Interval]) -> bool:
    return all(start < end for start, end in intervals) and all(a[1] < b[0] for a, b in pairwise(intervals))


@given(some, some)
def test_each_operation_is_that_of_sets(left: list[Interval], right: list[Interval]) -> None:
    a, b = joined(left), joined(right)
    assert normal(a)
    assert members(a) == members(left)
    assert members(common(a, b)) == members(a) & members(b)
    assert members(without(a, b)) == members(a) - members(b)


@given(some, st.integers(1, 9))
def test_units_that_are_touched_or_full(intervals: list[Interval], unit: int) -> None:
    held = joined(intervals)
    units = {n: set(range(n * unit, n * unit + unit)) for n in range(70)}
    held_members = members(held)
    assert members(outward(held, unit)) == {i for u in units.values() if u & held_members for i in u}
    assert members(inward(held, unit)) == {i for u in units.values() if u <= held_members for i in u}
