"""The conditions of the primitives. Each check returns what the primitive needs, or raises the refusal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar
from typing import cast as typed

from taskmap.ir.algebra.mapping import TaskMapping
from taskmap.ir.construct import ceil_div, static_size
from taskmap.ir.decompose.blocks.multicast import blocks_of_cluster, sharing
from taskmap.ir.decompose.levels import HELD, SCOPE_NAMES, Level
from taskmap.ir.decompose.micro.call import micro_kernel_of
from taskmap.ir.decompose.ownership import with_leading_dims
from taskmap.ir.decompose.refusal import refusal
from taskmap.ir.decompose.steps import AccumulateStep, Cut, DoneStep, MoveStep, SplitStep, TileStep, Tree
from taskmap.ir.expressions import Dim, Scope
from taskmap.ir.types import DType

_LINES = 8
T = TypeVar("T")
R = TypeVar("R", bound=Tree)
MOST_THREADS, MOST_BLOCKS = 1024, 8
"""The threads of the largest block, and the blocks of the largest cluster that every GPU with clusters has."""


def unfinished(tree: Tree, word: str) -> None:
    """The tree has a spec left to decompose."""
    if tree.is_done:
        raise refusal(word, tree, "the tree is finished: nothing is left to decompose.", "Leave out the last done().")


def cuts(tree: Tree, sizes: Sequence[Any]) -> tuple[Cut, ...]:
    """The tiles of every axis."""
    word, spec = f"tile{tuple(sizes)}", tree.spec
    axes = spec.tiled
    batch = [axis for axis in axes if axis.startswith("batch")]
    missing = len(axes) - len(sizes)
    if missing and not 0 < missing <= len(batch):
        raise refusal(
            word, tree, f"it has {len(axes)} axes to tile ({', '.join(axes)}), and {len(sizes)} sizes are given.",
            "Give one size for each axis but that of the sum, which split(...) divides.",
        )  # fmt: skip
    return tuple(_cut(tree, word, axis, size) for axis, size in zip(axes, [*[1] * missing, *sizes], strict=True))


def _cut(tree: Tree, word: str, axis: str, size: Any) -> Cut:
    pair: tuple[Any, Any] = size if isinstance(size, tuple) and len(size) == 2 else (size, 0)
    width, stride = pair
    if not all(isinstance(n, int) and not isinstance(n, bool) for n in (width, stride)) or width < 1:
        raise refusal(word, tree, f"{size!r} is not the size of a tile.", "Give an int, or (width, stride).")
    if stride and (stride < width or stride % width):
        raise refusal(
            word, tree, f"pieces of {width} cannot be {stride} apart along {axis}: tiles would share elements.",
            f"Choose a multiple of {width} as the stride.",
        )  # fmt: skip
    whole = static_size(tree.spec.extent(axis))
    if tree.spec.level is Level.KERNEL and not stride:
        return Cut(axis, width, stride)  # the size of a problem need not be a multiple: edges are predicated
    step = stride or width
    if whole is None:
        raise refusal(word, tree, f"the stride {stride} cannot divide {axis}, whose size is symbolic.", "Tile first.")
    if whole < step:
        raise refusal(
            word, tree, f"the tile is larger than the spec: {step} along {axis}, which has {whole}.",
            f"Choose a tile of at most {whole}.",
        )  # fmt: skip
    if whole % step:
        fitting = max(n for n in range(1, step) if whole % n == 0)
        raise refusal(
            word, tree, f"{step} along {axis} does not divide {whole}.",
            f"Choose a divisor, such as {fitting}; only the sizes of a problem need not be multiples.",
        )  # fmt: skip
    return Cut(axis, width, stride)


def last(tree: Tree, kind: Any, word: str, needed: str) -> Any:
    """The last step, which must be of a kind."""
    step = tree.steps[-1] if tree.steps else None
    if not isinstance(step, kind):
        raise refusal(word, tree, f"it refines the step before, which is not {needed}.", f"Write it after {needed}.")
    return step


def count_of(step: TileStep) -> int | None:
    """The number of tiles; None if it is symbolic."""
    total = 1
    for cut in step.cuts:
        whole = static_size(step.before.extent(cut.axis))
        if whole is None:
            return None
        total *= -(-(cut.stride or whole) // cut.width)
    return total


def workers(tree: Tree, step: TileStep, level: Level) -> None:
    """The tiles of a step can be given to the workers of a level."""
    word, above = f"to({level.name})", step.before.level
    if step.level is not None:
        raise refusal(word, tree, f"the tiles are given to {step.level.name} already.", "Tile once more before it.")
    if not above.is_above(level):
        relation = "the same level" if above is level else "not below it"
        raise refusal(
            word, tree, f"the spec is a {above.value}'s, and {level.name} is {relation}.",
            "Give tiles to smaller groups of workers: BLOCK, then WARP, then THREAD; or CORE, then LANES.",
        )  # fmt: skip
    if above is Level.KERNEL and level not in (Level.BLOCK, Level.CLUSTER, Level.THREAD, Level.CORE):
        raise refusal(
            word, tree, "a kernel is made of blocks of threads, or on a CPU of cores.",
            f".tile(...).to(BLOCK) first; then tile the block's spec to {level.name}.",
        )  # fmt: skip
    outer = tree.steps[-2] if len(tree.steps) > 1 else None
    if above is Level.CLUSTER and (level is not Level.BLOCK or getattr(outer, "level", None) is not Level.CLUSTER):
        why = "the tile of a cluster is divided among its blocks at once."
        raise refusal(word, tree, why, "Write .tile(...).to(BLOCK) directly after to(CLUSTER).")
    if level is Level.QUAD_PAIR and (above is not Level.WARP or tree.spec.kind != "matmul"):
        why = "quad-pairs divide the product of one warp, which executes it in one instruction."
        raise refusal(word, tree, why, "Tile a product to WARP first.")
    looped = any(isinstance(s, TileStep) and s.level is None for s in tree.steps[:-1])
    if looped and above is Level.KERNEL and level is not Level.CORE:
        why = "blocks cannot be started inside a loop."
        raise refusal(word, tree, why, f"Give the outermost tiles to {level.name}.")
    _fits(tree, step, level, word)


def _fits(tree: Tree, step: TileStep, level: Level, word: str) -> None:
    count, above = count_of(step), step.before.level
    if above is Level.CLUSTER and (count or 0) > MOST_BLOCKS:
        why = f"it takes {count} blocks; a cluster has at most {MOST_BLOCKS}."
        raise refusal(word, tree, why, "Choose larger tiles of blocks, or a smaller one of the cluster.")
    if count is None or level in (Level.BLOCK, Level.CORE) or above is Level.KERNEL:
        return
    room = above.threads // level.threads if above.threads and level.threads else 0
    if level is not Level.LANES and room and count != room:
        raise refusal(
            word, tree, f"there are {count} tiles, and a {above.value.lower()} has {room} {level.value.lower()}s.",
            f"Choose tiles so that there are {room}; tile(...) before it makes several rounds.",
        )  # fmt: skip
    _enough_threads(tree, level, count, word)


def _enough_threads(tree: Tree, level: Level, workers: int, word: str) -> None:
    if workers * level.threads > MOST_THREADS:
        raise refusal(
            word, tree, f"it takes {workers * level.threads} threads; a block has at most {MOST_THREADS}.",
            "Choose larger tiles, or make several rounds with tile(...) before it.",
        )  # fmt: skip


def split(tree: Tree, size: Any) -> None:
    """The sum can be cut into parts of ``size``."""
    word, spec = f"split({size})", tree.spec
    unfinished(tree, word)
    if not spec.summed:
        raise refusal(word, tree, "it has no sum to split.", "Use tile(...) for its axes.")
    count(tree, size, 1, word)
    whole = static_size(spec.extent(spec.summed))
    inner = any(isinstance(s, SplitStep) and s.before.summed == spec.summed for s in tree.steps)
    if whole is not None and inner and whole % size:
        raise refusal(word, tree, f"{size} does not divide {whole}, a part of the sum.", "Choose a divisor.")


def split_sum(tree: Tree, step: TileStep, n: Any, word: str) -> Dim:
    """The terms of each worker, if ``n`` workers can share the sums of the tiles."""
    count(tree, n, 2, word)
    spec, above, name = tree.spec, step.before.level, step.level
    if spec.kind != "matmul":
        raise refusal(word, tree, "workers share the sums of products.", "Reduce a stage by warps instead.")
    if step.persistent:
        persistent(tree, replace(step, parts=n))
    if name is Level.BLOCK and above is Level.KERNEL:
        return ceil_div(spec.extent(spec.summed), n)
    if name is None or above is not Level.BLOCK:
        whose = f"the tiles of a {above.value.lower()} are " + (f"given to {name.name}" if name else "made in order")
        raise refusal(word, tree, f"{whose}.", "Write it after to(BLOCK), or where a block's tiles are given to warps.")
    if not any(isinstance(s, AccumulateStep) and s.scope is Scope.REGISTER for s in tree.steps):
        why = "each worker would store its own part of the sum, or hold it where nobody else can add it."
        raise refusal(word, tree, why, "Write accumulate_in(REGISTER) before these tiles.")
    whole = static_size(spec.extent(spec.summed))
    if whole is None or whole % n:
        size = f"a part of the sum has {whole} terms" if whole else "the number of terms is symbolic"
        why = f"{size}, which {n} workers cannot share."
        raise refusal(word, tree, why, f"split(...) by a multiple of {n} before it.")
    _enough_threads(tree, name, (count_of(step) or 1) * n, word)
    return ceil_div(whole, n)


def persistent(tree: Tree, step: TileStep) -> None:
    """Blocks can take the tiles in turns."""
    if step.before.level is not Level.KERNEL or step.level not in (Level.BLOCK, Level.CLUSTER):
        raise refusal("persistent()", tree, "only blocks take tiles in turns.", "Write it after the first to(BLOCK).")
    if step.parts > 1:
        why = "the last block of a tile adds up what the others have, so none can go on to its next tile."
        raise refusal("persistent()", tree, why, "Leave out persistent(), or split_sum.")


def count(tree: Tree, value: Any, least: int, word: str) -> None:
    """A number is an int of at least ``least``."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise refusal(word, tree, f"{value!r} is not an int of at least {least}.", f"Give at least {least}.")


def order(tree: Tree, name: str, word: str) -> bool:
    """True for "column", False for "row"."""
    if name not in ("row", "column"):
        raise refusal(word, tree, f"{name!r} is not an order.", "Use 'row' or 'column'.")
    return name == "column"


def moved(tree: Tree, name: str, scope: Scope, word: str, dtype: DType | None = None) -> None:
    """An operand can be moved."""
    unfinished(tree, word)
    spec = tree.spec
    operand = spec.operand(name)
    if operand is None:
        names = ", ".join(repr(o.name) for o in spec.operands)
        raise refusal(word, tree, f"it has no operand {name!r}.", f"Its operands are {names}.")
    if name == spec.written:
        raise refusal(
            word, tree, f"{name} is written: a copy of it would have to be stored, too.",
            "Use accumulate_in(...), or move the source of a copy.",
        )  # fmt: skip
    fetched = scope is Scope.SHARED and any(isinstance(s, TileStep) and s.fetched for s in tree.steps)
    if dtype is not None and (not (scope is Scope.REGISTER or fetched) or spec.kind != "matmul"):
        why = "only operands of products are converted, in REGISTER or by a warpgroup that fetches."
        raise refusal(word, tree, why, "Leave dtype out, or let the stage that uses the operand convert it.")
    if operand.scope is scope and dtype in (None, operand.dtype):
        raise refusal(word, tree, f"{name} is in {SCOPE_NAMES[scope]} already.", "Leave this move out.")
    if {operand.scope, scope} == {Scope.REGISTER, Scope.FRAGMENT}:
        why = "nobody knows which register of a fragment holds which element."
        raise refusal(word, tree, why, f"Move {name} to {scope.name} from memory.")
    seen(tree, scope, word)
    why, way_out = spec.why_not_moved(name, scope)
    if why:
        raise refusal(word, tree, why, way_out)
    if spec.static_shape(operand) is None:
        raise refusal(word, tree, f"memory for {name} cannot have a symbolic size.", "Tile or split first.")


def seen(tree: Tree, scope: Scope, word: str) -> None:
    """A worker of the level has memory of that scope."""
    level = tree.spec.level
    if level is Level.QUAD_PAIR:
        why = "the instruction of quad-pairs takes the operands of their whole warp."
        raise refusal(word, tree, why, "Write it before .to(QUAD_PAIR).")
    if scope is Scope.GLOBAL or not level.sees(scope):
        raise refusal(
            word, tree, f"a {level.value.lower()} has no {scope.value} memory of its own.",
            "Move to SHARED where the spec is a block's, and to REGISTER anywhere below the kernel.",
        )  # fmt: skip
    if scope not in (Scope.SHARED, *HELD) and not (scope is Scope.LOCAL and level is Level.CORE):
        raise refusal(word, tree, f"copies in {scope.name} are not lowered.", "Use SHARED, REGISTER or FRAGMENT.")


def accumulated(tree: Tree, scope: Scope, word: str) -> None:
    """Sums can be held in ``scope``."""
    unfinished(tree, word)
    spec = tree.spec
    if not spec.accumulated:
        raise refusal(word, tree, "it sums nothing.", "Use move(...) for its operands.")
    if any(isinstance(s, AccumulateStep) for s in tree.steps):
        held = spec.operand(spec.accumulated)
        assert held is not None
        raise refusal(
            word, tree, f"{held.name} is accumulated in {SCOPE_NAMES[held.scope]} already.", "Keep one accumulate_in."
        )
    if any(isinstance(s, SplitStep) for s in tree.steps):
        why = "every part of the sum would start anew and overwrite the result."
        raise refusal(word, tree, why, "Write accumulate_in before split.")
    seen(tree, scope, word)
    if scope not in HELD and not (scope is Scope.LOCAL and spec.kind == "matmul"):
        raise refusal(word, tree, "sums are held in registers.", "Use REGISTER, or FRAGMENT.")
    shared = [s for s in tree.steps if isinstance(s, TileStep) and s.parts > 1]
    if shared and (scope is Scope.FRAGMENT or shared[0] is not tree.steps[-1]):
        holders = "registers" if scope is Scope.FRAGMENT else "whole blocks"
        why = f"the workers that share a sum combine what {holders} hold."
        raise refusal(word, tree, why, "Write accumulate_in(REGISTER) directly after split_sum.")
    operand = spec.operand(spec.accumulated)
    assert operand is not None
    if spec.static_shape(operand) is None:
        raise refusal(word, tree, "registers cannot hold a symbolic number of sums.", "Tile first.")


def finished(tree: Tree, how: Callable[[R], R] | None, side: R, word: str) -> R:
    """The tree of a copy, decomposed by ``how`` or left to lowering."""
    made: Any = how(side) if how is not None else side.done()  # type: ignore[attr-defined]  # a tree with primitives
    if not isinstance(made, Tree) or made.root != side.root:
        given = f"a decomposition of {made.root}" if isinstance(made, Tree) else repr(made)
        raise refusal(word, tree, f"its function gives {given}, not one of {side.root}.", "Return the tree.")
    if not made.is_done:
        raise refusal(word, made, f"the copy is not finished: {made.spec} is left.", "End it with .done().")
    return typed(R, made)


def given_mapping(tree: Tree, by: TaskMapping, name: str, word: str, *, also_how: bool) -> TaskMapping:
    """The mapping of a copy, which divides it into whole chunks; a matrix of a batch has leading dimensions of 1."""
    operand = tree.spec.operand(name)
    shape = tree.spec.static_shape(operand) if operand else None
    assert shape is not None
    if operand is not None and not operand.made:
        raise refusal(word, tree, f"{name} is computed, not copied.", "Divide it by a decomposition of its stage.")
    if also_how:
        raise refusal(word, tree, "it is given both a mapping and a decomposition.", "Give one of them.")
    return _whole_chunks(tree, by, shape, word)


def mapping_of_leaf(tree: Tree, by: TaskMapping, kinds: Sequence[str] = ("move", "compute")) -> None:
    """A mapping divides the elements of a leaf, of one of these kinds, into whole chunks."""
    word, spec = "done(by)", tree.spec
    if spec.kind not in kinds or spec.level not in (Level.BLOCK, Level.WARPGROUP, Level.WARP):
        why = "only threads share out the elements of copies and of element-wise work."
        raise refusal(word, tree, why, "Leave out by, or give it to the leaf of a Move or a Compute of a BLOCK.")
    held = [o.name for o in spec.operands if o.scope in HELD]
    if held and spec.kind == "move":
        raise refusal(word, tree, f"{held[0]} is in registers, so its holders do the work.", "Leave out by.")
    _enough_threads(tree, Level.THREAD, by.num_workers, word)
    _whole_chunks(tree, by, tuple(static_size(n) or 1 for _, n in spec.extents), word)


def _whole_chunks(tree: Tree, by: TaskMapping, shape: tuple[int, ...], word: str) -> TaskMapping:
    lead = len(shape) - len(by.task_shape)
    fits = lead >= 0 and all(n == 1 for n in shape[:lead])
    fits = fits and not any(n % t for n, t in zip(shape[lead:], by.task_shape, strict=True))
    if not fits or not by.is_partition:
        raise refusal(
            word, tree, f"{by} has {list(by.task_shape)} tasks, which are not whole chunks of {list(shape)}.",
            "Compose a mapping of repeat and spatial whose tasks divide the operand.",
        )  # fmt: skip
    return with_leading_dims(by, lead)


def shared(tree: R, word: str) -> tuple[MoveStep, R]:
    """The last step is a copy to shared memory."""
    step = last(tree, MoveStep, word, "move(..., SHARED)")
    if step.scope is not Scope.SHARED:
        why = f"{step.name} moves to {SCOPE_NAMES[step.scope]}."
        raise refusal(word, tree, why, "Only copies in shared memory are refined.")
    if word.startswith(("prefetch", "asynchronous")) and step.how.root.kind != "move":
        raise refusal(word, tree, f"{step.name} is computed, not copied.", "Fetch its operands ahead instead.")
    if word.startswith(("prefetch", "asynchronous")) and micro_kernel_of(step.how) is not None:
        why = f"a micro-kernel copies {step.name}, and nothing is known of its loads."
        raise refusal(word, tree, why, "Leave the copy to done(), or its stages out.")
    return step, tree


def boxed(tree: Tree) -> DoneStep:
    """TMA can make the copy that the last step finishes."""
    step = tree.steps[-1]
    assert isinstance(step, DoneStep)
    spec = step.before
    places = [o.scope for o in spec.operands]
    if spec.kind != "move" or places != [Scope.SHARED, Scope.GLOBAL] or spec.level is not Level.WARPGROUP or step.by:
        why = "TMA copies what a warpgroup has in shared memory to global memory, and this is another spec."
        way_out = "Write .move('src', SHARED).tile(...).to(WARPGROUP).done() before it."
        raise refusal("asynchronous()", tree, why, way_out)
    return step


def unsynchronised(tree: Tree, step: MoveStep) -> None:
    """The copy is one that barriers could guard."""
    if tree.root.kind == "move":
        why = "a copy by way of shared memory exchanges elements between threads."
        raise refusal("no_sync()", tree, why, "Only copies of a product's or a stage's operands leave barriers out.")
    if any(isinstance(s, TileStep) and s.fetched for s in tree.steps) and step.stages > 1:
        why = f"mbarriers, not barriers, guard the stages of {step.name}, which a warpgroup fetches."
        raise refusal("no_sync()", tree, why, "Leave it out.")


def prefetch(tree: Tree, stages: Any) -> None:
    """The moves before this one, back to the split of the sum, allow stages."""
    word = f"prefetch({stages})"
    count(tree, stages, 2, word)
    before = tree.steps[-2] if len(tree.steps) > 1 else None
    ahead = isinstance(before, MoveStep) and before.stages == stages
    if not (isinstance(before, SplitStep) or ahead):
        raise refusal(
            word, tree, "the part that comes next is known only in the loop of a split.",
            "Write split(...), then the moves to prefetch, all with the same number of stages.",
        )  # fmt: skip


def multicast(tree: Tree, step: MoveStep, workers: Level, word: str) -> None:
    """Several blocks of a cluster use the same part, and each can fetch whole lines of it."""
    block, operand = blocks_of_cluster(tree), step.after.operand(step.name)
    assert operand is not None
    if workers is not Level.CLUSTER or block is None or not block.fetched or step.stages == 1:
        why = "only a warpgroup that fetches for a block of a cluster sends parts to its other blocks."
        way_out = "Use to(CLUSTER), to(BLOCK), specialize(WARPGROUP, 'fetch') and prefetch(stages) before it."
        raise refusal(word, tree, why, way_out)
    count, rows = sharing(block, operand.axes), static_size(step.after.shape(operand)[-2]) or 0
    if count == 1:
        why = f"no two blocks of a cluster use the same part of {step.name}."
        raise refusal(word, tree, why, f"Give the cluster a tile that is larger along an axis that {step.name} lacks.")
    if rows % (_LINES * count):
        why = f"{count} blocks would fetch {rows} rows of {step.name} in shares that are not multiples of {_LINES}."
        raise refusal(word, tree, why, f"Choose tiles with a multiple of {_LINES * count} rows.")


def specialized(tree: Tree, step: TileStep, workers: Level, role: str, word: str) -> None:
    """A warpgroup of each block can fetch."""
    if step.level is not Level.BLOCK:
        raise refusal(word, tree, "only the warps of a block have different roles.", "Write it after to(BLOCK).")
    if workers is not Level.WARPGROUP or role != "fetch":
        why = "the role of a warpgroup that is specialized is to fetch."
        raise refusal(word, tree, why, "Use specialize(WARPGROUP, 'fetch').")


def group(tree: Tree, step: TileStep, rows: Any) -> None:
    """Blocks can be grouped, or the threads of the whole grid."""
    word = f"group({rows})"
    count(tree, rows, 1, word)
    if step.before.level is not Level.KERNEL or step.level not in (Level.BLOCK, Level.CLUSTER, Level.THREAD):
        raise refusal(word, tree, "only the tiles of blocks are grouped.", "Write it after to(BLOCK).")
    if step.level is Level.THREAD:
        _enough_threads(tree, step.level, rows, word)
