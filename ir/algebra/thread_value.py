"""A task mapping on a layout in shape:stride notation: (worker, slot) to the address of the task, CuTe's thread-value
layout."""

from __future__ import annotations

from typing import Any

from taskmap.ir.algebra import radix
from taskmap.ir.algebra.assignment import Assignment
from taskmap.ir.algebra.digits import Digit, DigitMap
from taskmap.ir.algebra.layout import Layout, refuse_swizzle
from taskmap.ir.algebra.modes import Mode
from taskmap.ir.algebra.shape_stride import ShapeStride
from taskmap.ir.errors import LayoutError, MappingError
from taskmap.ir.util.wording import by


def of_mapping(mapping: Assignment, layout: Layout) -> ShapeStride:
    """(worker, slot) -> address of the task in layout.

    MappingError for a mapping given by a function; LayoutError for a swizzled layout, a layout smaller than the
    mapping's tasks, or one with blocks that a digit of the mapping crosses.
    """
    (part, *others) = mapping.parts
    if others or not isinstance(part, DigitMap):
        raise MappingError(
            f"{mapping} has no shape:stride notation",
            why="it is given by a function; only repeat, spatial and replicate are known to move in strides.",
        )
    refuse_swizzle(layout)
    fits = len(layout.shape) == len(mapping.task_shape) and all(
        not isinstance(extent, int) or tasks <= extent
        for tasks, extent in zip(mapping.task_shape, layout.shape, strict=True)
    )
    if not fits:
        raise LayoutError(
            f"{mapping} and {layout} have no common shape:stride notation",
            why=f"tasks of shape {by(mapping.task_shape)} do not index a layout of shape {by(layout.shape)}.",
        )

    def through(digits: tuple[Digit, ...]) -> Mode:
        return tuple(piece for digit in digits for piece in _addresses(digit, layout))

    return ShapeStride((through(part.workers), through(part.slots)))


def _addresses(digit: Digit, layout: Layout) -> Mode:
    """The digit's values as addresses, in pieces if it spans several digits of the layout's mode."""
    if digit.stride == 0:
        return ((digit.extent, 0),)
    begin, end = (
        digit.stride,
        digit.stride * digit.extent,
    )  # the digit takes the values 0, begin, 2 * begin, ... below end along its dimension
    pieces: list[tuple[int, Any]] = []
    mode = layout.modes[digit.dim]
    steps = radix.weights([extent for extent, _ in mode])
    upper = end
    for (_, stride), step in zip(mode, steps, strict=True):
        lower = max(begin, step)
        if lower >= upper:
            continue
        if upper % lower or lower % step or lower % begin:
            raise LayoutError(
                f"no shape:stride notation reaches through {layout}",
                why=f"steps of {begin} below {end} along dimension {digit.dim} do not fit its blocks of {step}.",
            )
        pieces.append((upper // lower, radix.times(stride, lower // step)))
        upper = lower
    return tuple(pieces)
