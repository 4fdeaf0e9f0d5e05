"""Drawings of a kernel's task mappings: how its parallel loop, copies and register tiles are divided among workers."""

from __future__ import annotations

from collections.abc import Iterator

from taskmap.ir.algebra.grid_picture import Cell, Drawing, picture
from taskmap.ir.algebra.mapping import TaskMapping, from_function, repeat
from taskmap.ir.analysis.cost import Sizes, known_size
from taskmap.ir.errors import InputError, TaskmapError
from taskmap.ir.lower.selections import selections
from taskmap.ir.nodes import Allocate, Buffer, For, Kernel, LoopKind, MappedFor, Move, Scope
from taskmap.ir.target import Target
from taskmap.ir.task import Task
from taskmap.ir.visit import walk_stmts
from taskmap.report.records import Picture
from taskmap.schedules import Choice, Config, scheduled

_MOST = 6
_CELLS = 16
_ROW = 32
_MOST_TASKS = 1 << 16
"""Maximum number of iterations of a parallel loop in a picture: its mapping is a table."""


def pictures(
    task: Task, config: Config | None, target: Target, choice: Choice, sizes: Sizes, threads: int
) -> tuple[Picture, ...]:
    """The pictures for the kernel of ``task`` that ``choice`` led to; empty if it is now scheduled otherwise.

    sizes: of symbolic dimensions. threads: the number that the CPU's parallel loops are divided among.
    """
    kernel = _kernel(task, config, target, choice)
    if kernel is None:
        return ()
    found: dict[tuple[str, str], tuple[TaskMapping, int]] = {}
    for what, mapping, lanes in _mappings(kernel, target, sizes, threads):
        found.setdefault((what, repr(mapping)), (mapping, lanes))
    shown = list(found.items())[:_MOST]
    return tuple(Picture(what, text, _drawing(*mapping)) for (what, text), mapping in shown)


def choices(task: Task, config: Config | None, target: Target, choice: Choice) -> tuple[str, ...]:
    """The choices of instructions for the kernel of ``task`` that ``choice`` led to; empty if it is now scheduled
    otherwise."""
    kernel = _kernel(task, config, target, choice)
    return () if kernel is None else selections(kernel, target)


def _kernel(task: Task, config: Config | None, target: Target, choice: Choice) -> Kernel | None:
    for given in dict.fromkeys((config, None)):
        try:
            made = scheduled(task, target, given)
        except TaskmapError:
            continue
        if made.choice == choice:
            return made.kernel
    return None


def _mappings(kernel: Kernel, target: Target, sizes: Sizes, threads: int) -> Iterator[tuple[str, TaskMapping, int]]:
    """The divided objects with their mappings, and the slots of a register if one worker holds all of them."""
    for stmt in walk_stmts(kernel.body):
        match stmt:
            case For(kind=LoopKind.PARALLEL):
                shared = _static(stmt, sizes, threads)
                if shared is not None:
                    yield f"the parallel loop {stmt.var.name}: the thread of each iteration", shared, 0
            case Allocate(buffer) if (owner := _owner(buffer, kernel)) is not None:
                what = f"the register tile {buffer.name}"
                if owner.num_workers == 1:
                    lanes = target.lanes(buffer.dtype.bytes)
                    yield f"{what}: the slot of each element, registers by colour", owner, lanes
                else:
                    yield f"{what}: who holds each element", owner, 0
            case MappedFor(mapping=mapping):
                yield f"who does each task ({', '.join(v.name for v in stmt.vars)})", mapping, 0
            case Move(mapping=TaskMapping() as mapping):
                yield f"who copies each part of {stmt.src.buffer.name} to {stmt.dst.buffer.name}", mapping, 0
            case _:
                pass


def _owner(buffer: Buffer, kernel: Kernel) -> TaskMapping | None:
    """The mapping of a register tile's elements to their holders; a core holds all elements of its own, in order."""
    if buffer.owner is not None or kernel.launch is not None or buffer.scope is not Scope.REGISTER:
        return buffer.owner
    sizes = [d for d in buffer.shape if isinstance(d, int) and d != 1]
    return repeat(*sizes) if len(sizes) == buffer.rank == 2 else None


def _static(loop: For, sizes: Sizes, threads: int) -> TaskMapping | None:
    """Iterations in blocks, the first ones larger by one, as in OpenMP's static schedule."""
    try:
        count = known_size(loop.extent, sizes)
    except InputError:
        return None
    if not 0 < count <= _MOST_TASKS:
        return None
    each, more = divmod(count, threads)
    starts = [i * each + min(i, more) for i in range(threads + 1)]
    return from_function(lambda w: [(i,) for i in range(starts[w], starts[w + 1])], (count,), threads, name="static")


def _drawing(mapping: TaskMapping, lanes: int) -> Drawing:
    limit = _ROW if len(mapping.task_shape) == 1 else _CELLS
    if not lanes:
        return mapping.draw(limit=limit)
    holders = mapping.holders()

    def cell(task: tuple[int, ...]) -> Cell:
        slots = [slot for _, slot in holders.all(*task)]
        return Cell(str(slots[0]), slots[0] // lanes) if slots else Cell("·")

    return picture(repr(mapping), mapping.task_shape, cell, limit)
