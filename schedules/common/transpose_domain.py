"""Detects element-wise work that conflicts in memory order: it reads along one axis and writes along another.

Each device computes it in square tiles, so that both sides touch whole lines of memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from taskmap.ir.construct import product, static_size
from taskmap.ir.nodes import Dim, Reduce, Var
from taskmap.ir.task import Task
from taskmap.ir.visit import walk_exprs
from taskmap.schedules.common.access import MemoryStep

_SMALLEST = 4096
"""Elements of a domain below which tiles do not pay."""
_NARROWEST = 8
"""Extent below which an axis is too short to be a side of a tile."""


@dataclass(frozen=True, slots=True)
class Transpose:
    """A pair of conflicting runs of axes. Outputs are written along run ``along``; the tensors of ``staged`` are read
    along run ``across``, each at a position in terms of ``axes``, the axes of the domain."""

    axes: tuple[Var, ...]
    along: int
    across: int
    staged: tuple[MemoryStep, ...]


def find_transpose(
    task: Task,
    axes: tuple[Var, ...],
    runs: Sequence[Sequence[int]],
    extents: Sequence[Dim],
    walks: Sequence[MemoryStep],
) -> Transpose | None:
    """The two runs of axes that conflict, or None. The first of ``walks`` are the stores of the task's outputs."""
    if any(isinstance(e, Reduce) for s in task.stages for e in walk_exprs(s.body)):
        return None
    if (static_size(product(extents)) or _SMALLEST) < _SMALLEST:
        return None
    stores, loads = walks[: len(task.outputs)], walks[len(task.outputs) :]
    wide = [r for r, n in enumerate(extents) if (static_size(n) or _NARROWEST) >= _NARROWEST]
    along = next((r for r in wide if all(w.step(runs[r][-1]) == 1 for w in stores)), None)
    if along is None:
        return None
    best: Transpose | None = None
    for across in wide:
        staged = tuple(w for w in loads if across != along and _conflicts(w, runs[along][-1], runs[across][-1]))
        plain = tuple(w for w in staged if _is_plain(w, loads, {*axes, *task.dims}))
        if plain and (best is None or len(plain) > len(best.staged)):
            best = Transpose(axes, along, across, plain)
    return best


def _conflicts(walk: MemoryStep, along: int, across: int) -> bool:
    return walk.step(across) == 1 and walk.steps[along] is not None and walk.step(along) not in (0, 1)


def _is_plain(walk: MemoryStep, loads: Sequence[MemoryStep], known: set[Var]) -> bool:
    """True if the tensor is read in one place only, at a position that does not depend on data."""
    if sum(w.buffer is walk.buffer for w in loads) != 1:
        return False
    return all(v in known for i in walk.indices for v in walk_exprs(i) if isinstance(v, Var))
