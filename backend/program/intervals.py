"""Sets of addresses: disjoint intervals in order, each its first address and the one after the last."""

from __future__ import annotations

from collections.abc import Iterable

Interval = tuple[int, int]


def joined(intervals: Iterable[Interval]) -> list[Interval]:
    """The union of intervals in any order; those that touch are one, empty ones are left out."""
    result: list[Interval] = []
    for start, end in sorted(i for i in intervals if i[0] < i[1]):
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((start, end))
    return result


def common(left: list[Interval], right: list[Interval]) -> list[Interval]:
    """The intersection of two sets."""
    result: list[Interval] = []
    i = j = 0
    while i < len(left) and j < len(right):
        start, end = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if start < end:
            result.append((start, end))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return result


def without(left: list[Interval], right: list[Interval]) -> list[Interval]:
    """The addresses of one set that another lacks."""
    if not left:
        return []
    low, high = left[0][0], left[-1][1]
    ends = [low, *(min(max(at, low), high) for interval in right for at in interval), high]
    gaps = zip(ends[::2], ends[1::2], strict=True)
    return common(left, [gap for gap in gaps if gap[0] < gap[1]])


def outward(intervals: Iterable[Interval], unit: int) -> list[Interval]:
    """The multiples of ``unit`` around intervals."""
    return joined((start // unit * unit, -(-end // unit) * unit) for start, end in intervals)


def inward(intervals: Iterable[Interval], unit: int) -> list[Interval]:
    """The multiples of ``unit`` that lie in disjoint intervals as a whole."""
    return joined((-(-start // unit) * unit, end // unit * unit) for start, end in intervals)
