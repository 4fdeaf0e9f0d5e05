"""Copies that are fetched ahead: while one stage of shared memory is in use, the next ones are on their way.

    through registers     stage[0] = fetch(0)                   two stages are enough
                          for step: next = fetch(step + 1); use stage[step]; stage[step + 1] = next
    asynchronously        fetch(0), ... fetch(stages - 2), each a group of copies
                          for step: wait for one; fetch(step + stages - 1); use stage[step]

Barriers are derived like all others (``barriers``), which knows the stage of each access.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from taskmap.ir import nodes as ir
from taskmap.ir.builder import Builder
from taskmap.ir.construct import as_expr, index, static_size
from taskmap.ir.decompose.barriers import Stages
from taskmap.ir.decompose.copies import CopyEmitter, clipping
from taskmap.ir.decompose.ownership import copy_mapping, without_dims
from taskmap.ir.decompose.refusal import refusal
from taskmap.ir.decompose.steps import MoveStep, SplitStep, TileStep, Tree
from taskmap.ir.decompose.views import OperandView
from taskmap.ir.isa.table import instruction_named
from taskmap.ir.workers import THREAD

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Views = dict[str, OperandView]


class Steps(Protocol):
    """Writes the other steps of the tree: an Emitter."""

    b: Builder
    tree: Tree
    threads: int
    stages: Stages

    @property
    def copies(self) -> CopyEmitter: ...

    def step(self, n: int, views: Views) -> None: ...

    def count(self, step: SplitStep) -> ir.Dim: ...

    def part(self, step: SplitStep, views: Views, number: ir.Expr) -> Views: ...

    def place(self, n: int, step: MoveStep) -> OperandView: ...

    def tile(self, step: TileStep, views: Views, body: Callable[[Views], None]) -> None: ...


def steps_of_pipeline(tree: Tree, n: int) -> list[MoveStep]:
    """The moves directly after split ``n`` that are fetched ahead."""
    found: list[MoveStep] = []
    for step in tree.steps[n + 1 :]:
        if not isinstance(step, MoveStep) or step.stages == 1:
            break
        found.append(step)
    return found


def pipelined(e: Steps, n: int, ahead: Sequence[MoveStep], views: Views) -> None:
    """The loop of split ``n`` with its first moves ahead of their use."""
    split = e.tree.steps[n]
    assert isinstance(split, SplitStep)
    count = e.b.let("steps", e.count(split))
    placed = {s.name: e.place(n + 1 + i, s) for i, s in enumerate(ahead)}
    if len({s.asynchronous for s in ahead}) > 1:
        why = "some of the moves fetched ahead are asynchronous, and some are not."
        raise refusal("kernel()", e.tree, why, "Make all of them asynchronous, or none.", where=ahead[-1].source)
    if ahead[0].asynchronous:
        _ring(e, n, ahead, views, placed, count)
    else:
        _through_registers(e, n, ahead, views, placed, count)


def _at_stage(e: Steps, view: OperandView, number: ir.Expr, stages: int, offset: int) -> OperandView:
    """The stage for part ``number`` of the sum, ``offset`` parts ahead of the one in use."""
    stage = number % stages
    if not isinstance(stage, ir.Const):
        e.stages.offsets[stage] = offset
    return replace(view, lead=(stage,))


def _ring(
    e: Steps, n: int, ahead: Sequence[MoveStep], views: Views, placed: Mapping[str, OperandView], count: ir.Expr
) -> None:
    b, stages, split = e.b, ahead[0].stages, e.tree.steps[n]
    assert isinstance(split, SplitStep)
    commit, wait = instruction_named("cp_async_commit"), instruction_named("cp_async_wait")
    e.stages.asynchronous |= {v.buffer for v in placed.values()}

    def fetch(number: ir.Expr) -> None:
        with b.when(number < count):
            parts = e.part(split, views, number)
            for s in ahead:
                e.copies.copy(s, parts[s.name], _at_stage(e, placed[s.name], number, stages, stages - 1))
        b.invoke(commit)

    for number in range(stages - 1):
        fetch(index(number))
    with b.loop("step", count, unroll=1) as step:
        b.invoke(wait, as_expr(stages - 2))
        if (static_size(count) or stages) >= stages:
            fetch(step + (stages - 1))
        else:
            b.invoke(commit)  # a wait counts groups
        parts = e.part(split, views, step)
        here = {s.name: _at_stage(e, placed[s.name], step, stages, 0) for s in ahead}
        e.step(n + 1 + len(ahead), {**parts, **here})


def _through_registers(
    e: Steps, n: int, ahead: Sequence[MoveStep], views: Views, placed: Mapping[str, OperandView], count: ir.Expr
) -> None:
    b, stages, split = e.b, ahead[0].stages, e.tree.steps[n]
    assert isinstance(split, SplitStep)
    held = {s.name: _registers(e, s, placed[s.name]) for s in ahead}

    def fetch(number: ir.Expr, step: MoveStep) -> None:
        _alike(e, step, e.part(split, views, number)[step.name], held[step.name])

    def keep(number: ir.Expr, offset: int, step: MoveStep) -> None:
        _alike(e, step, held[step.name], _at_stage(e, placed[step.name], number, stages, offset))

    for s in ahead:
        fetch(index(0), s)
        keep(index(0), 0, s)
    with b.loop("step", count, unroll=1) as step:
        with b.when(step + 1 < count):
            for s in ahead:
                fetch(step + 1, s)
        here = {s.name: _at_stage(e, placed[s.name], step, stages, 0) for s in ahead}
        e.step(n + 1 + len(ahead), {**e.part(split, views, step), **here})
        with b.when(step + 1 < count):
            for s in ahead:
                keep(step + 1, 1, s)


def _registers(e: Steps, step: MoveStep, to: OperandView) -> OperandView:
    """Registers for one stage, held by the threads that copy it."""
    owner = copy_mapping(step, e.threads)
    single = [d for d, view in enumerate(to.axes) if view is None]
    owner = without_dims(owner, single)
    buffer = e.b.allocate(f"{step.name}_next", to.buffer.dtype, owner.task_shape, ir.Scope.REGISTER, owner=owner)
    return OperandView.whole(buffer, to.names, [view is not None for view in to.axes])


def _alike(e: Steps, step: MoveStep, src: OperandView, dst: OperandView) -> None:
    """One half of a copy by way of registers, by the threads that hold them."""
    owner = src.buffer.owner or dst.buffer.owner
    assert owner is not None
    sizes = step.how.root.static_shape(step.how.root.operands[0])
    assert sizes is not None
    with e.b.when(True if owner.num_workers == e.threads else owner.num_workers > THREAD):
        e.b.move(dst.region(sizes), src.region(sizes), **clipping(src, dst))
