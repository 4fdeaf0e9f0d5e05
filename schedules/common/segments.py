"""Segments of a domain: the pieces of one axis on which every choice between tensors is decided.

A concatenation's element is a choice among its parts, by the position along one axis:

    y[i] = select(i < 3, a[i], select(i < 8, b[i - 3], c[i - 8]))     i in [0, 3), [3, 8), [8, n): one part each

A kernel with a loop for each segment chooses nothing at run time, so its work does not grow with the number of parts.
The same holds for stacks and for slices that are replaced.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from taskmap.ir.analysis import polynomial as poly
from taskmap.ir.analysis.polynomial import Poly
from taskmap.ir.analysis.simplify import Simplifier
from taskmap.ir.builder import Builder
from taskmap.ir.construct import static_size
from taskmap.ir.lower.peel import AT_LEAST
from taskmap.ir.nodes import Body, Buffer, Compare, Dim, Expr, Let, Load, Select, Var
from taskmap.ir.task import Task
from taskmap.ir.types import i64
from taskmap.ir.visit import walk_exprs, walk_stmts
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.common.positions import positions_in

MOST_SEGMENTS = 128
"""The limit of segments: each makes a copy of the loop."""


@dataclass(frozen=True, slots=True)
class Segments:
    """The pieces (first position, length) of ``axis``, in order; together they cover the axis."""

    axis: int
    pieces: tuple[tuple[Dim, Dim], ...]


def find_segments(task: Task, axes: Sequence[Var], domain: Buffer) -> Segments | None:
    """The segments of the axis of ``domain`` along which the task chooses most often; None if it chooses nowhere.

    ``axes`` are the variables of the domain's axes. Conditions that depend on several axes, or on data, remain choices.
    """
    if not any(_chooses(e) for s in task.stages for e in walk_exprs(s.body)):
        return None
    simplifier = Simplifier()
    for axis, size in zip(axes, domain.shape, strict=True):
        simplifier.bind(axis, size)
    values = Inliner(task, Builder(), simplifier)
    for out in task.outputs:
        values.element(out, positions_in(out, domain, axes))
    starts: dict[int, list[Poly]] = {}
    for condition in _conditions(values.builder.body()):
        found = _start(simplifier.poly(AT_LEAST[condition.op](condition.a, condition.b)), axes, task.dims)
        if found is not None and found[1] not in starts.setdefault(found[0], []):
            starts[found[0]].append(found[1])
    best = max(starts, key=lambda d: len(starts[d]), default=None)
    if best is None or len(starts[best]) >= MOST_SEGMENTS:
        return None
    pieces = _pieces(starts[best], domain.shape[best], simplifier)
    return Segments(best, pieces) if pieces is not None and len(pieces) > 1 else None


def _chooses(e: Expr) -> bool:
    """True if ``e`` selects between two expressions that both read tensors."""
    return isinstance(e, Select) and all(any(isinstance(x, Load) for x in walk_exprs(side)) for side in (e.a, e.b))


def _conditions(body: Body) -> Iterator[Compare]:
    """The comparisons of positions that choose between loads."""
    loading: set[Expr] = set()

    def loads(e: Expr) -> bool:
        return any(isinstance(x, Load) or x in loading for x in walk_exprs(e))

    for s in walk_stmts(body):
        if not isinstance(s, Let):
            continue
        if loads(s.value):
            loading.add(s.var)
        for e in walk_exprs(s.value):
            if isinstance(e, Select) and loads(e.a) and loads(e.b):
                yield from (
                    c for c in walk_exprs(e.cond)
                    if isinstance(c, Compare) and c.op in AT_LEAST and c.a.dtype == i64 and c.lanes == 1
                )  # fmt: skip


def _start(room: Poly, axes: Sequence[Var], dims: Sequence[Var]) -> tuple[int, Poly] | None:
    """The axis, and its position where ``room`` >= 0 begins or ends to hold; None unless it depends on one axis."""
    used = [d for d, v in enumerate(axes) if any(v in m for m in room)]
    step = poly.linear_coefficient(room, axes[used[0]]) if len(used) == 1 else None
    if not step or any(a not in dims and a is not axes[used[0]] for m in room for a in m):
        return None
    rest = poly.add(room, poly.multiply(poly.constant(step), poly.atom(axes[used[0]])), -1)
    if step in (1, -1):
        return used[0], poly.add({}, rest, -1) if step == 1 else poly.add(rest, poly.constant(1))
    number = poly.constant_value(rest)
    if number is None:
        return None
    return used[0], poly.constant(-(number // step) if step > 0 else number // -step + 1)


def _pieces(starts: Sequence[Poly], extent: Dim, simplifier: Simplifier) -> tuple[tuple[Dim, Dim], ...] | None:
    """[0, extent) divided at ``starts``; None if their order is not known."""

    def before(p: Poly, q: Poly) -> bool:
        return simplifier.poly_range(poly.add(q, p, -1))[0] >= 0

    end = poly.constant(extent) if isinstance(extent, int) else simplifier.poly(extent)
    inner: list[Poly] = []
    for start in starts:
        if before(start, {}) or before(end, start):
            continue
        if not (before({}, start) and before(start, end)):
            return None
        at = next((i for i, other in enumerate(inner) if before(start, other)), len(inner))
        if not all(before(other, start) for other in inner[:at]):
            return None
        inner.insert(at, start)
    bounds: list[Poly] = [{}, *inner, end]
    lengths = [poly.add(q, p, -1) for p, q in pairwise(bounds)]
    return tuple((_size(p), _size(n)) for p, n in zip(bounds, lengths, strict=False))


def _size(p: Poly) -> Dim:
    size = poly.to_expr(p)
    known = static_size(size)
    return size if known is None else known
