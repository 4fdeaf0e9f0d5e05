"""Row-major numbers of positions, and positions with given numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from taskmap.ir.algebra import radix
from taskmap.ir.construct import index, static_size
from taskmap.ir.nodes import Dim, Expr


def flatten(position: Sequence[tuple[Expr, Dim]]) -> Expr:
    """The row-major number of a position, given as (index, extent) of each axis."""
    flat: Expr = index(0)
    for at, size in position:
        flat = flat * size + at
    return flat


def unravel(flat: Expr, shape: Sequence[Dim], simplify: Callable[[Expr], Expr] | None = None) -> tuple[Expr, ...]:
    """The position that has the row-major number ``flat``, which lies within ``shape``: the inverse of `flatten`.

    simplify: applied to each index.
    """
    known = [(n, static_size(n)) for n in shape]
    found = (index(i) for i in radix.split(flat, [n if size is None else size for n, size in known]))
    return tuple(found if simplify is None else map(simplify, found))
