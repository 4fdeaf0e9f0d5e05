"""Random element-wise tasks: all element types, layouts and ways of indexing, several outputs, symbolic sizes."""

from __future__ import annotations

import pytest

from taskmap.ir.nodes import Cast, Expr
from taskmap.ir.task import Task
from taskmap.ir.types import ALL_DTYPES
from taskmap.ir.visit import walk_exprs
from taskmap.schedules.common import transpose_domain
from taskmap.schedules.cpu import transpose
from tests.schedules.interpreting import check_every_pass
from tests.schedules.random_tasks import elementwise_case
from tests.schedules.running import ISAS, TOLERANCE, Case, compare_outputs, isas, run_cases

_LOOSER = {**TOLERANCE, "f32": 1e-4}


def tolerance(task: Task) -> dict[str, float]:
    """A result is as accurate as its narrowest intermediate float."""
    met = {e.dtype.name for s in task.stages for e in walk_exprs(s.body) if _is_rounded(e)}
    worst = max((_LOOSER[name] for name in met), default=_LOOSER["f64"])
    return {t.name: max(worst, _LOOSER[t.name]) for t in ALL_DTYPES if t.is_float}


def _is_rounded(e: Expr) -> bool:
    return e.dtype.is_float and (isinstance(e, Cast) or bool(getattr(e, "op", "") or getattr(e, "name", "")))


def random_case(seed: int, isa: str, largest: int) -> Case:
    return elementwise_case(seed, isa, symbolic=seed % 4 == 1, special=seed % 5 == 2, largest=largest)


def test_random_tasks_on_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [random_case(seed, isas()[seed % len(isas())], 4096) for seed in range(75)]
    for case, results in zip(cases, run_cases(cases), strict=True):
        compare_outputs(case, results, tolerance(case.task))
    monkeypatch.setattr(transpose_domain, "_SMALLEST", 16)  # small tensors use tiles as large ones do
    monkeypatch.setattr(transpose_domain, "_NARROWEST", 2)
    monkeypatch.setattr(transpose, "_LINE_BYTES", 64)
    cases = [random_case(seed, isas()[seed % len(isas())], 2048) for seed in range(100, 145)]
    for case, results in zip(cases, run_cases(cases), strict=True):
        compare_outputs(case, results, tolerance(case.task))


@pytest.mark.parametrize("isa", ISAS)
def test_random_tasks_in_the_interpreter(isa: str) -> None:
    for seed in range(ISAS.index(isa), 90, 3):
        case = random_case(1000 + seed, isa, 200)
        check_every_pass(case, tolerance(case.task))
