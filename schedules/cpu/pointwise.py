"""The rule for tasks without a template: one loop nest over the output, vectorised and parallel.

Axes are walked in the storage order of the first output, merged if every access allows it, the best axis for vectors
innermost. Inner reductions (windows, leading axes) become loops inside the vector loop, each lane with its own element.

A task that chooses among tensors by position (a concatenation, a stack) is divided into segments without choices: loops
over the segments stand inside the other loops if long segments lie next to each other in memory, and outside otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from taskmap.ir.analysis import polynomial as poly
from taskmap.ir.analysis.simplify import Simplifier
from taskmap.ir.builder import Builder
from taskmap.ir.construct import constant_value, index, product, static_size
from taskmap.ir.loops import Shared, parallel_grid, worth_sharing
from taskmap.ir.lower.flatten import address, strides_of
from taskmap.ir.nodes import Binary, Buffer, Call, Dim, Expr, Kernel, Reduce, Select, Var
from taskmap.ir.printer import print_dim
from taskmap.ir.target import CpuTarget
from taskmap.ir.task import Task
from taskmap.ir.util.lazy import lazily
from taskmap.ir.visit import substitute, walk_exprs
from taskmap.schedules.common.access import (
    MemoryStep,
    accesses,
    merged_axes,
    numbered_axes,
    require_pointwise,
    step_along,
    storage_order,
)
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.common.jam import best_copies, jammed_vectors
from taskmap.schedules.common.loops import vector_loop
from taskmap.schedules.common.positions import position_of, positions_in, store_outputs
from taskmap.schedules.common.segments import Segments, find_segments
from taskmap.schedules.common.transpose_domain import find_transpose
from taskmap.schedules.cpu.support.kernels import kernel_of

# Most processes schedule no transpose, and the language of strategies takes a while to load.
if TYPE_CHECKING:
    from taskmap.schedules.cpu.transpose import schedule_transpose as _schedule_transpose
else:
    _schedule_transpose = lazily("taskmap.schedules.cpu.transpose", "schedule_transpose")

_SHARED_FROM = 20_000
"""The least number of operations (see ``work``) for which several threads are faster than one."""
_TASKS_PER_CORE = 8
_LARGE = 1024
"""A symbolic size, where only proportions matter."""
_FAR = 128
"""Bytes between the vectors of a reduction from which several columns of vectors are read side by side: the next line
is then another row's."""
_MANY = 16
"""Vectors of a reduction for which several columns of vectors are worth their registers."""
_MOST_OPERATIONS = 64
"""Operations of one pass of a loop over several columns of vectors."""


def schedule_pointwise(task: Task, target: CpuTarget) -> Kernel:
    """A kernel for a task whose outputs are all computed over one iteration domain.

    Raises ScheduleError if an output has another size, or if a reduction would be recomputed for many elements.
    """
    domain = task.outputs[0]
    require_pointwise(task, domain.shape)
    axes = tuple(Var(f"i{d}") for d in range(domain.rank))
    positions = [(out, positions_in(out, domain, axes)) for out in task.outputs]
    walks = accesses(task, axes, domain.shape, positions)
    lanes = target.lanes(vector_bytes(task))
    apart = _kept_apart(task, axes, domain.shape, positions, lanes)
    runs = merged_axes(storage_order(domain), domain.shape, walks, apart)
    extents = [product([domain.shape[a] for a in run]) for run in runs]
    transpose = find_transpose(task, axes, runs, extents, walks)
    if transpose is not None:
        least = _worth_sharing(task, domain.shape)
        return _schedule_transpose(task, transpose, domain, runs, extents, lanes, least, target)
    b = Builder()
    values = Inliner(task, b)
    shared = worth_sharing(work(task, domain.shape), _SHARED_FROM)
    pieces = find_segments(task, axes, domain)
    if pieces is not None:
        segmented = _Segmented(task, target, domain, axes, pieces, lanes, shared)
        segmented.emit(b, values, runs, extents)
        return kernel_of(task, b, f"cpu.pointwise({_product(extents)}, lanes={lanes}, {segmented.note})")
    fewer = target.lanes(4)
    if _stored_together(domain, *_vectors_last(runs, extents, walks, fewer)) == 4:
        lanes = fewer  # of fours
    runs, extents = _vectors_last(runs, extents, walks, lanes)
    row = _row_length(axes, runs, extents, walks, lanes, target.cores)
    most = 1 if row or not runs else _most_copies(task, axes, runs[-1], walks, target)
    _nest(b, values, domain, runs, extents, lanes, shared, target, task.outputs, row=row, together=most)
    return kernel_of(task, b, f"cpu.pointwise({_product(extents)}, lanes={lanes})")


def _kept_apart(
    task: Task,
    axes: Sequence[Var],
    shape: Sequence[Dim],
    outputs: Sequence[tuple[Buffer, tuple[Expr, ...]]],
    lanes: int,
) -> Callable[[list[int], int], bool]:
    """A test that an axis is no part of a run: positions along either are values, which merged axes give by a division,
    and rows along the axis fill vectors."""
    numbered = numbered_axes(task, axes, shape, outputs)

    def apart(run: list[int], axis: int) -> bool:
        size = static_size(shape[axis])
        return not numbered.isdisjoint((*run, axis)) and (size is None or size >= lanes)

    return apart


def _vectors_last(
    runs: Sequence[list[int]], extents: Sequence[Dim], walks: Sequence[MemoryStep], lanes: int
) -> tuple[list[list[int]], list[Dim]]:
    """The runs of axes and their extents, with those for vectors last."""
    best = best_vector_run(runs, extents, walks, lanes)
    order = [r for r in range(len(runs)) if r != best] + ([best] if runs else [])
    return [runs[r] for r in order], [extents[r] for r in order]


def _row_length(
    axes: Sequence[Var],
    runs: Sequence[Sequence[int]],
    extents: Sequence[Dim],
    walks: Sequence[MemoryStep],
    lanes: int,
    cores: int,
) -> int:
    """The length of the rows that the last axis flattens, if an address is linear along a row only, rows fill vectors,
    and there are enough for all cores: ``x[l // 56, l % 56]`` then has a loop for rows and vectors inside each, and is
    no gather. Else 0."""
    size = static_size(extents[-1]) if runs and len(runs[-1]) == 1 else None
    if size is None:
        return 0
    (axis,) = runs[-1]
    found = {
        int(length)
        for w in walks
        if w.steps[axis] is None
        for i in w.indices
        for e in walk_exprs(i)
        if isinstance(e, Binary) and e.op in ("floordiv", "mod") and e.a is axes[axis]
        if (length := constant_value(e.b)) is not None
    }
    row = min(found, default=0)
    if not lanes <= row < size or any(n % row for n in (size, *found)):
        return 0
    tasks = static_size(product([*extents[:-1], size // row]))
    return row if tasks is None or tasks >= cores else 0


def _product(extents: Sequence[Dim]) -> str:
    return "x".join(map(print_dim, extents)) or "1"


@dataclass(frozen=True, slots=True)
class _Box:
    """A part of a domain: ``shape`` has its extents, and position 0 of ``axis`` is ``first`` in the domain."""

    shape: Buffer
    axis: int
    first: Dim

    def position(self, runs: Sequence[Sequence[int]], at: Sequence[Expr], values: Inliner) -> list[Expr]:
        """The position in the domain; ``at`` numbers the elements of each run of axes of the box."""
        where = position_of(self.shape, runs, at, values)
        here = _named(where[self.axis], self.shape.shape[self.axis], values)
        where[self.axis] = values.simplifier(here + self.first)
        return where


def _named(i: Expr, length: Dim, values: Inliner) -> Expr:
    """A position in a segment. If the length is symbolic, a name tells the simplifier that ``i`` lies below it."""
    if static_size(length) is not None:
        return i
    name = values.builder.let("at", i)
    values.bind(name, length)
    return name


def _nest(
    b: Builder,
    values: Inliner,
    domain: Buffer,
    runs: Sequence[Sequence[int]],
    extents: Sequence[Dim],
    lanes: int,
    shared: Shared,
    target: CpuTarget,
    outputs: Sequence[Buffer],
    box: _Box | None = None,
    row: int = 0,
    together: int = 1,
) -> None:
    """The loops over a domain or a box of it. row: the last axis has two loops, over its rows of this length. together:
    the most vectors that are computed together."""

    def element(outer: Sequence[Expr], inner: Sequence[Expr], local: Inliner) -> None:
        at = (*outer, *inner)
        if row:
            at = (*at[:-2], at[-2] * row + at[-1])
        position = position_of(domain, runs, at, local) if box is None else box.position(runs, at, local)
        store_outputs(b, local, domain, position, outputs)

    if not runs:
        element((), (), values)
        return
    stored = 1 if row else _stored_together(domain, runs, extents)
    if row:
        extents = [*extents[:-1], (static_size(extents[-1]) or 0) // row, row]
    size = static_size(extents[-1]) or 0
    if len(extents) == 1:
        copies = best_copies(size, lanes, together, target.cores)
        jammed_vectors(b, "v", extents[0], lanes, copies, values, lambda i, local, *_: element((), (i,), local), shared)
        return
    inner = 1 if stored == 1 else 2
    names = [f"o{r}" for r in range(len(extents) - inner)]
    enough = _TASKS_PER_CORE * target.cores
    with parallel_grid(b, names, extents[:-inner], values.simplifier, shared, enough) as outer:
        inside = values.nested()

        def each(i: Expr, local: Inliner, *_: object) -> None:
            if stored == 1:
                element(outer, (i,), local)
                return
            for place in range(stored):
                element((*outer, index(place)), (i,), local)

        copies = best_copies(size, lanes, together, 1)
        jammed_vectors(b, "v", extents[-1], lanes, copies, inside, each)


def _most_copies(
    task: Task, axes: Sequence[Var], run: Sequence[int], walks: Sequence[MemoryStep], target: CpuTarget
) -> int:
    """The most vectors along a run of axes that may be computed together: more than one if a reduction reads many
    vectors that lie far apart, as many as registers hold and as keep the code short."""
    far = [step for w in walks if w.step(run[-1]) == 1 for step in _reduction_steps(task, axes, w)]
    if not far or min(far) < _FAR:
        return 1
    bodies = [e for s in task.stages for e in walk_exprs(s.body)]
    lengths = [static_size(product([n for _, n in e.axes])) or _LARGE for e in bodies if isinstance(e, Reduce)]
    if min(lengths, default=0) < _MANY:
        return 1
    operations = sum(40 if isinstance(e, Call) else 1 for e in bodies if isinstance(e, (Binary, Call, Reduce, Select)))
    return max(1, min(target.vector_registers // 4, _MOST_OPERATIONS // operations))


def _reduction_steps(task: Task, axes: Sequence[Var], walk: MemoryStep) -> list[int]:
    """The bytes from element to element along each axis that a reduction reads; 0 if the address is not linear."""
    variables = {e for i in walk.indices for e in walk_exprs(i) if isinstance(e, Var)} - {*axes, *task.dims}
    place = Simplifier().poly(address(walk.buffer, walk.indices))
    steps = [step_along(place, v) for v in variables]
    return [0 if p is None else abs(poly.constant_value(p) or 0) * walk.buffer.dtype.bytes for p in steps]


def _stored_together(domain: Buffer, runs: Sequence[Sequence[int]], extents: Sequence[Dim]) -> int:
    """2 or 4 if neighbours in the output are pairs or fours of 16-bit elements, or fours of 8 bits, and vectors run
    along the axis that counts these: these elements are then computed together, and stored as interleaved vectors. Else
    1."""
    if domain.dtype.is_bool or domain.layout is not None or len(runs) <= 2:
        return 1
    if len(runs[-2]) != 1 or len(runs[-1]) != 1:
        return 1
    together = static_size(extents[-2]) or 1
    if together not in {16: (2, 4), 8: (4,)}.get(domain.dtype.bits, ()):
        return 1
    steps = strides_of(domain)
    return together if [static_size(steps[axis]) for (axis,) in runs[:-3:-1]] == [together, 1] else 1


@dataclass(frozen=True, slots=True)
class _Segmented:
    """A loop nest for each segment of an axis, or for all of them the same outer loops."""

    task: Task
    target: CpuTarget
    domain: Buffer
    axes: tuple[Var, ...]
    pieces: Segments
    lanes: int
    shared: Shared

    @property
    def note(self) -> str:
        return f"segments={len(self.pieces.pieces)}"

    def emit(self, b: Builder, values: Inliner, runs: Sequence[Sequence[int]], extents: Sequence[Dim]) -> None:
        """Loops over the whole domain; ``runs`` are its merged axes, in storage order."""
        axis = self.pieces.axis
        if len(runs) > 1 and list(runs[-1]) == [axis] and self._are_long():
            self._inside(b, values, runs, extents)
            return
        for first, length in self.pieces.pieces:
            self._alone(b, values.nested(), first, length)

    def _are_long(self) -> bool:
        """True if most segments fill vectors."""
        whole = static_size(self.domain.shape[self.pieces.axis])
        return whole is None or 2 * whole >= self.lanes * len(self.pieces.pieces)

    def _inside(self, b: Builder, values: Inliner, runs: Sequence[Sequence[int]], extents: Sequence[Dim]) -> None:
        """Every segment in turn, inside the loops over the other axes."""
        names = [f"o{r}" for r in range(len(runs) - 1)]
        enough = _TASKS_PER_CORE * self.target.cores
        with parallel_grid(b, names, extents[:-1], values.simplifier, self.shared, enough) as outer:
            for first, length in self.pieces.pieces:

                def element(
                    i: Expr, local: Inliner, width: int, lane: Expr, first: Dim = first, length: Dim = length
                ) -> None:
                    at = _named(i, length, local) + first
                    position = position_of(self.domain, runs, (*outer, at), local)
                    store_outputs(b, local, self.domain, position, self.task.outputs)

                vector_loop(b, "v", length, self.lanes, values.nested(), element)

    def _alone(self, b: Builder, values: Inliner, first: Dim, length: Dim) -> None:
        """One segment in loops of its own, merged and ordered as its accesses allow."""
        axis, domain = self.pieces.axis, self.domain
        shape = tuple(length if d == axis else n for d, n in enumerate(domain.shape))
        at = tuple(a + first if d == axis else a for d, a in enumerate(self.axes))
        positions = [(out, positions_in(out, domain, at)) for out in self.task.outputs]
        walks = accesses(self.task, self.axes, shape, positions)
        apart = _kept_apart(self.task, self.axes, shape, positions, self.lanes)
        runs = merged_axes(storage_order(domain), shape, walks, apart)
        extents = [product([shape[a] for a in run]) for run in runs]
        runs, extents = _vectors_last(runs, extents, walks, self.lanes)
        shared = self.shared if self.shared is False else worth_sharing(work(self.task, shape), _SHARED_FROM)
        box = _Box(replace(domain, shape=shape), axis, first)
        _nest(b, values, domain, runs, extents, self.lanes, shared, self.target, self.task.outputs, box)


def best_vector_run(
    runs: Sequence[Sequence[int]], extents: Sequence[Dim], walks: Sequence[MemoryStep], lanes: int
) -> int:
    """The run of axes whose vectors cost least: contiguous and constant accesses are cheap, strided ones are not."""

    def cost(r: int) -> tuple[float, int]:
        total = 0.0
        for w in walks:
            step = w.step(runs[r][-1])
            total += 0.25 if step == 0 else 1 if step == 1 else lanes / 2
        size = static_size(extents[r])
        filled = 1.0 if size is None or size >= lanes else max(size, 1) / lanes
        return total / filled, -r

    return min(range(len(runs)), key=cost, default=-1)


def vector_bytes(task: Task) -> int:
    """The element width in bytes that sets the vector length: that of the widest float computed, or of the widest
    output."""
    floats = [s.out.dtype.bits for s in task.stages if s.out.dtype.is_float]
    if floats:
        return max(4, max(floats) // 8)
    return max((s.out.dtype.bytes for s in task.stages), default=4)


def work(task: Task, shape: Sequence[Dim]) -> Dim:
    """A rough count of a task's scalar operations on a domain of ``shape``; a function call counts as ten."""
    size = product(shape)
    counts: dict[Dim, int] = {}
    for stage in task.stages:
        elements = _smaller(product(stage.shape), size)
        extents: list[Dim] = []
        calls = 1
        for e in walk_exprs(stage.body):
            if isinstance(e, Reduce):
                extents += [n for _, n in e.axes]
            calls += 10 * isinstance(e, Call)
        each = product([elements, *extents])
        known = static_size(each)
        each, times = (each, calls) if known is None else (1, known * calls)
        counts[each] = counts.get(each, 0) + times
    if counts.keys() <= {1} and (known := static_size(size)) is not None:
        return max(counts.get(1, 0), known)
    total: Dim = 0
    for each, times in counts.items():
        total = total + product([each, times])
    return total


def _worth_sharing(task: Task, shape: Sequence[Dim]) -> int:
    """The least number of elements, of a domain of ``shape``, for which several threads are faster than one. Symbolic
    sizes count as large: they do not change the work of an element."""
    large = {v: index(_LARGE) for v in task.dims}
    elements, operations = (static_size(substitute(index(n), large)) or 1 for n in (product(shape), work(task, shape)))
    return -(-_SHARED_FROM * elements // operations)


def _smaller(a: Dim, b: Dim) -> Dim:
    """The smaller of two sizes; of one that is symbolic and one that is not, the latter."""
    known, other = static_size(a), static_size(b)
    if known is not None and other is not None:
        return min(known, other)
    return a if known is not None or other is None else b
