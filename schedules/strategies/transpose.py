"""Element-wise work that reads along one axis of memory and writes along another, as a stage that strategies schedule.

    y[..., j, i] = elements(x0[..., i, j], x1[..., i, j], ...)      x: lines along j; y: lines along i

The positions j and i are those along two runs of axes; x is an input where it is read, and y the whole task, computed
from the elements of its tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from taskmap.ir.builder import Builder
from taskmap.ir.decompose.strategy import Strategy
from taskmap.ir.nodes import Buffer, Call, Expr, Kernel, Var
from taskmap.ir.target import Target
from taskmap.ir.task import Stage, Task
from taskmap.ir.visit import loads_in, substitute
from taskmap.schedules.common.access import MemoryStep
from taskmap.schedules.common.inline import Inliner, Reader
from taskmap.schedules.common.positions import store_outputs
from taskmap.schedules.common.transpose_domain import Transpose
from taskmap.schedules.strategies.fusion import Read
from taskmap.schedules.strategies.merged import MergedTask


@dataclass(frozen=True, slots=True)
class TransposedTask:
    """A task whose outputs are written along one run of axes and some inputs read along another."""

    whole: MergedTask
    t: Transpose

    @property
    def others(self) -> list[int]:
        """The runs of axes that are not a side of a tile."""
        return [r for r in range(len(self.whole.runs)) if r not in (self.t.along, self.t.across)]

    @property
    def turned(self) -> Task:
        """y[..., j, i] = elements at [..., i, j] of each staged tensor."""
        sizes = [self.whole.extents[r] for r in (*self.others, self.t.across, self.t.along)]
        *lead, j, i = [*(Var(f"batch{n}") for n in range(len(sizes) - 2)), Var("j"), Var("i")]
        *outer, across, along = sizes
        inputs = [Buffer(f"x{n}", w.buffer.dtype, (*outer, along, across)) for n, w in enumerate(self.t.staged)]
        at = (*lead, i, j)
        values = tuple(b[at] for b in inputs)
        y = Buffer("y", values[0].dtype, tuple(sizes))
        return Task.of("turned", Stage(y, (*lead, j, i), Call("elements", values, y.dtype, 1)))

    def kernel(self, tree: Strategy, anchor: Task, target: Target) -> Kernel:
        """The kernel of the task, scheduled by a strategy for ``anchor``, its ``turned`` stage."""
        reads = dict(zip(anchor.inputs, map(self._reader, self.t.staged), strict=True))
        return self.whole.kernel(tree, anchor, target, reads, self._write, zeros=False)

    def _position(self, order: Sequence[int], where: Sequence[Expr], values: Inliner) -> list[Expr]:
        places = dict(zip(order, where, strict=True))
        return self.whole.position([places[r] for r in range(len(places))], values)

    def _reader(self, w: MemoryStep) -> Read:
        order = (*self.others, self.t.along, self.t.across)

        def element(where: Sequence[Expr], values: Inliner) -> Expr:
            here = dict(zip(self.t.axes, self._position(order, where, values), strict=True))
            return w.buffer[tuple(values.simplifier(substitute(e, here)) for e in w.indices)]

        return element

    def _write(self, where: Sequence[Expr], turned: Expr, b: Builder, values: Inliner) -> None:
        for w, value in zip(self.t.staged, loads_in(turned), strict=True):
            values.readers[w.buffer] = _element(b.let(w.buffer.name, value))
        position = self._position((*self.others, self.t.across, self.t.along), where, values)
        store_outputs(b, values, self.whole.domain, position, self.whole.task.outputs)


def _element(value: Expr) -> Reader:
    return lambda where: value
