"""`make gpu` from its first process to its archive, on a simulated GPU that crashes, hangs, is lost and computes
wrong results."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu.parts import parts
from benchmarks.gpu.sections import SECTIONS

pytest.importorskip("cuda.bindings.driver")
pytestmark = [
    pytest.mark.skipif(shutil.which("cc") is None and shutil.which("gcc") is None, reason="no C compiler"),
    pytest.mark.skipif(shutil.which("make") is None, reason="no make"),
]

ROOT = Path(__file__).parents[2]
SICK = {"pointwise kernel": "segv", "TMA copy": "hang", "wgmma without TMA": "lost", "split-K": "wrong"}


def stand_in(folder: Path, *command: str, environment: Mapping[str, str]) -> str:
    """The output of a module, run as on a machine with a GPU of one multiprocessor, which small products fill."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu_stand_in.run", *command],
        cwd=ROOT,
        env={
            **os.environ,
            "TASKMAP_STAND_IN": str(folder),
            "STUB_MULTIPROCESSORS": "1",
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert "Traceback" not in done.stdout, done.stdout
    return done.stdout + done.stderr


def rows(out: Path, name: str) -> dict[str, dict[str, Any]]:
    """The rows of a record, by name."""
    return {row["name"]: row for row in json.loads((out / f"{name}.json").read_text())["rows"]}


def make_gpu(shared_cache: Path, out: Path, only: Sequence[str], faults: Mapping[str, str], *more: str) -> str:
    """The output of `make gpu` for some cases, with faults; every driver call had the arguments that a driver takes."""
    log = out.with_name("driver.log")
    arguments = ["--minutes", "25", "--store", os.environ["TASKMAP_CACHE_DIR"], *more, "--only", *only]
    environment = {
        "TASKMAP_STAND_IN": str(shared_cache), "STUB_MULTIPROCESSORS": "1", "STUB_LOG": str(log),
        "STUB_FAULTS": ";".join(f"{name}={kind}" for name, kind in faults.items()),
    }  # fmt: skip
    command = ["make", "gpu", "GPU_STAND_IN=tests.gpu_stand_in.run", f"OUT={out}", f"PYTHON={sys.executable}"]
    done = subprocess.run(
        [*command, f"GPU_ARGS={shlex.join(arguments)}"], cwd=ROOT, env={**os.environ, **environment},
        capture_output=True, text=True, timeout=1700, check=False,
    )  # fmt: skip
    assert not log.exists(), log.read_text()
    assert (done.returncode != 0) == bool(faults), done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.long
def test_sick_kernels_cost_themselves_alone(shared_cache: Path, tmp_path: Path) -> None:
    """A crash, a hang, a lost context and a wrong result: each is reported, and later cases are measured."""
    out = tmp_path / "out"
    only = [f"ladder/{name}" for name in (*SICK, "mma product")]
    printed = make_gpu(shared_cache, out, only, SICK, "--case-seconds", "45")
    rungs = rows(out, "gpu_ladder")
    assert rungs["pointwise kernel"]["failed"] == "the process was ended by SIGSEGV"
    assert rungs["TMA copy"]["failed"].startswith("no result in time: the stacks are in gpu_ladder.hang")
    assert "in synchronize" in (out / rungs["TMA copy"]["failed"].split()[-1]).read_text()
    assert rungs["wgmma without TMA"]["failed"].startswith("the GPU context is lost: DeviceError")
    assert "accessed memory that is nobody's" in rungs["wgmma without TMA"]["failed"]
    assert not rungs["split-K"]["right"]
    assert not rungs["split-K"]["relative_error"] < 0.1  # also where it is NaN
    assert rungs["mma product"]["right"], printed
    for name in SICK:
        assert f"/{name}: " in printed.split("summary")[1]
    with tarfile.open(out / "gpu-results.tar.gz") as archive:
        names = archive.getnames()
    assert {"gpu.json", "gpu_ladder.json"} <= set(names)
    assert any("hang" in name for name in names)


def test_kernels_compiled_beforehand_are_found(shared_cache: Path, tmp_path: Path) -> None:
    """Compiled on a machine without a GPU; with the GPU, nothing is compiled or scheduled."""
    store, out = tmp_path / "store", tmp_path / "out"
    chosen = {"ladder": "pointwise kernel", "memory": "softmax f16 8x50257"}
    built = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu.prebuild", "--gpu", "H200", "--store", str(store), "--only",
         *(f"{part}/{case}" for part, case in chosen.items())],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert "H200: 2 compiled, 0 left" in built.stdout, built.stdout + built.stderr
    assert "2 new kernels" in built.stdout
    commands = {
        "ladder": ["benchmarks.gpu.ladder", "--rung", chosen["ladder"]],
        "memory": ["benchmarks.gpu.kernels", "--section", "memory", "--only", chosen["memory"]],
    }
    whole = {"TASKMAP_CACHE_DIR": str(store), "STUB_MULTIPROCESSORS": "132", "STAND_IN_LARGEST": "60000"}
    for part, command in commands.items():
        printed = stand_in(shared_cache, *command, "--out", str(out), "--case-seconds", "100", environment=whole)
        record = json.loads((out / f"gpu_{part}.json").read_text())
        assert [row["right"] for row in record["rows"]] == [True], printed
        assert record["runs"][-1]["kernels"]["compiled"] == 0, printed
        assert record["runs"][-1]["kernels"]["found"] >= 1


def test_strategies_are_measured_against_eager_and_the_templates(shared_cache: Path, tmp_path: Path) -> None:
    """Products by threads and by tensor cores, and rows: right, and made by the strategies."""
    chosen = ("double_buffering f32 2048", "mma_small f16 128x128x4096", "softmax_rows f32*")
    command = ["benchmarks.gpu.kernels", "--section", "strategies", "--out", str(tmp_path), "--case-seconds", "300"]
    printed = stand_in(shared_cache, *command, "--only", *chosen, environment={})
    found = rows(tmp_path, "gpu_strategies")
    assert len(found) == len(chosen), printed
    for row in found.values():
        assert row["right"], printed
        assert set(row["timings"]) == {"taskmap", "torch", "template"}
        assert row["to_template"] > 0
    assert "(no bound)" in printed


FAULTS = {
    "TMA copy": ("ladder", "hang"),
    "f16 1024": ("matmul", "lost"),
    "f16 512 d64": ("attention", "wrong"),
    "softmax f16 8x50257": ("memory", "segv"),
    "f16 GQA 32/8, 4096 keys": ("decode", "oom"),
    "gather embedding f16 [[]default[]]": ("corners", "segv"),
    "votes-ballot-some": ("instructions", "hang"),
}
"""A case of each part, as a pattern, and what happens to its kernels."""

WHOLE = {
    "ladder": ["pointwise kernel"],
    "matmul": ["f16 16x4096x4096"],
    "attention": ["f16 4096 d64"],
    "memory": ["layer norm f16 8x50257", "sum of 16384x4096 f16"],
    "decode": ["f16 GQA 32/8, 32768 keys"],
    "corners": ["gather embedding bf16 [[]default[]]", "join cat f16 [[]default[]]"],
    "instructions": ["reductions-warp_reduce_add_i32"],
}
"""Cases to which nothing happens: some come after the sick one of their part."""

REPORTED = {
    "segv": "the process was ended by SIGSEGV", "hang": "no result in time", "oom": "the GPU has no memory left",
    "lost": "the GPU context is lost",
}  # fmt: skip


@pytest.mark.long
def test_every_part_reports_its_sick_case_and_measures_the_others(shared_cache: Path, tmp_path: Path) -> None:
    """A crash, a hang, a lost context, a wrong result and exhausted memory in seven parts; the cost model is fitted to
    the others, and the other parts run as well."""
    out = tmp_path / "out"
    named = {part: [name for name, (own, _) in FAULTS.items() if own == part] for part in WHOLE}
    only = [f"{part}/{name}" for part, names in WHOLE.items() for name in (*named[part], *names)]
    only += ["networks/resnet50 batch 1 f16", "kernels/*test_rows.py*sum*", "runtime/parameters_change"]
    printed = make_gpu(shared_cache, out, only, {n: kind for n, (_, kind) in FAULTS.items()}, "--case-seconds", "120")
    for pattern, (part, kind) in FAULTS.items():
        name = pattern.replace("[[]", "[").replace("[]]", "]")
        found = rows(out, f"gpu_{part}")
        assert not found[name]["right"], printed
        assert REPORTED.get(kind, "") in found[name].get("failed", ""), printed
        assert f"{part}/{name}: " in printed.split("summary")[1]
        for well in WHOLE[part]:
            row = found[well.replace("[[]", "[").replace("[]]", "]")]
            assert row["right"], printed
            assert part not in SECTIONS or row["measured_over_estimate"] > 0
    ran = {part["name"] for part in json.loads((out / "gpu.json").read_text())}
    rungs = {"ladder: pointwise kernel", "ladder: TMA copy"}
    assert ran - {"ladder"} == rungs | {part.name for part in parts() if part.name not in ("convolution", "strategies")}
    assert rows(out, "gpu_networks")["resnet50 batch 1 f16"]["measured_over_estimate"] > 0
    assert rows(out, "gpu_kernels")
    assert "the cost model against" in printed
    assert (out / "gpu_refit.json").exists()
