"""`taskmap run model.taskmap`, after its options: run an archive; nothing is compiled, and neither torch nor onnx is
loaded."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from taskmap.archive_load import ArchivedModel, load, numpy_dtype
from taskmap.archive_manifest import ArchivedPlan
from taskmap.backend.cpu.peaks import measured_peaks
from taskmap.backend.executable import TimedRun
from taskmap.backend.program import Launch
from taskmap.backend.store import KernelStore
from taskmap.cli.output import duration, plain, print_json, table
from taskmap.cli.run_compare import Verdict, compare, other_outputs
from taskmap.cli.run_facts import (
    facts_of,
    graph_count,
    graph_facts,
    print_facts,
    save,
    saying_assumed,
    timed,
    write_trace,
)
from taskmap.cli.run_inputs import InputSpec, Wanted, inputs_for
from taskmap.ir.errors import InputError, TaskmapError
from taskmap.ir.target import cuda_target
from taskmap.options import Options
from taskmap.roofline import Peaks, cpu_peaks, gpu_peaks
from taskmap.target import host_target
from taskmap.trust.compiler import trusted_toolchain


def run_archive(a: argparse.Namespace, kept: Path | None = None) -> int | None:
    """Run what the options say; 1 when a comparison found a difference.

    ``kept``: the archive that was kept of the model ``a.model``. Where it cannot be loaded, or has no plan for the
    inputs, the result is None and nothing has run.
    """
    began = time.perf_counter()
    if kept is None:
        _refuse(a)
        model = load(a.model, threads=a.threads, sha256=a.sha256, profile=a.profile)
        _check_target(a, model)
    else:
        try:
            model = load(kept, threads=a.threads)
        except TaskmapError:
            return None
    specs = [InputSpec(p.name, numpy_dtype(p.dtype), p.shape) for p in model.inputs]
    inputs, assumed = inputs_for(specs, Wanted(a.input, a.shape, dict(a.range), a.seed))
    if kept is not None and not model.has_plan([inputs[p.name].shape for p in model.inputs]):
        return None
    with saying_assumed(assumed):
        outputs = model(inputs)
    first = time.perf_counter() - began
    for _ in range(a.warmup):
        model(inputs)
    for _, runs in model.timed_runs():
        runs.clear()
    times = [timed(lambda: model(inputs)) for _ in range(a.repeat)]
    names = [p.name for p in model.outputs]
    verdicts: list[Verdict] = []
    if a.compare:
        source = a.onnx if kept is None else a.model
        verdicts = compare(names, outputs, other_outputs(a.compare, source, inputs, a.threads), a.rtol, a.atol)
    named = dict(zip(names, outputs, strict=True))
    if a.save is not None:
        save(a.save, named)
    facts = facts_of(inputs, named, first, times, assumed, verdicts)
    if kept is not None:
        facts |= {"graphs": graph_facts(1, int(_is_general(model))), "kept": True}
    steps = _profile(model, a.trace, a.cache_dir) if a.profile else []
    if a.json:
        print_json({**facts, **({"profile": {"steps": steps}} if a.profile else {})})
    else:
        print_facts(facts, verdicts, a)
        if kept is not None:
            is_open = not all(isinstance(n, int) for p in model.inputs for n in p.shape or ())
            print(graph_count(1, int(_is_general(model)), is_open))
        if a.profile:
            print(f"\n{_profile_table(steps)}")
    return int(not all(v.equal for v in verdicts))


def _is_general(model: ArchivedModel) -> bool:
    """Whether the one plan of a kept model is for all sizes."""
    return all(plan.sizes for plan in model.manifest.plans)


def _refuse(a: argparse.Namespace) -> None:
    """Options that an archive does not have."""
    if a.trace is not None and not a.profile:
        raise InputError("a trace needs a profile", hint="Add --profile.")
    if a.layers:
        raise InputError(
            "an archive has no nodes to be compared", hint="Compare those of its model: taskmap run model.onnx --layers"
        )
    if a.compare and a.onnx is None:
        raise InputError(
            "an archive has nothing to be compared with", hint="Name the model that it was made of: --onnx model.onnx"
        )
    if a.tune is not None:
        raise InputError(
            "an archive cannot be tuned", why="its kernels are compiled.", hint="Use taskmap compile --tune SECONDS."
        )
    if a.gpu is not None:
        raise InputError("an archive is for the GPU that it was made for", hint="Leave --gpu out.")
    if a.isa is not None:
        hint = "Leave --isa out, or make another: taskmap compile --isa."
        raise InputError("an archive is for the instruction set that it was made for", hint=hint)


def _check_target(a: argparse.Namespace, model: ArchivedModel) -> None:
    kind = model.manifest.machine.kind
    if a.target not in (None, kind):
        hint = f"Make another: taskmap compile model.onnx --target {a.target}"
        raise InputError(f"the archive does not run on the target {a.target}", why=f"it is for {kind}.", hint=hint)


def _profile(model: ArchivedModel, trace: Path | None, folder: Path | None) -> list[dict[str, Any]]:
    """What every launch of the plans that ran took, in the median of the runs."""
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
    """What the machine can do at best: measured of a CPU, where there is a compiler for that, and known of a GPU. The
    simulator's times say nothing of either."""
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
    """The share of the roofline that a step reaches: the least time for its work over the measured one."""
    if peaks is None or step["bytes"] is None or not step["seconds"]:
        return None
    narrow = ("f16[",) if any(t in step["schedule"] for t in ("_f16_", "_bf16_")) else ()
    return peaks.seconds(step["operations"], step["bytes"], narrow, bool(narrow)) / float(step["seconds"])


def _steps(plan: ArchivedPlan, runs: Sequence[TimedRun]) -> list[dict[str, Any]]:
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


def _profile_table(steps: Sequence[dict[str, Any]]) -> str:
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
    """Billions in a second; unknown where it depends on symbolic sizes."""
    return "-" if count is None or not seconds else f"{count / seconds / 1e9:.3g}"
