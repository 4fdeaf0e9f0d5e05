"""Recurrences: definitions in which each step computes new tensors from those of the previous step."""

from __future__ import annotations

from dataclasses import dataclass

from taskmap.ir.expressions import Buffer, Dim, Expr, Var, hash_once
from taskmap.ir.types import DType


@dataclass(frozen=True, slots=True)
class Recurrence(Expr):
    """Tensors that change from step to step, each with the extents of ``axes``:

        states = initial
        for step in range(steps):
            for each phase, in order:  phase[axes] = value      reads states, and phases before it
            out[row, axes] = the phase that becomes the first state
            states[k] = phases[after[k]]
        out[steps + k, axes] = states[k]

    ``initial`` and ``row`` depend on the axes, ``row`` and ``values`` also on ``step``; for every position on the axes,
    ``row`` takes each number below ``steps`` exactly once. Only as a whole compute definition, whose axes are ``here``:
    a row, then a position on the axes. ``states`` and ``phases`` are formal tensors that only values load.
    """

    here: tuple[Expr, ...]
    step: Var
    steps: Dim
    axes: tuple[tuple[Var, Dim], ...]
    states: tuple[Buffer, ...]
    initial: tuple[Expr, ...]
    phases: tuple[Buffer, ...]
    values: tuple[Expr, ...]
    after: tuple[int, ...]
    row: Expr
    dtype: DType
    lanes: int = 1

    @property
    def own(self) -> tuple[Buffer, ...]:
        """The tensors that exist only inside the loop."""
        return (*self.states, *self.phases)

    @property
    def bound(self) -> tuple[tuple[Var, Dim], ...]:
        """The variables that it defines, with their extents."""
        return (*self.axes, (self.step, self.steps))


hash_once(Recurrence, "row", "initial", "values")
