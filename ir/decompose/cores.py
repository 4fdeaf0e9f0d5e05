"""The loops of cores: over the tiles that they share, and over the elements of one core's part, in vectors.

.to(CORE).parallel(20_000, tasks=16)    for task in shared loop: for tile in loop      shared from 20,000 elements on
.done().vectorize(16)                   for i: for j in vectors of 16                  up to the end of the problem
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product as product_of
from typing import Any

from taskmap.ir import nodes as ir
from taskmap.ir.analysis.simplify import Simplifier
from taskmap.ir.builder import Builder
from taskmap.ir.construct import as_expr, index, minimum, product, static_size
from taskmap.ir.decompose.checks import count, seen, unfinished
from taskmap.ir.decompose.levels import HELD, Level
from taskmap.ir.decompose.refusal import refusal
from taskmap.ir.decompose.spec import Spec
from taskmap.ir.decompose.steps import CONTINUED, DoneStep, MoveStep, SplitStep, Step, TileStep, Tree
from taskmap.ir.decompose.views import OperandView, divides, tiled
from taskmap.ir.expressions import Scope
from taskmap.ir.loops import column_groups, parallel_grid, vectors, worth_sharing

_MOST_LANES, _MOST_LANES_OF_THREAD = 64, 16


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
    most = _MOST_LANES_OF_THREAD if spec.level is Level.THREAD else _MOST_LANES
    if lanes > most or lanes & (lanes - 1):
        why = f"a vector cannot have {lanes} elements."
        raise refusal(word, tree, why, f"Give a power of two up to {most}.")
    loops = {Level.CORE: ("move", "compute"), Level.THREAD: ("compute",)}.get(spec.level, ())
    if spec.kind not in loops or step.by is not None:
        why = "only a core's copies, and element-wise work of a core or a thread, are loops over elements."
        raise refusal(word, tree, why, "Write it after the done() of a Move or a Compute of a CORE.")
    if spec.level is Level.THREAD and (held := next((o.name for o in spec.operands if o.scope in HELD), "")):
        raise refusal(word, tree, f"{held} is in registers, which have no vectors.", "Leave it out.")


def check_continued(tree: Tree, scope: Scope, how: Any, word: str) -> None:
    """Sums in registers can continue those that a core holds in memory."""
    unfinished(tree, word)
    spec = tree.spec
    held = spec.operand(spec.accumulated) if spec.accumulated else None
    if how not in CONTINUED:
        raise refusal(word, tree, f"a sum cannot begin with {how!r}.", "Use 'set', 'resume' or 'add'.")
    if spec.kind != "matmul" or scope is not Scope.REGISTER or held is None or held.scope is not Scope.LOCAL:
        why = "sums in registers continue those of a product that a core holds in LOCAL memory."
        raise refusal(word, tree, why, "Write .accumulate_in(LOCAL) before, where the spec is a CORE's.")
    seen(tree, scope, word)


@contextmanager
def shared_tiles(
    b: Builder, root: Spec, step: TileStep, counts: Mapping[str, ir.Dim], ranges: Simplifier
) -> Iterator[dict[str, ir.Expr]]:
    """The position of each tile along the axes of ``counts``, inside loops that cores share."""
    order = step.order
    shared = step.least is None or worth_sharing(product([n for _, n in root.extents]), step.least)
    extents = [counts[a] for a in order]
    names = [f"tile_{a}" for a in order]
    with parallel_grid(b, names, extents, ranges, shared, step.tasks or _ALL) as at:
        yield dict(zip(order, at, strict=True))


_ALL = 1 << 62


def whole_or_part(
    b: Builder, tree: Tree, step: TileStep, views: Mapping[str, OperandView], at: Mapping[str, ir.Expr],
    body: Callable[[dict[str, OperandView]], None],
) -> None:  # fmt: skip
    """Tiles that lie inside the problem are free of tests: the rest has a copy of its own, or shorter loops."""
    uneven = [c for c in step.cuts if not divides(c, step.before.extent(c.axis))]
    if end_with_the_problem(tree.steps[tree.steps.index(step) + 1 :]):
        rest = {c.axis: index(step.before.extent(c.axis)) - at[c.axis] * c.width for c in uneven}
        ends = {c.axis: b.let("count", minimum(rest[c.axis], c.width)) for c in uneven}
        body(tiled(step, views, at, all_whole=True, ends=ends))
        return
    inside = as_expr(True)
    for c in uneven:
        inside = inside & ((at[c.axis] + 1) * c.width <= index(step.before.extent(c.axis)))
    with b.when(inside):
        body(tiled(step, views, at, all_whole=True))
    if uneven:
        with b.otherwise():
            body(tiled(step, views, at))


def end_with_the_problem(steps: Sequence[Step]) -> bool:
    """True if the steps are loops over elements alone, which end where the problem ends: no element is tested."""
    *moves, last = steps
    leaves = [s.how.steps[0] if isinstance(s, MoveStep) and s.scope not in HELD else s for s in moves]
    return all(isinstance(s, DoneStep) and s.lanes for s in (*leaves, last))


def adds_one_by_one(steps: Sequence[Step], axis: str) -> bool:
    """True if the next loop along the axis of a sum, before anything is moved, is over single terms: it can end where
    the sum ends."""
    for step in steps:
        if isinstance(step, SplitStep) and step.before.summed == axis:
            return step.size == 1
        if isinstance(step, MoveStep | DoneStep):
            return False
    return False


def elements(
    b: Builder, views: Sequence[OperandView], sizes: Sequence[ir.Dim], lanes: int, ranges: Simplifier
) -> Iterator[list[ir.Expr]]:
    """The position of each element of a part, inside loops over its axes: ``lanes`` neighbours along the last one at a
    time. The part ends where one of its views ends. Loops over registers are unrolled, because these have no addresses.
    """
    names, ends = views[0].names, list(sizes)
    for d, axis in (pair for view in views for pair in enumerate(view.axes)):
        if axis is not None and axis.length is not None:
            ends[d] = axis.length
    if not any(view.buffer.scope in HELD for view in views):
        with b.grid(names[:-1], [index(n) for n in ends[:-1]]) as outer:
            for i, _, _ in vectors(b, names[-1], ends[-1], lanes, ranges):
                yield [*outer, i]
        return
    *lines, columns = (static_size(n) or 0 for n in ends)
    for line in product_of(*map(range, lines)):
        for start, width in pieces(columns, lanes):
            if width == 1:
                yield [*map(index, line), index(start)]
                continue
            with b.loop("lane", width, ir.LoopKind.VECTOR) as lane:
                if isinstance(lane, ir.Var):
                    ranges.bind(lane, width)
                yield [*map(index, line), lane + start]


def pieces(columns: int, lanes: int) -> Iterator[tuple[int, int]]:
    """(first column, width) of vectors of up to ``lanes`` columns."""
    start = 0
    for number, width in column_groups(columns, lanes):
        for _ in range(number):
            yield start, width
            start += width
