"""Measuring on a GPU, with a driver that simulates one: results are checked, times are those of its events."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cuda.bindings.driver")

from taskmap.backend.cuda.driver import Driver
from taskmap.cli import main
from taskmap.ir.errors import CompilerNotFoundError, NoDeviceError, ScheduleError
from taskmap.ir.target import Target, cuda_target
from taskmap.ir.types import f16, f32
from taskmap.schedules import problem, read_problem, space_of
from taskmap.schedules.cuda.tunable_matmul import CudaMatmulProblem
from taskmap.tuning import child
from taskmap.tuning.bench import WrongResultError
from taskmap.tuning.cuda_bench import CudaBench, find_gpu
from taskmap.tuning.job import Job, Setting
from taskmap.tuning.tune import operator_of
from tests.tuning.fake_gpu import FakeGpu

A100 = cuda_target("sm_80")
PROBLEM = CudaMatmulProblem(1, 40, 32, 24, (f16, f16, f16))
Capture = pytest.CaptureFixture[str]


def configs(target: Target = A100) -> tuple[str, ...]:
    """The default, and another that takes no memory of its own."""
    space = space_of(PROBLEM, target)
    others = (str(c) for c in space.configs if c != space.default and "split" not in str(c))
    return (str(space.default), next(others))


@pytest.fixture
def bench(tmp_path: Path) -> tuple[FakeGpu, CudaBench]:
    gpu = FakeGpu()
    driver = Driver(gpu)
    try:
        target = find_gpu(Setting(1), driver).target
    except CompilerNotFoundError as error:
        pytest.skip(str(error))
    job = Job(operator_of(PROBLEM, target), Setting(1, cache_dir=str(tmp_path)), configs(target))
    made = CudaBench(job, driver)
    made.build(job.configs, lambda _: None)
    gpu.sources.update({binary.source.symbol: binary.source for binary in made._binaries.values()})
    return gpu, made


def symbol(bench: CudaBench, config: str) -> str:
    return bench._binaries[config].source.symbol


def test_results_are_checked_and_events_are_the_clock(bench: tuple[FakeGpu, CudaBench]) -> None:
    gpu, made = bench
    default, other = configs(made.gpu.target)
    gpu.milliseconds[symbol(made, default)] = 0.25
    gpu.milliseconds[symbol(made, other)] = 0.125
    for config in (default, other):
        made.check(config)
    assert gpu.simulated >= 2
    assert made.sample(default, 0.001) == pytest.approx(0.25e-3)
    assert made.sample(other, 0.001) == pytest.approx(0.125e-3)
    assert made.refused == {}
    assert made.conditions.driver == "13000"
    assert made.conditions.device == "NVIDIA Fake 132 multiprocessors"


def test_a_kernel_that_computes_nothing_is_wrong(bench: tuple[FakeGpu, CudaBench]) -> None:
    gpu, made = bench
    default, other = configs(made.gpu.target)
    made.check(default)
    gpu.broken.add(symbol(made, other))
    with pytest.raises(WrongResultError, match="the largest error is nan"):
        made.check(other)
    made.check(default)


def test_a_job_is_served_as_on_the_cpu(bench: tuple[FakeGpu, CudaBench]) -> None:
    gpu, made = bench
    default, other = configs(made.gpu.target)
    gpu.broken.add(symbol(made, other))
    said: list[tuple[str, dict[str, Any]]] = []
    job = Job(operator_of(PROBLEM, made.gpu.target), Setting(1), (default, other, "no config"), samples=2)
    child.serve(job, made, lambda event, **content: said.append((event, content)))
    assert said[0][0] == "here"
    bad = {content["config"]: content for event, content in said if event == "bad"}
    assert bad[other]["verdict"] == "wrong"
    assert "is not a configuration of cuda.matmul" in bad["no config"]["reason"]
    assert [content["config"] for event, content in said if event == "sample"] == [default] * 2


def test_a_gpus_operator_is_measured_on_a_gpu() -> None:
    job = Job(operator_of(PROBLEM, A100), Setting(1), configs())
    with pytest.raises((NoDeviceError, CompilerNotFoundError)):
        find_gpu(job.setting, Driver(FakeGpu(devices=0)))


def test_products_of_gpus_are_problems_of_their_own() -> None:
    assert problem(PROBLEM.task(), A100) == PROBLEM
    assert read_problem("cuda.matmul", PROBLEM.shapes, PROBLEM.dtypes, PROBLEM.layout) == PROBLEM
    found = space_of(PROBLEM, A100)
    assert found.default in found.configs
    assert len(found.configs) <= 201
    assert list(found.cycles) == sorted(found.cycles)
    assert PROBLEM.read(str(found.default), A100) == found.default
    assert PROBLEM.read("nothing", A100) is None
    free = CudaMatmulProblem(1, 40, 32, 24, (f32, f32, f32), free=("m",))
    task = free.task()
    assert problem(task, A100, dict(zip(task.dims, free.dims(), strict=True))) == free
    with pytest.raises(ScheduleError, match="does not describe an operator of"):
        read_problem("cuda.matmul", "1x8x64x8", "f32,f32,f32", "a=k b=packed32")
    with pytest.raises(ScheduleError, match="a single row or column"):
        read_problem("cuda.matmul", "1x1x64x8", "f32,f32,f32", "a=k b=n")


SIZES = ["tune", "matmul", "--m", "40", "--n", "32", "--k", "24", "--dtype", "f16"]


def test_without_a_gpu_the_command_says_what_is_missing(cache_dir: Path, capsys: Capture) -> None:
    if _has_gpu():
        pytest.skip("there is a GPU")
    assert main([*SIZES, "--target", "cuda"]) == 2
    complaint = capsys.readouterr().err
    assert "there is no NVIDIA" in complaint
    assert "Traceback" not in complaint


def _has_gpu() -> bool:
    try:
        find_gpu(Setting(1))
    except (NoDeviceError, CompilerNotFoundError):
        return False
    return True


def test_the_simulator_estimates_and_remembers_nothing(cache_dir: Path, capsys: Capture) -> None:
    assert main([*SIZES, "--target", "cuda-sim", "--first", "1"]) == 0
    shown = capsys.readouterr().out
    assert "an estimate for A100, not measured and not remembered" in shown
    assert not (cache_dir / "tuning.sqlite").exists()
    assert main([*SIZES, "--m", "4096", "--n", "4096", "--k", "4096", "--target", "cuda-sim", "--gpu", "H200"]) == 0
    shown = capsys.readouterr().out
    assert "an estimate for H200" in shown
    assert "the simulator would take too long" in shown
    assert main(["tune", "conv", "--image", "8", "--channels", "4", "--out-channels", "4", "--kernel", "3",
                 "--target", "cuda-sim"]) == 2  # fmt: skip
    assert "conv cannot be tuned for cuda" in capsys.readouterr().err
