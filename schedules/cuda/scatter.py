"""Scatters on a GPU: updates at positions that are data, by one of two rules.

By owners, if neighbouring elements of the result follow neighbouring ones of the source (the gradient of an embedding):
a thread owns a column of the result, or a range of it, initialises it, and walks the source in order. No two threads
write the same element, so there is nothing to synchronise, and a result has the same bits in every run:

    thread (range, e):   out[range, e] = initial;   for n: i = index[n];  if i in range: out[i, e] += source[n, e]

Through shared memory otherwise: a block owns a range of positions, its threads divide the source, and apply the updates
of the range by atomic operations on shared memory. The order does not affect integers, extrema, or the last update, of
which the number is kept. Sums of floats depend on it in their last places, as with PyTorch's atomic additions:

    block (range):       cells = 0;   for n divided: i = index[n];  if i in range: atomic cells[i] += source[n]
                         out[range] = initial + cells
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from taskmap.ir.algebra.mapping import spatial
from taskmap.ir.analysis.positions import flatten, unravel
from taskmap.ir.builder import Builder
from taskmap.ir.construct import cast, ceil_div, const, identity, index, load, maximum, minimum, product, static_size
from taskmap.ir.decompose.levels import Level
from taskmap.ir.decompose.stages import Compute
from taskmap.ir.isa.table import instruction_named
from taskmap.ir.nodes import Buffer, Dim, Expr, Intrinsic, Kernel, Scope, Var
from taskmap.ir.printer import print_dim
from taskmap.ir.target import GpuTarget
from taskmap.ir.task import Task
from taskmap.ir.types import DType, f32, f64, i32, i64
from taskmap.ir.workers import THREAD
from taskmap.schedules.common.access import storage_order
from taskmap.schedules.common.inline import Inliner, combine
from taskmap.schedules.common.scatter_domain import ScatterDomain, find_scatter
from taskmap.schedules.cuda.support.launch import WARP, Launch, block_size, place_of
from taskmap.schedules.cuda.support.vectors import fills
from taskmap.schedules.strategies.merged import MergedTask

_OWNERS = 256
"""Threads per multiprocessor that walk the source: more would read the positions more often."""
_FEW = 512
"""Elements that a single thread may walk if neighbouring threads do not own neighbouring elements."""
_THREADS = 256
_MOST_CELLS = 4096
_FEWEST_CELLS = 32
_ATOMIC = {"sum": "add", "max": "max", "min": "min", "any": "max", "all": "min", "last": "max"}


def schedule_scatter(task: Task, target: GpuTarget) -> Kernel | None:
    """The kernel of a task that is a scatter, or None for any other task."""
    frame = find_scatter(task)
    if frame is None:
        return None
    cells = _cell_type(frame)
    return _owners(frame, target) if cells is None or _is_for_owners(frame) else _blocks(frame, cells, target)


def _is_for_owners(frame: ScatterDomain) -> bool:
    """True if threads that own columns read and write side by side, or have little to walk."""
    order = [d for d in storage_order(frame.stage.out) if static_size(frame.stage.shape[d]) != 1]
    reads = static_size(frame.reads())
    beside = bool(order) and order[-1] in frame.followed
    wide = beside and (static_size(frame.stage.shape[order[-1]]) or WARP) >= WARP
    return wide or (reads is not None and reads <= _FEW)


def _cell_type(frame: ScatterDomain) -> DType | None:
    """The type in which atomic operations on shared memory reduce, or None if there are none."""
    op, dtype = frame.e.op, frame.e.dtype
    if any(static_size(frame.stage.shape[d]) is None for d in frame.data):
        return None
    if op == "last":
        return i64
    if op not in _ATOMIC or (dtype.is_float and (op != "sum" or dtype not in (f32, f64))):
        return None
    return dtype if dtype.is_float or dtype == i64 else i32


# By owners.


def _owners(frame: ScatterDomain, target: GpuTarget) -> Kernel:
    shape, out = frame.stage.shape, frame.stage.out
    columns = [d for d in storage_order(out) if d in frame.followed]
    ranges, chunk = _ranges(frame, [shape[d] for d in columns], target)
    items: list[Dim] = [ranges, *(shape[d] for d in columns)]
    threads = block_size(product(items), target)
    owners = MergedTask(frame.task, out, [], items)
    anchor = owners.elements

    def owner(where: Sequence[Expr], value: Expr, b: Builder, values: Inliner) -> None:
        start = b.let("start", values.simplifier(where[0] * chunk))
        place = dict(zip(columns, where[1:], strict=True))
        _begin(frame, place, start, chunk, ranges, values)
        _walk(frame, place, start, chunk, ranges, values.nested())

    tree = Compute(anchor).tile(*[1] * len(items)).to(Level.THREAD).group(threads).done()
    kernel = owners.kernel(tree, anchor, target, {}, owner, zeros=False).launched(min_blocks=1)
    size = "x".join(map(print_dim, shape))
    note = f"cuda.scatter({size}, {frame.e.op}, owners, ranges={ranges}, threads={threads}, order=source)"
    return replace(kernel, note=note)


def _ranges(frame: ScatterDomain, columns: list[Dim], target: GpuTarget) -> tuple[int, Dim]:
    """The number of owners that share a column, and the number of positions of the first data dimension that each
    has."""
    if not frame.data:
        return 1, 1
    whole = frame.stage.shape[frame.data[0]]
    size = static_size(whole)
    wanted = max(1, target.cores * _OWNERS // max(1, static_size(product(columns)) or 4 * _OWNERS))
    chunk = ceil_div(whole, min(wanted, size or wanted))
    known = static_size(chunk)
    return (min(wanted, size or wanted), chunk) if size is None or known is None else (-(-size // known), known)


def _length(frame: ScatterDomain, start: Expr, chunk: Dim, ranges: int) -> Dim:
    """The number of positions of a range."""
    whole = frame.stage.shape[frame.data[0]]
    if ranges == 1:
        return whole
    even = static_size(whole) == ranges * (static_size(chunk) or 0)
    return chunk if even else maximum(0, minimum(index(chunk), index(whole) - start))


def _begin(
    frame: ScatterDomain, place: Mapping[int, Expr], start: Expr, chunk: Dim, ranges: int, values: Inliner
) -> None:
    """Stores the initial value of every element that this thread owns."""
    b, stage = values.builder, frame.stage
    data = frame.data
    extents = [stage.shape[d] for d in data]
    if data:
        extents[0] = _length(frame, start, chunk, ranges)
    with b.grid([f"i{d}" for d in data], [index(n) for n in extents]) as found:
        inside = values.nested()
        where = dict(place)
        for n, (d, i) in enumerate(zip(data, found, strict=True)):
            inside.bind(i, chunk if n == 0 and ranges > 1 else stage.shape[d])
            where[d] = start + i if n == 0 else i
        at = [inside.simplifier(where[d]) for d in range(len(stage.shape))]
        value = inside.expand(frame.e.initial, dict(zip(stage.axes, at, strict=True)))
        b.store(stage.out, at, value)


def _walk(
    frame: ScatterDomain, place: Mapping[int, Expr], start: Expr, chunk: Dim, ranges: int, values: Inliner
) -> None:
    """Applies the source's elements of these columns, in order."""
    b, e, out = values.builder, frame.e, frame.stage.out
    source: dict[Var, Expr] = {e.axes[k][0]: place[d] for d, k in frame.followed.items()}
    loops = [e.axes[k] for k in frame.walked]
    with b.when(_covered(frame, place)), b.grid([v.name for v, _ in loops], [index(n) for _, n in loops]) as found:
        inside = values.nested()
        for i, (var, n) in zip(found, loops, strict=True):
            inside.bind(i, n)
            source[var] = i
        where = _where(frame, place, source, inside)
        mine: Expr | bool = True
        if frame.data and ranges > 1:
            at = where[frame.data[0]]
            mine = (at >= start) & (at < start + _length(frame, start, chunk, ranges))
        with b.when(mine):
            local = inside.nested()
            position = tuple(local.simplifier(where[d]) for d in range(out.rank))
            value = b.let("value", local.expand(e.body, source))
            b.store(out, position, frame.step(out[position], value))


def _covered(frame: ScatterDomain, place: Mapping[int, Expr]) -> Expr | bool:
    """True if the source reaches ``place``."""
    inside: Expr | bool = True
    for d, at in place.items():
        if not frame.covers(d):
            here = at < frame.extent(d)
            inside = here if inside is True else inside & here
    return inside


def _where(
    frame: ScatterDomain, place: Mapping[int, Expr], source: Mapping[Var, Expr], values: Inliner
) -> dict[int, Expr]:
    """The position in the result of one element of the source."""
    found = dict(place)
    for d in frame.data:
        found[d] = values.builder.let(f"at{d}", values.expand(frame.e.at[d], dict(source)))
        values.bind(found[d], frame.stage.shape[d])
    return found


# Through shared memory.


@dataclass(frozen=True, slots=True)
class _Block:
    """A block's place along the followed dimensions, and its cells, of which the first has number ``first``."""

    place: Mapping[int, Expr]
    first: Expr
    cells: Buffer


def _blocks(frame: ScatterDomain, dtype: DType, target: GpuTarget) -> Kernel:
    stage, e = frame.stage, frame.e
    shape = stage.shape
    columns = [d for d in storage_order(stage.out) if d in frame.followed]
    whole = static_size(product([shape[d] for d in frame.data])) or 1
    size = _cells(whole, static_size(product([shape[d] for d in columns])) or 1, target)
    pieces = -(-whole // size)
    launch = Launch(frame.task, (*(shape[d] for d in columns), pieces), _THREADS)
    b = launch.b
    values, (*at, piece) = launch.begin()
    (lane,) = place_of(spatial(_THREADS), THREAD, values)
    cells = b.allocate("cells", dtype, (size,), Scope.SHARED)
    here = _Block(dict(zip(columns, at, strict=True)), b.let("first", values.simplifier(piece * size)), cells)
    values.bind(here.first, whole)
    # In the result's type, in which a cell without updates keeps it: its extremes differ from those of a cell's type.
    neutral = const(-1, i64) if e.op == "last" else const(identity(e.op, e.dtype).value, dtype)
    with b.loop("step", -(-size // _THREADS)) as step:
        inside = values.nested()
        inside.bind(step, -(-size // _THREADS))
        cell = inside.simplifier(step * _THREADS + lane)
        with b.when(True if fills(size, _THREADS) else cell < size):
            b.store(cells, cell, neutral)
    b.barrier()
    _share_out(frame, here, lane, size, values)
    b.barrier()
    with b.loop("step", -(-size // _THREADS)) as step:
        inside = values.nested()
        inside.bind(step, -(-size // _THREADS))
        cell = b.let("cell", inside.simplifier(step * _THREADS + lane))
        with b.when((cell < size) & (here.first + cell < whole)):
            local = inside.nested()
            local.bind(cell, size)
            _finish(frame, here, cell, whole, local)
    text = "x".join(map(print_dim, shape))
    order = "any" if e.dtype.is_float and e.op == "sum" else "no matter"
    return launch.kernel(f"cuda.scatter({text}, {e.op}, atomics in shared memory, cells={size}, order={order})")


def _cells(whole: int, columns: int, target: GpuTarget) -> int:
    """The number of positions that a block owns: few enough that there are blocks for all multiprocessors."""
    size = min(whole, _MOST_CELLS)
    while size > _FEWEST_CELLS and -(-whole // size) * columns < 2 * target.cores:
        size = -(-size // 2)
    return size


def _share_out(frame: ScatterDomain, here: _Block, lane: Expr, size: int, values: Inliner) -> None:
    """Divides the source among the threads, which apply the updates of the block's cells."""
    b, e = values.builder, frame.e
    loops = [e.axes[k] for k in frame.walked]
    count = product([n for _, n in loops])
    with b.when(_covered(frame, here.place)), b.loop("turn", ceil_div(count, _THREADS)) as turn:
        inside = values.nested()
        inside.bind(turn, ceil_div(count, _THREADS))
        n = b.let("n", inside.simplifier(turn * _THREADS + lane))
        with b.when(True if fills(count, _THREADS) else n < count):
            inside.bind(n, count)
            source = _source(frame, here, n, inside)
            where = _where(frame, here.place, source, inside)
            flat = flatten([(where[d], frame.stage.shape[d]) for d in frame.data])
            cell = b.let("cell", inside.simplifier(flat - here.first))
            with b.when((cell >= 0) & (cell < size)):
                local = inside.nested()
                dtype = here.cells.dtype
                value = n if e.op == "last" else local.expand(e.body, source)
                add = instruction_named(f"atomic_{_ATOMIC[e.op]}_{dtype}_shared")
                b.evaluate(Intrinsic(add, (load(here.cells, (cell,)), b.let("value", cast(value, dtype))), dtype, 1))


def _source(frame: ScatterDomain, here: _Block, n: Expr, values: Inliner) -> dict[Var, Expr]:
    """The position in the source of the walked element number ``n``."""
    e = frame.e
    found: dict[Var, Expr] = {e.axes[k][0]: here.place[d] for d, k in frame.followed.items()}
    loops = [e.axes[k] for k in frame.walked]
    found.update(zip((v for v, _ in loops), unravel(n, [m for _, m in loops], values.simplifier), strict=True))
    return found


def _finish(frame: ScatterDomain, here: _Block, cell: Expr, whole: int, values: Inliner) -> None:
    """One element of the result."""
    b, e, stage = values.builder, frame.e, frame.stage
    number = b.let("number", values.simplifier(here.first + cell))
    values.bind(number, whole)
    where = dict(here.place)
    where.update(zip(frame.data, unravel(number, [stage.shape[d] for d in frame.data], values.simplifier), strict=True))
    at = tuple(values.simplifier(where[d]) for d in range(len(stage.shape)))
    old = b.let("old", values.expand(e.initial, dict(zip(stage.axes, at, strict=True))))
    found = b.let("found", here.cells[cell])
    if e.op == "last":
        with b.when(found >= 0):
            inside = values.nested()
            inside.bind(found, frame.reads())
            b.store(stage.out, at, inside.expand(e.body, _source(frame, here, found, inside)))
        with b.otherwise():
            b.store(stage.out, at, old)
        return
    b.store(stage.out, at, combine(e.op, old, cast(found, e.dtype)))


__all__ = ["schedule_scatter"]
