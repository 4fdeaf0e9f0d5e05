"""The loops of cores: over the tiles that they share, and over the elements of one core's part, in vectors.

.to(CORE).parallel(20_000, tasks=16)    for task in shared loop: for tile in loop      shared from 20,000 elements on
.done().vectorize(16)                   for i: for j in vectors of 16                  up to the end of the problem
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from taskmap.ir import nodes as ir
from taskmap.ir.analysis.simplify import Simplifier
from taskmap.ir.builder import Builder
from taskmap.ir.construct import index, product
from taskmap.ir.decompose.checks import count
from taskmap.ir.decompose.levels import HELD, SCOPE_NAMES, Level
from taskmap.ir.decompose.refusal import refusal
from taskmap.ir.decompose.spec import Spec
from taskmap.ir.decompose.steps import DoneStep, MoveStep, Step, TileStep, Tree
from taskmap.ir.decompose.views import AxisView
from taskmap.ir.loops import parallel_grid, vectors, worth_sharing

_MOST_LANES = 64


def check_parallel(tree: Tree, step: TileStep, least: Any, tasks: Any, word: str) -> None:
    """Cores take the tiles of the step."""
    count(tree, least, 0, word)
    if tasks is not None:
        count(tree, tasks, 1, word)
    if step.level is not Level.CORE:
        raise refusal(word, tree, "only cores take the iterations of a loop.", "Write it after to(CORE).")


def check_vectors(tree: Tree, step: DoneStep, lanes: Any, word: str) -> None:
    """The leaf is a loop over elements in memory, on one core."""
    spec = step.before
    count(tree, lanes, 1, word)
    if lanes > _MOST_LANES or lanes & (lanes - 1):
        why = f"{lanes} elements are no vector."
        raise refusal(word, tree, why, f"Give a power of two up to {_MOST_LANES}.")
    if spec.level is not Level.CORE or spec.kind not in ("move", "compute") or step.by is not None:
        why = "only a core's copies and element-wise work are loops over elements."
        raise refusal(word, tree, why, "Write it after the done() of a Move or a Compute of a CORE.")
    held = next((o for o in spec.operands if o.scope in HELD), None)
    if held is not None:
        why = f"{held.name} is in {SCOPE_NAMES[held.scope]}, which no loop walks through."
        raise refusal(word, tree, why, "Leave it out: copies of registers are vectors already.")


@contextmanager
def shared_tiles(b: Builder, root: Spec, step: TileStep, counts: Mapping[str, ir.Dim]) -> Iterator[dict[str, ir.Expr]]:
    """The position of each tile along the axes of ``counts``, inside loops that cores share."""
    order = step.order
    shared = step.least is None or worth_sharing(product([n for _, n in root.extents]), step.least)
    extents = [counts[a] for a in order]
    names = [f"tile_{a}" for a in order]
    with parallel_grid(b, names, extents, Simplifier(), shared, step.tasks or _ALL) as at:
        yield dict(zip(order, at, strict=True))


_ALL = 1 << 62


def end_with_the_problem(steps: Sequence[Step]) -> bool:
    """True if the steps are loops over elements alone, which end where the problem ends: no element is tested."""
    *moves, last = steps
    leaves = [s.how.steps[0] if isinstance(s, MoveStep) else s for s in moves]
    return all(isinstance(s, DoneStep) and s.lanes for s in (*leaves, last))


def elements(
    b: Builder, names: Sequence[str], views: Sequence[Sequence[AxisView | None]], sizes: Sequence[ir.Dim], lanes: int
) -> Iterator[list[ir.Expr]]:
    """The position of each element of a part, inside loops over its axes: ``lanes`` neighbours along the last one at a
    time. The part ends where one of its views ends."""
    ends = list(sizes)
    for d, axis in (pair for axes in views for pair in enumerate(axes)):
        if axis is not None and axis.length is not None:
            ends[d] = axis.length
    with b.grid(names[:-1], [index(n) for n in ends[:-1]]) as outer:
        for i, _, _ in vectors(b, names[-1], ends[-1], lanes, Simplifier()):
            yield [*outer, i]
