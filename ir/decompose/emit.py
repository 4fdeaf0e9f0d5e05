"""The statements of a tree's own steps, outermost first. ``copies`` has those of its copies.

TileStep in order       loops                        to(BLOCK)   the grid
TileStep to a level     the worker's number          to(CORE)    a parallel loop, with a copy for whole tiles
SplitStep               a loop; with prefetched moves after it, a pipeline
MoveStep                a buffer, and the copy to it
AccumulateStep          registers, their first value, and the copy from them at the end
DoneStep                the instruction, or a spec for lowering
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from taskmap.ir import nodes as ir
from taskmap.ir.algebra.layout import row_major
from taskmap.ir.algebra.register_tile import is_in_order
from taskmap.ir.analysis.simplify import Simplifier
from taskmap.ir.builder import Builder
from taskmap.ir.construct import as_expr, cast, ceil_div, const, eq, index, minimum, product, select, static_size
from taskmap.ir.decompose.barriers import Stages
from taskmap.ir.decompose.blocks.grid import Grid, position
from taskmap.ir.decompose.blocks.multicast import counts_of
from taskmap.ir.decompose.blocks.sums import SharedReduction, SumSegment, share_of
from taskmap.ir.decompose.blocks.threads import tiles_of_grid
from taskmap.ir.decompose.blocks.tiles import (
    count,
    numbers_of,
    numbers_of_threads,
    origins,
    threads_of,
    warps_of,
    written_out,
)
from taskmap.ir.decompose.blocks.walks import fold_of, walk
from taskmap.ir.decompose.copies import CopyEmitter, layout_of, strides_in_shared
from taskmap.ir.decompose.cores import adds_one_by_one, shared_tiles, whole_or_part
from taskmap.ir.decompose.levels import HELD, Level
from taskmap.ir.decompose.micro.call import call, micro_kernel_of
from taskmap.ir.decompose.ownership import owner_of, without_dims
from taskmap.ir.decompose.pipeline import Views, pipelined, steps_of_pipeline
from taskmap.ir.decompose.refusal import refusal
from taskmap.ir.decompose.roles.kept_store import is_by_tma, is_kept, store_kept
from taskmap.ir.decompose.roles.ring import Ring, warpgroup_operands
from taskmap.ir.decompose.spec import Operand, Spec
from taskmap.ir.decompose.specialize import multiplied, specialized
from taskmap.ir.decompose.stage_leaves import POSITIONS, StageLeaf, check_holders, views_of_part
from taskmap.ir.decompose.stage_spec import StageSpec
from taskmap.ir.decompose.steps import AccumulateStep, Cut, DoneStep, MoveStep, SplitStep, Step, TileStep, Tree
from taskmap.ir.decompose.views import OperandView, divides, tiled
from taskmap.ir.isa.entry import Place
from taskmap.ir.isa.table import instruction_named
from taskmap.ir.source import SourceLocation
from taskmap.ir.types import i32
from taskmap.ir.workers import BLOCKS, THREAD


@dataclass(slots=True)
class Emitter:
    """Writes the kernel of one tree. threads: of a block; 0 on a CPU. stages: what the barriers know of stages.
    layouts: of fragments in memory, 0 by rows, 1 by columns. ring: of stages that a warpgroup fills. marks: the
    sources of statements, by the ids of steps. ranges: what is known of the variables of loops. unsynchronised: the
    number of the step of each copy without barriers. numbers: of the tiles of warps, by the ids of steps, if they are
    named before the loops of a sum. number: of the running part of a sum."""

    b: Builder
    tree: Tree
    threads: int
    grid: Grid = field(default_factory=Grid)
    share: SumSegment | None = None
    workspace: list[ir.Buffer] = field(default_factory=list)
    counters: list[ir.Buffer] = field(default_factory=list)
    stages: Stages = field(default_factory=Stages)
    layouts: dict[ir.Buffer, int] = field(default_factory=dict)
    ring: Ring | None = None
    ranges: Simplifier = field(default_factory=Simplifier)
    marks: Mapping[int, SourceLocation] = field(default_factory=dict)
    unsynchronised: dict[ir.Buffer, int] = field(default_factory=dict)
    numbers: dict[int, dict[str, ir.Expr]] = field(default_factory=dict)
    number: ir.Expr = field(default_factory=lambda: index(0))

    @property
    def copies(self) -> CopyEmitter:
        """Writes the copies."""
        return CopyEmitter(self.b, self.threads, marks=self.marks, ranges=self.ranges)

    def step(self, n: int, views: Views) -> None:
        """The steps from number ``n`` on, with the operands at ``views``."""
        before, step = self.b.source, self.tree.steps[n]
        self.b.source = self.marks.get(id(step), before)
        self.emitted(n, step, views)
        self.b.source = before

    def emitted(self, n: int, step: Step, views: Views) -> None:
        """Step number ``n`` and those after it."""
        if isinstance(step, TileStep) and step.level in (Level.BLOCK, Level.CLUSTER):
            self.blocks(n, step, views)
        elif isinstance(step, TileStep) and (threads := threads_of(step, self.tree.steps[n + 1])):
            at = numbers_of_threads(self.b, step, threads, self.worker(step))
            self.step(n + 2, tiled(threads, views, at, within=step))
        elif isinstance(step, TileStep):
            self.tile(step, views, lambda inner: self.step(n + 1, inner))
        elif isinstance(step, SplitStep):
            ahead = steps_of_pipeline(self.tree, n)
            if self.ring is not None and ahead:
                multiplied(self, n, ahead, views)
            elif ahead:
                pipelined(self, n, ahead, views)
            else:
                self.split(step, views, lambda inner, _: self.step(n + 1, inner))
        elif isinstance(step, MoveStep) and isinstance(step.how.root, StageSpec):
            self.step(n + 1, {**views, **self.stage(n, step, step.how.root, views)})
        elif isinstance(step, MoveStep):
            for line in views[step.name].lines_ahead():
                self.b.invoke(instruction_named("prefetch_line"), line)
            placed = self.place(n, step)
            if step.scope is ir.Scope.FRAGMENT:
                self.layouts[placed.buffer] = layout_of(step.how, views[step.name]) or 0
            self.copies.copy(step, views[step.name], placed)
            self.step(n + 1, {**views, step.name: placed})
        elif isinstance(step, AccumulateStep) and fold_of(self.tree.steps) is not None:
            self.fold(step.after, self.tree.steps[n + 1 :], views)
        elif isinstance(step, AccumulateStep):
            self.accumulate(n, step, views)
        else:
            self.leaf(step, views)

    def stage(self, n: int, step: MoveStep, spec: StageSpec, views: Views) -> dict[str, OperandView]:
        """Computes a stage where step ``n`` moves it, and gives its place. A fold keeps its results itself."""
        operand = step.before.operand(step.name)
        assert operand is not None
        if fold_of(step.how.steps) is not None:
            self.fold(spec, step.how.steps, views_of_part(spec, operand.axes, views, views[POSITIONS]))
            return {}
        placed = self.place(n, step)
        if placed.is_distributed:
            check_holders(step.how)
        inner = Emitter(self.b, step.how, self.threads, stages=self.stages, marks=self.marks)
        inner.step(0, views_of_part(spec, operand.axes, views, placed))
        return {step.name: placed}

    def fold(self, spec: Spec, steps: Sequence[Step], views: Views) -> None:
        """A sum whose elements are in no memory."""
        for var, n in zip((THREAD, *BLOCKS), (self.threads, *self.grid.shape), strict=False):
            self.ranges.bind(var, n)
        walk(self.b, self.ranges, steps, views[POSITIONS], len(spec.tiled), spec.extents[-1][1])

    def mark(self, tree: Tree) -> None:
        """The next statements belong to a tree of a step."""
        self.b.source = self.marks.get(id(tree.steps[0]), self.b.source)

    # Loops

    def blocks(self, n: int, step: TileStep, views: Views) -> None:
        """The steps from number ``n`` on, which gives tiles to blocks, or to clusters that divide them."""
        inner = self.tree.steps[n + 1] if step.level is Level.CLUSTER else step
        assert isinstance(inner, TileStep)
        if inner is not step:
            self.grid.cluster, n = math.prod(counts_of(inner).values()), n + 1

        def each(body: Callable[[Views], None]) -> None:
            self.tile(step, views, body if inner is step else lambda outer: self.tile(inner, outer, body))

        if not inner.fetched:
            each(lambda mine: self.step(n + 1, mine))
        elif step.persistent:
            specialized(self, n, views, each)
        else:
            each(lambda mine: specialized(self, n, mine, lambda body: body(mine)))

    def tile(self, step: TileStep, views: Views, body: Callable[[Views], None]) -> None:
        """The tiles of a step, each with ``body``."""
        counts = {c.axis: count(step, c) for c in step.cuts}
        order = step.order
        if step.level is None and self.threads and (numbers := written_out(self.tree, step)):
            for number in numbers:
                body(tiled(step, views, number))
        elif step.level is None:
            kind = ir.LoopKind.UNROLLED if step.unroll or _in_registers(views) else ir.LoopKind.SERIAL
            with self.b.grid(order, [counts[a] for a in order], kind) as at:
                body(tiled(step, views, dict(zip(order, at, strict=True))))
        elif step.level is Level.QUAD_PAIR:
            body(views)  # a warp executes the products of its quad-pairs at once
        elif step.before.level is Level.CLUSTER:
            body(tiled(step, views, position(BLOCKS[0] % self.grid.cluster, counts, order)))
        elif step.level in (Level.BLOCK, Level.CLUSTER):
            with self.grid.tiles(self.b, step, counts) as where:
                self.share = share_of(self.b, self.tree, step, self.grid)
                looped = any(isinstance(s, SplitStep) for s in self.tree.steps)
                where = origins(self.b, step, where) if looped else where
                body(tiled(step, views, where, in_elements=looped))
        elif step.threads_of_grid:
            self.grid.shape.append(ceil_div(product(list(counts.values())), step.threads_of_grid))
            with tiles_of_grid(self.b, step, counts) as where:
                body(tiled(step, views, where))
        elif step.level is Level.CORE:
            with shared_tiles(self.b, self.tree.root, step, counts, self.ranges) as where:
                whole_or_part(self.b, self.tree, step, views, where, body)
        elif step.level is Level.LANES:
            edge = POSITIONS in views and not views[POSITIONS].is_exact
            one_by_one = ir.LoopKind.UNROLLED if _in_registers(views) else ir.LoopKind.SERIAL
            kind = one_by_one if edge else ir.LoopKind.VECTOR
            with self.b.loop("lane", product(list(counts.values())), kind) as lane:
                body(tiled(step, views, position(lane, counts, order)))
        else:
            body(tiled(step, views, self.numbers.get(id(step)) or numbers_of(self.b, step, self.worker(step))))

    def worker(self, step: TileStep) -> ir.Expr:
        """The number of this worker among those of the level above."""
        assert step.level is not None
        if self.ring is not None and step.level is Level.WARPGROUP:
            return self.ring.group
        size, above = step.level.threads, step.before.level.threads or self.threads
        number = THREAD if size == 1 else THREAD // size
        return number % (above // size) if above < self.threads else number

    def split(self, step: SplitStep, views: Views, body: Callable[[Views, ir.Expr], None]) -> None:
        """The parts of a sum, each with ``body``."""
        held, count = _sums_registers(step, views), self.count(step, views)
        whole = step.unroll and not step.times
        kind = ir.LoopKind.UNROLLED if held or (whole and self.threads) else ir.LoopKind.SERIAL
        hint = (static_size(count) or 0) if whole and not self.threads else step.times  # the C compiler unrolls
        with self.b.loop("step" if self.threads else step.before.summed, count, kind, unroll=hint) as number:
            if isinstance(number, ir.Var):
                self.ranges.bind(number, count)
            self.number = number
            body(self.part(step, views, number), number)

    def turn(self, number: ir.Expr, count: ir.Dim) -> tuple[ir.Expr, ir.Expr]:
        """The stage of a part of the running tile, and how often it was filled before."""
        assert self.ring is not None
        number = self.grid.turn * count + number
        return number % self.ring.stages, number // self.ring.stages

    def shared(self, step: SplitStep) -> SumSegment | None:
        """The share of this block in the parts of a split."""
        return self.share if self.share is not None and self.share.split is step else None

    def count(self, step: SplitStep, views: Mapping[str, OperandView] = MappingProxyType({})) -> ir.Dim:
        """The number of parts of a sum that this worker adds."""
        share = self.shared(step)
        return share.count if share else ceil_div(self.terms(step, views), step.size)

    def terms(self, step: SplitStep, views: Mapping[str, OperandView]) -> ir.Dim:
        """The terms of a sum, of which a part may end with the problem."""
        axis = step.before.summed
        axes = (a for v in views.values() for name, a in zip(v.names, v.axes, strict=True) if name == axis)
        return next((a.length for a in axes if a is not None and a.length is not None), step.before.extent(axis))

    def part(self, step: SplitStep, views: Views, number: ir.Expr) -> Views:
        """The operands' parts in part ``number`` of those that this worker adds."""
        axis, share = step.before.summed, self.shared(step)
        cut = Cut(axis, step.size)
        exact = divides(cut, share.whole if share else step.before.extent(axis)) and (share is None or share.filled)
        cuts = {axis: (cut, share.first + number if share else number, exact)}
        later = self.tree.steps[self.tree.steps.index(step) + 1 :]
        if exact or self.threads or not adds_one_by_one(later, axis):
            return {name: view.tile(cuts) for name, view in views.items()}
        # A core adds one term after another: its loops end with the sum.
        rest = index(self.terms(step, views)) - number * step.size
        ends = {axis: index(self.ranges.dim(minimum(rest, step.size)))}
        cuts = {axis: (*cuts[axis][:2], True)}
        return {name: view.tile(cuts).ending(ends) for name, view in views.items()}

    # Memory

    def place(self, n: int, step: MoveStep) -> OperandView:
        """Memory for an operand that step ``n`` moves, as the whole operand of the spec after it."""
        spec = step.after
        operand = spec.operand(step.name)
        assert operand is not None
        if step.scope is not ir.Scope.SHARED:
            return self.registers(f"{step.name}_{step.scope.value}", self.tree.steps[n + 1 :], spec, operand)
        shape, present = self.dims(spec, operand)
        lead = [step.stages] if step.stages > 1 else []
        strides, layout = None, None
        if step.swizzle:
            lines = (*lead, *shape[:-2], shape[-1], shape[-2]) if step.by_columns else (*lead, *shape)
            layout = row_major(*lines).swizzled(*step.swizzle)
            rank = len(lines)
            layout = layout.permute(*range(rank - 2), rank - 1, rank - 2) if step.by_columns else layout
        elif step.pad or step.by_columns:
            strides = strides_in_shared([*lead, *shape], step.pad, by_columns=step.by_columns)
        buffer = self.b.allocate(
            f"{step.name}_shared", operand.dtype, [*lead, *shape], step.scope, strides=strides, layout=layout
        )
        if lead:
            self.stages.counts[buffer] = step.stages
        if not step.synchronised:
            self.stages.free.add(buffer)
            self.unsynchronised[buffer] = n
        return OperandView.whole(buffer, operand.axes, present, [index(0)] * len(lead))

    def registers(self, name: str, steps: Sequence[Step], spec: Spec, operand: Operand) -> OperandView:
        """Registers for an operand, held as the steps say that use it."""
        shape, present = self.dims(spec, operand)
        owner = owner_of(steps, spec, operand) if self.threads else None
        sums = operand.name == spec.accumulated
        shared = sums and any(isinstance(s, TileStep) and s.parts > 1 for s in self.tree.steps)
        own = micro_kernel_of(self.tree)
        text = own is not None and own.written is not None  # it takes neighbouring registers, and in C addresses
        if owner is not None and (owner.num_workers == 1 or is_in_order(owner)) and not shared and not text:
            owner = None
        if owner is not None:
            owner = without_dims(owner, [d for d, there in enumerate(present) if not there])
        scope = operand.scope if self.threads or operand.scope is not ir.Scope.FRAGMENT else ir.Scope.REGISTER
        scope = ir.Scope.LOCAL if text and not self.threads else scope
        buffer = self.b.allocate(name, operand.dtype, shape, scope, owner=owner)
        return OperandView.whole(buffer, operand.axes, present)

    def dims(self, spec: Spec, operand: Operand) -> tuple[list[int], list[bool]]:
        """The dimensions of memory for an operand: those of a batch, and of all axes of a sum but the last, vanish once
        they are single."""
        sizes = spec.static_shape(operand)
        assert sizes is not None
        sums = [name for name, _ in spec.extents if name not in spec.tiled] if spec.kind == "matmul" else []
        gone = {a for a in operand.axes if a.startswith("batch") or a in sums[:-1]}
        present = [not (a in gone and n == 1) for a, n in zip(operand.axes, sizes, strict=True)]
        return [n for n, there in zip(sizes, present, strict=True) if there], present

    def accumulate(self, n: int, step: AccumulateStep, views: Views) -> None:
        """Registers for sums, their first value, the rest of the tree, and the store."""
        name = step.before.accumulated
        operand = step.after.operand(name)
        assert operand is not None
        total = self.registers("total", self.tree.steps[n + 1 :], step.after, operand)
        self.copies.check_holders(step.init, total)
        self.mark(step.init)
        value = getattr(step.init.root, "value", 0.0)
        first = as_expr(int(value) if operand.dtype.is_int else value, operand.dtype)
        parts = SharedReduction(self.b, self.tree, self.threads, self.synchronise, self.workspace, self.counters)
        if value and parts.are_shared:
            first = select(parts.is_first(total, self.grid), first, const(0, operand.dtype))
        self.numbers = {id(s): numbers_of(self.b, s, self.worker(s)) for s in warps_of(self.tree.steps[n + 1 :])}
        owner = total.buffer.owner
        if step.how == "resume":
            sizes = step.before.static_shape(operand) or ()
            self.b.move(total.region(sizes), views[name].region(sizes))
        elif self.ring is not None and self.ring.sets:
            pass
        elif owner is None:
            self.b.fill(total.buffer, first)
        else:
            whole = owner.num_workers >= self.threads and self.ring is None
            worker = THREAD if whole else THREAD % owner.num_workers
            with self.b.mapped([f"i{d}" for d in range(total.buffer.rank)], owner, worker) as at:
                self.b.store(total.buffer, at, first)
        self.step(n + 1, {**views, name: total})
        # Every lane of a warp has the sum, and one of them stores it.
        alike = self.threads and isinstance(step.before, StageSpec) and self.tree.spec.level is Level.WARP
        self.mark(step.store)
        parts.of_warps(total)
        with parts.of_blocks(total, self.grid), self.b.when(eq(THREAD % Level.WARP.threads, 0) if alike else True):
            self.store(step, total, views[name])

    def store(self, step: AccumulateStep, total: OperandView, view: OperandView) -> None:
        """The copy of the sums."""
        out, tree = self.ring.out if self.ring is not None else None, step.store
        if out is not None:
            store_kept(self, out, total, view, tree.root.static_shape(tree.root.operands[0]) or ())
            return
        if is_by_tma(tree) and self.ring is None:
            why, way_out = "TMA stores what a warpgroup multiplies, and none does.", "Leave out asynchronous()."
            raise refusal("kernel()", tree, why, way_out, where=tree.steps[-1].source)
        if self.ring is not None and is_kept(tree):  # threads store what they hold
            tree = Tree(tree.root, (DoneStep(tree.root, tree.root, None),))
        self.copies.through(tree, total, view, adding=step.how == "add")

    def synchronise(self) -> None:
        """The threads that hold sums meet."""
        if self.ring is None:
            self.b.barrier()
        else:
            self.b.invoke(instruction_named("barrier_sync"), const(1, i32), const(self.threads, i32))

    # Leaves

    def leaf(self, step: DoneStep, views: Views) -> None:
        """The last spec: an instruction, a multiply-add, a spec for lowering, or a copy of a kernel that copies."""
        spec = step.before
        if isinstance(spec, StageSpec):
            adding = any(isinstance(s, AccumulateStep) for s in self.tree.steps)
            StageLeaf(self.b, self.threads, spec, views, adding=adding, given=step.mapping, lanes=step.lanes).emit()
            return
        if spec.kind == "move":
            self.copies.through(Tree(spec, (step,)), views["src"], views["dst"])
            return
        if step.by is not None and step.by.twin is not None:
            held = {o.name: views[o.name] for o in spec.operands}
            held |= {} if self.threads else {o.name: self.held(spec, o, held[o.name], step) for o in spec.operands}
            call(self.b, self.tree, step, held)
            return
        if spec.level is Level.QUAD_PAIR:
            spec = self.tree.steps[-2].before
        a, b, c = (self.held(spec, o, views[o.name], step) for o in spec.operands)
        shapes = [spec.static_shape(o) or () for o in spec.operands]
        if not all(v.is_box(shape) for v, shape in zip((a, b, c), shapes, strict=True)):
            why = "the tile consists of several pieces, and an instruction takes one."
            raise refusal("done()", self.tree, why, "Tile it to one piece before done().", where=step.source)
        if step.by is not None and step.by.completes and self.ring is None:
            why = f"nobody waits for {step.by.name}, which is asynchronous."
            way_out = "Write specialize(WARPGROUP, 'fetch') after to(BLOCK)."
            raise refusal("kernel()", self.tree, why, way_out, where=step.source)
        if step.by is not None and step.by.completes:
            assert self.ring is not None
            before, after = warpgroup_operands(a, b, self.ring, self.number)
            self.b.invoke(step.by, *before, c.region(shapes[2]), *after)
        elif step.by is not None:
            regions = {"c": c.region(shapes[2]), "a": a.region(shapes[0]), "b": b.region(shapes[1])}
            layouts = {f"layout_{o.name}": v for o, v in zip(spec.operands, (a, b, c), strict=True)}
            constants = {
                p.name: as_expr(self.layouts[layouts[p.name].buffer])
                for p in step.by.parameters
                if p.place is Place.CONSTANT
            }
            operands: dict[str, ir.Region | ir.Expr] = {**regions, **constants}
            self.b.invoke(step.by, *(operands[p.name] for p in step.by.parameters))
        elif spec.level is Level.CORE:
            self.b.matmul(c.region(shapes[2]), a.region(shapes[0]), b.region(shapes[1]))
        else:
            at, dtype = [index(0)] * len(shapes[2]), c.buffer.dtype
            x, y = (cast(v.buffer[v.element(at)], dtype) for v in (a, b))
            where = c.element(at)
            total = c.buffer[where]
            self.b.store(c.buffer, where, total + x * y)

    def held(self, spec: Spec, operand: Operand, view: OperandView, step: DoneStep) -> OperandView:
        """The operand; by way of a copy if it is computed, or ends: elements beyond the end are 0."""
        if not (view.is_clipped or view.computed):
            return view
        if spec.level is Level.LANES:
            task = f"compute {operand.name}" if view.computed else f"test whether {operand.name} ends"
            why = f"lanes cannot {task}."
            raise refusal("done()", self.tree, why, f"Move {operand.name!r} to REGISTER before.", where=step.source)
        shape, present = self.dims(spec, operand)
        scope = ir.Scope.REGISTER if self.threads else ir.Scope.LOCAL
        buffer = self.b.allocate(f"{operand.name}_{scope.value}", operand.dtype, shape, scope)
        copy = OperandView.whole(buffer, operand.axes, present)
        sizes = spec.static_shape(operand) or ()
        self.b.move(copy.region(sizes), view.region(sizes), clipped=True)
        return copy


def _in_registers(views: Views) -> bool:
    return any(v.buffer.scope in HELD for v in views.values())


def _sums_registers(step: SplitStep, views: Views) -> bool:
    """True if the loop walks through registers, which have no addresses."""
    return any(v.buffer.scope in HELD and step.before.summed in v.names for v in views.values())
