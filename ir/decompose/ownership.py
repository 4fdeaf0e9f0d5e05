"""The task mapping that a tree means: which worker holds or copies which element of an operand, in which slot.

Tiles in order are ``repeat``, ``.to(level)`` is ``spatial``, nesting is ``*``, and a leaf is its instruction's owner. A
tile of strided pieces splits digits, so the composition is made on digits (``ir.algebra.digits``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from taskmap.ir.algebra.digits import Digit, DigitMap, coalesce
from taskmap.ir.algebra.mapping import TaskMapping, repeat, spatial
from taskmap.ir.construct import static_size
from taskmap.ir.decompose.levels import Level
from taskmap.ir.decompose.refusal import refusal
from taskmap.ir.decompose.spec import Operand, Spec
from taskmap.ir.decompose.steps import AccumulateStep, Cut, DoneStep, MoveStep, SplitStep, Step, TileStep, Tree
from taskmap.ir.expressions import Dim, Scope
from taskmap.ir.lower.flatten import row_major_strides

Shape = tuple[int, ...]
_WIDEST = 16
"""The largest load or store of one thread, in bytes."""


def block_threads(tree: Tree) -> int:
    """The threads of a block: the workers of the spec itself, its copies aside; 0 for a CPU."""
    tiles = [s for s in tree.steps if isinstance(s, TileStep) and s.level is not None]
    below = [s for s in tiles if s.level not in (Level.CLUSTER, Level.BLOCK, Level.CORE, Level.LANES)]
    if any(s.level is Level.CORE for s in tiles):
        return 0
    if flat := next((s.threads_of_grid for s in tiles if s.threads_of_grid), 0):
        return flat
    last = tree.steps[-1] if tree.steps else None
    given = last.mapping.num_workers if isinstance(last, DoneStep) and last.mapping is not None else 1
    total = below[-1].level.threads if below and below[-1].level else given
    for step in below:
        total *= math.prod(_counts(step).values()) * step.parts
    return total


def mapping_of(tree: Tree, name: str) -> TaskMapping:
    """The mapping of an operand where a tree last puts it: the holders of registers, the threads of a copy to shared
    memory; of an operand that stays in global memory, the workers of a block or a core that use it.

    Raises ScheduleError for an unknown operand, for a tree that is not done, and for symbolic tiles.
    """
    tree = in_memory(tree, {o.name: o.strides or row_major_strides(shape) for o, shape in tree.root.parameters()})
    operand = tree.root.operand(name)
    word = f"mapping({name!r})"
    if operand is None or not tree.is_done:
        why = "the tree is not finished." if operand else f"it has no operand {name!r}."
        raise refusal(word, tree, why, f"Its operands are {', '.join(o.name for o in tree.root.operands)}.")
    for n, step in reversed(list(enumerate(tree.steps))):
        if isinstance(step, MoveStep) and step.name == name:
            if step.scope is Scope.SHARED:
                fetched = any(isinstance(s, TileStep) and s.fetched for s in tree.steps)
                return copy_mapping(step, Level.WARPGROUP.threads if fetched else block_threads(tree))
            return owner_of(tree.steps[n + 1 :], step.after, step.after.operand(name))  # type: ignore[arg-type]  # found
        if isinstance(step, AccumulateStep) and step.before.accumulated == name:
            return owner_of(tree.steps[n + 1 :], step.after, step.after.operand(name))  # type: ignore[arg-type]  # found
    for n, step in enumerate(tree.steps):
        if isinstance(step, TileStep) and (step.level in (Level.BLOCK, Level.CORE) or step.threads_of_grid):
            return owner_of(tree.steps[n + 1 :], step.after, step.after.operand(name))  # type: ignore[arg-type]  # found
    raise refusal(word, tree, "no level of workers is named.", "Use tile(...).to(BLOCK) or to(CORE).")


def in_memory(tree: Tree, strides: Mapping[str, tuple[Dim, ...]]) -> Tree:
    """The tree with the strides of its operands in global memory, by name, for its copies to follow."""
    alone = tree.root.kind == "move"

    def of(spec: Spec) -> Spec:
        served = getattr(spec, "name", "") if spec.kind == "move" and not alone else ""
        found = ((o, strides.get(served or o.name)) for o in spec.operands)
        there = ((o, s if o.scope is Scope.GLOBAL and o.made else None) for o, s in found)
        return spec.derived(operands=tuple(o if s is None else replace(o, strides=s) for o, s in there))

    return tree.rewritten(of)


def owner_of(steps: Sequence[Step], spec: Spec, operand: Operand, leaf: TaskMapping | None = None) -> TaskMapping:
    """The holders of an operand of ``spec``, which ``steps`` decompose to the end; there ``leaf`` holds it, by default
    as the instruction says."""
    axes, text = operand.axes, []
    last = steps[-1]
    found = leaf or _leaf(last, last.before, operand)
    inner = found.parts[0]
    assert isinstance(inner, DigitMap)
    for step in reversed(steps):
        if isinstance(step, TileStep) and step.level is not Level.QUAD_PAIR:  # the owner is that of the whole warp
            inner = _tiled(step, axes, inner)
            text.append(_tile_text(step, axes))
        elif isinstance(step, SplitStep) and step.before.summed in axes:
            inner = _split(step, axes.index(step.before.summed), inner)
            text.append("a split")
    parts = [t for t in reversed(text) if t]
    parts += [str(found)] if math.prod(found.task_shape) > 1 or not parts else []
    return TaskMapping(inner.task_shape, (inner,), " * ".join(parts))


def _leaf(step: Step, spec: Spec, operand: Operand) -> TaskMapping:
    shape = spec.static_shape(operand)
    assert shape is not None
    given = step.mapping if isinstance(step, DoneStep) else None
    if given is not None:
        return of_axes(spec, operand, in_elements(given, tuple(static_size(n) or 1 for _, n in spec.extents)))
    by = step.by if isinstance(step, DoneStep) else None
    if by is None and spec.kind in ("compute", "reduce") and spec.level.threads > 1:
        return of_axes(spec, operand, share_elements(spec, spec.level.threads))
    number = [o.name for o in spec.operands].index(operand.name)
    owner = None if by is None else (by.owner_a, by.owner_b, by.owner_c)[number]
    if owner is None:
        assert by is None or by.twin is not None
        return repeat(*shape)
    return with_leading_dims(owner, len(shape) - len(owner.task_shape))


def _counts(step: TileStep) -> dict[str, int]:
    """The number of tiles along each axis."""
    counts = {}
    for cut in step.cuts:
        whole = static_size(step.before.extent(cut.axis))
        if whole is None:
            raise refusal("mapping", Tree(step.before), "it has a symbolic size.", "Tile it.", where=step.source)
        counts[cut.axis] = -(-(cut.stride or whole) // cut.width)
    return counts


def _tiled(step: TileStep, axes: tuple[str, ...], inner: DigitMap) -> DigitMap:
    counts, cuts = _counts(step), {c.axis: c for c in step.cuts}
    shape = tuple(static_size(step.before.extent(a)) or 1 for a in axes)
    shape = tuple(
        max(n, counts.get(a, 1) * cuts[a].width) if a in cuts else n for a, n in zip(axes, shape, strict=True)
    )
    digits = [
        Digit(counts[a], axes.index(a), cuts[a].width) if a in axes else Digit(counts[a], 0, 0)
        for a in step.order
        if a in axes or step.level
    ]
    if step.part is not None and step.part.axis in axes:
        digits.insert(0, Digit(step.parts, axes.index(step.part.axis), step.part.width))
    strided = {axes.index(a): c for a, c in cuts.items() if a in axes and c.stride}
    workers, slots = (_spread(part, strided) for part in (inner.workers, inner.slots))
    if step.level:
        return DigitMap(shape, coalesce([*digits, *workers]), coalesce(slots))
    return DigitMap(shape, coalesce(workers), coalesce([*digits, *slots]))


def _spread(digits: Sequence[Digit], strided: dict[int, Cut]) -> list[Digit]:
    """Digits inside a tile of pieces: those that count pieces step by the pieces' stride."""
    out = []
    for d in digits:
        cut = strided.get(d.dim)
        if cut is None or not d.stride:
            out.append(d)
            continue
        width, stride = cut.width, cut.stride
        inside = max(1, min(d.extent, width // d.stride)) if d.stride < width else 1
        if d.extent > inside:
            out.append(Digit(d.extent // inside, d.dim, d.stride * inside // width * stride))
        if inside > 1:
            out.append(Digit(inside, d.dim, d.stride))
    return out


def _split(step: SplitStep, dim: int, inner: DigitMap) -> DigitMap:
    whole = static_size(step.before.extent(step.before.summed))
    assert whole is not None
    count = -(-whole // step.size)
    shape = tuple(count * step.size if d == dim else n for d, n in enumerate(inner.task_shape))
    return DigitMap(shape, inner.workers, coalesce([Digit(count, dim, step.size), *inner.slots]))


def _tile_text(step: TileStep, axes: tuple[str, ...]) -> str:
    """A tile as it would be written for an operand."""
    counts = _counts(step)
    own = [counts.get(a, 1) for a in axes]
    if any(c.stride for c in step.cuts):
        return f"tile({', '.join(map(str, step.cuts))})"
    shared = math.prod(n for a, n in counts.items() if a not in axes)
    if not step.level:
        return f"repeat({', '.join(map(str, own))})" if math.prod(own) > 1 else ""
    atom = f"spatial({', '.join(map(str, own))})" if math.prod(own) > 1 else ""
    same = f"replicate({shared}, rank={len(axes)})" if shared > 1 else ""
    return " * ".join(t for t in (atom, same) if t)


def copy_mapping(step: MoveStep, threads: int) -> TaskMapping:
    """The threads that copy each element to shared memory, in the order of their work."""
    shape = step.how.root.static_shape(step.how.root.operands[1])
    assert shape is not None
    level = step.how.root.level
    count = level.threads or threads
    leaf = step.how.steps[-1]
    if isinstance(leaf, DoneStep) and leaf.by is not None and leaf.by.twin is not None and level.threads != 1:
        why = f"{step.name} is copied by a micro-kernel, and nobody knows which of its threads copies which element."
        raise refusal("mapping", step.how, why, "Leave the copy to done().", where=step.source)
    if step.by is not None:
        return in_elements(step.by, shape)
    return elements_of(step.how, step.how.root.operands[0].dtype.bytes, count)


def in_elements(mapping: TaskMapping, shape: Shape) -> TaskMapping:
    """The mapping of the elements of ``shape``, from one of equal chunks; a batch may be left out."""
    mapping = with_leading_dims(mapping, len(shape) - len(mapping.task_shape))
    chunk = [n // t for n, t in zip(shape, mapping.task_shape, strict=True)]
    return mapping * repeat(*chunk) if math.prod(chunk) > 1 else mapping


def elements_of(how: Tree, bytes: int, threads: int) -> TaskMapping:
    """The mapping of a copy that is decomposed by tiles, or by nothing: a level's threads share what is left."""
    steps = [s for s in how.steps if isinstance(s, TileStep)]
    operand = how.root.operands[0]
    left = how.spec.static_shape(operand)
    assert left is not None
    level = how.spec.level
    if level is Level.THREAD:
        return owner_of(how.steps, how.root, operand)
    last = how.steps[-1] if how.is_done else None
    given = last.mapping if isinstance(last, DoneStep) else None
    memory = next((o.strides for o in how.root.operands if o.scope is Scope.GLOBAL), None)
    rest = in_elements(given, left) if given else share(left, bytes, level.threads or threads, memory)
    return owner_of(how.steps, how.root, operand, rest) if steps else rest


def share(shape: Shape, bytes: int, threads: int, strides: tuple[Dim, ...] | None = None) -> TaskMapping:
    """A tile shared out among threads: neighbouring threads take neighbouring chunks of a row, or of a column if the
    elements of columns are neighbours in memory. Chunks have up to 16 bytes, as far as they are aligned there.

    strides: of the tensor in memory; by default rows are aligned.
    """
    steps, last = [static_size(s) for s in strides or (0,) * len(shape)], len(shape) - 1
    fast = max((d for d, n in enumerate(shape) if n > 1 and steps[d] == 1), default=last)
    others = [d for d in range(len(shape)) if d != fast]
    lanes = math.gcd(shape[fast], max(1, _WIDEST // bytes)) if fast == last and steps[last] in (0, 1) else 1
    while lanes > 1 and any((step := steps[d]) is None or step % lanes for d in others if shape[d] > 1):
        lanes //= 2
    while lanes > 1 and math.prod(shape) // lanes < threads:
        lanes //= 2
    left, tasks, spread = threads, [n // lanes if d == fast else n for d, n in enumerate(shape)], [1] * len(shape)
    for d in (fast, *reversed(others)):
        spread[d] = max(n for n in range(1, min(tasks[d], left) + 1) if tasks[d] % n == 0)
        left = max(1, left // spread[d])
    order = None if fast == last else (*others, fast)
    found = spatial(*spread, order=order)
    if tasks != spread:
        found = repeat(*(n // s for n, s in zip(tasks, spread, strict=True)), order=order) * found
    return found * repeat(*(1 for _ in others), lanes) if lanes > 1 else found


def share_elements(spec: Spec, threads: int) -> TaskMapping:
    """The elements of a stage, over all its axes, shared out among threads: neighbours to neighbours, one by one."""
    return share(tuple(static_size(n) or 1 for _, n in spec.extents), _WIDEST, threads)


def of_axes(spec: Spec, operand: Operand, mapping: TaskMapping) -> TaskMapping:
    """The mapping of an operand's elements, if ``mapping`` is that of a spec's axes: threads hold what they use."""
    part, names = mapping.parts[0], [n for n, _ in spec.extents]
    assert isinstance(part, DigitMap)
    places = {names.index(a): d for d, a in enumerate(operand.axes) if a in names}
    shape = tuple(static_size(n) or 1 for n in spec.shape(operand))
    workers = [Digit(d.extent, places.get(d.dim, 0), d.stride if d.dim in places else 0) for d in part.workers]
    slots = [Digit(d.extent, places[d.dim], d.stride) for d in part.slots if d.dim in places]
    text = mapping.text if list(operand.axes) == names else ""
    return TaskMapping(shape, (DigitMap(shape, coalesce(workers), coalesce(slots)),), text)


def with_leading_dims(mapping: TaskMapping, count: int) -> TaskMapping:
    """The mapping with more dimensions of a single index before its own."""
    shape = (1,) * count + mapping.task_shape
    return _renumbered(mapping, shape, {d: d + count for d in range(len(shape))}) if count else mapping


def without_dims(mapping: TaskMapping, dims: Sequence[int]) -> TaskMapping:
    """The mapping without dimensions that have a single index."""
    kept = [d for d in range(len(mapping.task_shape)) if d not in dims] or [0]
    shape = tuple(mapping.task_shape[d] for d in kept)
    return _renumbered(mapping, shape, {d: i for i, d in enumerate(kept)}) if dims else mapping


def _renumbered(mapping: TaskMapping, shape: Shape, places: Mapping[int, int]) -> TaskMapping:
    """The mapping of ``shape`` in which ``places`` gives the number of each dimension; others have a single index."""
    part = mapping.parts[0]
    if not isinstance(part, DigitMap):
        return mapping
    workers, slots = (
        tuple(Digit(d.extent, places.get(d.dim, 0), d.stride) for d in digits) for digits in (part.workers, part.slots)
    )
    return TaskMapping(shape, (DigitMap(shape, workers, slots),), mapping.text)
