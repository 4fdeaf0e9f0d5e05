"""Facts that a finished tree shows beside its steps: barriers where they fall, memory, workers, leaves.

They are read off the kernel that the tree means, whose statements are marked with the rows of the printed tree.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from taskmap.ir import nodes as ir
from taskmap.ir.construct import static_size
from taskmap.ir.decompose.levels import Level
from taskmap.ir.decompose.lowering import ROWS, bytes_of, marked_kernel, registers_of
from taskmap.ir.decompose.show import tree_rows
from taskmap.ir.decompose.steps import DoneStep, Step, TileStep, Tree
from taskmap.ir.errors import TaskmapError
from taskmap.ir.expressions import Scope
from taskmap.ir.visit import walk_stmts


def facts_of(tree: Tree) -> tuple[dict[int, str], Mapping[int, int]]:
    """A note for each row of the printed tree that has one, and the number of barriers before each row; nothing for a
    tree that means no kernel."""
    try:
        kernel, unordered = marked_kernel(tree)
    except TaskmapError:
        return {}, {}
    notes: dict[int, list[str]] = {}
    barriers: Counter[int] = Counter()
    copies: set[int] = set()
    for s in walk_stmts(kernel.body):
        row = _row(s)
        if row is None:
            continue
        if isinstance(s, ir.Barrier):
            barriers[row] += 1
        elif isinstance(s, ir.Allocate):
            notes.setdefault(row, []).extend(_memory(s.buffer, on_gpu=kernel.launch is not None))
        elif isinstance(s, ir.Move) and s.mapping is not None and row not in copies:
            copies.add(row)
            notes.setdefault(row, []).append(_copied(s))
    for row, (step, _) in enumerate(tree_rows(tree)):
        found = _workers(step, kernel) if step is not None else ""
        if found:
            notes.setdefault(row, []).insert(0, found)
    for row, why in unordered.items():
        notes.setdefault(row, []).append(f"no barrier, and whether threads meet is undecided: {why}")
    return {row: ", ".join(dict.fromkeys(parts)) for row, parts in notes.items() if parts}, barriers


def _row(s: ir.Stmt) -> int | None:
    """The row that a statement is marked with."""
    source = getattr(s, "source", None)
    return source.line if source is not None and source.file == ROWS else None


def _memory(b: ir.Buffer, *, on_gpu: bool) -> list[str]:
    if b.scope is Scope.SHARED:
        return [f"{bytes_of(b)} bytes"]
    if b.scope is Scope.REGISTER and on_gpu:
        return [f"{_many(str(registers_of(b)), 'register')} of a thread"]
    return [f"{bytes_of(b)} bytes"] if b.scope is Scope.REGISTER else []


def _copied(s: ir.Move) -> str:
    """The threads of a copy, and what each takes at once."""
    assert s.mapping is not None
    elements = math.prod(static_size(n) or 1 for n in s.dst.shape) // math.prod(s.mapping.task_shape)
    how = ", asynchronously" if s.asynchronous else ""
    return f"{s.mapping.num_workers} threads, {elements * s.dst.buffer.dtype.bytes} bytes each{how}"


def _workers(step: Step, kernel: ir.Kernel) -> str:
    """The workers that a step names, or the leaf that lowering will choose."""
    launch = kernel.launch
    if isinstance(step, DoneStep):
        alone = step.before.kind == "matmul" and step.by is None and step.before.level in (Level.THREAD, Level.LANES)
        return "multiply-add" if alone else ""
    if not isinstance(step, TileStep) or step.level is None:
        return ""
    if (step.level is Level.BLOCK or step.threads_of_grid) and launch is not None:
        return f"{_many(_product(launch.grid), 'block')} of {launch.threads} threads"
    total = step.parts
    for cut in step.cuts:
        whole = cut.stride or static_size(step.before.extent(cut.axis))
        if whole is None:
            return ""
        total *= -(-whole // cut.width)
    return _many(str(total), step.level.value.lower())


def _product(sizes: tuple[ir.Dim, ...]) -> str:
    known = [static_size(n) for n in sizes]
    return str(math.prod(n for n in known if n is not None)) if None not in known else ""


def _many(count: str, noun: str) -> str:
    return f"{count} {noun}{'' if count == '1' else 's'}".strip()
