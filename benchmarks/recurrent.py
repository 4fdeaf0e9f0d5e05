"""LSTM, GRU and RNN beside ONNX Runtime and eager: latency in interleaved rounds, and the time to compile.

python -m benchmarks.recurrent [--hidden ...] [--lengths ...] [--batches ...] [--rounds N] [--threads N]
"""

from __future__ import annotations

import io
import statistics
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.report import Check, Report, parser, start

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


def once(call: Callable[[], object]) -> float:
    """Seconds of one call."""
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def main(argv: list[str] | None = None) -> int:
    """The command."""
    import onnxruntime  # noqa: PLC0415  (only this table needs it)

    from taskmap.onnx_model import load_model  # noqa: PLC0415  (measured from here on)

    cli = parser(__doc__ or "", 15, ("taskmap",))
    cli.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    cli.add_argument("--hidden", nargs="+", type=int, default=[64, 67, 128, 256, 509, 512])
    cli.add_argument("--batches", nargs="+", type=int, default=[1, 4])
    cli.add_argument("--lengths", nargs="+", type=int, default=[50, 200, 1000])
    arguments = cli.parse_args(argv)
    header = ("recurrence", "taskmap ms", "ONNX Runtime ms", "eager ms", "ONNX Runtime/taskmap", "compile s", "error")
    report = Report("recurrent", start(arguments), header)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = arguments.threads
    ratios: list[float] = []
    slowest = 0.0
    cases = [
        (k, h, b, n) for k in arguments.kinds for h in arguments.hidden for b in arguments.batches
        for n in arguments.lengths
    ]  # fmt: skip
    for kind, hidden, batch, length in cases:
        torch.manual_seed(arguments.seed)
        name, extra = KINDS[kind]
        module: Any = getattr(torch.nn, name)(hidden, hidden, **extra).eval()
        x = torch.randn(length, batch, hidden)
        data, given = exported(module, x), {"x": np.asarray(x)}
        session = onnxruntime.InferenceSession(data, options)
        loaded = load_model(data)
        with torch.no_grad():
            compiling = once(partial(loaded, given))
            calls: list[Callable[[], object]] = [
                partial(loaded, given),
                partial(session.run, None, given),
                partial(module, x),
            ]
            error = float(np.abs(loaded(given)[0] - session.run(None, given)[0]).max())
            rounds = [[once(call) for call in calls] for _ in range(arguments.rounds)]
        ours, theirs, eager = (statistics.median(times) for times in zip(*rounds, strict=True))
        ratio = statistics.median(r[1] / r[0] for r in rounds)
        ratios.append(ratio)
        slowest = max(slowest, compiling)
        cells = (f"{1e3 * t:.3f}" for t in (ours, theirs, eager))
        label = f"{kind} {hidden}, batch {batch}, {length} steps"
        report.rows.append((label, *cells, f"{ratio:.2f}", f"{compiling:.2f}", f"{error:.1e}"))
        print(*report.rows[-1], flush=True)
    report.checks.append(Check("ONNX Runtime/taskmap, the least", min(ratios), WANTED, at_most=False))
    report.checks.append(
        Check("ONNX Runtime/taskmap, geomean", statistics.geometric_mean(ratios), WANTED, at_most=False)
    )
    report.checks.append(Check("seconds to compile, the most", slowest, MOST_SECONDS))
    return report.finish(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
