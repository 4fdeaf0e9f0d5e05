"""`make gpu` where there is no GPU: it says so, and its parts work on a driver that the simulator stands behind."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.gpu import __main__ as command
from benchmarks.gpu import cases, corners, hardware, kernels, networks, plugin
from benchmarks.gpu.cases import SECTIONS, Case
from benchmarks.gpu.timing import Comparison, Timing
from taskmap.backend.cuda.compile import SUFFIX
from taskmap.backend.cuda.cuda_source import CudaSource
from taskmap.backend.cuda.driver import Driver
from taskmap.backend.sim import run as simulator
from taskmap.backend.store import KernelStore
from taskmap.ir.instructions import instruction_named
from taskmap.ir.nodes import Var
from taskmap.ir.target import cuda_target
from tests.backend.fake_driver import FakeApi
from tests.cuda_proof.subjects import subjects
from tests.taskmap_roof.test_cuda_target import execute

ROOT = Path(__file__).parents[1]
N = Var("n")
SCALE = CudaSource(
    "scale",
    """extern "C" __global__ void __launch_bounds__(64) scale(tm_global<const float> x, tm_global<float> y, long long n)
{
  const int i = blockIdx.x * 64 + threadIdx.x;
  if (i < n) y[i] = 2.0f * x[i];
}
""",
    ("base", "portable"), False, (2,), 64, 0, (N,),
)  # fmt: skip


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_nothing_is_done() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert "nothing is checked on a GPU: torch" in done.stdout


class KnowingApi(FakeApi):
    """A GPU that has the sources of what it runs."""

    known: dict[str, CudaSource]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, shared_cache: Path) -> KnowingApi:
    """A GPU whose memory is the host's."""
    store = KernelStore(shared_cache)
    sources = {SCALE.symbol: SCALE}
    api = KnowingApi(counts={"scale": 3}, on_launch=lambda launched: execute(sources, store, launched))
    api.known = sources
    made = hardware.Machine(Driver(api), cuda_target("sm_90a"), KernelStore(shared_cache, suffix=SUFFIX), "cpu", 5)
    monkeypatch.setattr(hardware, "machine", lambda: made)
    return api


def test_a_kernel_runs_as_in_the_simulator(machine: FakeApi) -> None:
    x, y = np.random.default_rng().standard_normal(100).astype(np.float32), np.zeros(100, np.float32)
    for dims in ([100], {N: 100}):
        y[:] = 0
        report = hardware.run(SCALE, [x, y], dims, outputs=[1], seed=3, policy="early", store=None)
        np.testing.assert_array_equal(y, 2 * x)
        assert report.problems == ()
    hardware.run(SCALE, [x, y], [90], outputs=[1])
    assert np.isnan(y[90:]).all()  # what the kernel did not write is poisoned
    assert [launch.stream for launch in machine.launches] == [5, 5, 5]


def test_a_kernel_gets_the_memory_that_it_has_for_itself(machine: KnowingApi, monkeypatch: pytest.MonkeyPatch) -> None:
    own = replace(
        SCALE,
        symbol="through",
        text=SCALE.text.replace("scale(", "through(")
        .replace("long long n)", "tm_global<float> room, tm_global<int> count, long long n)")
        .replace("y[i] =", "{ room[i] = 2.0f * x[i] + (float)count[0]; y[i] = room[i]; }  //"),
        workspace=(400,),
        counters=(4,),
    )
    monkeypatch.setitem(machine.counts, "through", 5)
    monkeypatch.setitem(machine.known, "through", own)
    x, y = np.random.default_rng().standard_normal(100).astype(np.float32), np.zeros(100, np.float32)
    hardware.run(own, [x, y], [100], outputs=[1])
    np.testing.assert_array_equal(y, 2 * x)


def test_corners_are_run_without_pytest(tmp_path: Path) -> None:
    wanted = ["--simulate", "sm_90a", "--out", str(tmp_path)]
    some = [s for s in subjects() if str(s) in ("gather embedding f16", "rows sum f32")]
    assert corners.main(wanted, lambda: some) == 0
    record = json.loads((tmp_path / "gpu_corners.json").read_text())
    assert all(row["right"] for row in record["rows"])
    assert {row["name"].split(" [")[0] for row in record["rows"]} == {str(s) for s in some}
    wrong = [replace(some[0], limits=dict.fromkeys(some[0].limits, 1e-12))]
    assert corners.main([*wanted, "--seconds", "0"], lambda: some) == 1  # nothing was run
    broken = [replace(s, case=replace(s.case, arrays=[a * 0 - 100 for a in s.case.arrays])) for s in wrong]
    assert corners.main(wanted, lambda: broken) == 1
    assert "failed" in json.loads((tmp_path / "gpu_corners.json").read_text())["rows"][0]


def test_what_is_not_installed_is_skipped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    absent = command.Part("absent", ["nothing"], 1.0, needs=("json", "no_such_module"))
    assert absent.lacks == ["no_such_module"]
    monkeypatch.setattr(command, "parts", lambda workers: [absent])
    monkeypatch.setattr(command, "gpu_missing", lambda: "")
    assert command.main(["--out", str(tmp_path)]) == 0
    assert json.loads((tmp_path / "gpu.json").read_text()) == [{"name": "absent", "status": "skipped", "seconds": 0.0}]


def test_the_plugin_has_tests_run_on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulator, "run", simulator.run)
    plugin.pytest_configure()
    assert simulator.run is hardware.run


@pytest.mark.parametrize(
    ("name", "entry", "skips"),
    [
        ("test_a[sm_90a]", None, False),
        ("test_a[sm_80]", None, False),
        ("test_a[sm_100a]", None, True),
        ("test_a", "tma_load_2d", False),
        ("test_a", "mma_m16n8k16_f16_f32", False),
    ],
)
def test_what_the_gpu_lacks_is_passed_over(machine: FakeApi, name: str, entry: str | None, skips: bool) -> None:
    parameters = {} if entry is None else {"entry": instruction_named(entry)}
    item: Any = SimpleNamespace(name=name, callspec=SimpleNamespace(params=parameters))
    if skips:
        with pytest.raises(pytest.skip.Exception, match="the GPU is sm_90"):
            plugin.pytest_runtest_setup(item)
    else:
        plugin.pytest_runtest_setup(item)


def asks_for_counters() -> None:
    simulator.run(SCALE, []).counters["blocks"]


def asks_for_a_result() -> None:
    simulator.run(SCALE, [])


def test_what_only_the_simulator_says_is_passed_over(machine: FakeApi) -> None:
    item: Any = SimpleNamespace(name="test_a", callspec=None, function=asks_for_counters)
    with pytest.raises(pytest.skip.Exception, match="does not say"):
        plugin.pytest_runtest_setup(item)
    plugin.pytest_runtest_setup(SimpleNamespace(name="test_a", callspec=None, function=asks_for_a_result))  # type: ignore[arg-type]


def called_once(calls: Mapping[str, Callable[[int], object]], baseline: str) -> Comparison:
    """In the place of timing."""
    for call in calls.values():
        call(1)
    timing = Timing.of([1e-3, 1.1e-3, 1.2e-3], True)
    return Comparison(dict.fromkeys(calls, timing), dict.fromkeys(calls, 0.9))


def test_a_case_is_measured_and_checked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kernels, "compare", called_once)
    monkeypatch.setattr(kernels, "_CACHE", 1 << 16)
    monkeypatch.setattr(kernels, "GpuConditions", SimpleNamespace(now=lambda _: SimpleNamespace(to_dict=dict)))
    monkeypatch.setattr(kernels, "randn", lambda *shape: torch.randn(*shape))

    def section() -> list[Case]:
        def make() -> cases.Tensors:
            return torch.randn(64, 32), torch.randn(48, 32)

        def broken(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("no such case")

        return [
            Case("product", torch.nn.functional.linear, make, 0.9, 2.0 * 64 * 32 * 48, tolerance=1e-5),
            Case("sum", lambda x, w: x * 2, make, 0.9, bytes=64.0 * 32 * 8, copy=True, tolerance=1e-6),
            Case("impossible", torch.nn.functional.linear, make, 0.9, 1.0, tolerance=0.0),
            Case("broken", broken, make, 0.9),
        ]

    monkeypatch.setitem(SECTIONS, "matmul", section)
    assert kernels.main(["--section", "matmul", "--out", str(tmp_path)]) == 1
    record = json.loads((tmp_path / "gpu_matmul.json").read_text())
    product, chain, impossible, failed = record["rows"]
    assert (product["right"], product["baseline"], product["ratio"]) == (True, "torch", 0.9)
    assert (chain["right"], chain["baseline"]) == (True, "copy")
    assert not impossible["right"]
    assert "no such case" in failed["failed"]
    assert "met     product" in kernels.line(product)
    assert "WRONG" in kernels.line(impossible)
    assert "FAILED  broken" in kernels.line(failed)
    assert kernels.main(["--section", "matmul", "--out", str(tmp_path), "--seconds", "0"]) == 0
    assert json.loads((tmp_path / "gpu_matmul.json").read_text())["skipped"][0] == "product"


def test_the_cases_are_drawn_as_they_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """With tiny tensors in the place of large ones: their functions take what they draw."""
    monkeypatch.setattr(
        cases, "randn", lambda *shape, dtype=torch.float32, scale=1.0: torch.randn(*[min(n, 8) for n in shape])
    )
    for section in SECTIONS.values():
        found = list(section())
        assert len({case.name for case in found}) == len(found) > 3
        for case in found:
            assert case.flops > 0 or case.bytes > 0
            assert case.function(*case.make()).isfinite().all()


def test_networks_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(list(networks.cases())) == 20
    row = {
        "name": "resnet50 batch 1 float16", "timings": {"taskmap": {"median": 1e-3}}, "ratio": 1.1, "floor": 1.0,
        "compile_seconds": 3.0, "inductor_seconds": 30.0, "externs": 0, "relative_error": 1e-3, "right": True,
    }  # fmt: skip
    assert "1.10x the best of PyTorch's" in networks.line(row)


def test_parts_are_ended_when_their_time_is_over(tmp_path: Path) -> None:
    sleeps = command.Part("sleeps", [sys.executable, "-c", "import time; time.sleep(60)"], 0.5)
    assert command.run(sleeps, 0.3, tmp_path, str(tmp_path)).status == "out of time"
    fails = command.Part("fails", [sys.executable, "-c", "raise SystemExit(3)"], 0.5)
    assert command.run(fails, 30, tmp_path, str(tmp_path)).status == "failed"


def test_the_parts_fit_the_time() -> None:
    parts = command.parts(4)
    assert sum(part.share for part in parts) == pytest.approx(1)
    assert {part.name for part in parts} >= {*SECTIONS, "corners", "instructions", "kernels", "networks"}
    kernels = next(part for part in parts if part.name == "kernels")
    assert "tests/schedules/test_cuda_matmul.py" in kernels.command
    assert not any("mutants" in a for a in kernels.command)
    for part in parts:
        assert all(not a.startswith("tests/") or (ROOT / a).exists() for a in part.command)
