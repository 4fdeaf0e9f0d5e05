"""Memory accesses of a task: the step of every access along every axis, and the axes that can be merged into one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from taskmap.ir.analysis import polynomial as poly
from taskmap.ir.analysis.polynomial import Poly
from taskmap.ir.analysis.simplify import Simplifier
from taskmap.ir.builder import Builder
from taskmap.ir.construct import index, product, static_size
from taskmap.ir.errors import ScheduleError
from taskmap.ir.lower.flatten import address, strides_of
from taskmap.ir.nodes import Allocate, Body, Buffer, Dim, Expr, Let, Load, Reduce, Scope, Store, Var
from taskmap.ir.task import Task
from taskmap.ir.visit import children, walk_exprs, walk_stmts
from taskmap.schedules.common.inline import Inliner, Reader


@dataclass(frozen=True, slots=True)
class MemoryStep:
    """One load or store. ``indices`` is its position in terms of the axes; ``steps`` are the steps of its address along
    the axes, as polynomials, with None for an axis in which the address is not linear."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    steps: tuple[Poly | None, ...]

    def step(self, axis: int) -> int | None:
        """The constant step along an axis in elements, or None."""
        p = self.steps[axis]
        return None if p is None else poly.constant_value(p)


def accesses(
    task: Task,
    axes: Sequence[Var],
    extents: Sequence[Dim],
    outputs: Sequence[tuple[Buffer, tuple[Expr, ...]]],
    more: Callable[[Inliner], None] = lambda values: None,
    readers: Mapping[Buffer, Reader] | None = None,
) -> list[MemoryStep]:
    """Every global memory access that computes ``outputs`` at their indices, which are expressions of ``axes``, and
    evaluates ``more``. Tensors that have ``readers`` are read through them, not recomputed."""
    simplifier, body, _ = _inlined(task, axes, extents, outputs, more, readers)
    found = list(outputs)
    local = {s.buffer for s in walk_stmts(body) if isinstance(s, Allocate)}
    found += [(e.buffer, e.indices) for e in walk_exprs(body) if isinstance(e, Load)]
    found = [(b, where) for b, where in found if b not in local and b.scope is Scope.GLOBAL]
    return [
        MemoryStep(b, where, tuple(step_along(simplifier.poly(address(b, where)), v) for v in axes))
        for b, where in found
    ]


def numbered_axes(
    task: Task, axes: Sequence[Var], extents: Sequence[Dim], outputs: Sequence[tuple[Buffer, tuple[Expr, ...]]]
) -> frozenset[int]:
    """The axes along which a position is itself a value, as in a comparison of the row with the column."""
    if all(_outside_loads([s.body]).isdisjoint(s.axes) for s in task.stages):
        return frozenset()
    _, body, elements = _inlined(task, axes, extents, outputs)
    seen = _outside_loads([*elements, *(s.value for s in walk_stmts(body) if isinstance(s, (Let, Store)))])
    return frozenset(d for d, axis in enumerate(axes) if axis in seen)


def _outside_loads(roots: Sequence[Expr]) -> set[Expr]:
    """All parts of expressions but the loads and their indices."""
    seen: set[Expr] = set()
    stack = list(roots)
    while stack:
        e = stack.pop()
        if e not in seen and not isinstance(e, Load):
            seen.add(e)
            stack.extend(children(e))
    return seen


def _inlined(
    task: Task,
    axes: Sequence[Var],
    extents: Sequence[Dim],
    outputs: Sequence[tuple[Buffer, tuple[Expr, ...]]],
    more: Callable[[Inliner], None] = lambda values: None,
    readers: Mapping[Buffer, Reader] | None = None,
) -> tuple[Simplifier, Body, list[Expr]]:
    """The statements that compute the outputs, and the elements that they give."""
    simplifier = Simplifier()
    for axis, extent in zip(axes, extents, strict=True):
        simplifier.bind(axis, extent)
    builder = Builder()
    values = Inliner(task, builder, simplifier, dict(readers or {}))
    elements = [values.element(buffer, where) for buffer, where in outputs]
    more(values)
    return simplifier, builder.body(), elements


def step_along(p: Poly, axis: Var) -> Poly | None:
    """The step of the address ``p`` along an axis, or None if the address is not linear in it."""
    step: Poly = {}
    for monomial, coefficient in p.items():
        if axis in monomial:
            rest = list(monomial)
            rest.remove(axis)
            if axis in rest:
                return None
            step[tuple(rest)] = coefficient
        elif any(axis in walk_exprs(a) for a in monomial if not isinstance(a, Var)):
            return None
    return step


def same_count(a: Sequence[Dim], b: Sequence[Dim]) -> bool:
    """True if two shapes are known to have equally many elements."""
    simplifier = Simplifier()
    p, q = (simplifier.poly(index(product(shape))) for shape in (a, b))
    return p == q


def require_count(task: Task, outputs: Sequence[Buffer], shape: Sequence[Dim]) -> None:
    """Raises ScheduleError if an output differs in its number of elements from ``shape``, the iteration domain."""
    for out in outputs:
        if not same_count(out.shape, shape):
            raise ScheduleError(
                f"output {out!r} of {task.name!r} has another number of elements than the domain of its kernel",
                why=f"the domain is [{', '.join(map(str, shape))}].",
                hint="Put it into a kernel of its own.",
            )


def require_pointwise(task: Task, shape: Sequence[Dim]) -> None:
    """Raises ScheduleError if an output is not of ``shape``'s size, or a reduction would be recomputed at each read."""
    require_count(task, task.outputs, shape)
    for stage in task.stages:
        if any(isinstance(e, Reduce) for e in walk_exprs(stage.body)) and not same_count(stage.shape, shape):
            raise ScheduleError(
                f"the reduction {stage.label!r} of {task.name!r} would be recomputed at each of its reads",
                hint="Put it into a kernel of its own.",
            )


def storage_order(buffer: Buffer) -> list[int]:
    """The axes of a buffer from the largest step in memory to the smallest; equal steps keep their order."""

    def step(d: int) -> tuple[bool, int]:
        stride = static_size(strides_of(buffer)[d])
        return (stride is not None, -(stride or 0))

    return sorted(range(buffer.rank), key=step)


def memory_order(task: Task, buffer: Buffer) -> list[int]:
    """The axes of a tensor from the largest step in memory to the smallest. A tensor without memory of its own takes
    the order of the input that it follows along most of its axes."""
    if buffer in task.inputs or buffer in task.outputs:
        return storage_order(buffer)
    axes = tuple(Var(f"i{d}") for d in range(buffer.rank))

    def read(values: Inliner) -> None:
        values.element(buffer, axes)

    walks = accesses(task, axes, buffer.shape, (), read)
    best = max(walks, key=lambda w: sum(bool(p) for p in w.steps), default=None)
    if best is None or not all(p is not None and (not p or poly.constant_value(p) is not None) for p in best.steps):
        return storage_order(buffer)
    return sorted(range(buffer.rank), key=lambda d: -abs(best.step(d) or 0))


def merged_axes(
    order: Sequence[int],
    shape: Sequence[Dim],
    walks: Sequence[MemoryStep],
    apart: Callable[[list[int], int], bool] = lambda run, axis: False,
) -> list[list[int]]:
    """Groups neighbouring axes into runs that every access crosses like a single axis; axes of extent 1 are left out.

    Two axes merge if each access steps over the outer one by extent(inner) times its step over the inner one, and if
    ``apart(run, axis)`` does not keep the next axis out of the run.
    """
    simplifier = Simplifier()
    runs: list[list[int]] = []
    for axis in order:
        if static_size(shape[axis]) == 1:
            continue
        continues = runs and all(_continues(w, runs[-1][-1], axis, shape, simplifier) for w in walks)
        if continues and not apart(runs[-1], axis):
            runs[-1].append(axis)
        else:
            runs.append([axis])
    return runs


def _continues(walk: MemoryStep, outer: int, inner: int, shape: Sequence[Dim], simplifier: Simplifier) -> bool:
    far, near = walk.steps[outer], walk.steps[inner]
    if far is None or near is None:
        return False
    size = shape[inner]
    extent = poly.constant(size) if isinstance(size, int) else simplifier.poly(size)
    return far == poly.multiply(near, extent)
