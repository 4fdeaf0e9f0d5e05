"""A loop along a row in vectors that reduces some values and stores others on the way.

    acc = identity, one for each lane                 sum, max, ... of a row: the lanes are reduced after the loop
    for t in row / lanes:   acc = acc op value[t * lanes + lane]

Cheap values go to four accumulators in turn, so that an addition does not wait for the one before. A long sum is split
into blocks with accumulators of their own, whose results are added in f64: its rounding error grows with the length of
a block, not of the row. Blocks may also be divided among cores; their number depends on the row's length alone, so the
result does not depend on the machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from taskmap.ir.builder import Builder
from taskmap.ir.construct import (
    cast,
    ceil_div,
    identity,
    index,
    lane_reduce,
    load,
    minimum,
    product,
    ramp,
    static_size,
    widen,
)
from taskmap.ir.nodes import Buffer, Const, Dim, Expr, LoopKind, Scope
from taskmap.ir.types import DType
from taskmap.schedules.common.inline import Inliner, combine, wide_sum
from taskmap.schedules.common.loops import vector_loop

_UNROLL = 4
_BLOCK = 1 << 10
"""The most elements of a sum of floats that one lane of a set of accumulators may reduce."""
_PART = 1 << 14
_MOST_PARTS = 1 << 10

At = tuple[Expr, ...]
_LANE_OP = {"sum": "sum", "prod": "prod", "max": "max", "min": "min", "any": "or", "all": "and"}


@dataclass(frozen=True, slots=True)
class Reduction:
    """A reduction along the row of ``value`` at each position; ``op`` is any operation of Reduce but argmax and
    argmin."""

    op: str
    dtype: DType
    value: Callable[[Inliner, At], Expr]

    @property
    def start(self) -> Const:
        """The initial value."""
        return identity(self.op, self.dtype)

    @property
    def wide(self) -> DType:
        """The type in which the results of blocks are reduced."""
        return wide_sum(self.dtype) if self.rounds else self.dtype

    @property
    def rounds(self) -> bool:
        """True if its rounding error grows with the number of terms."""
        return self.op in ("sum", "prod") and self.dtype.is_float


@dataclass(slots=True)
class RowLoop:
    """One loop along a row. ``extents`` are those of its loops, the contiguous one last; ``store`` is called at every
    position, before the reductions; ``cheap``: the values take few instructions."""

    b: Builder
    extents: Sequence[Dim]
    lanes: int
    reductions: Sequence[Reduction]
    store: Callable[[Inliner, At], None]
    cheap: bool = False

    def run(self, values: Inliner, parallel: bool = False) -> list[Expr]:
        """The results of the reductions; ``parallel`` divides the row among cores."""
        if parallel:
            return self._parallel(values)
        if not any(f.rounds for f in self.reductions):
            return self._one_block(values, (), self.extents, index(0))
        depth = next((d for d in range(len(self.extents)) if self._is_short(self.extents[d:])), None)
        if depth == 0:
            return self._one_block(values, (), self.extents, index(0))
        axis = len(self.extents) - 1 if depth is None else depth - 1
        step = self._steps(axis)
        return self._per_outer_step(values, axis + 1) if step == 1 else self._blocked(values, axis, step)

    @property
    def block(self) -> int:
        """Elements of a block."""
        return _BLOCK * self.lanes

    def _is_short(self, extents: Sequence[Dim]) -> bool:
        size = static_size(product(extents))
        return size is not None and size <= self.block

    def _steps(self, axis: int) -> int:
        """Steps of the loop ``axis``, with all that is inside of it, that make a block; a row that does not fill a
        vector counts as a whole one."""
        if axis + 1 == len(self.extents):
            return self.block
        *middle, last = (static_size(n) or 1 for n in self.extents[axis + 1 :])
        return max(1, self.block // (math.prod(middle) * max(last, self.lanes)))

    def _one_block(self, values: Inliner, prefix: At, extents: Sequence[Dim], first: Expr) -> list[Expr]:
        """One set of accumulators for positions of ``extents`` behind ``prefix``; ``first`` is added to the first of
        their indices."""
        *outer, inner = extents
        acc = _Accumulators(self, inner)
        with self.b.grid([f"t{d}" for d in range(len(outer))], [index(n) for n in outer]) as at:
            for v, size in zip(at, outer, strict=True):
                values.bind(v, size)

            def element(i: Expr, local: Inliner, width: int, lane: Expr, turn: int = 0) -> None:
                head, *tail = (*at, i)
                position = (*prefix, head + first, *tail)
                self.store(local, position)
                for number, f in enumerate(self.reductions):
                    cell = acc.cells[number, width, turn]
                    self.b.store(cell, (lane,), combine(f.op, cell[lane], f.value(local, position)))

            group = acc.turns * self.lanes
            done = values.simplifier(index(inner) // group * group) if acc.turns > 1 else index(0)
            if acc.turns > 1:
                self._interleaved(values.nested(), inner, acc.turns, element)
            rest = values.simplifier(index(inner) - done)
            known = static_size(rest)
            inside = values.nested()
            vector_loop(
                self.b, "t", rest if known is None else known, self.lanes, inside,
                lambda i, local, width, lane: element(i + done, local, width, lane),
            )  # fmt: skip
        return acc.totals()

    def _interleaved(self, values: Inliner, inner: Dim, turns: int, element: Callable[..., None]) -> None:
        """Whole groups of vectors, each vector of a group into an accumulator of its own."""
        count = values.simplifier(index(inner) // (turns * self.lanes))
        with self.b.loop("t", count) as t:
            values.bind(t, static_size(count) or count)
            for turn in range(turns):
                inside = values.nested()
                with self.b.loop("t_lane", self.lanes, LoopKind.VECTOR) as lane:
                    inside.bind(lane, self.lanes)
                    element(t * (turns * self.lanes) + (turn * self.lanes + lane), inside, self.lanes, lane, turn)

    def _per_outer_step(self, values: Inliner, depth: int) -> list[Expr]:
        """Accumulators for the loops from ``depth`` on, their results reduced one after another."""
        totals = self._totals()
        with self.b.grid([f"s{d}" for d in range(depth)], [index(n) for n in self.extents[:depth]]) as prefix:
            for v, size in zip(prefix, self.extents[:depth], strict=True):
                values.bind(v, size)
            self._into(totals, self._one_block(values.nested(), prefix, self.extents[depth:], index(0)))
        return self._results(totals)

    def _blocked(self, values: Inliner, axis: int, step: int) -> list[Expr]:
        """Accumulators for every ``step`` steps of the loop ``axis``, with all that is inside of it; their results are
        reduced one after another."""
        outer, (length, *inner) = self.extents[:axis], self.extents[axis:]
        totals = self._totals()
        blocks = values.simplifier(index(length) // step)
        with self.b.grid([f"s{d}" for d in range(len(outer))], [index(n) for n in outer]) as prefix:
            for v, size in zip(prefix, outer, strict=True):
                values.bind(v, size)
            with self.b.loop("block", blocks) as k:
                inside = values.nested()
                inside.bind(k, static_size(blocks) or blocks)
                self._into(totals, self._one_block(inside, prefix, [step, *inner], k * step))
            rest = values.simplifier(index(length) - blocks * step)
            known = static_size(rest)
            if known != 0:
                last: list[Dim] = [rest if known is None else known, *inner]
                self._into(totals, self._one_block(values.nested(), prefix, last, blocks * step))
        return self._results(totals)

    def _parallel(self, values: Inliner) -> list[Expr]:
        """The outermost loop in parts, divided among cores; their results are reduced in order."""
        length, *inner = self.extents
        grain = _UNROLL * self.lanes if not inner else 1
        size = static_size(product(inner)) or 1
        known = static_size(length) or _MOST_PARTS * _PART
        wanted = min(_MOST_PARTS, max(1, known * size // _PART))
        chunk = -(-known // wanted // grain) * grain
        parts = ceil_div(length, chunk)
        room = static_size(parts) or 0
        b = self.b
        partial = [b.allocate(f"parts_{f.op}", f.dtype, (room,)) for f in self.reductions]
        with b.loop("part", parts, LoopKind.PARALLEL) as p:
            inside = values.nested()
            inside.bind(p, parts)
            first = inside.simplifier(p * chunk)
            count = b.let("count", inside.simplifier(minimum(index(length) - first, chunk)))
            inside.bind_value(count, chunk)
            for cell, total in zip(partial, self._one_block(inside, (), [count, *inner], first), strict=True):
                b.store(cell, p, total)
        totals = self._totals()
        with b.loop("part", parts) as p:
            self._into(totals, [cell[p] for cell in partial])
        return self._results(totals)

    def _totals(self) -> list[Buffer]:
        return [
            self.b.allocate(f.op, f.wide, (1,), Scope.REGISTER, init=identity(f.op, f.wide)) for f in self.reductions
        ]

    def _into(self, totals: Sequence[Buffer], results: Sequence[Expr]) -> None:
        for f, total, result in zip(self.reductions, totals, results, strict=True):
            self.b.store(total, 0, combine(f.op, total[0], cast(result, f.wide)))

    def _results(self, totals: Sequence[Buffer]) -> list[Expr]:
        return [self.b.let(f.op, cast(total[0], f.dtype)) for f, total in zip(self.reductions, totals, strict=True)]


class _Accumulators:
    """Accumulator registers of the loop's reductions, by (number of the reduction, vector width, turn), set to their
    start."""

    def __init__(self, walk: RowLoop, inner: Dim) -> None:
        size = static_size(inner)
        many = walk.reductions and walk.cheap and walk.lanes > 1
        self.walk = walk
        self.turns = _UNROLL if many and (size is None or size >= 2 * _UNROLL * walk.lanes) else 1
        rest = size if size is None else size % (self.turns * walk.lanes) if self.turns > 1 else size
        widths = [(w, 0) for w in vector_widths(rest, walk.lanes)]
        keys = dict.fromkeys([*((walk.lanes, turn) for turn in range(self.turns if self.turns > 1 else 0)), *widths])
        self.keys = list(keys)
        b = walk.b
        self.cells: dict[tuple[int, int, int], Buffer] = {}
        for number, f in enumerate(walk.reductions):
            for width, turn in self.keys:
                cell = b.allocate(f"{f.op}{width}", f.dtype, (width,), Scope.REGISTER)
                b.store(cell, (_lanes(width),), widen(f.start, width))
                self.cells[number, width, turn] = cell

    def totals(self) -> list[Expr]:
        """The result of each reduction over all its accumulators."""
        return [self._total(number, f) for number, f in enumerate(self.walk.reductions)]

    def _total(self, number: int, f: Reduction) -> Expr:
        total: Expr | None = None
        for width in dict.fromkeys(w for w, _ in self.keys):
            cells = [self.cells[number, w, turn] for w, turn in self.keys if w == width]
            vector: Expr | None = None
            for cell in cells:
                lanes = load(cell, (_lanes(width),))
                vector = lanes if vector is None else combine(f.op, vector, lanes)
            assert vector is not None
            part = lane_reduce(_LANE_OP[f.op], vector)
            total = part if total is None else combine(f.op, total, part)
        return self.walk.b.let(f.op, f.start if total is None else total)


def _lanes(width: int) -> Expr:
    return ramp(0, 1, width) if width > 1 else index(0)


def vector_widths(size: int | None, lanes: int) -> list[int]:
    """The vector widths that ``vector_loop`` uses for an extent (None: symbolic)."""
    if size is None:
        return [lanes, 1] if lanes > 1 else [1]
    widths = []
    width = lanes
    while width >= 1:
        if size >= width:
            widths.append(width)
            size %= width
        width //= 2
    return widths
