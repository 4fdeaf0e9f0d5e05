"""The data of a stage's spec: its axes, its operands, an element as an expression. ``stages`` has the constructors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from taskmap.ir import task as tasks
from taskmap.ir.construct import identity, static_size
from taskmap.ir.decompose.leaves import IN_REGISTERS
from taskmap.ir.decompose.levels import SCOPE_NAMES, Level
from taskmap.ir.decompose.spec import Operand, Spec
from taskmap.ir.expressions import Dim, Expr, Load, Scope, Var
from taskmap.ir.expressions import Reduce as Sum
from taskmap.ir.visit import loads_in, map_expr, substitute

OPERATORS = {"sum": "add", "prod": "mul", "max": "max", "min": "min", "any": "or", "all": "and"}
"""The operation by which a sum of each kind combines two values."""


@dataclass(frozen=True, slots=True, init=False, repr=False)
class StageSpec(Spec):
    """A stage of a task. known: the values of symbolic sizes."""

    task: tasks.Task
    stage: tasks.Stage
    known: tuple[tuple[Var, Expr], ...]

    @property
    def kind(self) -> str:
        """The name that steps of lowering ask for."""
        return "reduce" if sum_axes(self.stage) else "compute"

    @property
    def axis_vars(self) -> tuple[Var, ...]:
        """The variables of the axes, in their order."""
        return (*self.stage.axes, *(v for v, _ in sum_axes(self.stage)))

    @property
    def tiled(self) -> tuple[str, ...]:
        """The axes of the result."""
        return tuple(name for name, _ in self.extents[: len(self.stage.axes)])

    @property
    def written(self) -> str:
        """The result."""
        return self.operands[-1].name

    def parameters(self) -> tuple[tuple[Operand, tuple[Dim, ...]], ...]:
        """The tensors of the task that are in memory, and the result."""
        shapes = {b.name: b.shape for b in (*self.task.inputs, self.stage.out)}
        of = {o.name: o for o in self.operands}
        return tuple(
            (of[name], tuple(self._dim(n) for n in shapes[name])) for name in shapes if name in of and of[name].made
        )

    def _dim(self, dim: Dim) -> Dim:
        if isinstance(dim, int):
            return dim
        found = substitute(dim, dict(self.known))
        size = static_size(found)
        return found if size is None else size

    def shape(self, operand: Operand) -> tuple[Dim, ...]:
        """The shape of the part of an operand; of a dimension that is no axis, 1."""
        sizes = dict(self.extents)
        return tuple(sizes.get(axis, 1) for axis in operand.axes)

    def specialised(self, values: Mapping[Var, Expr]) -> StageSpec:
        """The stage with values for symbolic sizes."""
        found = Spec.specialised(self, values)
        return self.derived(extents=found.extents, operands=found.operands, known=tuple(values.items()))

    def value(self) -> Expr:
        """An element, or an element of the sum, as an expression of the axes and of the operands in memory."""
        unmade = {o.name for o in self.operands if not o.made}

        def inlined(e: Expr) -> Expr | None:
            producer = self.task.producers.get(e.buffer) if isinstance(e, Load) and e.buffer.name in unmade else None
            if producer is None or not isinstance(e, Load) or sum_axes(producer):
                return None
            at = [map_expr(i, inlined) for i in e.indices]
            return map_expr(substitute(producer.body, dict(zip(producer.axes, at, strict=True))), inlined)

        body = self.stage.body
        return substitute(map_expr(body.body if isinstance(body, Sum) else body, inlined), dict(self.known))

    def why_no_leaf(self) -> tuple[str, str]:
        """Loops over the elements of one worker, or of the lanes of a warp, which combine their sums by shuffles."""
        read = {e.buffer.name for e in loads_in(self.value())}
        for o in self.operands:
            if not o.made and o.name in read:
                return f"{o.name} is a sum that is in no memory.", f"Move it first: .move({o.name!r}, REGISTER)."
        if self.level is Level.LANES and any(static_size(n) != 1 for n in self.shape(self.operands[-1])):
            return "a lane computes one element at a time.", "Give one to each: .tile(1, ...).to(LANES)."
        return self._why_no_sum() if self.kind == "reduce" else ("", "")

    def _why_no_sum(self) -> tuple[str, str]:
        """For results elsewhere than in registers, and for workers that cannot combine their sums."""
        total, level = self.operands[-1], self.level
        if total.scope not in (Scope.REGISTER, Scope.LOCAL):
            return f"no instruction adds to {total.name} in {total.scope.value} memory.", IN_REGISTERS
        if level not in (Level.BLOCK, Level.WARP, Level.THREAD, Level.CORE, Level.LANES):
            way_out = "Tile it to WARP, whose lanes combine their sums, or to THREAD."
            return f"no instruction sums over a whole {level.value.lower()}.", way_out
        if level in (Level.BLOCK, Level.WARP) and any(static_size(n) != 1 for n in self.shape(total)):
            who = "the lanes of a warp" if level is Level.WARP else "the threads of a block"
            return f"{who} combine one sum at a time.", "Tile it to a single result."
        return "", ""

    def axis_size(self, axis: str) -> Dim:
        """The size of a whole axis, of which ``extent`` is the part here."""
        sizes = (*self.stage.shape, *(n for _, n in sum_axes(self.stage)))
        return self._dim(sizes[[n for n, _ in self.extents].index(axis)])

    @property
    def summed(self) -> str:
        """The first axis of the sum that is longer than 1, or ""."""
        axes = self.extents[len(self.stage.axes) :]
        return next((name for name, n in axes if static_size(n) != 1), axes[-1][0] if axes else "")

    @property
    def accumulated(self) -> str:
        """The result of a sum."""
        return self.written if self.kind == "reduce" else ""

    @property
    def operation(self) -> str:
        """The kind of sum."""
        assert isinstance(self.stage.body, Sum)
        return self.stage.body.op

    @property
    def initial(self) -> float:
        """The neutral element."""
        return 0.0 if self.kind == "compute" else float(identity(self.operation, self.operands[-1].dtype).value)

    def __str__(self) -> str:
        read = {e.buffer.name for e in loads_in(self.value())} | {self.written}
        seen = (o for o in self.operands if o.name in read or not o.made)
        places = ",".join(f"{o.name}:{SCOPE_NAMES[o.scope] if o.made else '--'}" for o in seen)
        return f"{type(self).__name__}({self.sizes(',')})({places})({self.level.value})"


def sum_axes(stage: tasks.Stage) -> tuple[tuple[Var, Dim], ...]:
    """The axes of the sum that a stage is; none for other stages."""
    return stage.body.axes if isinstance(stage.body, Sum) else ()
