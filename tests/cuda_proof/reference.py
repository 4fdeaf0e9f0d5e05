"""The result of a task in nearly exact arithmetic: its definitions with every float replaced by float64."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from taskmap.ir.construct import cast, const
from taskmap.ir.interp.definitions import convert, evaluate
from taskmap.ir.nodes import Buffer, Call, Cast, Const, Expr, Load, Reduce
from taskmap.ir.task import Compute
from taskmap.ir.types import DType, f64
from taskmap.ir.visit import expr_map
from tests.schedules.running import Array, Case


@dataclass(frozen=True, slots=True)
class Exact:
    """The outputs of a case in float64 (or in integers), to compare results with."""

    case: Case
    outputs: tuple[Array, ...]

    def error(self, results: list[Array], limits: Mapping[str, float]) -> float:
        """The largest error relative to the limit: for floats ``limits`` by type, relative to the value and to 1; other
        values must be equal, or the error is infinite. NaN and infinities must match."""
        worst = 0.0
        for out, got, want in zip(self.case.task.outputs, results, self.outputs, strict=True):
            if got.shape != want.shape:
                return float("inf")
            if not out.dtype.is_float:
                worst = max(worst, 0.0 if np.array_equal(got, want) else float("inf"))
                continue
            wide = got.astype(np.float64)
            if not np.array_equal(np.isfinite(wide), np.isfinite(want)):
                return float("inf")
            finite = np.isfinite(want)
            if not np.array_equal(wide[~finite], want[~finite], equal_nan=True):
                return float("inf")
            share = np.abs(wide[finite] - want[finite]) / (1 + np.abs(want[finite]))
            worst = max(worst, float(share.max(initial=0.0)) / limits[out.dtype.name])
        return worst


def exact(case: Case) -> Exact:
    """The definitions of ``case`` on its arrays, which are rounded to their types first."""
    task = case.task
    twins: dict[Buffer, Buffer] = {}
    values: dict[Buffer, Array] = {}
    for b, a in zip(task.inputs, case.arrays, strict=True):
        twins[b] = Buffer(b.name, _wide(b.dtype), b.shape)
        given = convert(np.asarray(a), b.dtype)
        values[twins[b]] = given.astype(np.float64) if b.dtype.is_float else given

    def widen(e: Expr) -> Expr | None:
        if isinstance(e, Const) and e.dtype.is_float:
            return const(e.value, f64)
        if isinstance(e, Cast) and e.dtype.is_float:
            return cast(e.a, f64)
        if isinstance(e, Load):
            return replace(e, buffer=twins[e.buffer], dtype=_wide(e.dtype))
        if isinstance(e, Reduce | Call) and e.dtype.is_float:
            return replace(e, dtype=f64)
        return None

    for stage in task.stages:
        known = tuple(values)
        twins[stage.out] = Buffer(stage.out.name, _wide(stage.out.dtype), stage.shape)
        body = expr_map(widen)(stage.body)
        definition = Compute(stage.label, known, stage.shape, twins[stage.out].dtype, stage.axes, body)
        values[twins[stage.out]] = evaluate(definition, [values[b] for b in known], dict(case.dims))
    return Exact(case, tuple(values[twins[b]] for b in task.outputs))


def _wide(dtype: DType) -> DType:
    return f64 if dtype.is_float else dtype
