"""The specs of stages of a task: Compute, whose elements are independent, and Reduce, whose elements are sums.

Compute(task)     y[i, j] = body        for the last stage of a task, or the one that is named
Reduce(task)      y[i] = sum body       over the axes of the sum; also max, min, prod, any, all

The operands are the tensors that the body reads, directly or through stages that are in no memory: those are computed
where they are read, as often as that is. ``move`` of such an operand computes its stage at this place, once: there is
no other notion of placement (``compute_at`` of Halide, Ragan-Kelley et al., PLDI 2013).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskmap.ir import task as tasks
from taskmap.ir.construct import static_size
from taskmap.ir.decompose.levels import Level
from taskmap.ir.decompose.spec import Operand, Spec
from taskmap.ir.decompose.specs import Init, Root, copy_of
from taskmap.ir.decompose.stage_spec import OPERATORS, StageSpec, sum_axes
from taskmap.ir.errors import ScheduleError
from taskmap.ir.expressions import Buffer, Scope, Var
from taskmap.ir.expressions import Reduce as Sum
from taskmap.ir.interp.definitions import evaluate
from taskmap.ir.visit import loads_in, walk_exprs


class _Stage(StageSpec, Root):
    """A stage of a task as the root of a tree, and the specs that its steps make."""

    __slots__ = ()

    def __init__(self, task: tasks.Task, stage: str = "") -> None:
        named = [s for s in task.stages if s.out.name == (stage or task.outputs[-1].name)]
        if not named:
            names = ", ".join(repr(s.out.name) for s in task.stages)
            raise ScheduleError(f"the task {task.name!r} has no stage {stage!r}", hint=f"Its stages are {names}.")
        self._set(task, named[0])
        _check(self)

    def _set(self, task: tasks.Task, stage: tasks.Stage) -> None:
        axes = {**dict(zip(stage.axes, stage.shape, strict=True)), **dict(sum_axes(stage))}
        names = [v.name for v in axes]
        names = names if len({*names}) == len(names) else [f"i{d}" for d in range(len(names))]
        extents = tuple(zip(names, axes.values(), strict=True))
        found: dict[Buffer, list[tuple[str, ...]]] = {}
        for b, uses in _uses(task, stage, dict(zip(axes, names, strict=True))):
            found.setdefault(b, []).append(uses)
        read = tuple(
            Operand(b.name, b.dtype, _agreed(uses), strides=b.strides, made=b not in task.producers)
            for b, uses in found.items()
        )
        out = Operand(stage.out.name, stage.out.dtype, tuple(names[: len(stage.axes)]), strides=stage.out.strides)
        values = (("extents", extents), ("operands", (*read, out)), ("level", Level.KERNEL), ("known", ()))
        for name, value in (*values, ("task", task), ("stage", stage)):
            object.__setattr__(self, name, value)

    def why_not_moved(self, name: str, scope: Scope) -> tuple[str, str]:
        """The reason why an operand cannot be moved here, and a way out."""
        operand = self.operand(name)
        assert operand is not None
        if not any(operand.axes) and operand.axes:
            why = f"{name} is not read at the axes {', '.join(self.tiled)} alone."
            return why, "Leave it where it is; what is not moved is read, or computed, where it is used."
        if scope is Scope.FRAGMENT:
            return "fragments are operands of products.", "Use REGISTER."
        if operand.made:
            return "", ""
        part = self._part(operand)
        for axis in part.extents[len(part.stage.axes) :]:
            whole, held = static_size(part.axis_size(axis[0])), static_size(axis[1])
            if whole != held and (whole is None or held is None or held < whole):
                why = f"{name} is a sum along {axis[0]}, of which only a part is here."
                return why, f"Tile so that all of {axis[0]} belongs to one worker, with a size that is known."
        return "", ""

    def moving(self, name: str, scope: Scope) -> Spec:
        """The copy of an operand, or the stage that computes it."""
        operand = self.operand(name)
        assert operand is not None
        if operand.made:
            return copy_of(self, name, scope, into=True)
        return self._part(operand).with_operand(name, scope)

    def _part(self, operand: Operand) -> _Stage:
        """The stage of an operand, for the part of it that is read here."""
        stage = next(s for s in self.task.stages if s.out.name == operand.name)
        made = _of(self.task, stage)
        mine, sizes = dict(self.extents), dict(made.extents)
        sizes |= {n: mine.get(axis, 1) for n, axis in zip(made.tiled, operand.axes, strict=True)}
        here = {o.name: o for o in self.operands}
        operands = []
        for o in made.operands[:-1]:
            there = here[o.name]
            if there.scope is not Scope.GLOBAL:
                held = zip(o.axes, there.axes, strict=True)
                sizes |= {a: mine[b] for a, b in held if a in sizes and a not in made.tiled and b in mine}
            operands.append(replace(o, scope=there.scope, made=there.made, strides=there.strides))
        return made.derived(
            extents=tuple(sizes.items()), operands=(*operands, made.operands[-1]), level=self.level, known=self.known
        )

    def storing(self, name: str, scope: Scope) -> Spec:
        """The copy of the result from ``scope``."""
        return copy_of(self, name, scope, into=False)

    def meaning(self, **arrays: NDArray[Any]) -> NDArray[Any]:
        """The values of the stage, by the definitions of the task."""
        found = {b: arrays[b.name] for b in self.task.inputs if b.name in arrays}
        sizes: dict[Var, int] = {v: int(static_size(e) or 0) for v, e in self.known}
        for b, array in found.items():
            sizes |= {d: n for d, n in zip(b.shape, array.shape, strict=True) if isinstance(d, Var)}
        for s in self.task.stages:
            definition = tasks.Compute(s.out.name, tuple(found), s.shape, s.out.dtype, s.axes, s.body)
            found[s.out] = evaluate(definition, list(found.values()), sizes)
            if s is self.stage:
                break
        return np.asarray(found[self.stage.out])


class Compute(_Stage):
    """A stage of a task whose elements are independent: element-wise work, a transpose, a broadcast.

    stage: the name of its result; by default the last output. Raises ScheduleError for a stage that sums.
    """

    __slots__ = ()


class Reduce(_Stage):
    """A stage of a task that sums: sum, prod, max, min, any, or all of its elements along axes.

    ``accumulate_in`` sets the result to the neutral element, ``split`` cuts the first axis of the sum that has more
    than one element. Raises ScheduleError for another stage.
    """

    __slots__ = ()

    def setting(self, name: str, scope: Scope, value: float) -> Spec:
        """The first value of the result."""
        return Init.of(self, name, scope, value)


def _of(task: tasks.Task, stage: tasks.Stage) -> _Stage:
    made: _Stage = object.__new__(Reduce if sum_axes(stage) else Compute)
    made._set(task, stage)
    return made


def _check(spec: _Stage) -> None:
    sums = [e for e in walk_exprs(spec.stage.body) if isinstance(e, Sum)]
    name, what = spec.stage.out.name, type(spec).__name__
    if what == "Reduce" and (not sums or sums[0] is not spec.stage.body or sums[0].op not in OPERATORS):
        op = f"{sums[0].op} and more" if sums else "element-wise work"
        raise ScheduleError(f"{name!r} is not a Reduce", why=f"it is {op}.", hint="Use Compute, or a stage of its own.")
    if what == "Compute" and sums:
        hint = "Use Reduce, or give the sum a stage of its own."
        raise ScheduleError(f"{name!r} is not a Compute", why=f"it contains a {sums[0].op}.", hint=hint)


def _uses(task: tasks.Task, stage: tasks.Stage, axes: Mapping[Var, str]) -> Iterator[tuple[Buffer, tuple[str, ...]]]:
    """The tensors that a stage reads, directly or by way of others, with the axis at which each dimension is read."""
    for e in loads_in(stage.body):
        at = tuple("1" if static_size(n) == 1 else axes.get(i, "") if isinstance(i, Var) else ""
                   for i, n in zip(e.indices, e.buffer.shape, strict=True))  # fmt: skip
        yield e.buffer, at
        producer = task.producers.get(e.buffer)
        if producer is not None:
            yield from _uses(task, producer, {v: a for v, a in zip(producer.axes, at, strict=True) if a})


def _agreed(uses: list[tuple[str, ...]]) -> tuple[str, ...]:
    """The axes of an operand, or an empty name for each dimension if it is read at different ones."""
    plain = {axes for axes in uses if all(axes)}
    rank = len(uses[0])
    return plain.pop() if len(plain) == 1 else ("",) * rank
