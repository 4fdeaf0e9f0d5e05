"""The wording of shapes and lists of numbers in messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def by(shape: Iterable[object]) -> str:
    """A shape as "64×8"; "1" for the empty shape, which has one element."""
    return "×".join(map(str, shape)) or "1"


def listed(numbers: Sequence[int], most: int = 4) -> str:
    """A list of numbers as "0, 8 and 16", or "0, 8, 16, 24 and 28 more"."""
    if len(numbers) > most:
        return f"{', '.join(map(str, numbers[:most]))} and {len(numbers) - most} more"
    if len(numbers) < 2:
        return "".join(map(str, numbers))
    return f"{', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"
