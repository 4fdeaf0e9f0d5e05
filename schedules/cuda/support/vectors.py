"""Widths of vector accesses: up to 16 bytes, at addresses that are multiples of their size.

Buffers start at multiples of 16 bytes; the launch ensures that.
"""

from __future__ import annotations

from collections.abc import Sequence

from taskmap.ir.analysis.simplify import Simplifier
from taskmap.ir.construct import static_size
from taskmap.ir.lower.flatten import address
from taskmap.ir.nodes import Dim, Expr, Var
from taskmap.ir.visit import walk_exprs
from taskmap.schedules.common.access import MemoryStep

VECTOR_BYTES = 16
_MOST_LANES = 16


def vector_lanes(walks: Sequence[MemoryStep], axes: Sequence[Var], run: Sequence[int], extents: Sequence[Dim]) -> int:
    """The number of neighbouring elements along the merged axes ``run`` that one thread takes: a power of two.

    1 unless every access either follows the run in memory, aligned, or is independent of it.
    """
    lanes = _MOST_LANES
    simplifier = Simplifier()
    for axis, extent in zip(axes, extents, strict=True):
        simplifier.bind(axis, extent)
    for w in walks:
        step = w.step(run[-1])
        if step == 0:
            continue
        if step != 1:
            return 1
        lanes = min(lanes, max(1, VECTOR_BYTES // w.buffer.dtype.bytes))
        while lanes > 1 and not is_aligned(w, [axes[d] for d in run], lanes, simplifier):
            lanes //= 2
    return lanes


def is_aligned(walk: MemoryStep, along: Sequence[Var], lanes: int, simplifier: Simplifier) -> bool:
    """True if the address is a multiple of ``lanes`` elements at every position along the axes ``along``."""
    p = simplifier.poly(address(walk.buffer, walk.indices))
    mine = set(along)
    rest = {m: c for m, c in p.items() if not any(a in mine for a in m)}
    inside = any(not isinstance(a, Var) and _uses(a, mine) for m in p for a in m)
    return not inside and all(c % lanes == 0 for c in rest.values())


def _uses(e: Expr, variables: set[Var]) -> bool:
    return any(isinstance(x, Var) and x in variables for x in walk_exprs(e))


def fills(extent: Dim, lanes: int) -> bool:
    """True if ``extent`` is known to be a multiple of ``lanes``."""
    size = static_size(extent)
    return size is not None and size % lanes == 0
