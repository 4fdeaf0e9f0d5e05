"""The statements of a stage's elements: loops of one worker, or elements shared out among the lanes of a warp.

for i, j in mapping.on(lane):  e[i, j] = exp(x[i, j] - highest[i])      elements that lie inside the problem
total = partial sums of the lane; then, by shuffles, of all lanes
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from taskmap.ir import nodes as ir
from taskmap.ir.algebra.mapping import TaskMapping
from taskmap.ir.analysis.simplify import Simplifier
from taskmap.ir.builder import Builder
from taskmap.ir.construct import as_expr, binary, cast, identity, index, load, static_size
from taskmap.ir.decompose.cores import elements, pieces
from taskmap.ir.decompose.groups.thread_group import ThreadGroup
from taskmap.ir.decompose.levels import Level
from taskmap.ir.decompose.ownership import share_elements
from taskmap.ir.decompose.refusal import refusal
from taskmap.ir.decompose.spec import Spec
from taskmap.ir.decompose.stage_spec import OPERATORS, StageSpec
from taskmap.ir.decompose.steps import Tree
from taskmap.ir.decompose.views import AxisView, OperandView
from taskmap.ir.visit import map_expr, substitute
from taskmap.ir.workers import THREAD

POSITIONS = "@"
"""A view without an operand: it gives the position of a part in the whole, for each axis."""
_ALONE = (Level.THREAD, Level.CORE, Level.LANES)
_WIDEST = 16
"""The lanes of the longest vector: bytes."""


def with_positions(root: Spec, out: ir.Buffer) -> dict[str, OperandView]:
    """The view of all axes, if ``root`` is a stage."""
    if not isinstance(root, StageSpec):
        return {}
    names = [name for name, _ in root.extents]
    return {POSITIONS: OperandView.whole(out, names, [True] * len(names))}


def views_of_part(
    spec: StageSpec, axes: Sequence[str], views: dict[str, OperandView], placed: OperandView
) -> dict[str, OperandView]:
    """The views of a stage that is computed for a part of another one, at whose ``axes`` its result is read. Its
    operands get the names of its own axes."""
    here = {o.name: replace(views[o.name], names=o.axes) for o in spec.operands[:-1] if o.name in views}
    outer = views[POSITIONS]
    of = dict(zip(outer.names, outer.axes, strict=True))
    own = [of.get(axis) or AxisView(lambda i: i) for axis in axes]
    for name, n in spec.extents[len(own) :]:
        own.append(AxisView(lambda i: i, exact=static_size(spec.axis_size(name)) == static_size(n)))
    positions = OperandView(outer.buffer, tuple(n for n, _ in spec.extents), tuple(own))
    result = replace(placed, names=spec.operands[-1].axes)
    return {**here, spec.written: result, POSITIONS: positions}


@dataclass(frozen=True, slots=True)
class StageLeaf:
    """Writes the elements of a stage. adding: its result has a first value already. given: the mapping of equal chunks
    of them to threads. lanes: of the vectors of the loop of a core or a thread, or 0."""

    b: Builder
    threads: int
    spec: StageSpec
    views: dict[str, OperandView]
    adding: bool
    given: TaskMapping | None = None
    lanes: int = 0

    def emit(self) -> None:
        """All elements of the part."""
        spec, out = self.spec, self.views[self.spec.written]
        if self.given is not None and not any(v.is_distributed for v in self.views.values()):
            self.chunks(self.given)
        elif self.lanes and self.threads:
            self.vectors()
        elif self.lanes:
            whole, sizes = self.views[POSITIONS], [n for _, n in spec.extents]
            lanes = self.lanes if whole.is_exact else 1  # the elements of an edge are tested one by one
            for position in elements(self.b, [whole], sizes, lanes, Simplifier()):
                self.element(position)
        elif spec.kind == "compute":
            with self.elements() as at:
                self.element(at)
        elif spec.level in (Level.BLOCK, Level.WARP):
            self.sum_of_lanes(spec, out)
        else:
            own, inner = spec.extents[: len(spec.tiled)], spec.extents[len(spec.tiled) :]
            with self.loops(own) as mine:
                if not self.adding:
                    self.b.store(out.buffer, self.result(mine), identity(spec.operation, out.buffer.dtype))
                with self.loops(inner) as others:
                    self.add(spec, out.buffer, self.result(mine), [*mine, *others])

    def element(self, at: Sequence[ir.Expr]) -> None:
        """One element, unless it lies beyond the end."""
        with self.b.when(self.inside(at)):
            self.store(at)

    def store(self, at: Sequence[ir.Expr]) -> None:
        """One element."""
        self.b.store(self.views[self.spec.written].buffer, self.result(at), self.value(at))

    def vectors(self) -> None:
        """The elements of one thread along the last axis: a whole vector, or what the problem leaves of it."""
        b, (*outer, (name, size)) = self.b, self.spec.extents
        columns, axis = static_size(size) or 1, self.views[POSITIONS].axes[-1]
        exact, end = axis is None or axis.exact, index(self.spec.axis_size(name))
        with b.grid([n for n, _ in outer], [n for _, n in outer], ir.LoopKind.UNROLLED) as lines:
            for start, lanes in pieces(columns, self.lanes):
                first = index(start) if axis is None else axis.at(index(start))
                with b.when(self.inside([*lines, index(0)], last=False)):
                    with b.when(True if exact else first + lanes <= end), b.loop("v", lanes, ir.LoopKind.VECTOR) as v:
                        self.store([*lines, v + start])
                    if not exact:
                        with b.otherwise(), b.loop("rest", end - first) as v:
                            self.store([*lines, v + start])

    def chunks(self, mapping: TaskMapping) -> None:
        """Equal chunks of elements: the neighbours of a line are one vector, where none of them lies beyond the end
        alone."""
        b, lead = self.b, [index(0)] * (len(self.spec.extents) - len(mapping.task_shape))
        extents = self.spec.extents[len(lead) :]
        names = [name for name, _ in extents]
        *lines, lanes = sizes = [
            (static_size(n) or 1) // t for (_, n), t in zip(extents, mapping.task_shape, strict=True)
        ]
        ends = static_size(self.spec.axis_size(names[-1]))
        whole = ends is not None and ends % lanes == 0
        with self.shared_out(names, mapping) as chunk, b.grid(names[:-1], lines, ir.LoopKind.UNROLLED) as line:
            inside = [i * n + e for i, n, e in zip(chunk, sizes, (*line, index(0)), strict=True)]
            *outer, first = *lead, *inside
            if lanes & (lanes - 1) or lanes > _WIDEST or not whole:
                with b.loop("e", lanes, ir.LoopKind.UNROLLED) as e:
                    self.element([*outer, first + e])
                return
            with b.when(self.inside([*outer, first])), b.loop("v", lanes, ir.LoopKind.VECTOR) as v:
                self.store([*outer, first + v])

    def add(self, spec: StageSpec, total: ir.Buffer, where: Sequence[ir.Expr], at: Sequence[ir.Expr]) -> None:
        """total[where] = total[where] op the element at ``at``."""
        value = cast(self.value(at), total.dtype)
        with self.b.when(self.inside(at)):
            self.b.store(total, where, binary(OPERATORS[spec.operation], total[tuple(where)], value))

    def group(self) -> ThreadGroup:
        """The threads that combine their sums."""
        size = self.spec.level.threads or self.threads
        if size & (size - 1) or size < Level.WARP.threads:
            why = f"{size} threads share a sum, and they combine at distances that are powers of two, in whole warps."
            raise refusal("kernel()", Tree(self.spec), why, "Give done(by=...) a mapping to 32, 64, 128, ... threads.")
        return ThreadGroup(self.b, self.threads // size, size, THREAD // size, THREAD % size)

    def sum_of_lanes(self, spec: StageSpec, out: OperandView) -> None:
        """Each thread sums the elements that it holds; those at all distances that are powers of two combine."""
        b, dtype, op = self.b, out.buffer.dtype, OPERATORS[spec.operation]
        start = identity(spec.operation, dtype)
        part = b.allocate(f"{spec.written}_part", dtype, (1,), ir.Scope.REGISTER)
        b.store(part, 0, start)
        with self.elements() as at:
            self.add(spec, part, (index(0),), at)
        (found,) = self.group().all_reduce([b.let("mine", part[0])], lambda x, y: [binary(op, x[0], y[0])])
        where = out.element([index(0)] * len(out.axes))
        b.store(out.buffer, where, binary(op, out.buffer[where], found) if self.adding else found)

    @contextmanager
    def elements(self) -> Iterator[Sequence[ir.Expr]]:
        """The elements of this worker, by their axes within the part."""
        spec = self.spec
        if spec.level in _ALONE or not self.threads:
            with self.loops(spec.extents) as at:
                yield at
            return
        names = [n for n, _ in spec.extents]
        with self.shared_out(names, self.mapping(spec.level.threads or self.threads)) as at:
            yield at

    @contextmanager
    def shared_out(self, names: Sequence[str], mapping: TaskMapping) -> Iterator[Sequence[ir.Expr]]:
        """The tasks of a mapping, on the threads of the spec's level."""
        room = self.spec.level.threads or self.threads
        worker = THREAD if room == self.threads else THREAD % room
        count = mapping.num_workers
        if count == room:
            with self.b.mapped(names, mapping, worker) as at:
                yield at
            return
        with self.b.when(worker < count), self.b.mapped(names, mapping, worker % count) as at:
            yield at

    def mapping(self, threads: int) -> TaskMapping:
        """The elements of each thread: those that it holds in registers, if any are held."""
        names = tuple(n for n, _ in self.spec.extents)
        held = [v for v in self.views.values() if v.is_distributed and v.names == names and v.buffer.owner is not None]
        owner = held[0].buffer.owner if held else None
        return owner or share_elements(self.spec, threads)

    @contextmanager
    def loops(self, extents: Sequence[tuple[str, ir.Dim]]) -> Iterator[Sequence[ir.Expr]]:
        """Loops over axes, unrolled along those of registers."""
        names = [n for n, _ in extents]
        sizes = [n for _, n in extents]
        held = {a for v in self.views.values() if v.buffer.scope is ir.Scope.REGISTER for a in v.names}
        kind = ir.LoopKind.UNROLLED if held & {*names} else ir.LoopKind.SERIAL
        with self.b.grid(names, sizes, kind) as at:
            yield at

    def inside(self, at: Sequence[ir.Expr], *, last: bool = True) -> ir.Expr:
        """True for an element of the problem: the fastest axis is tested first. last: it is tested, too."""
        found, spec = as_expr(True), self.spec
        axes = list(zip(spec.extents, self.views[POSITIONS].axes, at, strict=True))
        for (name, _), axis, i in reversed(axes if last else axes[:-1]):
            if axis is not None and not axis.exact:
                found = found & (axis.at(i) < index(spec.axis_size(name)))
        return found

    def result(self, at: Sequence[ir.Expr]) -> tuple[ir.Expr, ...]:
        """The place of the result."""
        return self.views[self.spec.written].element(at[: len(self.spec.tiled)])

    def value(self, at: Sequence[ir.Expr]) -> ir.Expr:
        """An element, with its operands read where they are."""
        spec, positions = self.spec, self.views[POSITIONS]
        local = dict(zip(spec.axis_vars, at, strict=True))
        whole = {v: axis.at(i) for (v, i), axis in zip(local.items(), positions.axes, strict=True) if axis is not None}

        def read(e: ir.Expr) -> ir.Expr | None:
            if not isinstance(e, ir.Load):
                return None
            view = self.views[e.buffer.name]
            if view.buffer.scope is ir.Scope.GLOBAL:
                return load(view.buffer, [substitute(map_expr(i, read), whole) for i in e.indices])
            return load(view.buffer, view.element([local.get(i, index(0)) if isinstance(i, ir.Var) else index(0)
                                                   for i in e.indices]))  # fmt: skip

        return substitute(map_expr(spec.value(), read), whole)


def check_holders(tree: Tree) -> None:
    """A stage in registers is computed by those who hold it: its tree has no workers of its own."""
    tiled = next((s for s in tree.steps if getattr(s, "level", None) is not None), None)
    if tiled is not None:
        why = "a stage in registers is computed by the threads that hold its result."
        raise refusal("kernel()", tree, why, "Leave it to done(), or tile it in order.", where=tiled.source)
