"""`taskmap run model.taskmap --profile`: the time of every kernel of an archive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from taskmap.archive.load import ArchivedModel
from taskmap.archive.manifest import PlanRecord
from taskmap.backend.cpu.peaks import measured_peaks
from taskmap.backend.program.executable import TimedRun
from taskmap.backend.program.structure import Launch
from taskmap.backend.store.objects import KernelStore
from taskmap.cli.output import duration, plain, table
from taskmap.cli.run.facts import write_trace
from taskmap.ir.errors import TaskmapError
from taskmap.ir.target import cuda_target
from taskmap.options import Options
from taskmap.report.roofline import Peaks, cpu_peaks, gpu_peaks
from taskmap.targets.choose import host_target
from taskmap.trust.compiler import trusted_toolchain


def profile(model: ArchivedModel, trace: Path | None, folder: Path | None) -> list[dict[str, Any]]:
    """The median time of every launch in the plans that ran."""
    steps: list[dict[str, Any]] = []
    events: list[list[tuple[str, float]]] = []
    peaks = _peaks(model, folder)
    for plan, runs in model.timed_runs():
        found = _steps(plan, runs)
        total = sum(s["seconds"] for s in found) or 1.0
        for step in found:
            step["share"], step["roofline"] = step["seconds"] / total, _roofline(peaks, step)
        events.append([(s["name"], last) for s, last in zip(found, runs[-1].seconds if runs else (), strict=False)])
        steps += found
    if trace is not None:
        write_trace(trace, events)
    return steps


def _peaks(model: ArchivedModel, folder: Path | None) -> Peaks | None:
    """The best rates of the machine: measured on a CPU if there is a compiler for that, from data of a GPU. The
    simulator's times say nothing about either."""
    machine = model.manifest.machine
    if machine.kind == "cuda":
        return gpu_peaks(cuda_target(machine.gpu))
    if machine.kind == "cuda-sim":
        return None
    threads = model.threads or machine.threads
    try:
        rate, levels = measured_peaks(
            host_target(Options(), threads), threads, trusted_toolchain(), KernelStore(folder)
        )
    except (TaskmapError, MemoryError):
        return None
    return cpu_peaks(rate, levels)


def _roofline(peaks: Peaks | None, step: Mapping[str, Any]) -> float | None:
    """The share of the roofline that a step reaches: the lower bound for its work divided by the measured time."""
    if peaks is None or step["bytes"] is None or not step["seconds"]:
        return None
    narrow = ("f16[",) if any(t in step["schedule"] for t in ("_f16_", "_bf16_")) else ()
    return peaks.seconds(step["operations"], step["bytes"], narrow, bool(narrow)) / float(step["seconds"])


def _steps(plan: PlanRecord, runs: Sequence[TimedRun]) -> list[dict[str, Any]]:
    if not runs:
        return []
    found = []
    for number, step in enumerate(plan.program.steps):
        assert isinstance(step, Launch)
        schedule = plan.schedules[number] if number < len(plan.schedules) else ""
        seconds = median(run.seconds[number] for run in runs)
        moved, computed = plan.work[number] if number < len(plan.work) else (None, None)
        record = {"name": step.label, "kernel": step.symbol, "schedule": schedule, "seconds": seconds}
        found.append({**record, "bytes": moved, "operations": computed})
    return found


def profile_table(steps: Sequence[dict[str, Any]]) -> str:
    """The profile as a table."""
    rows = [
        (
            plain(s["name"]), plain(s["schedule"])[:60], duration(s["seconds"]), f"{100 * s['share']:.1f} %",
            _rate(s["bytes"], s["seconds"]), _rate(s["operations"], s["seconds"]),
            "-" if s["roofline"] is None else f"{100 * s['roofline']:.0f} %",
        )
        for s in steps
    ]  # fmt: skip
    return table(("kernel", "schedule", "time", "share", "GB/s", "GFLOP/s", "roofline"), rows, left=2)


def _rate(count: int | None, seconds: float) -> str:
    """Billions per second; unknown if it depends on symbolic sizes."""
    return "-" if count is None or not seconds else f"{count / seconds / 1e9:.3g}"
