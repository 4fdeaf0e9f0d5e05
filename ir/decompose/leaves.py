"""Leaves: the instruction that does a whole spec, or the reason why none does."""

from __future__ import annotations

import math
from dataclasses import dataclass

from taskmap.ir.construct import static_size
from taskmap.ir.decompose.levels import HELD, SCOPE_NAMES, Level
from taskmap.ir.decompose.micro.kernel import MicroKernel
from taskmap.ir.decompose.spec import Spec
from taskmap.ir.decompose.steps import TileStep, Tree
from taskmap.ir.expressions import Scope
from taskmap.ir.isa import table
from taskmap.ir.isa.entry import Instruction
from taskmap.ir.isa.specs import MatMulSpec


@dataclass(frozen=True, slots=True)
class Leaf:
    """The end of a decomposition. by: its instruction; None if lowering chooses it. why, way_out: of a refusal."""

    by: Instruction | None = None
    why: str = ""
    way_out: str = ""


def leaf_of(tree: Tree, given: object = None, *, shared_out: bool = False) -> Leaf:
    """The instruction for the spec that is left, as far as it must be known before lowering: it determines owners.
    given: a micro-kernel that performs it. shared_out: a mapping gives the elements to threads."""
    spec = tree.spec
    if given is not None:
        return _given(spec, given)
    if spec.level in (Level.KERNEL, Level.CLUSTER):
        return Leaf(why=f"no instruction is executed by a whole {spec.level.value.lower()}.", way_out=_TO_WORKERS)
    if any(static_size(n) is None for _, n in spec.extents):
        return Leaf(why="an instruction has a known size, and this spec a symbolic one.", way_out="Tile it first.")
    if spec.kind == "matmul":
        return _product(tree)
    why, way_out = spec.why_no_leaf()
    is_whole = spec.level is Level.BLOCK and tree.root.level is Level.KERNEL  # no stage of a larger spec
    if not why and is_whole and spec.kind == "reduce":
        why = "no instruction sums over a whole block."
        way_out = "Tile it to WARP, whose lanes combine their sums, or to THREAD."
    held = [o.name for o in spec.operands if o.scope in HELD] if is_whole and not shared_out else []
    if not why and held:
        why = f"nobody says which threads of the block hold {held[0]}."
        way_out = "Give the elements to threads: .done(by=mapping)."
    return Leaf(why=why, way_out=way_out)


def _given(spec: Spec, given: object) -> Leaf:
    if not isinstance(given, MicroKernel):
        what = getattr(given, "__name__", f"{given!r}")
        return Leaf(why=f"{what} is not a micro-kernel.", way_out="Make one by micro_kernel(how, does, level, ...).")
    why = given.why_not(spec)
    return Leaf(why=why, way_out=_OTHER) if why else Leaf(given.instruction)


_OTHER = "Decompose the spec to that one, or define a micro-kernel for this one."
IN_REGISTERS = "Sum in registers: .accumulate_in(REGISTER) before the sum is split."
_TO_WORKERS = "Give its tiles to workers: .tile(...).to(BLOCK), or .to(CORE) on a CPU."


def _product(tree: Tree) -> Leaf:
    spec = tree.spec
    total = spec.operand(spec.accumulated)
    assert total is not None
    if total.scope not in HELD:
        return Leaf(
            why=f"no instruction adds to {total.name} in {total.scope.value} memory.",
            way_out=IN_REGISTERS,
        )
    several = sum(axis not in total.axes for axis, _ in spec.extents) > 1
    if several and not (spec.level is Level.CORE and all(o.scope in HELD for o in spec.operands)):
        why = "no instruction reads operands in memory along several axes of a sum."
        return Leaf(why=why, way_out="Make k one axis; a core may move both operands to REGISTER instead.")
    if spec.level is Level.CORE:
        return Leaf()
    ones = all(static_size(n) == 1 for _, n in spec.extents)
    if ones and spec.level in (Level.THREAD, Level.LANES):
        return Leaf()
    threads = spec.level.threads
    if not threads:
        return Leaf(
            why=f"no instruction is executed by a whole {spec.level.value.lower()}.",
            way_out="Tile it to WARP for a tensor instruction, or to THREAD and then tile(1, 1) for a multiply-add.",
        )
    last = tree.steps[-1]
    if spec.level is Level.QUAD_PAIR and isinstance(last, TileStep):  # a warp executes those of its quad-pairs at once
        return _of_table(last.before, 32, last)
    return _of_table(spec, threads)


def _of_table(spec: Spec, threads: int, pairs: TileStep | None = None) -> Leaf:
    """The entry of the table with exactly this spec, divided among quad-pairs as ``pairs`` says."""
    m, n, *sums = (static_size(e) or 0 for _, e in spec.extents[len(spec.operands[-1].axes) - 2 :])
    k = math.prod(sums)
    a, b, c = (o.dtype for o in spec.operands)
    wanted = MatMulSpec(m, n, k, a, b, c)
    scope = spec.operands[-1].scope
    opaque, grouped = scope is Scope.FRAGMENT, threads == Level.WARPGROUP.threads
    done = "wgmma" if grouped else ""
    gpu = (i for i in table.INSTRUCTIONS if i.targets.kind == "cuda" and i.completes == done and i.opaque == opaque)
    gpu = (i for i in gpu if not grouped or i.owner_a is None)
    entries = [i for i in gpu if isinstance(i.spec, MatMulSpec) and i.workers == threads]
    if pairs is not None:
        entries = [i for i in entries if _divides(i, pairs)]
    found = next((i for i in entries if i.spec == wanted), None)
    if found is None:
        return Leaf(why=_nearest(wanted, entries, spec.level), way_out=_SIZES)
    if grouped:
        away = [o for o in spec.operands[:-1] if o.scope is not Scope.SHARED]
        names = " and ".join(o.name for o in away)
        why = f"{found.name} reads shared memory, and {names} {'are' if len(away) > 1 else 'is'} elsewhere."
        way_out = f"Move {names} to SHARED, with prefetch(stages), after specialize(WARPGROUP, 'fetch')."
        return Leaf(why=why, way_out=way_out) if away else Leaf(found)
    away = [o for o in spec.operands if o.scope is not scope]
    if away:
        names = " and ".join(o.name for o in away)
        places = " and ".join(dict.fromkeys("memory" if o.scope not in HELD else SCOPE_NAMES[o.scope] for o in away))
        return Leaf(
            why=f"{found.name} takes {'fragments' if opaque else 'registers'}, and {names} "
            f"{'are' if len(away) > 1 else 'is'} in {places}.",
            way_out=f"Move {names} first: .move({away[0].name!r}, {scope.name}).",
        )
    return Leaf(found)


def _divides(entry: Instruction, pairs: TileStep) -> bool:
    """True if each quad-pair, lanes 4q to 4q + 3 and 16 more, holds tile q of the result."""
    owner, first, second = entry.owner_c, *pairs.cuts[-2:]
    assert owner is not None
    for lane in range(owner.num_workers):
        for task in owner(lane):
            m, n = ((i % c.stride if c.stride else i) // c.width for i, c in zip(task, (first, second), strict=True))
            if lane // 4 % 4 != (2 * n + m if pairs.by_columns else 2 * m + n):
                return False
    return True


_SIZES = "Tile and split to the sizes of an instruction; `instructions_for` lists them."


def _nearest(wanted: MatMulSpec, entries: list[Instruction], level: Level) -> str:
    """A sentence about the entry that differs least."""

    def differences(i: Instruction) -> list[str]:
        spec = i.spec
        assert isinstance(spec, MatMulSpec)
        names = ("m", "n", "k", "a", "b", "c")
        pairs = [(name, getattr(spec, name), getattr(wanted, name)) for name in names]
        return [f"{name} = {has}, not {needs}" for name, has, needs in pairs if has != needs]

    none = f"no instruction of a {level.value.lower()} does {wanted}."
    if not entries:
        return none
    nearest = min(entries, key=lambda i: len(differences(i)))
    return f"{none} The nearest, {nearest.name}, has {', '.join(differences(nearest))}."
