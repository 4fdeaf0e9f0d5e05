"""Element-wise work over merged axes, as a stage that strategies schedule.

    y[i0, i1, ...] = elements()      i0, i1, ...: runs of axes that merge in every tensor

y stands for the whole task: all its outputs at a position, which are computed and stored where the stage is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from taskmap.ir.builder import Builder
from taskmap.ir.decompose.lowering import kernel_on
from taskmap.ir.decompose.strategy import Strategy
from taskmap.ir.nodes import Buffer, Call, Dim, Expr, Kernel, Var
from taskmap.ir.printer import print_dim
from taskmap.ir.target import Target
from taskmap.ir.task import Stage, Task
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.common.positions import position_of, store_outputs
from taskmap.schedules.strategies.fusion import Fusion, Read, Write


@dataclass(frozen=True, slots=True)
class MergedTask:
    """A task whose outputs are computed over ``domain``, and the runs of its axes. extents: the sizes of the runs."""

    task: Task
    domain: Buffer
    runs: Sequence[Sequence[int]]
    extents: Sequence[Dim]

    @property
    def size(self) -> str:
        """The sizes of the runs, as text."""
        return "x".join(map(print_dim, self.extents))

    @property
    def elements(self) -> Task:
        """y[i0, i1, ...] = elements()."""
        y = Buffer("y", self.domain.dtype, tuple(self.extents))
        axes = tuple(Var(f"i{r}") for r in range(len(self.extents)))
        return Task.of("elements", Stage(y, axes, Call("elements", (), y.dtype, 1)))

    def position(self, at: Sequence[Expr], values: Inliner) -> list[Expr]:
        """The position in the domain with these numbers in the runs."""
        return position_of(self.domain, self.runs, at, values)

    def store(self, where: Sequence[Expr], value: Expr, b: Builder, values: Inliner) -> None:
        """All outputs at a position."""
        store_outputs(b, values, self.domain, self.position(where, values), self.task.outputs)

    def kernel(
        self, tree: Strategy, anchor: Task, target: Target, reads: Mapping[Buffer, Read], write: Write, *, zeros: bool
    ) -> Kernel:
        """The kernel of the task, scheduled by a strategy for ``anchor``, whose operands and result are in no memory.
        zeros: of ``Fusion``."""
        buffers, task = {b.name: b for b in (*anchor.inputs, *anchor.outputs)}, self.task
        fusion = Fusion(task, target, reads, {anchor.outputs[0]: write}, zeros=zeros)
        kernel = fusion.apply(kernel_on(tree, task.name, buffers, buffers))
        return replace(kernel, buffers=(*task.inputs, *task.outputs), outputs=task.outputs, dims=task.dims)
