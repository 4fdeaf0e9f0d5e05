"""The walk of a fold: each thread of a group takes its elements of a sum, part after part.

.split(8 * 32).done(fold, by=repeat(1, 8) * spatial(4, 32))           8 elements each, unrolled; 4 sums to a block
.split(512 * 32).split(32).unroll(4).done(fold, by=spatial(4, 32))    one after another, and a part ends after 512
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from taskmap.ir.algebra.digits import Digit, DigitMap
from taskmap.ir.algebra.mapping import TaskMapping
from taskmap.ir.analysis.simplify import Simplifier
from taskmap.ir.builder import Builder
from taskmap.ir.construct import ceil_div, index, minimum, static_size
from taskmap.ir.decompose.groups.fold import Fold
from taskmap.ir.decompose.groups.thread_group import ThreadGroup, digits_of
from taskmap.ir.decompose.steps import DoneStep, SplitStep, Step
from taskmap.ir.decompose.views import OperandView
from taskmap.ir.nodes import Dim, Expr, Var
from taskmap.ir.workers import THREAD


def fold_of(steps: Sequence[Step]) -> Fold | None:
    """The fold that ends a tree, if one does."""
    return steps[-1].fold if steps and isinstance(steps[-1], DoneStep) else None


def walk(b: Builder, ranges: Simplifier, steps: Sequence[Step], results: OperandView, axis: int, length: Dim) -> None:
    """The statements of a fold. results: the position of the block's results; axis: of the sum, ``length`` long."""
    last, splits = steps[-1], [s for s in steps if isinstance(s, SplitStep)]
    assert isinstance(last, DoneStep)
    assert last.fold is not None
    assert last.mapping is not None
    group, digits = ThreadGroup.of(b, last.mapping, axis), digits_of(last.mapping)
    mine = digits.indices(THREAD, [0] * len(digits.slots))
    at = [index(i) if v is None else v.at(index(i)) for v, i in zip(results.axes, mine[:axis], strict=False)]
    last.fold.begin(b, ranges, group, [ranges(i) for i in at])
    own = _along(digits, axis, last.mapping.text)
    count = ceil_div(length, splits[-1].size)
    _Walk(b, ranges, last.fold, splits, length, own, group.lane).parts(0, index(0), count, count)
    last.fold.end()


@dataclass(frozen=True, slots=True)
class _Walk:
    """own: the elements of a part by the threads of a group, of which this is ``lane``."""

    b: Builder
    ranges: Simplifier
    fold: Fold
    splits: Sequence[SplitStep]
    length: Dim
    own: TaskMapping
    lane: Expr

    def parts(self, n: int, start: Expr, count: Dim, most: Dim) -> None:
        """``count``, at ``most``, of the shortest parts, from number ``start`` on, in those of split ``n``."""
        b, size = self.b, self.splits[-1].size
        if n + 1 == len(self.splits):
            with b.loop("step", count, unroll=self.splits[-1].times) as step:
                self.bind(step, most)
                self.part((start + step) * size)
            return
        width, whole = self.splits[n].size // size, static_size(count)
        with b.loop("chain", ceil_div(count, width)) as number:
            self.bind(number, ceil_div(count, width))
            first = self.ranges(start + number * width)
            exact = whole is not None and whole % width == 0
            rest = index(width) if exact else self.ranges(minimum(index(width), index(count) - first))
            self.parts(n + 1, first, rest, width)
            self.fold.end_part()

    def part(self, first: Expr) -> None:
        """The elements of this thread in the part that begins at ``first``."""
        if self.own.num_slots == 1:
            self.element(first + index(digits_of(self.own).indices(self.lane, ())[0]))
            return
        with self.b.mapped(["unit"], self.own, self.lane) as (i,):
            self.element(first + i)

    def element(self, at: Expr) -> None:
        """One element, unless it lies beyond the end."""
        length, size = index(self.length), self.splits[-1].size
        if all(n % size == 0 for n in self.ranges.poly(length).values()):
            self.fold.element(self.ranges(at))
            return
        unit = self.b.let("unit", self.ranges(at))
        with self.b.when(unit < length):
            self.bind(unit, self.length)
            self.fold.element(unit)

    def bind(self, var: Expr, extent: Dim) -> None:
        """The range of a variable; constants have none."""
        if isinstance(var, Var):
            self.ranges.bind(var, extent)


def _along(digits: DigitMap, dim: int, text: str) -> TaskMapping:
    """The elements along a dimension, by the threads that differ along it."""
    of = [tuple(Digit(d.extent, 0, d.stride) for d in part if d.dim == dim) for part in (digits.workers, digits.slots)]
    shape = (digits.task_shape[dim],)
    return TaskMapping(shape, (DigitMap(shape, *of),), f"dimension {dim} of {text}")
