"""Latency on a busy machine: the slow-down of a model, and of ONNX Runtime in the same run.

In every round each engine gets a window alone, one beside a process that computes endlessly, and one beside two, in
random order. A window's figure is the mean duration of its calls, because stalls are rare and long. The
figure compared is the slow-down: the mean beside busy processes over the mean alone, within a round.

python -m benchmarks.busy [--models ...] [--onnx FILE ...] [--busy 1 2] [--rounds N] [--files FOLDER]
"""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from tqdm import tqdm

from benchmarks.models import MODELS
from benchmarks.onnx_files import ModelFile, exported
from benchmarks.onnx_latency import by_onnxruntime, by_taskmap
from benchmarks.support.engines import Run, export_onnx
from benchmarks.support.harness import Spread, geometric_mean, measure_window
from benchmarks.support.report import Check, Report, parser, start
from taskmap.onnx.model import load_model
from taskmap.options import Options

MANY_KERNELS = "many_kernels"
NOISE = 1.1
"""Two engines' slow-downs that differ by less are equal: rounds differ by more."""
_TYPES = {"tensor(float)": "f4", "tensor(int64)": "i8", "tensor(int32)": "i4", "tensor(bool)": "?"}


class ManyKernels(nn.Module):
    """A convolution network of 42 short kernels, in which waiting for threads costs most."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs, stride in [(3, 32, 2), *[(32, 32, 1)] * 20, (32, 64, 2), *[(64, 64, 1)] * 20]:
            layers += [nn.Conv2d(inputs, outputs, 3, stride, 1), nn.BatchNorm2d(outputs), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 100))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The scores of a batch of images, [n, 3, h, w] to [n, 100]."""
        scores: torch.Tensor = self.layers(x)
        return scores


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Runs this many endlessly computing processes within the block."""
    made = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        time.sleep(0.3)  # until they have started
        yield
    finally:
        for process in made:
            process.kill()
            process.wait()


def measure(runs: dict[str, Run], busy: Sequence[int], rounds: int, window: float, seed: int) -> list[dict[str, Any]]:
    """The mean seconds of a call by round, number of busy processes and engine."""
    draw = random.Random(seed)
    found: list[dict[str, Any]] = []
    for run in runs.values():
        run()
    for number in tqdm(range(rounds), leave=False, disable=None):
        for count in (0, *busy):
            names = list(runs)
            draw.shuffle(names)
            with busy_processes(count):
                for name in names:
                    time.sleep(0.3)  # until the other engine's threads have stopped spinning
                    seconds = measure_window(runs[name], window)
                    found.append({"round": number, "busy": count, "engine": name, "calls": len(seconds),
                                  "mean": statistics.fmean(seconds), "median": statistics.median(seconds),
                                  "p90": float(np.quantile(seconds, 0.9)), "slowest": max(seconds)})  # fmt: skip
    return found


def slow_down(found: list[dict[str, Any]], engine: str, count: int) -> Spread:
    """Mean beside ``count`` processes over the mean alone, by round."""
    means = {(f["round"], f["busy"]): f["mean"] for f in found if f["engine"] == engine}
    return Spread.of(means[r, count] / means[r, 0] for r, b in means if b == 0)


def many_kernels(folder: Path, seed: int) -> Path:
    """The network of short kernels as an ONNX file."""
    torch.manual_seed(seed)
    folder.mkdir(parents=True, exist_ok=True)
    return Path(export_onnx(ManyKernels().eval(), (torch.randn(1, 3, 96, 96),), {}, str(folder)))


def file_runs(path: Path, seed: int) -> dict[str, Run]:
    """taskmap and ONNX Runtime on an ONNX file, with random inputs; free dimensions are 1."""
    threads = torch.get_num_threads()
    model = load_model(path, Options(threads=threads))
    ort = import_module("onnxruntime")
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    draw = np.random.default_rng(seed)
    feeds = {}
    for port in session.get_inputs():
        shape = [n if isinstance(n, int) and n > 0 else 1 for n in port.shape]
        feeds[port.name] = draw.random(shape).astype(_TYPES[port.type])
    return {"taskmap": lambda: model(feeds), "onnxruntime": lambda: session.run(None, feeds)}


def model_runs(file: ModelFile) -> dict[str, Run]:
    """taskmap and ONNX Runtime on one of the seven networks."""
    return {"taskmap": by_taskmap(file), "onnxruntime": by_onnxruntime(file)}


def main(argv: list[str] | None = None) -> int:
    """The command."""
    cli = parser(__doc__ or "", 5, ())
    names = [MANY_KERNELS, *MODELS]
    cli.add_argument("--models", nargs="*", choices=names, default=names)
    cli.add_argument("--onnx", nargs="*", type=Path, default=[], help="further ONNX files")
    cli.add_argument("--busy", nargs="+", type=int, default=[1, 2], help="numbers of busy processes")
    cli.add_argument("--window", type=float, default=1.0, help="seconds of one window")
    cli.add_argument("--small", action="store_true", help="the small variants")
    cli.add_argument("--files", type=Path, help="a folder that keeps the exported files")
    arguments = cli.parse_args(argv)
    columns = [c for k in arguments.busy for c in (f"beside {k}", f"ONNX Runtime beside {k}")]
    header = ("model", "alone, ms", "ONNX Runtime, ms", *columns)
    report = Report("busy", start(arguments), header)
    worst: list[float] = []
    with tempfile.TemporaryDirectory(prefix="taskmap-bench-") as folder, torch.no_grad():
        parent = arguments.files or Path(folder)
        cases: list[tuple[str, Path | None]] = [(name, None) for name in arguments.models]
        cases += [(path.stem, path) for path in arguments.onnx]
        for name, path in cases:
            if name == MANY_KERNELS:
                path = many_kernels(parent / MANY_KERNELS, arguments.seed)
            runs = (
                model_runs(exported(name, arguments.seed, arguments.small, parent))
                if path is None
                else file_runs(path, arguments.seed)
            )
            found = measure(runs, arguments.busy, arguments.rounds, arguments.window, arguments.seed)
            alone = {
                e: Spread.of(f["mean"] for f in found if f["engine"] == e and f["busy"] == 0) for e in runs
            }  # fmt: skip
            cells: list[str] = []
            data: dict[str, Any] = {"model": name, "windows": found}
            for count in arguments.busy:
                ours, theirs = (slow_down(found, e, count) for e in ("taskmap", "onnxruntime"))
                cells += [f"x{ours.text()}", f"x{theirs.text()}"]
                data[f"beside {count}"] = {"taskmap": asdict(ours), "onnxruntime": asdict(theirs)}
                worst.append(ours.median / theirs.median)
                report.checks.append(Check(f"{name} beside {count}: slow-down over ONNX Runtime's", worst[-1], NOISE))
            report.rows.append((name, *(alone[e].text(2, scale=1e3) for e in ("taskmap", "onnxruntime")), *cells))
            report.data.append(data)
            print(" | ".join(report.rows[-1]), file=sys.stderr, flush=True)
            report.write(arguments.out)
    if worst:
        report.notes.append(f"slow-down over ONNX Runtime's, geometric mean: {geometric_mean(worst):.2f}")
    return report.finish(arguments)


if __name__ == "__main__":
    sys.exit(main())
