"""`make gpu` from its first process to its archive, on a simulated GPU that crashes, hangs, is lost and computes
wrong results."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cuda.bindings.driver")
pytestmark = pytest.mark.skipif(shutil.which("cc") is None and shutil.which("gcc") is None, reason="no C compiler")

ROOT = Path(__file__).parents[1]
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


def run(shared_cache: Path, out: Path, only: Sequence[str], faults: Mapping[str, str], log: Path) -> str:
    """The output of the command for some cases, with faults."""
    named = ";".join(f"{name}={kind}" for name, kind in faults.items())
    return stand_in(
        shared_cache, "benchmarks.gpu", "--out", str(out), "--minutes", "8", "--case-seconds", "45", "--only", *only,
        "--store", os.environ["TASKMAP_CACHE_DIR"], environment={"STUB_LOG": str(log), "STUB_FAULTS": named},
    )  # fmt: skip


def test_sick_kernels_cost_themselves_alone(shared_cache: Path, tmp_path: Path) -> None:
    """A crash, a hang, a lost context and a wrong result: each is reported, and later cases are measured."""
    out, log = tmp_path / "out", tmp_path / "log"
    printed = run(shared_cache, out, [f"ladder/{name}" for name in (*SICK, "mma product")], SICK, log)
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
    assert not log.exists(), log.read_text()  # what the driver was given was as it wants it


@pytest.mark.long
def test_a_sick_kernel_costs_its_section_nothing(shared_cache: Path, tmp_path: Path) -> None:
    """The section is restarted after it; the cost model is fitted to the others."""
    out, log = tmp_path / "out", tmp_path / "log"
    only = ["memory/*8x50257", "memory/sum*"]
    printed = run(shared_cache, out, only, {"softmax f16 8x50257": "segv"}, log)
    memory = rows(out, "gpu_memory")
    assert memory["softmax f16 8x50257"]["failed"] == "the process was ended by SIGSEGV"
    for name in ("layer norm f16 8x50257", "sum of 16384x4096 f16"):
        assert memory[name]["right"], printed
        assert memory[name]["measured_over_estimate"] > 0
    assert "the cost model against" in printed
    assert (out / "gpu_refit.json").exists()
    assert not log.exists(), log.read_text()


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


@pytest.mark.long
def test_make_gpu_runs_every_part(shared_cache: Path, tmp_path: Path) -> None:
    """By make itself: every rung, every section and every other part, with a crash among the corners."""
    out = tmp_path / "out"
    environment = {**os.environ, "TASKMAP_STAND_IN": str(shared_cache), "STUB_MULTIPROCESSORS": "1"}
    arguments = f"GPU_ARGS=--minutes 15 --case-seconds 120 --store {tmp_path / 'store'}"
    command = [
        "make",
        "gpu",
        "GPU_STAND_IN=tests.gpu_stand_in.run",
        f"OUT={out}",
        f"PYTHON={sys.executable}",
        arguments,
    ]
    subprocess.run(command, cwd=ROOT, env=environment, timeout=1200, check=False)
    outcomes = json.loads((out / "gpu.json").read_text())
    assert len(outcomes) == 19
    ladder = rows(out, "gpu_ladder")
    assert len(ladder) == 9
    assert all(row["right"] for row in ladder.values()), ladder
    for part in ("matmul", "attention", "memory", "decode", "corners", "instructions", "runtime", "kernels"):
        assert rows(out, f"gpu_{part}"), part
