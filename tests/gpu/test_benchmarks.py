"""`make gpu` without a GPU: it says so, and its parts work on a driver backed by the simulator."""

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

from benchmarks.gpu import cases, corners, hardware, instructions, kernels, networks, plugin
from benchmarks.gpu.cases import Case
from benchmarks.gpu.record import WRONG
from benchmarks.gpu.sections import SECTIONS
from benchmarks.gpu.timing import Comparison, Deadline, Timing
from benchmarks.gpu.watchdog import Watchdog
from benchmarks.models import MODELS, ModelSpec
from benchmarks.models.plain import PLAIN
from taskmap.backend.cuda.compile import SUFFIX
from taskmap.backend.cuda.driver import Driver
from taskmap.backend.cuda.source import CudaSource
from taskmap.backend.sim import run as simulator
from taskmap.backend.store.objects import KernelStore
from taskmap.ir.isa.table import INSTRUCTIONS, instruction_named
from taskmap.ir.nodes import Var
from taskmap.ir.target import cuda_target, gpu_named
from tests.backend.fake_driver import FakeApi
from tests.cuda_proof.subjects import subjects
from tests.taskmap.targets.test_cuda import execute

ROOT = Path(__file__).parents[2]
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


PATIENT = ("--case-seconds", "900")
"""In this process a watchdog would end all tests, and the machine may have other work."""


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_nothing_is_done() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert "nothing is checked on a GPU: torch" in done.stdout


class KnowingApi(FakeApi):
    """A GPU that knows the sources of its kernels."""

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
    wanted = ["--simulate", "sm_90a", "--out", str(tmp_path), *PATIENT]
    some = [s for s in subjects() if str(s) in ("gather embedding f16", "rows sum f32")]
    assert corners.main(wanted, lambda: some) == 0
    record = json.loads((tmp_path / "gpu_corners.json").read_text())
    assert all(row["right"] for row in record["rows"])
    assert {row["name"].split(" [")[0] for row in record["rows"]} == {str(s) for s in some}
    wrong = [replace(some[0], limits=dict.fromkeys(some[0].limits, 1e-12))]
    assert corners.main([*wanted, "--resume"], lambda: wrong) == 0  # it is not run again
    assert corners.main([*wanted, "--seconds", "0"], lambda: some) == WRONG  # nothing was run
    broken = [replace(s, case=replace(s.case, arrays=[a * 0 - 100 for a in s.case.arrays])) for s in wrong]
    assert corners.main(wanted, lambda: broken) == WRONG
    assert "failed" in json.loads((tmp_path / "gpu_corners.json").read_text())["rows"][0]


def test_instructions_are_checked_without_pytest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = ["--simulate", "sm_90a", "--out", str(tmp_path), *PATIENT]
    works = list(instructions.works(cuda_target("sm_90a"), every=True))
    assert {name for work in works for name in work.entries} == {
        i.name for i in INSTRUCTIONS if i.targets.kind == "cuda"
    }
    assert not any("wgmma" in name for work in instructions.works(cuda_target("sm_80"), True) for name in work.entries)
    some = ("grids_that_depend_on_each_other", "votes-ballot-some", "reductions-warp_reduce_add_i32")
    assert instructions.main(wanted, lambda work: work.name in some) == 0
    record = json.loads((tmp_path / "gpu_instructions.json").read_text())
    assert {row["name"] for row in record["rows"] if row["right"]} == set(some)
    meaning = "tests.backend.sim.instruction_checks.execute"
    monkeypatch.setattr(meaning, lambda entry, values: np.zeros(32, np.int32))
    assert instructions.main(wanted, lambda work: work.name in some[1:2]) == WRONG


def bare(modules: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run with only PyTorch, numpy and the bindings installed."""
    command = [sys.executable, "tests/bare.py", modules, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_pytorch_numpy_and_the_bindings_suffice(tmp_path: Path) -> None:
    """Every import of the parts that run kernels."""
    how = ("--simulate", "sm_90a", "--seconds", "1", "--out", str(tmp_path))
    done = bare("benchmarks.gpu.corners,benchmarks.gpu.instructions", *how)
    assert done.stdout.count("left out") == 2, done.stderr
    for part in ("corners", "instructions"):
        assert "failed" not in (tmp_path / f"gpu_{part}.json").read_text()


def test_pytorch_suffices_to_measure() -> None:
    done = bare("benchmarks.gpu.runtime,benchmarks.gpu.kernels,benchmarks.gpu.networks,benchmarks.gpu.ladder", "--help")
    assert done.stdout.count("go on with what is in the folder") == 4, done.stderr


def test_what_is_bare_has_no_hypothesis() -> None:
    assert "No module named hypothesis" in bare("hypothesis").stderr


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
    """Replaces timing."""
    for call in calls.values():
        call(1)
    timing = Timing.of([1e-3, 1.1e-3, 1.2e-3], True)
    return Comparison(dict.fromkeys(calls, timing), dict.fromkeys(calls, 0.9), {"clocks.sm": "1980 MHz"})


class NoConditions:
    """Replaces a GPU's conditions."""

    @staticmethod
    def now(*_: object) -> Any:
        return SimpleNamespace(to_dict=lambda: {"code": "1"})


@pytest.mark.usefixtures("torch_settings")
def test_a_case_is_measured_and_checked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kernels, "compare", called_once)
    monkeypatch.setattr(kernels, "_CACHE", 1 << 16)
    monkeypatch.setattr(kernels, "GpuConditions", NoConditions)
    monkeypatch.setattr(kernels, "is_lost", lambda: False)
    monkeypatch.setattr(kernels, "randn", lambda *shape: torch.randn(*shape))
    monkeypatch.setattr(kernels, "machine", lambda: SimpleNamespace(target=gpu_named("H200")))

    def refuses(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("the baseline is called")

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
            Case(
                "half",
                torch.nn.functional.linear,
                make,
                0.8,
                64.0 * 32 * 48,
                tolerance=1e-5,
                of_own=Case("whole", torch.nn.functional.linear, make, 0.9, 2.0 * 64 * 32 * 48),
            ),
            Case("other", torch.nn.functional.linear, make, 0.9, 1.0, tolerance=1e-5, baseline=refuses),
        ]

    monkeypatch.setitem(SECTIONS, "matmul", section)
    assert kernels.main(["--section", "matmul", "--out", str(tmp_path), *PATIENT]) == WRONG
    record = json.loads((tmp_path / "gpu_matmul.json").read_text())
    product, chain, impossible, failed, half, other = record["rows"]
    assert (half["ratio"], half["baseline"]) == (0.45, "whole")  # as fast as what does twice the work
    assert "the baseline is called" in other["failed"]
    assert record["summary"]["measured"] == 4
    assert [run["code"] for run in record["runs"]] == ["1"]
    assert set(record["runs"][0]["kernels"]) == {"compiled", "found"}
    assert product["state"] == {"clocks.sm": "1980 MHz"}
    assert (product["right"], product["baseline"], product["ratio"]) == (True, "torch", 0.9)
    assert (chain["right"], chain["baseline"]) == (True, "copy")
    assert product["measured_over_estimate"] == pytest.approx(1.1e-3 / product["estimate"])
    assert product["estimated_by"] == "roofline"
    assert not impossible["right"]
    assert "no such case" in failed["failed"]
    assert "met     product" in kernels.line(product)
    assert "WRONG" in kernels.line(impossible)
    assert "FAILED  broken" in kernels.line(failed)
    assert kernels.main(["--section", "matmul", "--out", str(tmp_path), "--seconds", "0", *PATIENT]) == 0
    assert json.loads((tmp_path / "gpu_matmul.json").read_text())["skipped"][0] == "product"


def test_the_cases_are_drawn_as_they_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """With tiny tensors in place of large ones: the functions accept the inputs drawn."""
    monkeypatch.setattr(
        cases, "randn", lambda *shape, dtype=torch.float32, scale=1.0: torch.randn(*[min(n, 8) for n in shape])
    )
    for section in SECTIONS.values():
        found = list(section())
        assert len({case.name for case in found}) == len(found) > 3
        for case in found:
            assert case.flops > 0 or case.bytes > 0
            assert case.function(*case.make()).isfinite().all()


def test_the_measures_that_are_wanted() -> None:
    """Every figure with a bound, and its bound."""
    floors = {case.name: case.floor for section in SECTIONS.values() for case in section()}
    wanted = {"f16 8192": 0.9, "f16 4096": 0.9, "f16 2048": 0.85, "f16 1024": 0.85, "f16 2039": 0.8}
    wanted |= {f"f16 {rows}x4096x4096": 0.9 for rows in (1, 16, 64)} | {"f16 4096 + bias + gelu": 1.0}
    wanted |= {f"f16 {tokens}{causal}": 0.7 for tokens in (4096, 16384) for causal in ("", " causal")}
    wanted |= {f"{name} f16": 0.85 for name in ("softmax", "layer norm", "element-wise chain")}
    assert floors | wanted == floors | {"f16 4096": 0.7}  # the product's name is attention's, too
    prime = next(case for case in cases.matmul() if case.name == "f16 2039")
    assert prime.of_own is not None
    assert prime.of_own.name == "f16 2048"
    assert all(case.baseline is not None for case in cases.attention())
    assert all(case.copy or "8x50257" in case.name for case in cases.memory())  # those rows stay in L2


def test_every_kind_of_model_has_its_cases() -> None:
    """Heads of 64 and shared heads, decode, short sums, few rows, vocabularies, int8 weights, one sum of everything."""
    found = {f"{name}/{case.name}": case for name, section in SECTIONS.items() for case in section()}
    wanted = [
        "attention/f16 4096 d64", "attention/f16 4096 GQA 32/8", "decode/f16 GQA 32/8, 4096 keys",
        "matmul/f16 8192x8192x1024", *(f"matmul/f16 {rows}x4096x4096" for rows in (2, 4, 8, 16)),
        "memory/softmax f16 8x50257", "memory/layer norm f16 8x50257", "memory/sum of 16384x4096 f16",
        "matmul/int8 weights 16x4096x4096",
    ]  # fmt: skip
    assert set(wanted) <= set(found)
    for name in ("attention/f16 4096", "decode/f16 GQA 32/8, 4096 keys"):
        assert set(found[name].rivals) == {"cudnn"}
    assert sum(case.inductor for case in found.values()) >= 4


@pytest.mark.usefixtures("torch_settings")
def test_a_rival_that_is_not_there_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The case is measured against the other rivals and gives the reason; autotuning is skipped if time is short."""

    def absent(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("No available kernel")

    monkeypatch.setattr(kernels, "is_lost", lambda: False)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    case = Case("c", torch.relu, lambda: (torch.ones(2),), 1.0, rivals={"absent": absent, "here": torch.relu},
                inductor=True)  # fmt: skip
    calls, missing = kernels._rivals(case, [case.make()], Watchdog(None), Deadline(5))
    assert set(calls) == {"here"}
    assert missing == {
        "inductor max-autotune": "left out for want of time", "absent": "RuntimeError: No available kernel"
    }  # fmt: skip


def test_the_layers_are_those_of_the_network() -> None:
    with torch.device("meta"):
        module, args, _ = MODELS["resnet50"].make(False)
    seen = set()

    def note(c: Any, x: Any, _: Any) -> None:
        seen.add((c.in_channels, c.out_channels, c.kernel_size[0], c.stride[0], x[0].shape[-1]))

    for layer in module.modules():
        if isinstance(layer, torch.nn.Conv2d):
            layer.register_forward_hook(note)
    module.eval()(*args)
    layers = list(cases.resnet50_layers())
    assert len(layers) == len(set(layers)) == 23
    assert set(layers) == seen


def test_networks_are_those_of_the_paper() -> None:
    every = [str(setting) for setting in networks.settings()]
    assert len(set(every)) == len(every) == 5 * 2 * 3
    assert every[0] == "resnet50 batch 1 f16"
    assert {"inception_v3 batch 8 f32 tf32", "gpt2 batch 8 f32", "bert_base batch 1 f16"} <= set(every)
    for spec in PLAIN.values():
        with torch.device("meta"):
            module, _, _ = spec.make(False)
        assert sum(p.numel() for p in module.parameters()) == spec.parameters == MODELS[spec.name].parameters


@pytest.fixture
def small_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny networks on the CPU, against rivals other than Inductor."""

    def make(small: bool) -> Any:
        return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()), (torch.randn(1, 8),), {}

    spec = ModelSpec("tiny", make, 72, "")
    monkeypatch.setattr(networks, "PLAIN", dict.fromkeys(networks.NAMES, spec))
    monkeypatch.setattr(networks, "DEVICE", "cpu")
    monkeypatch.setattr(networks, "GpuConditions", NoConditions)
    monkeypatch.setattr(networks, "is_lost", lambda: False)
    monkeypatch.setattr(networks, "machine", lambda: SimpleNamespace(target=gpu_named("H200")))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(
        networks, "RIVALS", {"inductor": {"backend": "eager"}, "max-autotune": {"backend": "aot_eager"}}
    )
    monkeypatch.setattr(networks, "compare", lambda calls, baseline, graphs: called_once(calls, baseline))
    monkeypatch.setattr(networks, "settings", lambda: [networks.Setting("gpt2", 8, torch.float32)])


@pytest.mark.usefixtures("small_networks", "torch_settings")
def test_a_network_is_measured_and_checked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert networks.main(["--out", str(tmp_path), *PATIENT]) == 0
    (row,) = json.loads((tmp_path / "gpu_networks.json").read_text())["rows"]
    own = {"taskmap", "taskmap, dependent launches"}
    assert set(row["timings"]) == {*own, "eager", "inductor", "max-autotune"}
    assert set(row["compile_seconds"]) == {*own, "inductor", "max-autotune"}
    assert set(row["errors"]) == {*own, "eager"}
    assert row["name"] == "gpt2 batch 8 f32"
    assert (row["ratio"], row["right"], row["missing"]) == (1.0, True, {})
    assert row["relative_error"] < 1e-6
    assert row["estimate"] == pytest.approx(max(2 * 8 * 8 * 8 / 62e12, 4 * 72 / 4.8e12), rel=0.01)
    assert row["measured_over_estimate"] == pytest.approx(1.1e-3 / row["estimate"])
    assert "1.00x" in networks.line(row)
    assert "x the roofline's 0.000 ms" in networks.line(row)
    assert networks.main(["--out", str(tmp_path), "--seconds", "0", *PATIENT]) == 0
    assert json.loads((tmp_path / "gpu_networks.json").read_text())["skipped"] == ["gpt2 batch 8 f32"]


def test_the_rates_and_weights_of_a_networks_roofline() -> None:
    target = gpu_named("H200")
    kinds = ((torch.float16, False), (torch.float32, True), (torch.float32, False))
    assert [networks.Setting("gpt2", 1, *kind).rate(target) for kind in kinds] == [4096, 2048, 256]
    table, layer = torch.nn.Embedding(1000, 8), torch.nn.Linear(8, 1000, bias=False)
    assert networks.weight_bytes(torch.nn.Sequential(table, layer)) == 4 * 8000
    layer.weight = table.weight
    assert networks.weight_bytes(torch.nn.Sequential(table, layer)) == 4 * 8000  # read by the product
    assert networks.weight_bytes(torch.nn.Sequential(table)) == 0


@pytest.mark.usefixtures("small_networks", "torch_settings")
def test_what_the_time_does_not_suffice_for_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(networks, "_LONGER", 1e9)
    assert networks.main(["--out", str(tmp_path), *PATIENT]) == 0
    (row,) = json.loads((tmp_path / "gpu_networks.json").read_text())["rows"]
    assert row["missing"] == {"max-autotune": "left out for want of time"}
    assert "no max-autotune" in networks.line(row)
