"""Stages of a strategy found in a fused group: the same expressions, on tensors and sizes of the group.

softmax of a strategy     y[i, j] = exp(x[i, j] - max x[i, :]) / sum exp(x[i, :] - max x[i, :])
a group                   out[b, i, j] = 2 * softmax(0.5 * in[b, i, :])[j]        x is 0.5 * in, its rows are (b, i)

Both are compared as trees, stages inlined where they are read; an input of the strategy matches any expression that
depends on its indices alone. The leading axes of the group merge to the strategy's first one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from taskmap.ir.builder import Builder
from taskmap.ir.construct import index, product, static_size
from taskmap.ir.decompose.stage_spec import StageSpec
from taskmap.ir.nodes import Buffer, Cast, Const, Dim, Expr, Load, Reduce, Var
from taskmap.ir.printer import print_dim
from taskmap.ir.task import Stage, Task
from taskmap.ir.visit import children, substitute, walk_exprs
from taskmap.schedules.common.access import same_count
from taskmap.schedules.common.epilogue import Epilogue
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.strategies.product import Axes, ProductOperand, positions, size_of

Found = tuple[Expr, tuple[tuple[Var, ...], ...]]
"""An expression of the group, and the group's axes for each dimension of the strategy's input."""


@dataclass(frozen=True, slots=True, eq=False)
class StageAnchor:
    """The stage of a group that a strategy computes. sizes: the strategy's symbolic sizes."""

    task: Task
    stage: Stage
    axes: tuple[Axes, ...]
    operands: tuple[ProductOperand, ...]
    result: Buffer
    sizes: dict[Var, Expr]
    reduce: Reduce | None

    def store(self, where: Sequence[Expr], value: Expr, b: Builder, values: Inliner) -> None:
        """The epilogue of one element."""
        Epilogue(self.task, self.stage, self.reduce, b).replace(values, value, positions(self.axes, where, values))


def find_stages(task: Task, spec: StageSpec) -> StageAnchor | str | None:
    """The stage of a task that ``spec`` computes; the reason why one of equal expressions does not fit, or None."""
    why: str | None = None
    for stage in reversed(task.stages):
        found = _Match(task, spec).of(stage)
        if isinstance(found, StageAnchor):
            return found
        why = why or found
    return why


class _MismatchError(Exception):
    """Two expressions differ."""


@dataclass(slots=True)
class _Match:
    task: Task
    spec: StageSpec
    extents: dict[Var, Dim] = field(default_factory=dict)
    inputs: dict[Buffer, Found] = field(default_factory=dict)
    sizes: list[tuple[Dim, Dim]] = field(default_factory=list)
    inlined: set[Buffer] = field(default_factory=set)

    def of(self, stage: Stage) -> StageAnchor | str | None:
        own = self.spec.stage
        lead = len(stage.axes) - len(own.axes)
        if lead < 0 or not own.axes or stage.out.dtype != own.out.dtype:
            return None
        groups = (tuple(stage.axes[: lead + 1]), *((v,) for v in stage.axes[lead + 1 :]))
        self.extents |= dict(zip(stage.axes, stage.shape, strict=True))
        self.inlined.add(stage.out)
        axes = tuple(tuple((v, self.extents[v]) for v in group) for group in groups)
        self.sizes += zip(own.shape, map(size_of, axes), strict=True)
        try:
            self.same(own.body, stage.body, dict(zip(own.axes, groups, strict=True)))
        except _MismatchError:
            return None
        return self.anchor(stage, axes)

    def anchor(self, stage: Stage, axes: tuple[Axes, ...]) -> StageAnchor | str:
        """The match, if its sizes agree and the rest of the group can be computed element by element."""
        values: dict[Var, Expr] = {}
        for mine, theirs in self.sizes:
            known = index(theirs)
            if isinstance(mine, Var) and values.setdefault(mine, known) == known:
                continue
            if isinstance(mine, Var) or static_size(mine) is None or static_size(mine) != static_size(theirs):
                return f"it has a size of {print_dim(mine)}, and the group's is {print_dim(theirs)}."
        others = [s for s in self.task.stages if s.out not in self.inlined]
        if any(isinstance(e, Reduce) for s in others for e in walk_exprs(s.body)):
            return "the group has a reduction besides, which would be computed for each element."
        if not all(same_count(out.shape, stage.shape) for out in self.task.outputs):
            return "an output of the group differs in its number of elements."
        operands = tuple(
            ProductOperand(b.name, e, tuple(tuple((v, self.extents[v]) for v in group) for group in groups))
            for b, (e, groups) in self.inputs.items()
        )
        result = Buffer(self.spec.written, stage.out.dtype, tuple(map(size_of, axes)))
        reduce = next((e for s in self.task.stages for e in walk_exprs(s.body) if isinstance(e, Reduce)), None)
        return StageAnchor(self.task, stage, axes, operands, result, values, reduce)

    def same(self, mine: Expr, theirs: Expr, at: dict[Var, tuple[Var, ...]]) -> None:
        """The expression ``theirs`` of the group is ``mine`` of the strategy, whose axes are those of the group ``at``.
        Raises _MismatchError."""
        if isinstance(mine, Load):
            stage = self.spec.task.producers.get(mine.buffer)
            if stage is None:
                self.input(mine, theirs, at)
                return
            self.same(substitute(stage.body, dict(zip(stage.axes, mine.indices, strict=True))), theirs, at)
            return
        if isinstance(theirs, Load):
            producer = self.task.producers.get(theirs.buffer)
            if producer is None:
                raise _MismatchError
            self.inlined.add(theirs.buffer)
            self.same(mine, substitute(producer.body, dict(zip(producer.axes, theirs.indices, strict=True))), at)
            return
        if type(mine) is not type(theirs) or mine.dtype != theirs.dtype:
            raise _MismatchError
        if isinstance(mine, Reduce) and isinstance(theirs, Reduce):
            if mine.op != theirs.op or len(mine.axes) != len(theirs.axes):
                raise _MismatchError
            self.extents |= dict(theirs.axes)
            self.sizes += zip((n for _, n in mine.axes), (n for _, n in theirs.axes), strict=True)
            inner = {v: (w,) for (v, _), (w, _) in zip(mine.axes, theirs.axes, strict=True)}
            self.same(mine.body, theirs.body, {**at, **inner})
            return
        if isinstance(mine, Var) or (isinstance(mine, Const) and mine != theirs):
            raise _MismatchError
        names = ("op", "name") if not isinstance(mine, Cast) else ()
        ours, others = children(mine), children(theirs)
        if len(ours) != len(others) or any(getattr(mine, n, "") != getattr(theirs, n, "") for n in names):
            raise _MismatchError
        for a, b in zip(ours, others, strict=True):
            self.same(a, b, at)

    def input(self, mine: Load, theirs: Expr, at: dict[Var, tuple[Var, ...]]) -> None:
        """An input of the strategy is an expression of the group."""
        if mine.dtype != theirs.dtype or not all(isinstance(i, Var) and i in at for i in mine.indices):
            raise _MismatchError
        groups = tuple(at[i] for i in mine.indices if isinstance(i, Var))
        used = {v for group in groups for v in group}
        free = {e for e in walk_exprs(theirs) if isinstance(e, Var) and e in self.extents}
        if not free <= used or any(isinstance(e, Reduce) for e in walk_exprs(theirs)):
            raise _MismatchError
        known, before = self.inputs.setdefault(mine.buffer, (theirs, groups))
        renamed = {v: w for one, other in zip(before, groups, strict=True) for v, w in zip(one, other, strict=True)}
        if len(before) != len(groups) or substitute(known, renamed) != theirs:
            raise _MismatchError
        sizes = (product([self.extents[v] for v in group]) for group in groups)
        self.sizes += zip(mine.buffer.shape, sizes, strict=True)
