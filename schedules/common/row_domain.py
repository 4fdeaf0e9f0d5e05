"""Position of a row task's stages relative to its rows, for any target.

A row is the set of elements that the task's reductions reduce (``Rows``). A *full* tensor has one element for every
element of the rows, a *per-row* tensor one for every row. The *depth* of a stage is the number of reductions, one after
another, that it waits for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from taskmap.ir.analysis.positions import flatten, unravel
from taskmap.ir.construct import const, index, product, static_size
from taskmap.ir.errors import ScheduleError
from taskmap.ir.nodes import Binary, Buffer, Call, Dim, Expr, Load, Reduce, Var
from taskmap.ir.task import Stage, Task
from taskmap.ir.visit import walk_exprs
from taskmap.schedules.common.access import MemoryStep, accesses, memory_order, merged_axes, require_count, same_count
from taskmap.schedules.common.inline import Inliner, Reader
from taskmap.schedules.common.positions import positions_in
from taskmap.schedules.common.sampled_equality import equal_on_samples


@dataclass(frozen=True, slots=True)
class Rows:
    """The iteration domain of a row task: ``full`` is a tensor over all of it, ``reduced`` the axes that make a row."""

    full: Buffer
    reduced: tuple[int, ...]

    @property
    def kept(self) -> tuple[int, ...]:
        """The axes that number the rows."""
        return tuple(d for d in range(self.full.rank) if d not in self.reduced)


def same_shape(a: Buffer, b: Buffer) -> bool:
    """True if two tensors have the same sizes, symbolic ones in the same form."""
    return len(a.shape) == len(b.shape) and all(x is y or x == y for x, y in zip(a.shape, b.shape, strict=True))


def rows_of(stage: Stage, e: Reduce) -> Rows | None:
    """The rows that a single reduction reduces: those of a load that has every summed axis, and every axis of the
    output, as an index."""
    summed = dict(e.axes)
    kept = {v: size for v, size in zip(stage.axes, stage.shape, strict=True) if static_size(size) != 1}
    for x in walk_exprs(e.body):
        if not isinstance(x, Load):
            continue
        places = [(i, size) for i, size in zip(x.indices, x.buffer.shape, strict=True) if static_size(size) != 1]
        wanted = [(v, n) for v, n in summed.items() if static_size(n) != 1]
        reduced = [(i, n) for i, n in places if i in summed]
        others = [(i, n) for i, n in places if i not in summed]
        if _same_axes(reduced, wanted) and _same_axes(others, list(kept.items())):
            return Rows(x.buffer, tuple(d for d, i in enumerate(x.indices) if i in summed))
    return None


def _same_axes(a: Sequence[tuple[Expr, Dim]], b: Sequence[tuple[Expr, Dim]]) -> bool:
    """True if both iterate over the same variables, in the same order, to the same extents."""
    return len(a) == len(b) and all(i is j and (m is n or m == n) for (i, m), (j, n) in zip(a, b, strict=True))


def find_rows(task: Task) -> Rows | None:
    """The rows of a task whose reductions all reduce the same axes of tensors of one shape, wherever these axes lie in
    memory; else None."""
    found: Rows | None = None
    for stage in task.stages:
        for e in reductions_of(stage):
            rows = rows_of(stage, e)
            if rows is None or (found and (rows.reduced != found.reduced or not same_shape(rows.full, found.full))):
                return None
            found = found or rows
    return found


def find_contiguous_rows(task: Task) -> Rows | None:
    """The rows of a task (``find_contiguous_rows``) if the elements of each lie together in memory, else None."""
    found = find_rows(task)
    if found is None:
        return None
    steps = memory_order(task, found.full)
    inner = [d for d in steps if static_size(found.full.shape[d]) != 1][-1:]
    return found if inner and inner[0] in found.reduced else None


@dataclass(frozen=True, slots=True)
class RowDomain:
    """A row task and its rows; ``at`` in every method is a position in ``rows.full``."""

    task: Task
    rows: Rows

    def depths(self) -> dict[Buffer, int]:
        """For each stage, the number of reductions that must be finished before it can be computed."""
        level: dict[Buffer, int] = {}
        reducing = {s.out: bool(reductions_of(s)) for s in self.task.stages}
        for stage in self.task.stages:
            needs = [e.buffer for e in walk_exprs(stage.body) if isinstance(e, Load) and e.buffer in level]
            level[stage.out] = max((level[n] + reducing[n] for n in needs), default=0)
        return level

    def is_full(self, buffer: Buffer) -> bool:
        """True if a tensor has one element for every element of the rows."""
        return same_count(buffer.shape, self.rows.full.shape)

    def axes(self) -> tuple[Var, ...]:
        """Fresh variables for the axes of the full tensor."""
        return tuple(Var(f"i{d}") for d in range(self.rows.full.rank))

    def walks(self, axes: tuple[Var, ...], stages: Sequence[Stage] | None = None) -> list[MemoryStep]:
        """Every memory access, in terms of ``axes``, that stores the full outputs among ``stages`` (default: all) and
        evaluates the operands of their reductions. Results of reductions count as known, and are not reduced again."""
        full = self.rows.full
        chosen = self.task.stages if stages is None else stages
        outs = [
            (s.out, positions_in(s.out, full, axes))
            for s in chosen
            if s.out in self.task.outputs and self.is_full(s.out) and not reductions_of(s)
        ]
        known = {s.out: _constant(s.out) for s in self.task.stages if reductions_of(s)}

        def bodies(values: Inliner) -> None:
            for stage in chosen:
                for e in reductions_of(stage):
                    values.expand(e.body, {**self.at_row(stage, axes), **self.in_reduction(e, axes)})

        return accesses(self.task, axes, full.shape, outs, bodies, known)

    def runs(self, walks: Sequence[MemoryStep]) -> list[list[int]]:
        """The reduced axes in storage order, merged if every access allows it; the last run is contiguous."""
        full = self.rows.full
        order = [d for d in memory_order(self.task, full) if d in self.rows.reduced]
        return merged_axes(order, full.shape, walks) or [[order[-1]]]

    def kept(self) -> list[int]:
        """The axes that number the rows, in storage order."""
        return [d for d in memory_order(self.task, self.rows.full) if d in self.rows.kept]

    def at_row(self, stage: Stage, at: Sequence[Expr]) -> dict[Var, Expr]:
        """The axes of a per-row stage at the element that belongs to the row of ``at``."""
        full = self.rows.full.shape
        kept = [(at[d], full[d]) for d in self.rows.kept if static_size(full[d]) != 1]
        own = [d for d, size in enumerate(stage.shape) if static_size(size) != 1]
        found: list[Expr] = [index(0)] * len(stage.axes)
        sizes = [([stage.shape[d]], [n]) for d, (_, n) in zip(own, kept, strict=False)]
        if len(own) == len(kept) and all(same_count(a, n) for a, n in sizes):
            for d, (i, _) in zip(own, kept, strict=True):
                found[d] = i
            return dict(zip(stage.axes, found, strict=True))
        require_count(self.task, [stage.out], [n for _, n in kept])
        return dict(zip(stage.axes, unravel(flatten(kept), stage.shape), strict=True))

    def in_reduction(self, e: Reduce, at: Sequence[Expr]) -> dict[Var, Expr]:
        """The summed axes of a reduction."""
        full = self.rows.full.shape
        places = iter(at[d] for d in self.rows.reduced if static_size(full[d]) != 1)
        return {v: index(0) if static_size(n) == 1 else next(places) for v, n in e.axes}

    def in_full(self, buffer: Buffer, where: Sequence[Expr]) -> list[Expr]:
        """The position in ``rows.full`` of an element of another full tensor."""
        full = self.rows.full
        if same_shape(buffer, full):
            return list(where)
        return list(unravel(flatten(list(zip(where, buffer.shape, strict=True))), full.shape))

    def require_row(
        self, stage: Stage, where: Sequence[Expr], here: Sequence[Expr], shape: Sequence[Dim], values: Inliner
    ) -> None:
        """Raises ScheduleError if a stage is read at another position than the current one."""
        found, expected = (tuple(values.simplifier(i) for i in at) for at in (where, here))
        if found != expected and not equal_on_samples(found, expected, values.simplifier, shape):
            raise ScheduleError(
                f"{stage.label!r} in {self.task.name!r} is read in a different row from the one it is computed in"
            )


def _constant(buffer: Buffer) -> Reader:
    zero = const(0, buffer.dtype)
    return lambda where: zero


def reductions_of(stage: Stage) -> list[Reduce]:
    """The reductions in a stage's definition."""
    return [e for e in walk_exprs(stage.body) if isinstance(e, Reduce)]


def is_exact(e: Expr, task: Task) -> bool:
    """True if evaluating ``e`` twice gives the same bits under any compiler, because no operation in it rounds."""
    for x in walk_exprs(e):
        if isinstance(x, Load) and x.buffer in task.producers and not is_exact(task.producers[x.buffer].body, task):
            return False
        if isinstance(x, (Call, Reduce)) or (isinstance(x, Binary) and x.dtype.is_float and x.op not in ("min", "max")):
            return False
    return True


def row_length(rows: Rows) -> Dim:
    """The number of elements in a row."""
    return product([rows.full.shape[d] for d in rows.reduced])
