"""A compilation as seen by PyTorch's own tools: TORCH_LOGS, tlparse's artifacts, ranges of torch.profiler."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch._logging._internal import trace_log

import taskmap.util.logs
from taskmap.compile.runtime import CompiledGraph

ROOT = Path(__file__).parents[3]

PROGRAM = """
import sys, torch
walked = sorted(m for m in sys.modules if m.startswith("taskmap.taskmap") or m == "taskmap.setup")
assert not walked, walked
weight = torch.randn(8, 8)
def f(x):
    return torch.linalg.eigvalsh((x @ weight).softmax(-1)).exp()
compiled = torch.compile(f, backend="taskmap")
torch.testing.assert_close(compiled(torch.eye(8)), f(torch.eye(8)))
torch._dynamo.reset()
torch.compile(f, backend="taskmap")(torch.eye(8))
"""


def in_python(program: str, cache: Path, **environment: str) -> str:
    run = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "TASKMAP_CACHE_DIR": str(cache), **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stderr


def test_torch_logs_and_traces_show_a_compilation(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    said = in_python(PROGRAM, tmp_path / "cache", TORCH_LOGS="+taskmap", TORCH_TRACE=str(trace))
    for wanted in (
        "inference graph:",
        "inference plan:",
        "refused ",  # why something was not fused
        "extern ",  # what PyTorch runs
        "inference kernels:",
        "scheduled, tm_",
        "to be compiled",
        "in the store",  # the second compilation finds what the first has left
        "scheduled by an earlier process",
        "1 steps through PyTorch",
    ):
        assert wanted in said, wanted
    written = [line for path in trace.iterdir() for line in path.read_text(encoding="utf-8").splitlines()]
    records = [json.loads(line[line.index("{") :]) for line in written if '"artifact"' in line]
    names = {record["artifact"]["name"] for record in records}
    assert {"taskmap_inference_graph", "taskmap_inference_plan", "taskmap_inference_kernels"} <= names
    assert any("void tm_" in line for line in written)


def test_without_the_plus_there_is_one_line_for_each_graph(caplog: pytest.LogCaptureFixture) -> None:
    torch.compile(lambda x: x - 1, backend="taskmap")(torch.ones(3))  # the trial of a new compiler logs too
    caplog.clear()
    with caplog.at_level(logging.INFO, "taskmap"):
        torch.compile(lambda x: x.relu() + 1, backend="taskmap")(torch.ones(3))
    assert [r.getMessage() for r in caplog.records] == ["inference graph: 1 kernels, 0 steps through PyTorch"]


def test_a_stage_is_not_made_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_log, "handlers", [])
    taskmap.util.logs.stage("inference", "graph", lambda: pytest.fail("nobody reads this"))


def test_a_walk_over_the_packages_ends_and_loads_no_framework() -> None:
    """For TORCH_LOGS=taskmap, PyTorch walks them while it is itself half loaded."""
    program = """
import pkgutil, sys, taskmap
found = [m.name for m in pkgutil.walk_packages(taskmap.__path__, "taskmap.", onerror=sys.exit)]
assert {"taskmap.compile.driver", "taskmap.ir.algebra.mapping", "taskmap.graph.importers.onnx.read.model"} <= set(found)
assert len(found) == len(set(found)) < 2000
assert not [name for name in found if name.split(".")[1] in ("taskmap", "tests", "setup", "benchmarks")]
assert not {"torch", "onnx", "cuda"} & set(sys.modules)
"""
    in_python(program, ROOT)


@pytest.mark.parametrize("options", [{}, {"threads": 1}], ids=str)
def test_kernels_are_ranges_of_the_profiler(options: dict[str, int]) -> None:
    linear = torch.nn.Linear(32, 32)
    x = torch.randn(4, 32)
    compiled = torch.compile(lambda x: linear(x).relu().softmax(-1), backend="taskmap", options={**options})
    with torch.no_grad():
        ranges, y = profiled(compiled, x)
        torch.testing.assert_close(y, linear(x).relu().softmax(-1), rtol=1e-3, atol=1e-3)
    assert len(ranges) >= 2
    assert "taskmap::mm_add_relu" in ranges


def test_kernels_of_a_gpu_are_ranges_too() -> None:
    compiled = torch.compile(lambda x: x.relu() + 1, backend="taskmap", options={"target": "cuda-sim"})
    ranges, y = profiled(compiled, torch.ones(3))
    assert ranges == ["taskmap::add"]
    assert y.tolist() == [2.0] * 3


def profiled(compiled: Callable[..., torch.Tensor], x: torch.Tensor) -> tuple[list[str], torch.Tensor]:
    """Our ranges in a call under the profiler, and its result; the graph is compiled before."""
    compiled(x)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        y = compiled(x)
    return [event.name for event in profile.events() or [] if event.name.startswith("taskmap::")], y


def test_an_index_out_of_range_is_noticed_under_the_profiler() -> None:
    compiled = torch.compile(lambda x, i: x.relu()[i] + 1, backend="taskmap")
    x = torch.randn(4)
    compiled(x, torch.tensor([1]))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        assert compiled(x, torch.tensor([2])) == x.relu()[2] + 1
        with pytest.raises(IndexError, match="out of range"):
            compiled(x, torch.tensor([7]))


def test_nothing_is_taken_apart_without_a_profiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CompiledGraph, "_ranged", lambda self: pytest.fail("no profiler is on"))
    torch.compile(lambda x: x.relu() + 1, backend="taskmap")(torch.ones(3))
