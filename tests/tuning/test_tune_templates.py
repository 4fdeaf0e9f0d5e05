"""Convolutions, depthwise ones and attention are tuned like matrix products: by processes that may crash, at likely
sizes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import taskmap
from taskmap.ir.nodes import Var
from taskmap.ir.task import Task
from taskmap.ir.types import f32
from taskmap.options import Options
from taskmap.schedules import Problem, problem, read_problem, space_of
from taskmap.schedules.cpu.attention.problem import AttentionProblem
from taskmap.schedules.cpu.convolution.problem import ConvolutionProblem
from taskmap.targets.choose import host_target
from taskmap.tuning.bench import Bench
from taskmap.tuning.choice import Choices
from taskmap.tuning.database import Database
from taskmap.tuning.job import Job
from taskmap.tuning.record import Verdict
from taskmap.tuning.tune import Budget, Tuned, operator_of, tune
from tests.tuning.tuning_here import FAULTY, TARGET, database, here, setting

F32 = (f32, f32, f32)
IMAGE = ConvolutionProblem((1, 8, 12, 12), (16, 8, 3, 3), (1, 1), (1, 1), (1, 1), 1, F32, weights="packed16")
DEPTHWISE = ConvolutionProblem((2, 24, 9, 10), (24, 1, 3, 3), (2, 1), (1, 1), (1, 1), 24, F32, free=(0, 2))
BY_CHANNELS = replace(DEPTHWISE, weights="channels", free=())
TURNED = ConvolutionProblem((1, 6, 5, 5), (6, 10, 4, 4), (2, 2), (1, 1), (1, 1), 1, F32, (0, 1), "columns")
ATTENTION = AttentionProblem(1, 2, 1, 40, 33, 16, 8, (f32, f32), True, "bool[11qk]", q="rows", free=("queries",))
ALL = [IMAGE, DEPTHWISE, BY_CHANNELS, TURNED, ATTENTION]


@pytest.mark.parametrize("p", ALL, ids=lambda p: p.shapes)
def test_configurations_compute_what_the_operator_says(p: Problem, tmp_path: Path) -> None:
    found = [str(c) for c in space_of(p, TARGET).configs]
    some = tuple(dict.fromkeys([str(p.default(TARGET)), *found[:: max(1, len(found) // 3)]]))
    bench = Bench(Job(operator_of(p, TARGET), setting(tmp_path), some))
    bench.build(some, lambda _: None)
    assert bench.refused == {}
    for config in some:
        bench.check(config)
        assert bench.sample(config, 0.0) > 0


def tuned(p: Problem, folder: Path, **more: object) -> Tuned:
    with database(folder) as opened:
        return tune(p, TARGET, setting(folder), here(), opened, Budget(600, 2), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("p", [IMAGE, ATTENTION], ids=lambda p: p.template)
def test_what_does_harm_is_recorded_and_the_rest_goes_on(p: Problem, tmp_path: Path) -> None:
    default = str(p.default(TARGET))
    others = [str(c) for c in space_of(p, TARGET).configs if str(c) != default]
    with database(tmp_path) as opened:
        budget = Budget(600, 3)
        faults = (f"crash={others[0]}", f"wrong={others[1]}")
        found = tune(p, TARGET, setting(tmp_path), here(), opened, budget, command=(*FAULTY, *faults))
        verdicts = {c: f.verdict for c, f in found.failures.items()}
        assert verdicts.items() <= {others[0]: Verdict.CRASHED, others[1]: Verdict.WRONG}.items()
        assert verdicts
        assert default in found.times
        best = opened.best(operator_of(p, TARGET), here())
        assert best is not None
        assert best.config not in verdicts


def test_a_configuration_that_hangs_is_given_up(tmp_path: Path) -> None:
    victim = next(str(c) for c in space_of(IMAGE, TARGET).configs if c != IMAGE.default(TARGET))
    with database(tmp_path) as opened:
        budget = Budget(600, 2, patience=6)
        found = tune(IMAGE, TARGET, setting(tmp_path), here(), opened, budget, command=(*FAULTY, f"hang={victim}"))
    assert found.failures[victim].verdict is Verdict.HUNG


def test_a_spread_is_measured_and_only_what_is_new_later(tmp_path: Path) -> None:
    with database(tmp_path) as opened:
        first = tune(IMAGE, TARGET, setting(tmp_path), here(), opened, Budget(600, 1))
        again = tune(IMAGE, TARGET, setting(tmp_path), here(), opened, Budget(600, 1, spread=3))
        known = tune(IMAGE, TARGET, setting(tmp_path), here(), opened, Budget(600, None, known=True))
    assert len(again.times) == len(first.times) + 3
    assert again.measured <= 3 + len(first.times)
    assert known.measured == 0
    assert known.times == again.times


class Small(nn.Module):
    """A convolution, a depthwise one, a product and attention."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv2d(3, 8, 3, padding=1)
        self.two = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.three = nn.Linear(24, 32)

    def forward(self, x: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
        q = self.three(q).unflatten(2, (2, 16)).transpose(1, 2)
        return self.two(self.one(x).relu()), nn.functional.scaled_dot_product_attention(q, q * 2.0, q + 1.0)


@pytest.mark.long
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_model_is_tuned_and_symbolic_sizes_at_what_they_were(cache_dir: Path, dynamic: bool) -> None:
    torch.manual_seed(0)
    model = Small().eval()

    def inputs(n: int, size: int) -> tuple[Tensor, Tensor]:
        return torch.randn(n, 3, size, 8), torch.randn(n, 4 * size, 24)

    def run(seconds: float | None = None) -> None:
        torch._dynamo.reset()
        how: dict[str, Any] = {"threads": 1, "tune_seconds": seconds}
        with torch.no_grad():
            made = torch.compile(model, backend="taskmap", dynamic=dynamic, options=how)
            for given in [inputs(3, 6), *([inputs(2, 5)] if dynamic else [])]:
                torch.testing.assert_close(made(*given), model(*given), atol=1e-5, rtol=1e-5)

    run(30.0)
    opened = Database(cache_dir / "tuning.sqlite")
    records = list(opened.records())
    opened.close()
    operators = {r.operator for r in records}
    assert {r.verdict for r in records} == {Verdict.OK}
    names = {o.name for o in operators}
    assert {"cpu.convolution", "cpu.attention"} <= names
    assert any("?" in o.shapes for o in operators) == dynamic
    before = taskmap.metrics().tasks_tuned
    run()
    assert taskmap.metrics().tasks_tuned > before


def test_what_is_found_in_a_model_is_what_its_text_says(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Problem | None] = []

    def note(self: Choices, tasks: Sequence[Task], hints: Mapping[Var, int], show: object) -> None:
        found.extend(problem(task, self.target, hints) for task in tasks)

    monkeypatch.setattr(Choices, "tune", note)
    torch._dynamo.reset()
    how: dict[str, Any] = {"threads": 1, "tune_seconds": 1.0}
    with torch.no_grad():
        made = torch.compile(Small().eval(), backend="taskmap", options=how)
        made(torch.randn(3, 3, 6, 8), torch.randn(3, 24, 24))
    known = [p for p in found if p is not None]
    assert {"w=plain", "w=channels"} & {p.layout.split()[-2] for p in known} == {"w=channels"}
    for p in known:
        assert read_problem(p.template, p.shapes, p.dtypes, p.layout) == p


def test_what_nothing_hints_at_is_not_tuned() -> None:
    free = replace(IMAGE, free=(0,))
    task = free.task()
    target = host_target(Options(threads=1), 1)
    assert problem(task, target) is None
    assert problem(task, target, dict(zip(task.dims, free.dims(), strict=True))) == free
