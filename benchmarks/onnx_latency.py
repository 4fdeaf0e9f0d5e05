"""Latency of the seven networks as ONNX files: taskmap's runner beside ONNX Runtime and OpenVINO, arrays in and out.

The table also has taskmap's error against float64, and that error over ONNX Runtime's, which keeps the bound that
`benchmarks.accuracy` has beside eager. The results file is written anew after each model.

python -m benchmarks.onnx_latency [--models ...] [--engines ...] [--rounds N] [--files FOLDER]
"""

from __future__ import annotations

import gc
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from benchmarks.accuracy import MOST
from benchmarks.models import MODELS
from benchmarks.onnx_files import WRONG, ModelFile, exported
from benchmarks.support.conditions import Probe
from benchmarks.support.engines import Run, installed
from benchmarks.support.harness import Protocol, geometric_mean, interleave
from benchmarks.support.report import Check, Report, parser, start
from taskmap.onnx.model import load_model
from taskmap.options import Options

ROUNDING = 2.0**-24
"""Half a unit in the last place of float32: an error below it counts as this."""


def by_taskmap(file: ModelFile) -> Run:
    """taskmap's runner, as `taskmap run` uses it."""
    model, feeds = load_model(file.path, Options(threads=torch.get_num_threads())), file.feeds()
    return lambda: model(feeds)


def by_onnxruntime(file: ModelFile) -> Run:
    """ONNX Runtime with all its optimisations."""
    ort = import_module("onnxruntime")
    options = ort.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    session = ort.InferenceSession(str(file.path), options, providers=["CPUExecutionProvider"])
    feeds = file.feeds()
    return lambda: session.run(None, feeds)


def by_openvino(file: ModelFile) -> Run:
    """OpenVINO tuned for latency, computing in float32."""
    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
    }
    request = import_module("openvino").Core().compile_model(str(file.path), "CPU", settings).create_infer_request()
    feeds = file.feeds()
    return lambda: request.infer(feeds).to_tuple()


RUNNERS: dict[str, Callable[[ModelFile], Run]] = {
    "taskmap": by_taskmap,
    "onnxruntime": by_onnxruntime,
    "openvino": by_openvino,
}


def choose(names: list[str]) -> tuple[list[str], list[str]]:
    """The named runners that can run here, and a note on each that cannot."""
    unknown = [name for name in names if name not in RUNNERS]
    if unknown:
        raise SystemExit(f"unknown engine {unknown[0]!r}; known are {', '.join(RUNNERS)}")
    present = [name for name in names if installed(name)]
    return present, [f"{name} was left out: it is not installed" for name in names if name not in present]


def prepare(file: ModelFile, names: list[str]) -> tuple[dict[str, Run], dict[str, dict[str, Any]]]:
    """The runs by engine, and for each the seconds until its first result and its error against float64."""
    runs: dict[str, Run] = {}
    facts: dict[str, dict[str, Any]] = {}
    for name in tqdm(names, desc=f"{file.name}: load", leave=False, disable=None):
        begin = time.perf_counter()
        try:
            run = RUNNERS[name](file)
            error = file.error(run())
        except Exception as problem:  # an engine's failure is a finding of the table, not the end of it
            facts[name] = {"error": f"{type(problem).__name__}: {problem}".splitlines()[0]}
            continue
        facts[name] = {"first_result_seconds": time.perf_counter() - begin, "relative_error": error}
        if error <= WRONG:
            runs[name] = run
        else:
            facts[name]["error"] = f"wrong result: relative error {error:.1e} against float64"
    return runs, facts


def errors(facts: dict[str, dict[str, Any]], rival: str = "onnxruntime") -> tuple[str, str, float | None]:
    """taskmap's error and how many times `rival`'s it is, as text, and that number where both are known."""
    ours, theirs = (facts.get(name, {}).get("relative_error") for name in ("taskmap", rival))
    if ours is None:
        return "", "", None
    if theirs is None:
        return f"{ours:.2e}", "", None
    times = ours / max(theirs, ROUNDING)
    return f"{ours:.2e}", f"{times:.2f}", times


def main(argv: list[str] | None = None) -> int:
    """The command."""
    cli = parser(__doc__ or "", 7, tuple(RUNNERS))
    cli.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    cli.add_argument("--small", action="store_true", help="the small variants")
    cli.add_argument("--files", type=Path, help="a folder that keeps the exported files")
    Protocol.add_arguments(cli, window=0.4)
    cli.set_defaults(patience=10.0)
    arguments = cli.parse_args(argv)
    conditions = start(arguments)
    names, notes = choose(arguments.engines)
    protocol = Protocol.of(arguments, pause=0.3)
    rivals = [name for name in names if name != "taskmap"]
    header = ("model, ms", *names, *(f"taskmap over {r}" for r in rivals), "error of taskmap", "over onnxruntime's")
    report = Report("onnx_latency", conditions, header, notes=notes)
    ratios: dict[str, list[float]] = {name: [] for name in rivals}
    probe = Probe()
    with tempfile.TemporaryDirectory(prefix="taskmap-bench-") as folder, torch.no_grad():
        for model in arguments.models:
            file = exported(model, arguments.seed, arguments.small, arguments.files or Path(folder))
            runs, facts = prepare(file, names)
            kept = interleave(runs, protocol, model, probe).quiet(protocol.accept)
            cells = [kept.seconds(n).text(1, scale=1e3) if n in runs else "failed" for n in names]
            for name in runs:
                facts[name]["seconds"] = asdict(kept.seconds(name))
            for rival in rivals:
                if rival in runs and "taskmap" in runs:
                    ratio = kept.speedup("taskmap", rival)
                    facts[rival]["speedup_of_taskmap"] = asdict(ratio)
                    ratios[rival].append(ratio.median)
                    cells.append(f"x{ratio.text()}")
                else:
                    cells.append("")
            error, times, value = errors(facts)
            report.rows.append((model, *cells, error, times))
            if value is not None:
                report.checks.append(Check(f"{model}: error of taskmap over ONNX Runtime's", value, MOST))
            report.notes += [f"{model}, {name}: {fact['error']}" for name, fact in facts.items() if "error" in fact]
            report.data.append({"model": model, "engines": facts, "windows": [asdict(w) for w in kept.windows]})
            print(" | ".join(report.rows[-1]), file=sys.stderr, flush=True)
            report.write(arguments.out)
            del runs
            gc.collect()
    means = [f"x{geometric_mean(ratios[r]):.2f}" if ratios[r] else "" for r in rivals]
    report.rows.append(("geometric mean", *("" for _ in names), *means, "", ""))
    return report.finish(arguments)


if __name__ == "__main__":
    sys.exit(main())
