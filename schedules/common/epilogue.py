"""Epilogue fusion: applies the stages after an anchor to a tile of its results.

The anchor's template computes a tile of sums into a local buffer and knows nothing of its epilogue. Here every output
of the task is evaluated at the tile's positions and stored; a load of the anchor becomes the tile's element.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from taskmap.ir.builder import Builder
from taskmap.ir.construct import index
from taskmap.ir.errors import ScheduleError
from taskmap.ir.nodes import Buffer, Dim, Expr, Reduce, Var
from taskmap.ir.printer import print_expr
from taskmap.ir.task import Stage, Task
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.common.loops import each_column
from taskmap.schedules.common.positions import positions_in
from taskmap.schedules.common.sampled_equality import equal_on_samples

Position = Callable[[Expr, Expr], dict[Var, Expr]]
"""The anchor's output axes at (row, column) of the tile."""


@dataclass(frozen=True, slots=True)
class Epilogue:
    """The stages after ``stage``, the anchor of ``task``, whose sum is ``reduce``. ``store``, if given, receives each
    element of an output as (buffer, indices, value), in place of a store to the buffer. ``outputs``: the values to
    store, by default the task's outputs."""

    task: Task
    stage: Stage
    reduce: Reduce | None
    builder: Builder
    store: Callable[[Buffer, tuple[Expr, ...], Expr], None] | None = None
    outputs: tuple[Buffer, ...] | None = None

    def emit(
        self, values: Inliner, tile: Buffer, rows: Dim, position: Position, groups: Sequence[tuple[int, int]]
    ) -> None:
        """Store every output for the first ``rows`` rows of ``tile``, its columns cut into ``groups``."""
        b = self.builder
        with b.loop("row", index(rows)) as i:
            values.bind(i, rows)
            for at, inside in each_column(b, values, groups):
                self.element(inside, tile[i, at], position(i, at))

    def element(self, values: Inliner, total: Expr, position: dict[Var, Expr]) -> None:
        """Store every output for one sum of the anchor, at ``position`` of its output."""
        axes = {v: values.simplifier(e) for v, e in position.items()}
        values.reduced = {**values.reduced, id(self.reduce): total}
        self.replace(values, values.expand(self.stage.body, axes), position)

    def replace(self, values: Inliner, value: Expr, position: dict[Var, Expr]) -> None:
        """Store every output for one finished element of the anchor, at ``position`` of its output."""
        axes = {v: values.simplifier(e) for v, e in position.items()}
        at = tuple(axes[v] for v in self.stage.axes)
        result = self.builder.let(self.stage.label or "anchor", value)

        def read(where: tuple[Expr, ...]) -> Expr:
            if where != at and not equal_on_samples(where, at, values.simplifier, self.stage.shape):
                raise ScheduleError(
                    f"the epilogue of {self.task.name!r} does not read its anchor at its own position",
                    why=f"it reads [{', '.join(map(print_expr, where))}] at [{', '.join(map(print_expr, at))}].",
                    hint="Only element-wise epilogues in the anchor's own order can be fused.",
                )
            return result

        values.readers[self.stage.out] = read
        for out in self.outputs or self.task.outputs:
            place = tuple(values.simplifier(p) for p in positions_in(out, self.stage.out, at))
            (self.store or self.builder.store)(out, place, values.element(out, place))
