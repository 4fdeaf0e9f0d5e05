"""Seconds from the start of a process to the first result of an ONNX file: `taskmap run` beside ONNX Runtime.

Each run is a process of its own, timed from its start to its end: it imports what it needs, reads the file, computes
once, and writes the outputs, which are then checked. Cold is with an empty kernel store, warm the next run; the file
itself is in the system's cache in both. "archive" is `taskmap run` of what `taskmap compile` made before; ONNX Runtime
and OpenVINO keep nothing, so their two columns tell the spread. The results file is written anew after each model.

python -m benchmarks.onnx_first_result [--models ...] [--engines ...] [--rounds N] [--files FOLDER]
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from tqdm import tqdm

from benchmarks.models import MODELS
from benchmarks.onnx_files import WRONG, ModelFile, exported
from benchmarks.support.engines import installed
from benchmarks.support.harness import Spread
from benchmarks.support.report import Report, parser, start

PHASES = ("cold", "warm")
ENGINES = ("taskmap", "archive", "onnxruntime", "openvino")
ROOT = Path(__file__).parent.parent
BYTECODE = Path(tempfile.gettempdir()) / "taskmap-bench-bytecode"
LONGEST = 300
"""Seconds after which a process is ended."""
ONNXRUNTIME = """
import sys
import numpy as np
import onnxruntime as ort
path, inputs, threads, out = sys.argv[1:]
options = ort.SessionOptions()
options.intra_op_num_threads = int(threads)
session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
np.savez(out, *session.run(None, dict(np.load(inputs))))
"""
OPENVINO = """
import sys
import numpy as np
import openvino as ov
path, inputs, threads, out = sys.argv[1:]
settings = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": int(threads)}
model = ov.Core().compile_model(path, "CPU", settings)
np.savez(out, *model(dict(np.load(inputs))).to_tuple())
"""


def command(engine: str, file: ModelFile, threads: int, out: Path) -> list[str]:
    """The command line to run: it writes the outputs to `out` in order."""
    inputs = str(file.folder / "inputs.npz")
    if engine in ("onnxruntime", "openvino"):
        program = ONNXRUNTIME if engine == "onnxruntime" else OPENVINO
        return [sys.executable, "-c", program, str(file.path), inputs, str(threads), str(out)]
    path = file.path if engine == "taskmap" else file.folder / f"model-{threads}.taskmap"
    options = ["--input", inputs, "--threads", str(threads), "--warmup", "0", "--save", str(out)]
    return [sys.executable, "-m", "taskmap.cli", "run", str(path), *options]


def measured(words: list[str], threads: int, cache: Path) -> float:
    """The seconds of a process. Raises RuntimeError where it does not end in LONGEST, and with its last line where it
    fails."""
    environment = {**os.environ, "TASKMAP_CACHE_DIR": str(cache), "OMP_NUM_THREADS": str(threads), "TQDM_DISABLE": "1"}
    # Bytecode is kept, whatever the environment says: that of an installed package, as ONNX Runtime's is, is too.
    environment |= {"PYTHONPYCACHEPREFIX": str(BYTECODE), "PYTHONDONTWRITEBYTECODE": ""}
    begin = time.perf_counter()
    try:
        done = subprocess.run(
            words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=LONGEST
        )
    except subprocess.TimeoutExpired as late:
        raise RuntimeError(f"it did not end in {LONGEST} s") from late
    seconds = time.perf_counter() - begin
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise RuntimeError(lines[-1] if lines else f"exit status {done.returncode}")
    return seconds


def one(engine: str, file: ModelFile, threads: int, cache: Path) -> float:
    """The seconds until the first result of `engine`. Raises RuntimeError if it fails or the result is wrong."""
    out = cache / "outputs.npz"
    seconds = measured(command(engine, file, threads, out), threads, cache)
    with np.load(out) as stored:
        error = file.error([stored[name] for name in stored.files])
    if error > WRONG:
        raise RuntimeError(f"wrong result: relative error {error:.1e} against float64")
    return seconds


def archive(file: ModelFile, threads: int, cache: Path) -> str | None:
    """Makes the archive of a file; returns the reason why it cannot be made, or None."""
    made = file.folder / f"model-{threads}.taskmap"
    words = ["compile", str(file.path), "-o", str(made), "--threads", str(threads)]
    try:
        measured([sys.executable, "-m", "taskmap.cli", *words], threads, cache)
    except RuntimeError as problem:
        return f"{file.name}, compile: {problem}"
    return None


def collect(file: ModelFile, engines: list[str], rounds: int, seed: int, threads: int) -> tuple[Times, list[str]]:
    """The times of all rounds, and a note on each engine that failed.

    taskmap comes first in the first round: the archive is made from the kernels that it leaves.
    """
    times: Times = {(engine, phase): [] for engine in engines for phase in PHASES}
    notes: dict[str, None] = {}
    draw = random.Random(seed)
    with tqdm(total=rounds * len(engines), desc=file.name, leave=False, disable=None) as bar:
        for number in range(rounds):
            order = list(engines)
            draw.shuffle(order)
            if number == 0:
                order.sort(key=lambda engine: engine != "taskmap")
            for place, engine in enumerate(order):
                with tempfile.TemporaryDirectory(prefix="taskmap-bench-") as folder:
                    for phase in PHASES:
                        try:
                            times[engine, phase].append(one(engine, file, threads, Path(folder)))
                        except RuntimeError as problem:
                            notes[f"{file.name}, {engine}, {phase}: {problem}"] = None
                    if number == place == 0 and "archive" in engines and (why := archive(file, threads, Path(folder))):
                        notes[why] = None
                bar.update()
    return times, list(notes)


Times = dict[tuple[str, str], list[float]]
"""Seconds of every round by engine and phase."""


def main(argv: list[str] | None = None) -> int:
    """The command."""
    cli = parser(__doc__ or "", 3, ENGINES)
    cli.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    cli.add_argument("--small", action="store_true", help="the small variants")
    cli.add_argument("--files", type=Path, help="a folder that keeps the exported files")
    arguments = cli.parse_args(argv)
    conditions = start(arguments)
    unknown = [name for name in arguments.engines if name not in ENGINES]
    if unknown:
        raise SystemExit(f"unknown engine {unknown[0]!r}; known are {', '.join(ENGINES)}")
    engines = [e for e in arguments.engines if e in ("taskmap", "archive") or installed(e)]
    notes = [f"{name} was left out: it is not installed" for name in arguments.engines if name not in engines]
    header = ("model, s", *(f"{engine}, {phase}" for engine in engines for phase in PHASES))
    report = Report("onnx_first_result", conditions, header, notes=notes)
    with tempfile.TemporaryDirectory(prefix="taskmap-bench-") as folder:
        for model in arguments.models:
            file = exported(model, arguments.seed, arguments.small, arguments.files or Path(folder))
            times, failures = collect(file, engines, arguments.rounds, arguments.seed, arguments.threads)
            report.notes += failures
            cells = [times[engine, phase] for engine in engines for phase in PHASES]
            report.rows.append((model, *(Spread.of(cell).text() if cell else "failed" for cell in cells)))
            report.data.append({"model": model, **{f"{e}, {p}": found for (e, p), found in times.items()}})
            print(" | ".join(report.rows[-1]), file=sys.stderr, flush=True)
            report.write(arguments.out)
    return report.finish(arguments)


if __name__ == "__main__":
    sys.exit(main())
