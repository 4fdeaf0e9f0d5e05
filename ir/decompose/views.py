"""The place of an operand's part: for each axis, the index in the buffer of an index in the part."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from taskmap.ir import nodes as ir
from taskmap.ir.construct import index, static_size
from taskmap.ir.decompose.steps import Cut, TileStep


@dataclass(frozen=True, slots=True)
class AxisView:
    """at: the buffer's index for an index of the part. run: neighbours of the part are neighbours in the buffer within
    aligned runs of this length; 0: everywhere. exact: no element of the part lies beyond the end. length: the size of
    a part that is shortened where the problem ends."""

    at: Callable[[ir.Expr], ir.Expr]
    run: int = 0
    exact: bool = True
    length: ir.Expr | None = None

    def tile(self, cut: Cut, number: ir.Expr, *, exact: bool) -> AxisView:
        """Tile ``number`` of the part."""
        width, stride = cut.width, cut.stride
        exact = self.exact and exact
        if not stride:
            run = 0 if not self.run or self.run % width == 0 else math.gcd(self.run, width)
            first = number if width == 1 else number * width
            return AxisView(lambda i: self.at(first + i), run, exact)
        run = math.gcd(self.run, width) if self.run else width
        return AxisView(lambda i: self.at(i // width * stride + number * width + i % width), run, exact)


@dataclass(frozen=True, slots=True)
class OperandView:
    """A part of a buffer. lead: the indices of dimensions before those of the operand, such as that of stages. axes: a
    view for each of the operand's; None for one that the buffer does not have, because it is a single index. computed:
    the buffer is in no memory; only a Move reads or writes it, which a prologue or an epilogue replaces. copied: each
    chunk of it lies in memory or is 0 all the same. read: gives an element of a buffer that is in no memory, for loops
    over elements. ahead: gives lines of memory that later parts will read, which a move of this part prefetches."""

    buffer: ir.Buffer
    names: tuple[str, ...]
    axes: tuple[AxisView | None, ...]
    lead: tuple[ir.Expr, ...] = ()
    computed: bool = False
    read: Callable[[Sequence[ir.Expr]], ir.Expr] | None = None
    copied: bool = False
    ahead: Callable[[Sequence[ir.Expr]], Sequence[ir.Region]] | None = None

    @staticmethod
    def whole(
        buffer: ir.Buffer, names: Sequence[str], present: Sequence[bool], lead: Sequence[ir.Expr] = ()
    ) -> OperandView:
        """A buffer as the operand with these axes, of which those not ``present`` are not dimensions of it."""
        axes = tuple(AxisView(lambda i: i) if there else None for there in present)
        return OperandView(buffer, tuple(names), axes, tuple(lead))

    @staticmethod
    def part(
        buffer: ir.Buffer, names: Sequence[str], start: Sequence[ir.Expr | None], lengths: Mapping[str, ir.Expr],
        read: Callable[[Sequence[ir.Expr]], ir.Expr] | None = None,
        ahead: Callable[[Sequence[ir.Expr]], Sequence[ir.Region]] | None = None,
    ) -> OperandView:  # fmt: skip
        """The part of a buffer that begins at ``start`` (None: at 0), and is shortened to ``lengths``."""
        axes = tuple(
            AxisView(
                (lambda i: i) if first is None else lambda i, first=first: first + i,  # type: ignore[misc]  # bound
                length=lengths.get(name),
            )
            for name, first in zip(names, start, strict=True)
        )
        return OperandView(buffer, tuple(names), axes, read=read, ahead=ahead)

    def value(self, at: Sequence[ir.Expr]) -> ir.Expr:
        """One element of the part, loaded or computed."""
        where = self.element(at)
        return self.buffer[where] if self.read is None else self.read(where)

    def lines_ahead(self) -> Sequence[ir.Region]:
        """The lines of memory that a move of this part prefetches."""
        return () if self.ahead is None else self.ahead(self.element([index(0)] * len(self.axes)))

    def tile(self, cuts: Mapping[str, tuple[Cut, ir.Expr, bool]]) -> OperandView:
        """The part with these tiles, given as (cut, number, divides) for each axis."""
        axes = tuple(
            view.tile(cuts[name][0], cuts[name][1], exact=cuts[name][2]) if view is not None and name in cuts else view
            for name, view in zip(self.names, self.axes, strict=True)
        )
        return replace(self, axes=axes)

    def ending(self, lengths: Mapping[str, ir.Expr]) -> OperandView:
        """The part, shortened to these lengths along some axes."""
        axes = tuple(
            replace(view, length=lengths[name]) if view is not None and name in lengths else view
            for name, view in zip(self.names, self.axes, strict=True)
        )
        return replace(self, axes=axes) if lengths else self

    @property
    def is_exact(self) -> bool:
        """True if no element of the part lies beyond the end."""
        return all(v is None or v.exact for v in self.axes)

    @property
    def is_clipped(self) -> bool:
        """True if elements of the part may lie beyond the end of global memory."""
        return self.buffer.scope is ir.Scope.GLOBAL and not self.is_exact

    @property
    def exact(self) -> tuple[int, ...]:
        """The dimensions of the buffer along which no element of the part lies beyond the end."""
        there = [v for v in self.axes if v is not None]
        return (*range(len(self.lead)), *(len(self.lead) + d for d, v in enumerate(there) if v.exact))

    def is_box(self, shape: Sequence[int]) -> bool:
        """True if a part of ``shape`` is one rectangular region."""
        return all(v is None or not v.run or n <= v.run for v, n in zip(self.axes, shape, strict=True))

    def region(self, shape: Sequence[int]) -> ir.Region:
        """The part, of this shape, as a region."""
        there = [(v.at(index(0)), n) for v, n in zip(self.axes, shape, strict=True) if v is not None]
        start = (*self.lead, *(i for i, _ in there))
        return ir.Region(self.buffer, start, (*[1] * len(self.lead), *(n for _, n in there)))

    def element(self, at: Sequence[ir.Expr]) -> tuple[ir.Expr, ...]:
        """The indices of one element of the part."""
        return (*self.lead, *(v.at(i) for v, i in zip(self.axes, at, strict=True) if v is not None))

    @property
    def is_distributed(self) -> bool:
        """True if several threads hold the buffer in registers."""
        return self.buffer.owner is not None


def tiled(
    step: TileStep, views: Mapping[str, OperandView], at: Mapping[str, ir.Expr], *, all_whole: bool = False,
    ends: Mapping[str, ir.Expr] = MappingProxyType({}), within: TileStep | None = None,
    in_elements: bool = False,
) -> dict[str, OperandView]:  # fmt: skip
    """The operands of one tile of a step. all_whole: no element of it lies beyond the end; ends: its sizes where it is
    shortened instead; within: its number ``at`` counts in all tiles of this step; in_elements: ``at`` is its first
    element."""
    whole = {c.axis: all_whole or divides(c, step.before.extent(c.axis)) for c in step.cuts}
    if within is not None:
        whole = {c.axis: whole[c.axis] and divides(c, within.before.extent(c.axis)) for c in within.cuts}
    cuts = {c.axis: (Cut(c.axis, 1) if in_elements else c, at[c.axis], whole[c.axis]) for c in step.cuts}
    cuts |= {step.part.axis: (step.part, at[step.part.axis], True)} if step.part else {}
    return {name: view.tile(cuts).ending(ends) for name, view in views.items()}


def divides(cut: Cut, whole: ir.Dim) -> bool:
    """True if the tiles are known to be whole."""
    size = static_size(whole)
    return cut.width == 1 or (size is not None and size % (cut.stride or cut.width) == 0)
