"""The loops over the axes of a sum, and an operand's elements inside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from taskmap.ir.builder import Builder
from taskmap.ir.construct import index, static_size
from taskmap.ir.nodes import Dim, Expr
from taskmap.schedules.common.inline import Inliner

WRITTEN_OUT = 9
"""Iterations of the innermost summed axes that are unrolled."""

Element = Callable[[Sequence[Expr], Expr, Inliner], Expr]
"""An operand's element from (summed indices, row or column of the tile, values)."""


def unrolled(k: Sequence[Dim]) -> list[int]:
    """For each summed axis, its extent if the C compiler unrolls the loop over it, else 0: inner loops that make few
    iterations together, because the processor would mispredict their ends."""
    rounds, hints = 1, list[int]()
    for extent in reversed(k):
        known = static_size(extent)
        rounds = rounds * known if known is not None else WRITTEN_OUT + 1
        hints.insert(0, known if known is not None and 1 < rounds <= WRITTEN_OUT else 0)
    return hints


@contextmanager
def steps_over(b: Builder, k: Sequence[Dim]) -> Iterator[tuple[Expr, ...]]:
    """Loops over the summed axes."""
    with ExitStack() as stack:
        yield tuple(
            stack.enter_context(b.loop(f"k{d}", index(extent), unroll=hint))
            for d, (extent, hint) in enumerate(zip(k, unrolled(k), strict=True))
        )
