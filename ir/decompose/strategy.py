"""The primitives: each decomposes the current spec of a tree, and gives a new tree.

    MatMul(m, n, k).tile(128, 128).to(BLOCK).accumulate_in(REGISTER).split(8)...done()

A strategy is such a tree: a value that prints itself, compares by meaning, and makes a kernel (``kernel``). A primitive
that does not apply raises ScheduleError with the user's line, the spec, the reason, a way out, and the tree so far.
After: the decompositions and refinements of Fireiron (Hagedorn et al., PACT 2020, section 3).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Concatenate, ParamSpec

from taskmap.ir.algebra.mapping import TaskMapping
from taskmap.ir.construct import static_size
from taskmap.ir.decompose import checks
from taskmap.ir.decompose.cores import check_continued, check_parallel, check_vectors
from taskmap.ir.decompose.facts import facts_of
from taskmap.ir.decompose.groups.fold import Fold
from taskmap.ir.decompose.leaves import leaf_of
from taskmap.ir.decompose.levels import Level
from taskmap.ir.decompose.lowering import kernel_of
from taskmap.ir.decompose.micro.kernel import MicroKernel
from taskmap.ir.decompose.ownership import mapping_of
from taskmap.ir.decompose.picture import svg_of
from taskmap.ir.decompose.refusal import refusal, users_line
from taskmap.ir.decompose.show import show
from taskmap.ir.decompose.spec import Spec
from taskmap.ir.decompose.steps import AccumulateStep, DoneStep, MoveStep, SplitStep, Step, TileStep, Tree
from taskmap.ir.expressions import Scope
from taskmap.ir.nodes import Kernel
from taskmap.ir.types import DType

P = ParamSpec("P")
Size = int | tuple[int, int]
"""The size of a tile along an axis: neighbours, or (width, stride) for pieces of ``width`` after each ``stride``."""


class Primitives:
    """The primitives of a spec, and of a tree that begins with one."""

    __slots__ = ()

    @abstractmethod
    def _tree(self) -> Strategy:
        """The tree that a primitive extends."""

    def tile(self, *sizes: Size) -> Strategy:
        """The spec on one tile after another; ``to`` gives each tile to a worker instead.

        MatMul(m, n, k)  .tile(64, 32)          ->  for each 64×32 tile of c:  MatMul(64, 32, k)
        MatMul(64, 32, k).tile((4, 32), (4, 16))->  tiles of 2×2 pieces, 4×4 each, 32 rows and 16 columns apart

        One size for each axis but the sum's; of a batch, the leading ones may be left out, and are 1. The sizes of a
        problem need not be multiples; those of a tile must be. Raises ScheduleError.
        """
        tree = self._tree()
        spec = tree.spec
        checks.unfinished(tree, f"tile{sizes}")
        cuts = checks.cuts(tree, sizes)
        inside: dict[str, int] = {}
        for cut in cuts:
            whole = static_size(spec.extent(cut.axis))
            inside[cut.axis] = cut.width * (whole // cut.stride if cut.stride and whole else 1)
        return tree._after(TileStep(spec, spec.with_extents(inside), users_line("tile"), cuts))

    def to(self, level: Level) -> Strategy:
        """The tiles of the step before are given to the workers of ``level``, one each, numbered row by row.

        MatMul(128, 128, 8)(Block).tile(64, 32)             ->  for each tile:  MatMul(64, 32, 8)(Block)
        MatMul(128, 128, 8)(Block).tile(64, 32).to(WARP)    ->  warp w of 8:    MatMul(64, 32, 8)(Warp)
        Compute(m, n)(Kernel).tile(1, 4).to(THREAD)         ->  thread t of the whole grid, without tiles of blocks
        """
        tree = self._tree()
        step = checks.last(tree, TileStep, f"to({level.name})", "tile")
        checks.workers(tree, step, level)
        made = replace(step, after=replace_level(step.after, level), level=level)
        return replace(tree, steps=(*tree.steps[:-1], made))

    def split(self, size: int) -> Strategy:
        """The spec on one part of the sum after another.

        MatMul(128, 128, k).split(8)   ->  for each 8 of k:  MatMul(128, 128, 8)
        """
        tree = self._tree()
        spec = tree.spec
        checks.split(tree, size)
        return tree._after(SplitStep(spec, spec.with_extents({spec.summed: size}), users_line("split"), size))

    def move(
        self,
        operand: str,
        scope: Scope,
        how: Callable[[Strategy], Strategy] | None = None,
        *,
        by: TaskMapping | None = None,
        dtype: DType | None = None,
    ) -> Strategy:
        """An operand is copied to ``scope``; the spec then works on the copy.

        MatMul(128, 128, 8)(GL,GL,RF).move("a", SHARED, how)  ->  how(Move(a:128x8)(GL->SH));
                                                                  MatMul(128, 128, 8)(SH,GL,RF)

        how: decomposes the copy; by default its workers share it out, neighbours in memory to neighbours, in chunks
        that are aligned there, or each moves what it holds. by: a mapping whose tasks are equal chunks of the copy, on
        the threads of the level, instead. dtype: the type of the copy in REGISTER, rounded to the nearest; an operand
        that is there already is converted by those who hold it.
        """
        tree = self._tree()
        word = f"move({operand!r}, {scope.name})"
        checks.moved(tree, operand, scope, word, dtype)
        spec = tree.spec
        side = checks.finished(tree, how, Strategy(_converting(spec.moving(operand, scope), dtype)), word)
        if by is not None:
            by = checks.given_mapping(tree, by, operand, word, also_how=how is not None)
        after = spec.with_operand(operand, scope, dtype)
        return tree._after(MoveStep(spec, after, users_line("move"), operand, scope, side, by, dtype=dtype))

    def accumulate_in(
        self, scope: Scope, init: float | Callable[[Strategy], Strategy] | None = None,
        store: Callable[[Strategy], Strategy] | None = None, *, how: str = "set",
    ) -> Strategy:  # fmt: skip
        """The results are summed in ``scope``, and moved when the spec is done.

        MatMul(128, 128, k)(GL,GL,GL).accumulate_in(REGISTER)  ->  Init(c:128x128)(RF);
                                                                   MatMul(128, 128, k)(GL,GL,RF);
                                                                   Move(c:128x128)(RF->GL)

        init: the first value, by default the neutral one, or a decomposition of Init. store: decomposes the
        last copy; by default each worker stores what it holds. how: "set"; on a core, sums in registers continue those
        of an outer accumulate_in(LOCAL), part by part of a split: they begin as these ("resume"), or are added to them,
        which makes a long sum one of short ones ("add").

        MatMul(6, 64, k)(GL,GL,LM).split(512).accumulate_in(REGISTER, how="add")  ->  for each 512 of k:
            Init(c:6x64)(RF);  MatMul(6, 64, 512)(GL,GL,RF);  c:6x64 (LM) += c (RF)
        """
        tree = self._tree()
        word = f"accumulate_in({scope.name}{f', how={how!r}' if how != 'set' else ''})"
        if how == "set":
            checks.accumulated(tree, scope, word)
        else:
            check_continued(tree, scope, how, word)
        spec = tree.spec
        name = spec.accumulated
        value = spec.initial if init is None or callable(init) else float(init)
        first = checks.finished(
            tree, init if callable(init) else None, Strategy(spec.setting(name, scope, value)), word
        )
        last = checks.finished(tree, store, Strategy(spec.storing(name, scope)), word)
        after = spec.with_operand(name, scope)
        return tree._after(AccumulateStep(spec, after, users_line("accumulate_in"), scope, first, last, how))

    def apply(
        self, strategy: Callable[Concatenate[Strategy, P], Strategy], *args: P.args, **options: P.kwargs
    ) -> Strategy:
        """strategy(tree, ...): a part of a decomposition that has a name."""
        return strategy(self._tree(), *args, **options)

    def done(self, leaf: MicroKernel | Fold | None = None, *, by: TaskMapping | None = None) -> Strategy:
        """The spec is what one instruction does, or loops of instructions that lowering chooses; or ``leaf``, a
        micro-kernel (``micro_kernel``), performs it.

        MatMul(16, 8, 16)(RF,RF,RF)(Warp).done()   ->  mma_m16n8k16
        MatMul(1, 1, 1)(RF,RF,RF)(Thread).done()   ->  a multiply-add
        Move(...)(Block).done()                    ->  a copy shared out among the threads of the block
        MatMul(8, 8, 1)(RF,RF,RF)(Thread).done(outer)   ->  the statements of outer

        by: of a copy, or of element-wise work, a mapping whose tasks are equal chunks, on the threads of the level; a
        chunk's neighbours are one vector where all of them exist. The registers of moves before hold what it gives to
        their threads, and the threads of a block combine the sums among them. Of a fold, the leaf of a sum, it gives
        elements to threads; those that differ along the sum alone combine theirs.
        """
        tree = self._tree()
        word = "done()" if leaf is None else f"done({getattr(leaf, 'name', '...')})"
        checks.unfinished(tree, word)
        if isinstance(leaf, Fold) and by is not None:
            checks.mapping_of_leaf(tree, by, ("reduce",))
            return tree._after(DoneStep(tree.spec, tree.spec, users_line("done"), None, by, fold=leaf))
        if by is not None and leaf is not None:
            why = "it is given both a micro-kernel and a mapping, and the micro-kernel divides the work."
            raise refusal(word, tree, why, "Give one of them.")
        if by is not None:
            checks.mapping_of_leaf(tree, by)
        found = leaf_of(tree, leaf, shared_out=by is not None)
        if found.why:
            raise refusal(word, tree, found.why, found.way_out)
        return tree._after(DoneStep(tree.spec, tree.spec, users_line("done"), found.by, by))

    # Refinements of the step before

    def unroll(self, times: int = 0) -> Strategy:
        """The loop of a ``tile`` in order, or of a ``split``, is unrolled; loops over registers always are. times: so
        many parts of a split at a time, if the whole loop would be too long for the instruction cache."""
        tree, word = self._tree(), f"unroll({times or ''})"
        if not times:
            return tree._refined(replace(checks.last(tree, (TileStep, SplitStep), word, "tile or split"), unroll=True))
        step = checks.last(tree, SplitStep, word, "split")
        checks.count(tree, times, 2, word)
        return tree._refined(replace(step, unroll=True, times=times))

    def layout(self, order: str) -> Strategy:
        """The workers, or the loop, of a ``tile`` go through the tiles by "row" or by "column", one matrix of a batch
        after another."""
        tree = self._tree()
        word = f"layout({order!r})"
        step = checks.last(tree, TileStep, word, "tile")
        return tree._refined(replace(step, by_columns=checks.order(tree, order, word)))

    def group(self, rows: int) -> Strategy:
        """Blocks that run together take ``rows`` rows of tiles, column by column, so that they share operands in L2.
        Their grid has one dimension; group(1) changes nothing else. Of the threads of a whole grid, ``rows`` neighbours
        are a block (256, if nothing is said)."""
        tree = self._tree()
        step = checks.last(tree, TileStep, f"group({rows})", "tile(...).to(BLOCK)")
        checks.group(tree, step, rows)
        return tree._refined(replace(step, group=rows))

    def specialize(self, workers: Level, role: str) -> Strategy:
        """One more warpgroup of each block fetches what the moves after the first ``split`` prefetch; the others
        multiply. An mbarrier for each stage says that it is full, another that it is empty (CUTLASS, "warp
        specialization"). TMA copies operands whose rows are aligned to 16 bytes; threads copy others.

        workers: WARPGROUP. role: "fetch".
        """
        word = f"specialize({workers.name}, {role!r})"
        tree = self._tree()
        step = checks.last(tree, TileStep, word, "tile(...).to(BLOCK)")
        checks.specialized(tree, step, workers, role, word)
        return tree._refined(replace(step, fetched=True))

    def split_sum(self, workers: int) -> Strategy:
        """The sum of each tile is shared by ``workers`` workers of the level: each adds a part of the terms.

        MatMul(m, n, k)  .tile(64, 64).to(BLOCK).split_sum(4)   ->  4 blocks for each tile; the last to arrive adds
                                                                    their sums, in order (split-k of CUTLASS)
        MatMul(64, 64, 32).tile(32, 32).to(WARP).split_sum(2)   ->  2 warps for each tile, 16 terms each; the first adds
                                                                    the other's sums by way of shared memory
        """
        tree = self._tree()
        word = f"split_sum({workers})"
        step = checks.last(tree, TileStep, word, "tile(...).to(level)")
        size = checks.split_sum(tree, step, workers, word)
        return tree._refined(replace(step, parts=workers, after=step.after.with_extents({step.after.summed: size})))

    def persistent(self) -> Strategy:
        """The grid has as many blocks as the target has multiprocessors, and each takes tiles in turns. A warpgroup
        that fetches goes on to the next tile while the others finish theirs (CUTLASS, "persistent kernels").

        MatMul(m, n, k).tile(128, 128).to(BLOCK)                ->  a block for each tile
        MatMul(m, n, k).tile(128, 128).to(BLOCK).persistent()   ->  block b of p: tiles b, b + p, b + 2 p, ...
        """
        tree = self._tree()
        step = checks.last(tree, TileStep, "persistent()", "tile(...).to(BLOCK)")
        checks.persistent(tree, step)
        return tree._refined(replace(step, persistent=True))

    def parallel(self, least: int = 0, tasks: int | None = None) -> Strategy:
        """Cores share the tiles if the whole spec has at least ``least`` elements, or terms of a sum. tasks: enough for
        all cores; the slowest axes that have as many tiles together are shared, and each core has loops over the rest.

        Compute(64, m, n).tile(1, 32, 32).to(CORE)                         ->  all tiles are one shared loop
        Compute(64, m, n).tile(1, 32, 32).to(CORE).parallel(20_000, 16)    ->  64 shared iterations, each with a loop
                                                                               over tiles; below 20,000, no threads
        """
        tree = self._tree()
        word = f"parallel({least}{'' if tasks is None else f', {tasks}'})"
        step = checks.last(tree, TileStep, word, "tile(...).to(CORE)")
        check_parallel(tree, step, least, tasks, word)
        return tree._refined(replace(step, least=least, tasks=tasks or 0))

    def vectorize(self, lanes: int) -> Strategy:
        """A copy, or element-wise work, of one core is a loop over its elements: ``lanes`` neighbours along the last
        axis at a time, the rest in halving widths, or one by one if its number is known at run time only. Loops of this
        kind end where the problem ends; so does the element-wise work of a thread, in vectors like these.

        Compute(32, 32)(Core).done()                  ->  for i: for j:  y[i, j] = ...
        Compute(32, 32)(Core).done().vectorize(16)    ->  for i: for j in 0, 16:  y[i, j : j + 16] = ...
        """
        tree = self._tree()
        word = f"vectorize({lanes})"
        step = checks.last(tree, DoneStep, word, "done()")
        check_vectors(tree, step, lanes, word)
        return tree._refined(replace(step, lanes=lanes))

    def pad(self, elements: int) -> Strategy:
        """The lines of the copy in shared memory lie ``elements`` further apart, against bank conflicts."""
        step, tree = checks.shared(self._tree(), f"pad({elements})")
        checks.count(tree, elements, 1, f"pad({elements})")
        return tree._refined(replace(step, pad=elements))

    def storage(self, order: str) -> Strategy:
        """The copy in shared memory is stored by "row" or by "column"."""
        step, tree = checks.shared(self._tree(), f"storage({order!r})")
        return tree._refined(replace(step, by_columns=checks.order(tree, order, f"storage({order!r})")))

    def swizzle(self, bits: int, base: int, shift: int) -> Strategy:
        """The addresses of the copy in shared memory are mixed as by ``Layout.swizzled``, against bank conflicts."""
        step, tree = checks.shared(self._tree(), f"swizzle({bits}, {base}, {shift})")
        return tree._refined(replace(step, swizzle=(bits, base, shift)))

    def prefetch(self, stages: int) -> Strategy:
        """``stages`` copies, one in use while the next ones are fetched; the step follows the ``split`` of the sum."""
        step, tree = checks.shared(self._tree(), f"prefetch({stages})")
        checks.prefetch(tree, stages)
        return tree._refined(replace(step, stages=stages))

    def asynchronous(self) -> Strategy:
        """The copy to shared memory does not pass through registers (cp.async), where the operand's rows are aligned to
        its chunks; elsewhere it does. The copy of a warpgroup from shared memory, by which sums are stored, is TMA's
        where rows are aligned; elsewhere threads store what they hold.

        Move(c:128x256)(RF->GL)(Block).move("src", SHARED).tile(64, 256).to(WARPGROUP).done().asynchronous()
            ->  c: RF -> SH by all threads;  SH -> GL by TMA, 64 rows for each warpgroup
        """
        tree = self._tree()
        if tree.is_done:
            return tree._refined(replace(checks.boxed(tree), asynchronous=True))
        step, tree = checks.shared(tree, "asynchronous()")
        return tree._refined(replace(step, asynchronous=True))

    def multicast(self, workers: Level) -> Strategy:
        """The blocks of a cluster that use the same part of an operand fetch a share of its rows each, for all of them,
        where TMA fetches it.

        MatMul(m, n, k).tile(256, 128).to(CLUSTER).tile(128, 128).to(BLOCK): both blocks of a cluster use the same b
        .move("b", SHARED).prefetch(4)                      ->  each block: b[k, n] -> its stage
        .move("b", SHARED).prefetch(4).multicast(CLUSTER)   ->  block r of 2: half r of b[k, n] -> the stages of both
        """
        word = f"multicast({workers.name})"
        step, tree = checks.shared(self._tree(), word)
        checks.multicast(tree, step, workers, word)
        return tree._refined(replace(step, multicast=True))

    def no_sync(self) -> Strategy:
        """No barriers for this copy in shared memory, because each thread reads only what it has copied.

        .move("a", SHARED).no_sync()    ->  no barrier between the threads that write a's copy and those that read it

        ``kernel`` refuses it where two threads provably share bytes that one of them writes. Where that is not known,
        the printed tree says so, and the simulator's check for races decides.
        """
        step, tree = checks.shared(self._tree(), "no_sync()")
        checks.unsynchronised(tree, step)
        return tree._refined(replace(step, synchronised=False))

    # Results

    def mapping(self, operand: str) -> TaskMapping:
        """The workers that hold, or copy, each element of an operand: its slots are their registers, or their tasks in
        order. The workers are those of the level at which the operand was put there; see ``mapping_of``."""
        return mapping_of(self._tree(), operand)

    def svg(self) -> str:
        """A drawing of the tree as an SVG document: specs, steps, and the mapping of each operand (Fireiron, figure 3).
        A notebook shows it."""
        return svg_of(self._tree())

    _repr_svg_ = svg

    def kernel(self, name: str = "", /, **sizes: int) -> Kernel:
        """The kernel that the tree means, on its operands in order; for ``taskmap.build`` and ``taskmap.simulate``.

        sizes: values for symbolic sizes, by name; the others remain arguments. Raises ScheduleError for a tree that is
        not finished, or that needs more threads, registers or shared memory than a block has.
        """
        return kernel_of(self._tree(), name, sizes)


@dataclass(frozen=True, slots=True)
class Strategy(Tree, Primitives):
    """A tree: a spec, and the steps that decompose it so far. Immutable; each primitive gives a new one."""

    def _tree(self) -> Strategy:
        return self

    def _after(self, step: Step) -> Strategy:
        return replace(self, steps=(*self.steps, step))

    def _refined(self, step: Step) -> Strategy:
        return replace(self, steps=(*self.steps[:-1], step))

    def __str__(self) -> str:
        """The tree; a finished one with the barriers, the memory and the workers of its kernel."""
        return show(self, *facts_of(self)) if self.is_done else show(self)

    __repr__ = __str__


def _converting(copy: Spec, dtype: DType | None) -> Spec:
    """A copy whose result is of another type."""
    return copy if dtype is None else copy.with_operand("dst", copy.operands[1].scope, dtype)


def replace_level(spec: Spec, level: Level) -> Spec:
    """The same spec for another level."""
    return spec.with_extents({}, level)
