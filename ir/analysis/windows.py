"""The rows of a contraction's first factor that lie equally spaced in memory.

    a[n · h · w + y · w + x, k] = image[n, 2 · y + tap(k), ...]      w rows are equally spaced, then the next row begins

A product of rows that lie at any distance divides to find each of them; of equally spaced rows, one address tells all.
"""

from __future__ import annotations

from collections.abc import Iterator

from taskmap.ir.analysis import polynomial as poly
from taskmap.ir.analysis.contraction import Contraction
from taskmap.ir.construct import static_size
from taskmap.ir.nodes import Expr, Load, Var
from taskmap.ir.visit import walk_exprs


def row_run(c: Contraction) -> int | None:
    """The number of neighbouring rows of A that are equally spaced, if further rows follow such a run; None if all rows
    are, or if the number is not known. Memory is taken to be dense in the order of the rows."""
    run, whole = 1, True
    for v, extent in reversed(c.m):
        size = static_size(extent)
        if size is None:
            return None
        if size == 1:
            continue
        reads = [_along(load, v) for load in loads_along(c.a, v)]
        if run > 1 and not (whole and all(read is not None and read[0] == 1 for read in reads)):
            return run
        run, whole = run * size, all(read == (1, 0, size) for read in reads)
    return None


def loads_along(e: Expr, axis: Var) -> Iterator[Load]:
    """The loads in ``e`` whose place depends on ``axis``."""
    return (x for x in walk_exprs(e) if isinstance(x, Load) and axis in walk_exprs(x))


def _along(load: Load, axis: Var) -> tuple[int, int, int | None] | None:
    """The step of a load along the one dimension in which ``axis`` moves it, its first place there if that is a
    constant (else -1), and the size of the dimension; None if there is no such dimension, or no such step."""
    around = [(i, n) for i, n in zip(load.indices, load.buffer.shape, strict=True) if axis in walk_exprs(i)]
    if len(around) != 1:
        return None
    place = poly.to_poly(around[0][0])
    step = poly.linear_coefficient(place, axis)
    first = poly.constant_value(poly.add(place, poly.atom(axis), -(step or 0)))
    return None if step is None else (step, -1 if first is None else first, static_size(around[0][1]))
