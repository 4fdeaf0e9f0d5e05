"""The numbers of the tiles of warps and threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from itertools import product as every_of

from taskmap.ir import nodes as ir
from taskmap.ir.builder import Builder
from taskmap.ir.construct import ceil_div, index, product, static_size
from taskmap.ir.decompose.blocks.grid import position
from taskmap.ir.decompose.levels import Level
from taskmap.ir.decompose.steps import Cut, DoneStep, Step, TileStep, Tree
from taskmap.ir.workers import THREAD


def count(step: TileStep, cut: Cut) -> ir.Dim:
    """The number of tiles along an axis."""
    return ceil_div(cut.stride or step.before.extent(cut.axis), cut.width)


def origins(b: Builder, step: TileStep, numbers: Mapping[str, ir.Expr]) -> dict[str, ir.Expr]:
    """The first index of a tile along each axis, under a name where it is not the number of the tile: loops over parts
    of a sum use it time and again."""
    widths = {c.axis: c.width for c in step.cuts}
    firsts = {a: n * widths[a] for a, n in numbers.items()}
    named = {a for a, first in firsts.items() if not isinstance(first, ir.Const) and widths[a] != 1}
    return {a: b.let(f"first_{a}", first) if a in named else first for a, first in firsts.items()}


def written_out(tree: Tree, step: TileStep) -> list[dict[str, ir.Expr]]:
    """The numbers of all tiles along each axis, if each is one instruction of the table: their addresses then differ by
    constants. Empty for other steps."""
    last, below = tree.steps[-1], tree.steps[-2:-1]
    if not isinstance(last, DoneStep) or last.by is None or last.by.twin is not None or (step,) != below:
        return []
    counts = {c.axis: static_size(count(step, c)) or 1 for c in step.cuts}
    every = every_of(*(range(counts[a]) for a in step.order))
    return [dict(zip(step.order, map(index, at), strict=True)) for at in every]


def numbers_of(b: Builder, step: TileStep, worker: ir.Expr) -> dict[str, ir.Expr]:
    """The number of a worker's tile along each axis. worker: its number among those of the level above."""
    assert step.level is not None
    counts = {c.axis: count(step, c) for c in step.cuts}
    tiles = product(list(counts.values()))
    where = position(worker % tiles if step.part else worker, counts, step.order)
    where |= {step.part.axis: worker // tiles} if step.part else {}
    return {a: b.let(f"{step.level.value.lower()}_{a}", i) for a, i in where.items()}


def warps_of(steps: Sequence[Step]) -> list[TileStep]:
    """The steps that give tiles to warps, but those that ``threads_of`` joins with the next one."""
    pairs = ((s, below) for s, below in pairwise(steps) if isinstance(s, TileStep) and s.level is Level.WARP)
    return [s for s, below in pairs if threads_of(s, below) is None]


def threads_of(warps: TileStep, step: Step) -> TileStep | None:
    """The step after one that gives tiles to warps, if it divides each of them among a warp's threads in whole parts;
    else None."""
    if warps.level is not Level.WARP or not isinstance(step, TileStep) or step.level is not Level.THREAD:
        return None
    pairs = list(zip(warps.cuts, step.cuts, strict=True))
    whole = all(not w.stride and w.width % (t.stride or t.width) == 0 for w, t in pairs)
    return step if whole and warps.part is None and step.part is None else None


def numbers_of_threads(b: Builder, warps: TileStep, threads: TileStep, warp: ir.Expr) -> dict[str, ir.Expr]:
    """The number of a thread's tile along each axis of the tile that ``warps`` divides, so that an address takes one
    product. warp: the warp's number."""
    of = position(warp, {c.axis: count(warps, c) for c in warps.cuts}, warps.order)
    widths, own = {c.axis: c.width for c in warps.cuts}, {c.axis: c for c in threads.cuts}
    at: dict[str, ir.Expr] = {}
    step = 1
    for axis in reversed(threads.order):
        lanes = static_size(count(threads, own[axis])) or 1
        at[axis] = b.let(f"thread_{axis}", of[axis] * (widths[axis] // own[axis].width) + THREAD // step % lanes)
        step *= lanes
    return at
