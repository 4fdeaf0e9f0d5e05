"""The task mappings of a kernel, drawn: how its parallel loop, its copies and its register tiles are shared out."""

from __future__ import annotations

from collections.abc import Iterator

from taskmap.ir.cost import Sizes, known_size
from taskmap.ir.drawing import Drawing
from taskmap.ir.errors import InputError, TaskmapError
from taskmap.ir.mapping import TaskMapping, from_function
from taskmap.ir.nodes import Allocate, For, Kernel, LoopKind, MappedFor, Move
from taskmap.ir.target import Target
from taskmap.ir.task import Task
from taskmap.ir.visit import walk_stmts
from taskmap.report import Picture
from taskmap.schedules import Config, schedule

_MOST = 6
_CELLS = 16
_ROW = 32
_MOST_TASKS = 1 << 16
"""Of a parallel loop that is pictured: its mapping is a table."""


def pictures(
    task: Task, config: Config | None, target: Target, note: str, sizes: Sizes, threads: int
) -> tuple[Picture, ...]:
    """The pictures of the kernel of ``task``, which was scheduled as ``note`` says; none where it no longer is.

    sizes: of symbolic dimensions. threads: among which the CPU's parallel loops are shared out.
    """
    kernel = _kernel(task, config, target, note)
    if kernel is None:
        return ()
    found: dict[tuple[str, str], TaskMapping] = {}
    for what, mapping in _mappings(kernel, sizes, threads):
        found.setdefault((what, repr(mapping)), mapping)
    shown = list(found.items())[:_MOST]
    return tuple(Picture(what, text, _drawing(mapping)) for (what, text), mapping in shown)


def _kernel(task: Task, config: Config | None, target: Target, note: str) -> Kernel | None:
    for chosen in dict.fromkeys((config, None)):
        try:
            kernel = schedule(task, target, chosen)
        except TaskmapError:
            continue
        if kernel.note == note:
            return kernel
    return None


def _mappings(kernel: Kernel, sizes: Sizes, threads: int) -> Iterator[tuple[str, TaskMapping]]:
    for stmt in walk_stmts(kernel.body):
        match stmt:
            case For(kind=LoopKind.PARALLEL):
                shared = _static(stmt, sizes, threads)
                if shared is not None:
                    yield f"the parallel loop {stmt.var.name}, by thread", shared
            case Allocate(buffer) if buffer.owner is not None:
                yield f"the register tile {buffer.name}, by worker", buffer.owner
            case MappedFor(mapping=mapping):
                yield f"the tasks ({', '.join(v.name for v in stmt.vars)}), by worker", mapping
            case Move(mapping=TaskMapping() as mapping):
                yield f"the copy {stmt.src.buffer.name} → {stmt.dst.buffer.name}, by worker", mapping
            case _:
                pass


def _static(loop: For, sizes: Sizes, threads: int) -> TaskMapping | None:
    """Iterations in blocks, the first ones larger by one, as OpenMP's static schedule shares them out."""
    try:
        count = known_size(loop.extent, sizes)
    except InputError:
        return None
    if not 0 < count <= _MOST_TASKS:
        return None
    each, more = divmod(count, threads)
    starts = [i * each + min(i, more) for i in range(threads + 1)]
    return from_function(lambda w: [(i,) for i in range(starts[w], starts[w + 1])], (count,), threads, name="static")


def _drawing(mapping: TaskMapping) -> Drawing:
    return mapping.draw(slots=mapping.num_workers == 1, limit=_ROW if len(mapping.task_shape) == 1 else _CELLS)
