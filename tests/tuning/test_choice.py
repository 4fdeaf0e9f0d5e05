"""Compilations use this machine's tuning records, measure when asked to, and never fail because of the cache."""

import re
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import taskmap
from taskmap.compile.session import new_session
from taskmap.ir.nodes import Var
from taskmap.ir.target import Target
from taskmap.ir.task import Task
from taskmap.options import Options
from taskmap.schedules import Problem, problem, space_of
from taskmap.targets.choose import host_target
from taskmap.torch_backend import compile_captured
from taskmap.trust.compiler import trusted_toolchain
from taskmap.tuning.choice import Choices, choices
from taskmap.tuning.database import Database
from taskmap.tuning.here import conditions, database_path
from taskmap.tuning.record import Record, Verdict
from taskmap.tuning.tune import operator_of
from taskmap.util import progress
from tests.tuning.tuning_here import PROBLEM, SPACE, TARGET, here, operator

X = torch.linspace(-1, 1, 16 * 32).reshape(16, 32)


def layer() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU()).eval()


def compiled(model: nn.Module, **how: object) -> Tensor:
    torch._dynamo.reset()
    with torch.no_grad():
        result: Tensor = torch.compile(model, backend="taskmap", **how)(X)  # type: ignore[call-overload]
    return result


def record(config: str, *seconds: float) -> Record:
    return Record(operator(), config, Verdict.OK, here(), time.time(), seconds)


def chosen(folder: Path, **options: object) -> Choices:
    made = Options.from_user(None, {"threads": 1, "cache_dir": str(folder), **options})
    return Choices(database_path(str(folder)), TARGET, trusted_toolchain(), made)


def test_the_best_record_decides(tmp_path: Path) -> None:
    other = next(c for c in SPACE.configs if c != SPACE.default)
    database = Database(database_path(str(tmp_path)))
    database.add([record(str(SPACE.default), 2.0), record(str(other), 1.0)])
    database.close()
    made = chosen(tmp_path)
    assert made.config(PROBLEM.task()) == other
    assert chosen(tmp_path, tuned=False).config(PROBLEM.task()) is None
    made.close()


def test_without_a_cache_nothing_is_chosen_or_made(tmp_path: Path) -> None:
    assert chosen(tmp_path).config(PROBLEM.task()) is None
    assert list(tmp_path.iterdir()) == []


def test_the_environment_turns_it_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKMAP_TUNING", "off")
    assert choices(tmp_path / "tuning.sqlite", TARGET, trusted_toolchain(), Options()) is None


def test_a_record_of_what_is_no_configuration_here_is_passed_over(tmp_path: Path) -> None:
    database = Database(database_path(str(tmp_path)))
    database.add([record("tile=99x9v, rows=99, k_blocks=1", 1.0)])
    database.close()
    assert chosen(tmp_path).config(PROBLEM.task()) is None


def test_a_cache_that_cannot_be_read_is_done_without(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    database_path(str(tmp_path)).mkdir()
    assert chosen(tmp_path).config(PROBLEM.task()) is None
    assert "templates keep their default configurations" in caplog.text


def test_compiling_measures_when_asked_to_and_uses_it_afterwards(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = layer()
    compiled(model)
    before = taskmap.metrics()
    monkeypatch.setattr(progress, "_BETWEEN_LINES", 0.0)
    with progress.progress_in_lines():
        got = compiled(model, mode="max-autotune")
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("taskmap: tuning: ")]
    assert lines[0] == "taskmap: tuning: 0/1"
    assert re.match(r"taskmap: tuning: 0/1 cpu.matmul [x\d]+: \d+/\d+, best [.\d]+ µs tile=", lines[-1])
    assert taskmap.metrics().tasks_tuned > before.tasks_tuned
    torch.testing.assert_close(got, model(X).detach())
    database = Database(cache_dir / "tuning.sqlite")
    found = database.records()
    database.close()
    assert {r.operator.name for r in found} == {"cpu.matmul"}
    again = taskmap.metrics()
    torch.testing.assert_close(compiled(model), model(X).detach())
    assert taskmap.metrics().tasks_tuned > again.tasks_tuned


def test_a_configuration_from_the_cache_is_the_one_compiled(cache_dir: Path) -> None:
    model = layer()
    compiled(model, options={"tune_seconds": 20})
    database = Database(cache_dir / "tuning.sqlite")
    (one, *_) = database.records()
    threads = torch.get_num_threads()
    target = host_target(Options(), threads)
    slow = max(database.records(one.operator), key=lambda r: r.typical)
    fast = Record(slow.operator, slow.config, Verdict.OK, slow.conditions, time.time() + 60, (1e-12,) * 40)
    database.add([fast])
    assert database.best(one.operator, conditions(trusted_toolchain(), threads)) == fast
    database.close()
    with torch.no_grad():
        report = taskmap.explain(model, X)
    rows = next(part for part in slow.config.split(", ") if part.startswith("rows="))
    assert rows in str(report)
    assert operator_of(PROBLEM, target).target == slow.operator.target


def test_a_lookup_takes_less_than_a_millisecond(tmp_path: Path) -> None:
    database = Database(database_path(str(tmp_path)))
    database.add([record(str(c), 1.0) for c in SPACE.configs])
    database.close()
    made = chosen(tmp_path)
    task = PROBLEM.task()
    made.config(task)
    taken = []
    for _ in range(20):
        made._found.clear()
        began = time.perf_counter()
        made.config(task)
        taken.append(time.perf_counter() - began)
    made.close()
    assert min(taken) < 1e-3


def test_equal_operators_of_different_tasks_share_a_choice() -> None:
    assert problem(PROBLEM.task(), TARGET) == PROBLEM
    assert space_of(PROBLEM, TARGET).default == SPACE.default


def test_hints_do_not_leak_from_one_graph_to_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = Database(database_path(str(tmp_path)))
    database.add([record(str(SPACE.default), 1.0)])
    database.close()
    seen: list[set[Var]] = []  # at each lookup

    def noting(task: Task, target: Target, hints: Mapping[Var, int]) -> Problem | None:
        seen.append(set(hints))
        return problem(task, target, hints)

    monkeypatch.setattr("taskmap.tuning.choice.problem", noting)
    session = new_session(Options.from_user(None, {"threads": 1, "cache_dir": str(tmp_path)}))
    for width in (16, 24):
        torch._dynamo.reset()
        x, w = torch.randn(5, 8), torch.randn(8, width)
        torch._dynamo.mark_dynamic(x, 0)
        with torch.no_grad():
            torch.compile(lambda x, w: x @ w, backend=partial(compile_captured, session=session))(x, w)
    first, second = seen
    assert first
    assert second
    assert not first & second
