"""Division of task mappings: the outer factor of a composition with a given inner one."""

from __future__ import annotations

from functools import lru_cache

from taskmap.ir.algebra.digits import Digit, DigitMap
from taskmap.ir.algebra.mapping import TaskMapping


def quotient(mapping: TaskMapping, inner: TaskMapping) -> TaskMapping | None:
    """The f with f * inner == mapping; None if it does not exist, or if either mapping is given by a function."""
    found = _quotient(mapping, inner)
    return None if found is None else TaskMapping(found.task_shape, found.parts, f"({mapping}) / ({inner})")


@lru_cache(maxsize=512)  # equal mappings may be written differently, so the result has no text of its own
def _quotient(mapping: TaskMapping, inner: TaskMapping) -> TaskMapping | None:
    if len(mapping.parts) != 1 or len(inner.parts) != 1:
        return None
    whole, part = mapping.parts[0], inner.parts[0]
    if not isinstance(whole, DigitMap) or not isinstance(part, DigitMap):
        return None
    if any(n % d for n, d in zip(whole.task_shape, part.task_shape, strict=True)):
        return None
    workers = _without(whole.workers, part.workers, part.task_shape)
    slots = _without(whole.slots, part.slots, part.task_shape)
    if workers is None or slots is None:
        return None
    shape = tuple(n // d for n, d in zip(whole.task_shape, part.task_shape, strict=True))
    found = TaskMapping(shape, (DigitMap(shape, workers, slots),), "")
    return found if found * inner == mapping else None


def _without(digits: tuple[Digit, ...], inner: tuple[Digit, ...], shape: tuple[int, ...]) -> tuple[Digit, ...] | None:
    """The digits before ``inner``, in units of the shape. A digit whose fast part is a digit of inner is split."""
    rest = list(digits)
    for fast in reversed(inner):
        if not rest:
            return None
        last = rest.pop()
        if (last.dim, last.stride) != (fast.dim, fast.stride) or last.extent % fast.extent:
            return None
        if last.extent > fast.extent:
            rest.append(Digit(last.extent // fast.extent, last.dim, last.stride * fast.extent))
    if any(d.stride % shape[d.dim] for d in rest):
        return None
    return tuple(Digit(d.extent, d.dim, d.stride // shape[d.dim]) for d in rest)


def along(mapping: TaskMapping, dim: int) -> TaskMapping | None:
    """The mapping restricted to dimension ``dim`` of two: workers that differ only in the other share a task."""
    if len(mapping.parts) != 1 or not isinstance(mapping.parts[0], DigitMap):
        return None
    whole = mapping.parts[0]
    shape = tuple(n if d == dim else 1 for d, n in enumerate(whole.task_shape))
    workers = tuple(d if d.dim == dim else Digit(d.extent, dim, 0) for d in whole.workers)
    slots = tuple(d for d in whole.slots if d.dim == dim)
    return TaskMapping(shape, (DigitMap(shape, workers, slots),), f"dimension {dim} of {mapping}")
