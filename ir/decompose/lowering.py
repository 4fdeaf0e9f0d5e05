"""A finished tree becomes the kernel that a script would be: loops, buffers, ``move`` and ``matmul`` on regions.

Indices, buffers, owners and barriers follow from the tree; ``ir.lower`` then selects instructions for the specs. Edges
are predicated: a part of a problem that may lie beyond the end is copied by a clipped Move, which reads 0 there and
writes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from taskmap.ir import nodes as ir
from taskmap.ir.analysis.simplify import Simplifier
from taskmap.ir.builder import Builder
from taskmap.ir.construct import index, static_size
from taskmap.ir.decompose.barriers import with_barriers
from taskmap.ir.decompose.emit import Emitter
from taskmap.ir.decompose.levels import Level
from taskmap.ir.decompose.ownership import block_threads, in_memory
from taskmap.ir.decompose.races import undecided
from taskmap.ir.decompose.refusal import refusal
from taskmap.ir.decompose.roles.ring import FETCHING
from taskmap.ir.decompose.show import tree_rows
from taskmap.ir.decompose.stage_leaves import with_positions
from taskmap.ir.decompose.steps import TileStep, Tree
from taskmap.ir.decompose.views import OperandView
from taskmap.ir.lower.flatten import span, strides_of
from taskmap.ir.source import SourceLocation
from taskmap.ir.visit import walk_exprs, walk_stmts

ROWS = "row"
"""The file of the marks of statements, whose lines are rows of the printed tree."""
_SHARED_BYTES = 227 << 10
_REGISTERS, _REGISTERS_OF_BLOCK = 255, 1 << 16


def kernel_of(tree: Tree, name: str, sizes: Mapping[str, int]) -> ir.Kernel:
    """The kernel of a finished tree, with values for some of its symbolic sizes."""
    tree = specialised(tree, _values(tree, sizes))
    buffers = {o.name: ir.Buffer(o.name, o.dtype, shape, strides=o.strides) for o, shape in tree.root.parameters()}
    return kernel_on(tree, name, buffers)


def kernel_on(
    tree: Tree, name: str, buffers: Mapping[str, ir.Buffer], computed: Collection[str] = (), *,
    copied: Collection[str] = (), marked: bool = False,
) -> ir.Kernel:  # fmt: skip
    """The kernel of a finished tree on given buffers, by the names of its operands. Those that are ``computed`` are in
    no memory: the kernel reads and writes them by Moves alone, for which prologues and epilogues take their place.
    copied: those of them of which each chunk of a copy lies in memory or is 0, so that it may be asynchronous.
    marked: the sources of statements are rows of the printed tree."""
    tree = in_memory(tree, {name: strides_of(b) for name, b in buffers.items()})
    return _emitted(tree, name, buffers, computed, marks_of(tree) if marked else {}, copied)[0]


def emit_part(b: Builder, tree: Tree, views: dict[str, OperandView], ranges: Simplifier) -> None:
    """The statements of a finished tree whose root is a core's part of a larger kernel, on operands by name. ranges:
    what is known of the variables in them; it learns the ranges of those of loops."""
    Emitter(b, tree, 0, ranges=ranges).step(0, views)


def marked_kernel(tree: Tree) -> tuple[ir.Kernel, dict[int, str]]:
    """The kernel of a finished tree, each statement marked with its row of the printed tree; and by rows the copies
    whose barriers are left out although nobody knows whether threads meet, with the reasons."""
    buffers = {o.name: ir.Buffer(o.name, o.dtype, shape, strides=o.strides) for o, shape in tree.root.parameters()}
    tree = in_memory(tree, {name: strides_of(b) for name, b in buffers.items()})
    marks = marks_of(tree)
    kernel, unordered = _emitted(tree, "", buffers, (), marks)
    return kernel, {marks[id(tree.steps[number])].line: why for number, why in unordered.items()}


def marks_of(tree: Tree) -> dict[int, SourceLocation]:
    """The sources of statements by the ids of steps: the rows of the printed tree."""
    rows = enumerate(step for step, _ in tree_rows(tree))
    return {id(step): SourceLocation(ROWS, row) for row, step in rows if step is not None}


def _emitted(
    tree: Tree, name: str, buffers: Mapping[str, ir.Buffer], computed: Collection[str],
    marks: Mapping[int, SourceLocation], copied: Collection[str] = (),
) -> tuple[ir.Kernel, dict[int, str]]:  # fmt: skip
    if not tree.is_done:
        raise refusal("kernel()", tree, f"{tree.spec} is left to decompose.", "End the tree with .done().")
    tiles = [s for s in tree.steps if isinstance(s, TileStep)]
    if not any(s.level in (Level.BLOCK, Level.CORE) or s.threads_of_grid for s in tiles):
        raise refusal("kernel()", tree, "no workers are named.", "Give the outermost tiles to BLOCK, or to CORE.")
    root = tree.root
    whole = {o.name: OperandView.whole(buffers[o.name], o.axes, [True] * len(o.axes)) for o, _ in root.parameters()}
    views = {n: replace(v, computed=n in computed, copied=n in copied) for n, v in whole.items()}
    views |= with_positions(root, buffers[root.written])
    b, threads = Builder(), block_threads(tree)
    emitter = Emitter(b, tree, threads, marks=marks)
    emitter.step(0, views)
    body = with_barriers(b.body(), emitter.stages) if threads else b.body()
    free = emitter.unsynchronised
    unordered = undecided(tree, body, emitter.stages, free, threads) if free else {}
    kernel = ir.Kernel(
        name or root.kind, tuple(buffers.values()), (buffers[root.written],), tuple(_dims(buffers.values())), body,
        _launch(emitter) if threads else None, str(root),
    )  # fmt: skip
    _check_memory(tree, kernel)
    return kernel, unordered


def _launch(emitter: Emitter) -> ir.GpuLaunch:
    ring, cluster = emitter.ring, emitter.grid.cluster
    return ir.GpuLaunch(
        tuple(emitter.grid.shape), emitter.threads + (FETCHING if ring else 0), (cluster,) if cluster > 1 else (),
        maps=ring.maps if ring else (),
        workspace=tuple(emitter.workspace), counters=tuple(emitter.counters),
    )  # fmt: skip


def _dims(buffers: Iterable[ir.Buffer]) -> list[ir.Var]:
    """The symbolic sizes, in the order of their first use."""
    found: dict[ir.Var, None] = {}
    for b in buffers:
        for dim in (*b.shape, *(b.strides or ())):
            found |= dict.fromkeys(e for e in walk_exprs(index(dim)) if isinstance(e, ir.Var))
    return list(found)


def _values(tree: Tree, sizes: Mapping[str, int]) -> dict[ir.Var, ir.Expr]:
    known: dict[str, ir.Var] = {}
    for _, extent in tree.root.extents:
        known |= {e.name: e for e in walk_exprs(index(extent)) if isinstance(e, ir.Var)}
    for name, n in sizes.items():
        if name not in known or n < 1:
            why = f"{name} = {n} is not positive." if name in known else f"it has no size {name!r}."
            raise refusal("kernel()", tree, why, f"Its symbolic sizes are {', '.join(known) or 'none'}.")
    return {known[name]: index(n) for name, n in sizes.items()}


def specialised(tree: Tree, values: Mapping[ir.Var, ir.Expr]) -> Tree:
    """The tree with values for symbolic sizes."""
    return tree.rewritten(lambda spec: spec.specialised(values)) if values else tree


def _check_memory(tree: Tree, kernel: ir.Kernel) -> None:
    allocated = [s.buffer for s in walk_stmts(kernel.body) if isinstance(s, ir.Allocate)]
    shared = {b.name: bytes_of(b) for b in allocated if b.scope is ir.Scope.SHARED}
    if sum(shared.values()) > _SHARED_BYTES:
        parts = ", ".join(f"{n} for {name}" for name, n in shared.items())
        raise refusal(
            "kernel()", tree, f"it needs {sum(shared.values())} bytes of shared memory ({parts}); a block has at most "
            f"{_SHARED_BYTES}.", "Choose smaller tiles, or fewer stages.",
        )  # fmt: skip
    if kernel.launch is None:
        return
    held = {b.name: registers_of(b) for b in allocated if b.scope is ir.Scope.REGISTER}
    if sum(held.values()) > _REGISTERS:
        parts = ", ".join(f"{n} for {name}" for name, n in held.items())
        raise refusal(
            "kernel()", tree, f"each thread holds {sum(held.values())} registers ({parts}); it has {_REGISTERS}.",
            "Choose smaller tiles, or give them to more threads.",
        )  # fmt: skip
    threads = block_threads(tree)
    if sum(held.values()) * threads >= _REGISTERS_OF_BLOCK:
        why = f"{threads} threads hold {sum(held.values())} registers each, and a block has {_REGISTERS_OF_BLOCK}."
        raise refusal("kernel()", tree, why, "Choose smaller tiles of blocks.")


def bytes_of(b: ir.Buffer) -> int:
    """The bytes of a buffer's storage."""
    return int(static_size(span(b)) or 0) * b.dtype.bytes


def registers_of(b: ir.Buffer) -> int:
    """The 32-bit registers of one thread."""
    slots = b.owner.num_slots if b.owner is not None else bytes_of(b) // b.dtype.bytes
    return -(-slots * b.dtype.bytes // 4)
