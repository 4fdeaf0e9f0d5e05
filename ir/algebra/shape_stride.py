"""Shape:stride notation, as CuTe prints layouts: ((4,8),(2,2)):((32,1),(16,8)).

Each mode takes one number, splits it into digits of the given extents, fastest first, and adds digit * stride. A layout
has one mode per dimension. A task mapping has two, worker and slot (a thread-value layout), and the result is the
address of the task. The notation: NVIDIA CUTLASS documentation, "CuTe layouts". It can express neither xor nor partly
filled blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from taskmap.ir.algebra import radix
from taskmap.ir.algebra.digits import Digit, DigitMap
from taskmap.ir.errors import LayoutError, MappingError
from taskmap.ir.util.wording import by

if TYPE_CHECKING:
    from taskmap.ir.algebra.layout import Layout
    from taskmap.ir.algebra.mapping import TaskMapping
    from taskmap.ir.algebra.modes import Mode


@dataclass(frozen=True, slots=True)
class ShapeStride:
    """A layout in shape:stride notation. modes[i] lists (extent, stride), slowest first; printed, fastest first."""

    modes: tuple[Mode, ...]

    def __call__(self, *numbers: int) -> Any:
        """The address for one number per mode."""
        total: Any = 0
        for mode, number in zip(self.modes, numbers, strict=True):
            digits = radix.split(number, [extent for extent, _ in mode])
            total = radix.plus(total, radix.combine(zip(digits, (stride for _, stride in mode), strict=True)))
        return total

    def __str__(self) -> str:
        return f"{self._side(0)}:{self._side(1)}"

    def _side(self, which: int) -> str:
        def nested(mode: Mode) -> str:
            entries = [str(digit[which]) for digit in reversed(mode)]
            if not entries:
                return "10"[which]  # a mode without digits prints as 1:0
            return entries[0] if len(entries) == 1 else f"({','.join(entries)})"

        return f"({','.join(map(nested, self.modes))})"

    __repr__ = __str__


def of_layout(layout: Layout) -> ShapeStride:
    """The layout in shape:stride notation. LayoutError for a swizzle, and for a partly filled block."""
    _refuse_swizzle(layout)
    for dim, (extent, mode) in enumerate(zip(layout.shape, layout.modes, strict=True)):
        covered = radix.product(digit for digit, _ in mode)
        if len(mode) > 1 and isinstance(extent, int) and covered != extent:
            raise LayoutError(
                f"{layout} has no shape:stride notation",
                why=f"dimension {dim} has {extent} elements in blocks that hold {covered}.",
            )
    return ShapeStride(layout.modes)


def of_mapping(mapping: TaskMapping, layout: Layout) -> ShapeStride:
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
    _refuse_swizzle(layout)
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


def _refuse_swizzle(layout: Layout) -> None:
    if layout.swizzle:
        raise LayoutError(
            f"{layout} has no shape:stride notation",
            why="a swizzle combines address bits by xor, and strides only add.",
            hint="Convert the layout before it is swizzled.",
        )
