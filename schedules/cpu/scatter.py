"""Scatters: updates, one after another, at positions that are data.

    parallel over outer followed dimensions × ranges of a data dimension × blocks of the inner followed dimension:
        out[range, block] = initial
        for n in source:                     in order, so that equal positions give what they give one by one
            i = index[n]
            if i in range:
                out[i, block] += source[n, block]        in vectors

No two tasks write the same element, and each sees its updates in the order of the source. Every range scans all
positions, which is cheap next to moving the updates if those are rows. If they are single elements, blocks share them
where each element of a row has a position of its own; otherwise, ranges only initialise the result, and one task
applies the whole source.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from taskmap.ir.builder import Builder
from taskmap.ir.construct import ceil_div, index, maximum, minimum, product, static_size
from taskmap.ir.loops import parallel_grid, worth_sharing
from taskmap.ir.nodes import Dim, Expr, Kernel, Var
from taskmap.ir.printer import print_dim
from taskmap.ir.target import CpuTarget
from taskmap.ir.task import Task
from taskmap.schedules.common.access import storage_order
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.common.loops import vector_loop
from taskmap.schedules.common.scatter_domain import ScatterDomain, find_scatter
from taskmap.schedules.cpu.pointwise import vector_bytes
from taskmap.schedules.cpu.support.kernels import kernel_of

_SHARED_FROM = 20_000
_TASKS_PER_CORE = 2


@dataclass(frozen=True, slots=True)
class _Part:
    """The part of the result that one task of a parallel loop updates: a ``place`` in the outer dimensions; of the
    inner one, if any, ``width`` elements from ``first`` on (0: all); and of the first data dimension, if any, ``count``
    positions from ``start`` on, of which ``cut`` says that they are not all."""

    place: Mapping[int, Expr]
    inner: int | None = None
    first: Expr = field(default_factory=lambda: index(0))
    width: int = 0
    cut: bool = False
    start: Expr = field(default_factory=lambda: index(0))
    count: Dim = 1


@dataclass(frozen=True, slots=True)
class _Shares:
    """``ranges`` parts of the first data dimension, of ``chunk`` positions each, and blocks of ``width`` elements of
    the inner dimension (0: it is not split)."""

    ranges: int = 1
    chunk: Dim = 0
    width: int = 0


def schedule_scatter(task: Task, target: CpuTarget) -> Kernel | None:
    """The kernel of a task that is a scatter, or None for any other task."""
    frame = find_scatter(task)
    return None if frame is None else _Plan(frame, target).kernel()


@dataclass(slots=True)
class _Plan:
    frame: ScatterDomain
    target: CpuTarget
    b: Builder = field(default_factory=Builder)

    @property
    def lanes(self) -> int:
        return self.target.lanes(vector_bytes(self.frame.task))

    def kernel(self) -> Kernel:
        frame, b = self.frame, self.b
        task, stage = frame.task, frame.stage
        order = [d for d in storage_order(stage.out) if static_size(stage.shape[d]) != 1]
        inner = order[-1] if order and order[-1] in frame.followed else None
        outer = [d for d in storage_order(stage.out) if d in frame.followed and d != inner]
        shared = worth_sharing(self.work(), _SHARED_FROM)
        large = inner is not None or (static_size(product(stage.shape)) or _SHARED_FROM) >= _SHARED_FROM
        shares = self.shares(outer, inner) if shared is not False and large else _Shares()
        blocks = 1 if not shares.width or inner is None else ceil_div(stage.shape[inner], shares.width)
        values = Inliner(task, b)
        extents: list[Dim] = [*(stage.shape[d] for d in outer), shares.ranges, blocks]
        names = [*(f"o{d}" for d in outer), "range", "block"]
        enough = _TASKS_PER_CORE * self.target.cores
        together = inner is not None or shares.ranges == 1
        with parallel_grid(b, names, extents, values.simplifier, shared, enough) as at:
            *left, number, block = at
            start, count = self.positions(shares, number, values)
            first = values.simplifier(block * shares.width)
            place = dict(zip(outer, left, strict=True))
            part = _Part(place, inner, first, shares.width, shares.ranges > 1, start, count)
            self.begin(part, values)
            if together:
                self.put_where_covered(part, values)
        if not together:
            whole = [stage.shape[d] for d in outer]
            names = [f"p{d}" for d in outer]
            with parallel_grid(b, names, whole, values.simplifier, shared, enough) as at:
                self.put_where_covered(_Part(dict(zip(outer, at, strict=True))), values)
        shape = "x".join(map(print_dim, stage.shape))
        note = f"cpu.scatter({shape}, {frame.e.op}, ranges={shares.ranges}, lanes={self.lanes}, order=source)"
        return kernel_of(task, b, note)

    def put_where_covered(self, part: _Part, values: Inliner) -> None:
        """``put`` if the source reaches the part's place."""
        frame = self.frame
        guards = [at < frame.extent(d) for d, at in part.place.items() if not frame.covers(d)]
        self.guarded(guards, lambda: self.put(part, values.nested()))

    def work(self) -> Dim:
        """The number of elements written and read."""
        here, read = product(self.frame.stage.shape), product([n for _, n in self.frame.e.axes])
        return here + read

    def shares(self, outer: list[int], inner: int | None) -> _Shares:
        """As many parts as keep all cores busy if the outer dimensions alone do not: ranges of the data first."""
        frame = self.frame
        shape = frame.stage.shape
        wanted = _TASKS_PER_CORE * self.target.cores
        for d in outer:
            wanted = -(-wanted // (static_size(shape[d]) or 1))
        if self.target.cores == 1 or wanted <= 1:
            return _Shares()
        if inner is not None and frame.is_decided_by(inner):
            return self.columns(inner, wanted)
        ranges, chunk = 1, index(0)
        if frame.data:
            whole = shape[frame.data[0]]
            ranges = min(wanted, static_size(whole) or wanted)
            chunk = index(ceil_div(whole, ranges))
            known = static_size(whole), static_size(chunk)
            if known[0] is not None and known[1] is not None:
                ranges = -(-known[0] // known[1])
        size = None if inner is None or not frame.covers(inner) else static_size(shape[inner])
        wanted = -(-wanted // ranges)
        width = 0
        if size is not None and wanted > 1:
            lanes = self.lanes
            fits = [w for w in range(lanes, size, lanes) if size % w == 0 and w >= size // wanted]
            width = fits[0] if fits else 0
        return _Shares(ranges, static_size(chunk) or chunk, width)

    def columns(self, inner: int, wanted: int) -> _Shares:
        """Blocks of the inner dimension, where each of its elements has positions of its own: ranges of these would be
        told apart by every task, element by element."""
        size = static_size(self.frame.stage.shape[inner])
        if size is None or not self.frame.covers(inner):
            return _Shares()
        return _Shares(width=next((w for w in range(-(-size // wanted), size) if size % w == 0), 0))

    def positions(self, shares: _Shares, number: Expr, values: Inliner) -> tuple[Expr, Dim]:
        """The first position and the length of a range of the first data dimension."""
        if not self.frame.data:
            return index(0), 1
        whole = self.frame.stage.shape[self.frame.data[0]]
        if shares.ranges == 1:
            return index(0), whole
        start = self.b.let("start", values.simplifier(number * shares.chunk))
        known = static_size(whole)
        values.bind(start, whole)
        if known is not None and known == shares.ranges * (static_size(shares.chunk) or 0):
            return start, shares.chunk
        count = self.b.let("count", maximum(0, minimum(shares.chunk, index(whole) - start)))
        return start, count

    def guarded(self, guards: list[Expr], body: Callable[[], None]) -> None:
        """``body`` under all of the conditions."""
        if not guards:
            body()
            return
        with self.b.when(guards[0]):
            self.guarded(guards[1:], body)

    def begin(self, part: _Part, values: Inliner) -> None:
        """Stores the initial value of every element of this task."""
        stage, data = self.frame.stage, self.frame.data
        sizes: dict[int, tuple[Expr, Dim]] = {d: (index(0), stage.shape[d]) for d in data}
        if data:
            sizes[data[0]] = (part.start, part.count)
        if part.inner is not None:
            sizes[part.inner] = (part.first, part.width or stage.shape[part.inner])
        dims = [d for d in storage_order(stage.out) if d in sizes]

        def element(at: Mapping[int, Expr], local: Inliner) -> None:
            where = [local.simplifier(at.get(d, index(0))) for d in range(len(stage.shape))]
            value = local.expand(self.frame.e.initial, dict(zip(stage.axes, where, strict=True)))
            self.b.store(stage.out, where, value)

        if not dims:
            element(part.place, values.nested())
            return
        *slow, fast = dims
        with self.b.grid([f"i{d}" for d in slow], [index(sizes[d][1]) for d in slow]) as i:
            inside = values.nested()
            for v, d in zip(i, slow, strict=True):
                inside.bind(v, sizes[d][1])
            at = {**part.place, **{d: sizes[d][0] + v for d, v in zip(slow, i, strict=True)}}
            vector_loop(
                self.b,
                "v",
                sizes[fast][1],
                self.lanes,
                inside,
                lambda v, local, *_: element({**at, fast: sizes[fast][0] + v}, local),
            )

    def put(self, part: _Part, values: Inliner) -> None:
        """Applies the source's elements, in order."""
        frame, b, place, inner, first = self.frame, self.b, part.place, part.inner, part.first
        source: dict[Var, Expr] = {frame.e.axes[frame.followed[d]][0]: i for d, i in place.items()}
        loops = [frame.e.axes[k] for k in frame.walked]
        with b.grid([var.name for var, _ in loops], [index(n) for _, n in loops]) as r:
            inside = values.nested()
            for i, (var, n) in zip(r, loops, strict=True):
                inside.bind(i, n)
                source[var] = i
            if inner is None:
                self.one(source, place, part, inside)
                return
            axis, extent = frame.e.axes[frame.followed[inner]]
            width = part.width or extent
            if frame.is_decided_by(inner):

                def element(v: Expr, local: Inliner, *_: object) -> None:
                    self.one({**source, axis: first + v}, {**place, inner: first + v}, part, local)

                vector_loop(b, "v", width, 1, inside, element)
                return
            where = self.where(source, place, inside)

            def elements(v: Expr, local: Inliner, *_: object) -> None:
                self.store({**source, axis: first + v}, {**where, inner: first + v}, local)

            self.guarded(
                self.in_range(where, part), lambda: vector_loop(b, "v", width, self.lanes, inside.nested(), elements)
            )

    def one(self, source: Mapping[Var, Expr], place: Mapping[int, Expr], part: _Part, values: Inliner) -> None:
        """Applies one element of the source."""
        where = self.where(source, place, values)
        self.guarded(self.in_range(where, part), lambda: self.store(source, where, values.nested()))

    def where(self, source: Mapping[Var, Expr], place: Mapping[int, Expr], values: Inliner) -> dict[int, Expr]:
        """The position in the result, as far as it is independent of the inner dimension."""
        found = dict(place)
        for d in self.frame.data:
            found[d] = self.b.let(f"at{d}", values.expand(self.frame.e.at[d], dict(source)))
            values.bind(found[d], self.frame.stage.shape[d])
        return found

    def in_range(self, where: Mapping[int, Expr], part: _Part) -> list[Expr]:
        if not part.cut or not self.frame.data:
            return []
        at = where[self.frame.data[0]]
        return [(at >= part.start) & (at < part.start + part.count)]

    def store(self, source: Mapping[Var, Expr], where: Mapping[int, Expr], values: Inliner) -> None:
        out = self.frame.stage.out
        at = tuple(values.simplifier(where.get(d, index(0))) for d in range(out.rank))
        value = self.b.let("value", values.expand(self.frame.e.body, dict(source)))
        self.b.store(out, at, self.frame.step(out[at], value))
