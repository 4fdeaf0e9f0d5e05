"""The steps of a decomposition, as data. A tree is a spec and the steps that decompose it, outermost first.

TileStep         the spec on one tile; tiles in order, or one for each worker of a level
SplitStep        the spec on one part of the sum, part after part
MoveStep         an operand copied to another memory, by a tree of its own; then the spec on the copy
AccumulateStep   results summed in another memory: a tree that sets it, the spec, a tree that stores it
DoneStep         one instruction, or loops of instructions that lowering chooses
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

from taskmap.ir.algebra.mapping import TaskMapping
from taskmap.ir.construct import static_size
from taskmap.ir.decompose.groups.fold import Fold
from taskmap.ir.decompose.levels import Level
from taskmap.ir.decompose.spec import Spec
from taskmap.ir.expressions import Scope
from taskmap.ir.isa.entry import Instruction
from taskmap.ir.isa.specs import MicroKernelSpec
from taskmap.ir.source import SourceLocation
from taskmap.ir.types import DType

_THREADS = 256
"""The threads of a block of those of a whole grid, if nothing is said."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The tiles of one axis: ``width`` neighbours, and so again after each ``stride``; 0: only once."""

    axis: str
    width: int
    stride: int = 0

    def __str__(self) -> str:
        return f"({self.width}, {self.stride})" if self.stride else str(self.width)


@dataclass(frozen=True, slots=True)
class _Step:
    """The spec before and after a step, and the user's line."""

    before: Spec
    after: Spec
    source: SourceLocation | None = field(compare=False, repr=False)

    def rewritten(self, of: Callable[[Spec], Spec]) -> Any:
        """The step with ``of`` each of its specs."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        trees: dict[str, Any] = {name: v.rewritten(of) for name, v in values.items() if isinstance(v, Tree)}
        return replace(self, before=of(self.before), after=of(self.after), **trees)


@dataclass(frozen=True, slots=True)
class TileStep(_Step):
    """Tiles by ``cuts``. level: None for tiles in order. by_columns: m varies fastest, not n. unroll: of loops.
    group: blocks are numbered by groups of this many rows of tiles; or of threads of the whole grid, those of a block.
    fetched: one more warpgroup fetches. parts: the workers that share the sum of each tile. persistent: as many blocks
    as multiprocessors take the tiles in turns. least: elements of the whole spec from which on cores share the tiles;
    None: always. tasks: enough tiles to share, along the slowest axes, so that a core has loops over the rest; 0: all
    are shared."""

    cuts: tuple[Cut, ...]
    level: Level | None = None
    by_columns: bool = False
    unroll: bool = False
    group: int = 0
    fetched: bool = False
    parts: int = 1
    persistent: bool = False
    least: int | None = None
    tasks: int = 0

    @property
    def order(self) -> list[str]:
        """The axes, the slowest first. Those of a batch are the slowest in either order."""
        axes = [c.axis for c in self.cuts]
        lead = sum(a.startswith("batch") for a in axes)
        return [*axes[:lead], *axes[lead:][::-1]] if self.by_columns else axes

    @property
    def threads_of_grid(self) -> int:
        """The threads of a block, if threads of the whole grid take the tiles; else 0."""
        is_flat = self.level is Level.THREAD and self.before.level is Level.KERNEL
        return (self.group or _THREADS) if is_flat else 0

    @property
    def part(self) -> Cut | None:
        """The part of the sum that each worker of a block adds, if several share it."""
        size = static_size(self.after.extent(self.after.summed)) if self.parts > 1 else None
        return None if size is None or self.level is Level.BLOCK else Cut(self.after.summed, size)

    def __str__(self) -> str:
        parts = [f".tile({', '.join(map(str, self.cuts))})"]
        parts += [f".to({self.level.name})"] if self.level else []
        parts += [".layout('column')"] if self.by_columns else []
        parts += [f".group({self.group})"] if self.group else []
        parts += [".specialize(WARPGROUP, 'fetch')"] if self.fetched else []
        parts += [f".split_sum({self.parts})"] if self.parts > 1 else []
        parts += [".persistent()"] if self.persistent else []
        if self.least is not None:
            parts += [f".parallel({self.least}{f', tasks={self.tasks}' if self.tasks else ''})"]
        return "".join([*parts, ".unroll()" if self.unroll else ""])


@dataclass(frozen=True, slots=True)
class SplitStep(_Step):
    """Parts of ``size`` along the axis of the sum. times: as many parts at a time are unrolled; 0: all."""

    size: int
    unroll: bool = False
    times: int = 0

    def __str__(self) -> str:
        unrolled = f".unroll({self.times or ''})" if self.unroll else ""
        return f".split({self.size}){unrolled}"


@dataclass(frozen=True, slots=True)
class MoveStep(_Step):
    """The operand ``name`` in ``scope``; ``how``: the tree of the copy. by: the mapping of the copy, if given.

    pad: unused elements after each line. by_columns: lines are columns. swizzle: (bits, base, shift) of a Layout.
    stages: buffers, of which all but one are filled ahead. asynchronous: with cp.async where rows are aligned.
    multicast: blocks of a cluster that use the same part fetch it together. synchronised: barriers stand between the
    threads that write the copy and those that read it. dtype: of the copy, if it converts.
    """

    name: str
    scope: Scope
    how: Tree
    by: TaskMapping | None = None
    pad: int = 0
    by_columns: bool = False
    swizzle: tuple[int, int, int] | None = None
    stages: int = 1
    asynchronous: bool = False
    multicast: bool = False
    synchronised: bool = True
    dtype: DType | None = None

    def __str__(self) -> str:
        by, dtype = f", by={self.by}" if self.by else "", f", dtype={self.dtype}" if self.dtype else ""
        parts = [f".move({self.name!r}, {self.scope.name}{by}{dtype})"]
        parts += [".storage('column')"] if self.by_columns else []
        parts += [f".pad({self.pad})"] if self.pad else []
        parts += [f".swizzle{self.swizzle}"] if self.swizzle else []
        parts += [f".prefetch({self.stages})"] if self.stages > 1 else []
        parts += [".asynchronous()"] if self.asynchronous else []
        parts += [".multicast(CLUSTER)"] if self.multicast else []
        return "".join([*parts, "" if self.synchronised else ".no_sync()"])


CONTINUED = ("resume", "add")
"""The ways in which sums continue those of an outer ``accumulate_in``."""


@dataclass(frozen=True, slots=True)
class AccumulateStep(_Step):
    """Sums in ``scope``, which ``init`` sets and ``store`` moves to the place of the results. how: "set", or one of
    ``CONTINUED``: sums begin as the results that are there ("resume"), or are added to them ("add")."""

    scope: Scope
    init: Tree
    store: Tree
    how: str = "set"

    def __str__(self) -> str:
        return f".accumulate_in({self.scope.name}{f', how={self.how!r}' if self.how != 'set' else ''})"


@dataclass(frozen=True, slots=True)
class DoneStep(_Step):
    """The end. by: the instruction that does the spec; None if lowering chooses it. mapping: of equal chunks of the
    result to workers, if given. lanes: the neighbours that a core's loop takes at a time; 0: no loop is asked for.
    asynchronous: TMA copies from shared memory. fold: the leaf of a sum whose elements are in no memory."""

    by: Instruction | None = None
    mapping: TaskMapping | None = None
    lanes: int = 0
    asynchronous: bool = False
    fold: Fold | None = None

    def __str__(self) -> str:
        if self.by is not None and isinstance(self.by.spec, MicroKernelSpec):
            return f".done({self.by.spec.name})"
        given = f"{f'{self.fold}, ' if self.fold else ''}by={self.mapping}" if self.mapping else ""
        vectors = f".vectorize({self.lanes})" if self.lanes else ""
        vectors += ".asynchronous()" if self.asynchronous else ""
        return f".done({given}){vectors}{f'   {self.by.name}' if self.by else ''}"


Step = TileStep | SplitStep | MoveStep | AccumulateStep | DoneStep


@dataclass(frozen=True, slots=True)
class Tree:
    """A spec and the steps that decompose it so far."""

    root: Spec
    steps: tuple[Step, ...] = ()

    def rewritten(self, of: Callable[[Spec], Spec]) -> Tree:
        """The tree with ``of`` each of its specs, those of its copies too."""
        return replace(self, root=of(self.root), steps=tuple(s.rewritten(of) for s in self.steps))

    @property
    def spec(self) -> Spec:
        """The spec that the next step decomposes."""
        return self.steps[-1].after if self.steps else self.root

    @property
    def is_done(self) -> bool:
        """True if nothing is left to decompose."""
        return bool(self.steps) and isinstance(self.steps[-1], DoneStep)
