"""LSTM, GRU and RNN, compared with ONNX Runtime and eager: latency in interleaved rounds, compile time, errors to f64.

The results file is written anew after each case; ``--resume`` keeps what it holds from the same conditions. 180 cases
take about 15 minutes.

python -m benchmarks recurrent [--kinds ...] [--hidden ...] [--lengths ...] [--batches ...] [--resume] [--rounds N]
"""

from __future__ import annotations

import copy
import gc
import io
import sys
import time
import warnings
from dataclasses import asdict, dataclass
from importlib import import_module
from itertools import product
from typing import Any

import torch

from benchmarks.support.conditions import Probe
from benchmarks.support.harness import Protocol, geometric_mean, interleave
from benchmarks.support.report import Check, Report, earlier, parser, start
from taskmap.onnx.model import load_model
from taskmap.options import Options

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "LSTM": ("LSTM", {}),
    "GRU": ("GRU", {}),
    "RNN": ("RNN", {}),
    "LSTM both ways": ("LSTM", {"bidirectional": True}),
    "LSTM two layers": ("LSTM", {"num_layers": 2}),
}
WANTED = 1.0
"""ONNX Runtime's time over taskmap's, at least."""
MOST_SECONDS = 3.0
"""To compile, at most."""


def exported(module: torch.nn.Module, x: torch.Tensor) -> bytes:
    """The module as an ONNX file."""
    file: Any = io.BytesIO()  # PyTorch takes a file where its annotation has a path
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, (x,), file, dynamo=False, opset_version=17, input_names=["x"])
    return bytes(file.getvalue())


@dataclass(frozen=True, slots=True)
class Case:
    """A recurrence of ``hidden`` inputs and units over ``length`` steps of ``batch`` sequences."""

    kind: str
    hidden: int
    batch: int
    length: int

    def __str__(self) -> str:
        return f"{self.kind} {self.hidden}, batch {self.batch}, {self.length} steps"


def measured(case: Case, seed: int, threads: int, protocol: Protocol, probe: Probe) -> dict[str, Any]:
    """The time to compile, the error against PyTorch in f64, and the times of a call."""
    ort: Any = import_module("onnxruntime")
    torch.manual_seed(seed)
    name, extra = KINDS[case.kind]
    module: Any = getattr(torch.nn, name)(case.hidden, case.hidden, **extra).eval()
    x = torch.randn(case.length, case.batch, case.hidden)
    data, given = exported(module, x), {"x": x.numpy()}
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    loaded = load_model(data, Options(threads=threads))
    begin = time.perf_counter()
    (first, *_) = loaded(given)
    compiling = time.perf_counter() - begin
    exact = copy.deepcopy(module).double()(x.double())[0].numpy().reshape(case.length, case.batch, -1)
    errors = [_error(r, exact) for r in (first, session.run(None, given)[0])]
    runs = {
        "taskmap": lambda: loaded(given),
        "onnxruntime": lambda: session.run(None, given),
        "eager": lambda: module(x),
    }
    kept = interleave(runs, protocol, str(case), probe).quiet(protocol.accept)
    return {
        **asdict(case),
        "name": str(case),
        "seconds_to_compile": compiling,
        "error_to_f64": errors[0],
        "error_of_onnxruntime_to_f64": errors[1],
        "milliseconds": {n: 1e3 * kept.seconds(n).median for n in runs},
        "speed": kept.speedup("taskmap", "onnxruntime").median,
        "speed_of_the_fastest_calls": kept.best("onnxruntime") / kept.best("taskmap"),
    }


def _error(result: Any, exact: Any) -> float:
    """The largest difference; ONNX's layout [steps, directions, batch, units] is converted to PyTorch's."""
    if result.ndim == 4:
        result = result.transpose(0, 2, 1, 3)
    return float(abs(result.reshape(exact.shape) - exact).max())


def _row(found: dict[str, Any]) -> tuple[str, ...]:
    times = (f"{found['milliseconds'][n]:.3f}" for n in ("taskmap", "onnxruntime", "eager"))
    error = f"{found['error_to_f64']:.1e} / {found['error_of_onnxruntime_to_f64']:.1e}"
    return (found["name"], *times, f"x{found['speed']:.2f}", f"{found['seconds_to_compile']:.2f}", error)


def main(argv: list[str] | None = None) -> int:
    """The command."""
    cli = parser(__doc__ or "", 5, ("taskmap", "onnxruntime", "eager"))
    cli.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    cli.add_argument("--hidden", nargs="+", type=int, default=[64, 67, 128, 256, 509, 512])
    cli.add_argument("--batches", nargs="+", type=int, default=[1, 4])
    cli.add_argument("--lengths", nargs="+", type=int, default=[50, 200, 1000])
    cli.add_argument("--resume", action="store_true", help="go on with a results file of the same conditions")
    Protocol.add_arguments(cli, window=0.05)
    cli.set_defaults(patience=5.0)
    arguments = cli.parse_args(argv)
    header = ("recurrence", "taskmap, ms", "onnxruntime, ms", "eager, ms", "speed", "compile, s", "errors to f64")
    report = Report("recurrent", start(arguments), header)
    protocol, probe = Protocol.of(arguments, pause=0.05), Probe()
    kept = earlier(arguments.out / "recurrent.json", report.conditions) if arguments.resume else {}
    cases = product(arguments.kinds, arguments.hidden, arguments.batches, arguments.lengths)
    with torch.no_grad():
        for case in (Case(*c) for c in cases):
            found = kept.get(str(case))
            if found is None:
                found = measured(case, arguments.seed, arguments.threads, protocol, probe)
            report.enter(found, _row(found), arguments.out)
            gc.collect()
    _sum_up(report)
    return report.finish(arguments)


def _sum_up(report: Report) -> None:
    """The checks, and the mean of each kind and each number of sequences."""
    found: list[dict[str, Any]] = report.data
    if not found:
        return
    speeds = [f["speed"] for f in found]
    report.checks.append(Check("speed, geometric mean", geometric_mean(speeds), WANTED, at_most=False))
    report.checks.append(Check("speed, the least", min(speeds), WANTED, at_most=False))
    report.checks.append(
        Check("seconds to compile, the most", max(f["seconds_to_compile"] for f in found), MOST_SECONDS)
    )
    for key in ("kind", "batch", "length", "hidden"):
        groups = {
            v: geometric_mean([f["speed"] for f in found if f[key] == v]) for v in dict.fromkeys(f[key] for f in found)
        }
        report.notes.append(f"speed by {key}: " + ", ".join(f"{v}: x{mean:.2f}" for v, mean in groups.items()))


if __name__ == "__main__":
    sys.exit(main())
