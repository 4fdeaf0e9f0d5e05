"""The statements of copies: one Move on regions for the workers of a level, or loops of one worker's own Moves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from taskmap.ir import nodes as ir
from taskmap.ir.algebra.digits import DigitMap
from taskmap.ir.algebra.mapping import TaskMapping, repeat
from taskmap.ir.algebra.quotient import quotient
from taskmap.ir.analysis.simplify import Simplifier
from taskmap.ir.builder import Builder
from taskmap.ir.construct import cast, ceil_div, static_size
from taskmap.ir.decompose.cores import elements
from taskmap.ir.decompose.levels import HELD, Level
from taskmap.ir.decompose.micro.call import call, micro_kernel_of
from taskmap.ir.decompose.ownership import elements_of, without_dims
from taskmap.ir.decompose.refusal import refusal
from taskmap.ir.decompose.spec import Spec
from taskmap.ir.decompose.steps import Cut, DoneStep, MoveStep, Step, TileStep, Tree
from taskmap.ir.decompose.views import OperandView
from taskmap.ir.lower.flatten import strides_of
from taskmap.ir.lower.opaque import matrix_in_memory
from taskmap.ir.source import SourceLocation
from taskmap.ir.workers import THREAD

_WIDEST = 16
_ALONE = (Level.THREAD, Level.CORE, Level.LANES)


@dataclass(frozen=True, slots=True)
class CopyEmitter:
    """Writes copies by ``threads`` threads of a block, which number themselves by ``thread``; 0 on a CPU. marks: the
    sources of statements, by the ids of steps. ranges: what is known of the variables of loops."""

    b: Builder
    threads: int
    thread: ir.Expr = THREAD
    marks: Mapping[int, SourceLocation] = field(default_factory=dict)
    ranges: Simplifier = field(default_factory=Simplifier)

    def copy(self, step: MoveStep, src: OperandView, dst: OperandView) -> None:
        """The copy of a move."""
        if step.by is not None:
            spec = step.how.root
            self.divided(Tree(spec), src, dst, step.by, asynchronous=step.asynchronous, where=step)
        else:
            self.through(step.how, src, dst, asynchronous=step.asynchronous)

    def through(
        self, tree: Tree, src: OperandView, dst: OperandView, *, asynchronous: bool = False, adding: bool = False
    ) -> None:
        """A copy as its tree says. adding: to the elements that are there."""
        self.b.source = self.marks.get(id(tree.steps[0]), self.b.source)
        if tree.root.level in _ALONE or not self.threads:
            self.alone(tree, 0, src, dst, adding=adding)
            return
        if micro_kernel_of(tree) is not None:
            self.called(tree, tree.steps[-1], src, dst)
            return
        found = next((n for n, s in enumerate(tree.steps) if isinstance(s, MoveStep)), None)
        if found is not None:
            self.by_way(tree, found, src, dst)
            return
        held = next((v for v in (src, dst) if v.buffer.scope in HELD), None)
        if held is None:
            mapping = elements_of(tree, src.buffer.dtype.bytes, self.threads)
            self.divided(tree, src, dst, mapping, asynchronous=asynchronous, where=tree.steps[-1])
            return
        if held.buffer.scope is ir.Scope.FRAGMENT and layout_of(tree, dst if held is src else src) is None:
            self.by_way(_by_shared(tree.root), 0, src, dst)
            return
        self.check_holders(tree, held)
        sizes = _sizes(tree.root)
        self.check_box(tree, (src, dst), tree.steps[-1])
        owner = held.buffer.owner
        holders = owner.num_workers if owner is not None and tree.root.level is Level.BLOCK else self.threads
        with self.b.when(holders > self.thread if holders < self.threads else True):
            self.b.move(dst.region(sizes), src.region(sizes), **clipping(src, dst))

    def by_way(self, tree: Tree, n: int, src: OperandView, dst: OperandView) -> None:
        """A copy by way of another memory: its first half, then the rest."""
        step = tree.steps[n]
        assert isinstance(step, MoveStep)
        if n:
            why = "tiles of a copy that goes by way of another memory are not lowered yet."
            raise refusal("kernel()", tree, why, "Move first, and tile each half.", where=step.source)
        operand = step.how.root.operands[1]
        shape = _sizes(step.how.root)
        there = [not (a.startswith("batch") and m == 1) for a, m in zip(operand.axes, shape, strict=True)]
        sizes = [m for m, kept in zip(shape, there, strict=True) if kept]
        own = tree.root.level.threads  # shared memory is a block's: each of its parts has its own
        lead = [self.threads // own] if 0 < own < self.threads else []
        strides = strides_in_shared([*lead, *sizes], step.pad, by_columns=step.by_columns) if step.pad else None
        name = f"{getattr(tree.root, 'name', 'copy')}_{step.scope.value}"
        buffer = self.b.allocate(name, operand.dtype, [*lead, *sizes], step.scope, strides=strides)
        half = OperandView.whole(buffer, operand.axes, there, [THREAD // own] if lead else [])
        self.copy(step, src, half)
        self.through(Tree(step.after, tree.steps[n + 1 :]), half, dst)

    def divided(
        self, tree: Tree, src: OperandView, dst: OperandView, mapping: TaskMapping, *, asynchronous: bool, where: Step
    ) -> None:
        """A copy shared out among the threads of a level by a mapping of its elements, or of equal chunks."""
        spec, b = tree.root, self.b
        sizes = _sizes(spec)
        self.check_box(tree, (src, dst), where)
        room = spec.level.threads or self.threads
        count = mapping.num_workers
        if count > room:
            raise refusal(
                "kernel()", tree, f"the copy is divided among {count} threads, and there are {room}.",
                "Tile it once more before to(THREAD): the threads then make several rounds.", where=where.source,
            )  # fmt: skip
        chunks = _in_chunks(mapping, sizes, src.buffer.dtype.bytes)
        asynchronous = asynchronous and is_asynchronous(src, dst, sizes, mapping)
        single = [d for d, n in enumerate(sizes) if n == 1]
        chunks = without_dims(chunks, single) if len(single) < len(sizes) else repeat(1)
        worker = self.thread if room == self.threads else self.thread % room
        with b.when(True if count == room else worker < count):
            mine = worker if count == room else worker % count
            b.move(
                dst.region(sizes), src.region(sizes), mapping=chunks, worker=mine, asynchronous=asynchronous,
                **clipping(src, dst),
            )  # fmt: skip

    def alone(self, tree: Tree, n: int, src: OperandView, dst: OperandView, *, adding: bool = False) -> None:
        """A copy by one worker: loops over its tiles."""
        step = tree.steps[n]
        if isinstance(step, DoneStep):
            if micro_kernel_of(tree) is not None and adding:
                why = "a micro-kernel would overwrite the sums, which are added to those that are there."
                raise refusal("kernel()", tree, why, "Leave the store to done().", where=step.source)
            if micro_kernel_of(tree) is not None:
                self.called(tree, step, src, dst)
            elif adding or (step.lanes and not (src.is_clipped or dst.is_clipped)):
                for i in elements(self.b, (src, dst), _sizes(step.before), step.lanes or 1, self.ranges):
                    before = dst.buffer[dst.element(i)] + src.value(i) if adding else src.value(i)
                    self.b.store(dst.buffer, dst.element(i), cast(before, dst.buffer.dtype))
            else:
                self.pieces(step.before, src, dst)
            return
        if not isinstance(step, TileStep) or step.level is not None:
            raise refusal(
                "kernel()", tree, f"{step} is not lowered in the copy of one {tree.root.level.value.lower()}.",
                "Use tile(...) in order, or leave the copy to done().", where=step.source,
            )  # fmt: skip
        order, cuts = step.order, {c.axis: c for c in step.cuts}
        counts = [ceil_div(cuts[a].stride or step.before.extent(a), cuts[a].width) for a in order]
        with self.b.grid(order, counts, ir.LoopKind.UNROLLED) as at:
            where = {a: (cuts[a], i, True) for a, i in zip(order, at, strict=True)}
            self.alone(tree, n + 1, src.tile(where), dst.tile(where), adding=adding)

    def called(self, tree: Tree, step: Step, src: OperandView, dst: OperandView) -> None:
        """A copy by a micro-kernel."""
        if not isinstance(step, DoneStep) or (len(tree.steps) > 1 and tree.root.level not in _ALONE):
            why = "several workers share the tiles of a copy, and its leaf is a micro-kernel."
            raise refusal("kernel()", tree, why, "Give the whole copy to the micro-kernel.", where=step.source)
        call(self.b, tree, step, {"src": src, "dst": dst})

    def pieces(self, spec: Spec, src: OperandView, dst: OperandView) -> None:
        """One worker's own copy: a Move for each rectangular piece."""
        sizes, axes = list(_sizes(spec)), spec.operands[0].axes
        pairs = zip(src.axes, dst.axes, strict=True)
        runs = [math.gcd(*(v.run for v in pair if v is not None)) for pair in pairs]
        cuts = {a: Cut(a, run) for a, run, n in zip(axes, runs, sizes, strict=True) if run and run < n}
        counts = [n // cuts[a].width if a in cuts else 1 for a, n in zip(axes, sizes, strict=True)]
        sizes = [cuts[a].width if a in cuts else n for a, n in zip(axes, sizes, strict=True)]
        with self.b.grid(axes, counts, ir.LoopKind.UNROLLED) as at:
            where = {a: (cuts[a], i, True) for a, i in zip(axes, at, strict=True) if a in cuts}
            src, dst = src.tile(where), dst.tile(where)
            if not self.threads and (dst.is_clipped or dst.computed) and src.buffer.scope is ir.Scope.REGISTER:
                src = self.addressable(src, tuple(sizes))
            self.b.move(dst.region(sizes), src.region(sizes), **clipping(src, dst))

    def addressable(self, src: OperandView, sizes: tuple[int, ...]) -> OperandView:
        """A tile of registers in memory: the loops over an edge need addresses."""
        part = src.region(sizes)
        buffer = self.b.allocate(f"{src.buffer.name}_edge", src.buffer.dtype, part.shape, ir.Scope.LOCAL)
        copy = OperandView.whole(buffer, src.names, [view is not None for view in src.axes])
        self.b.move(copy.region(sizes), part)
        return copy

    def check_holders(self, tree: Tree, held: OperandView) -> None:
        """A copy of registers is made by those who hold them: its tiles, if any, say the same."""
        owner = held.buffer.owner
        tiled = [s for s in tree.steps if isinstance(s, TileStep)]
        if owner is None or not tiled:
            return
        said = elements_of(tree, held.buffer.dtype.bytes, self.threads)
        kept = [d for d, there in enumerate(held.axes) if there is None]
        mine, yours = without_dims(said, kept).parts[0], owner.parts[0]
        assert isinstance(mine, DigitMap)
        assert isinstance(yours, DigitMap)
        if mine.workers == yours.workers:
            return
        group = 32 if held.buffer.scope is ir.Scope.FRAGMENT else 1
        for task in _corners(owner.task_shape):
            by, of = mine.locate(task)[0] // group, yours.locate(task)[0] // group
            if by != of:
                who = "thread" if group == 1 else "warp"
                raise refusal(
                    "kernel()", tree, f"{who} {by} would copy element {list(task)}, which {who} {of} holds.",
                    "Divide the copy as the spec divides it, leave it to done(), or move it by way of SHARED.",
                    where=tiled[0].source,
                )  # fmt: skip

    def check_box(self, tree: Tree, views: tuple[OperandView, OperandView], where: Step) -> None:
        """The parts are rectangles."""
        if not all(v.is_box(_sizes(tree.root)) for v in views):
            raise refusal(
                "kernel()", tree, "the tile consists of several pieces.", "Tile it to one piece before done().",
                where=where.source,
            )  # fmt: skip


def clipping(src: OperandView, dst: OperandView) -> dict[str, Any]:
    """The arguments of a Move that say where parts may lie beyond the end of global memory."""
    ending = [v for v in (src, dst) if v.is_clipped]
    return {"clipped": bool(ending), "exact": ending[0].exact if len(ending) == 1 else ()}


def layout_of(how: Tree, memory: OperandView) -> int | None:
    """The layout with which fragments move to or from memory: 0 by rows, 1 by columns; None if they need a detour."""
    if memory.is_clipped or memory.computed or any(isinstance(s, MoveStep) for s in how.steps):
        return None
    found = matrix_in_memory(memory.region(_sizes(how.root)))
    return None if found is None else found[0]


def _by_shared(spec: Spec) -> Tree:
    """The copy by way of shared memory, where edges are tested and lines aligned."""
    half, rest = spec.moving("src", ir.Scope.SHARED), spec.with_operand("src", ir.Scope.SHARED)
    pad = 32 // spec.operands[0].dtype.bytes
    step = MoveStep(spec, rest, None, "src", ir.Scope.SHARED, Tree(half, (DoneStep(half, half, None),)), pad=pad)
    return Tree(spec, (step, DoneStep(rest, rest, None)))


def strides_in_shared(shape: Sequence[int], pad: int, *, by_columns: bool) -> list[int]:
    """The strides of a buffer whose lines, rows or columns, lie ``pad`` elements further apart."""
    *lead, rows, columns = shape
    pitch = (rows if by_columns else columns) + pad
    inner = [1, pitch] if by_columns else [pitch, 1]
    block = pitch * (columns if by_columns else rows)
    return [block * math.prod(lead[d + 1 :]) for d in range(len(lead))] + inner


def _sizes(spec: Spec) -> tuple[int, ...]:
    sizes = spec.static_shape(spec.operands[0])
    assert sizes is not None
    return sizes


def _corners(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Every element of a small tile in order; enough of them to find a difference."""
    total = 1
    for n in shape:
        total *= n
    found = []
    for number in range(total):
        at, rest = [], number
        for n in reversed(shape):
            at.append(rest % n)
            rest //= n
        found.append(tuple(reversed(at)))
    return found


def _in_chunks(mapping: TaskMapping, sizes: tuple[int, ...], bytes: int) -> TaskMapping:
    """The mapping of chunks of neighbours, the longest that threads take together, up to 16 bytes; as given, if it is
    one of chunks."""
    if mapping.task_shape != sizes:
        return mapping
    lanes, ones = max(1, _WIDEST // bytes), [1] * (len(mapping.task_shape) - 1)
    while lanes > 1:
        found = quotient(mapping, repeat(*ones, lanes))
        if found is not None:
            text = mapping.text.removesuffix(f" * {repeat(*ones, lanes)}")
            return TaskMapping(found.task_shape, found.parts, found.text if text == mapping.text else text)
        lanes //= 2
    return mapping


def is_asynchronous(src: OperandView, dst: OperandView, sizes: tuple[int, ...], mapping: TaskMapping) -> bool:
    """True if a copy divided by a mapping of elements, or of chunks, can be asynchronous: every chunk is aligned in
    both memories and never partly beyond the end."""
    chunks = _in_chunks(mapping, sizes, src.buffer.dtype.bytes)
    lanes = sizes[-1] // chunks.task_shape[-1]
    whole_chunk = math.prod(sizes) // math.prod(chunks.task_shape)
    chunk = (whole_chunk if src.copied else lanes) * src.buffer.dtype.bytes
    if chunk not in (4, 8, 16) or src.buffer.scope is not ir.Scope.GLOBAL or src.buffer.dtype != dst.buffer.dtype:
        return False
    if src.copied:
        return True
    if src.computed or lanes == 1:
        return not src.computed
    offset = static_size(src.buffer.offset)
    if offset is None or offset % lanes:
        return False
    *others, last = (static_size(s) for s in strides_of(src.buffer))
    if last != 1 or any(s is None or s % lanes for s in others):
        return False
    whole = static_size(src.buffer.shape[-1])
    ends = src.axes[-1] is None or src.axes[-1].exact or (whole is not None and whole % lanes == 0)
    *kept, inner = (static_size(s) for s in strides_of(dst.buffer))
    plain = dst.buffer.layout is not None or (inner == 1 and all(s is not None and s % lanes == 0 for s in kept))
    return ends and plain
